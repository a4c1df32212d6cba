"""PCI functions by their files in sysfs: for looking at, and for use where there is no IOMMU.

Nothing keeps such a function from reaching all of memory: a wrong address in a driver, or in what a
card is told to do, overwrites whatever is there, the kernel included. So it is asked for by
PCI_ACCESS=sysfs alone (`gpu.transport.pci.bus`). Interrupts take VFIO: drivers poll.

Exclusion is flock on ``resource0``. Formats: Linux 6.12 drivers/pci/pci-sysfs.c.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import (
    DeviceLost,
    InvalidIndex,
    InvalidValue,
    TransportError,
    Unsupported,
)
from gpu.core.pci import Bar, DmaPiece, PciAddress, PciIds
from gpu.core.window import MemoryWindow, TrappedWindow, Window, check_range
from gpu.transport.os import Os
from gpu.transport.pci import tree
from gpu.transport.pci.claim import resize
from gpu.transport.pci.config import (
    BARS_SIZE,
    COMMAND,
    FIRST_BAR,
    MASTER,
    MEMORY,
    change,
    set_master,
)
from gpu.transport.pci.function import Interrupt
from gpu.transport.pci.pinned import Guard, PinnedMemory, ProcessGuard

_GONE: Final = 0xFFFF


class SysfsDma:
    """Memory that a function may reach. See `gpu.transport.pci.function.DmaMemory`."""

    def __init__(self, memory: PinnedMemory):
        self.window = MemoryWindow(memory.address, memory.size)
        self.pieces: Sequence[DmaPiece] = memory.pieces

    def close(self) -> None:
        """Keeps the pages until the function is closed: nothing else ends what the card may do."""


class SysfsFunction:
    """One function. See `gpu.transport.pci.function.PciFunction`.

    It may be looked at as it is; the rest is for functions that no kernel driver has.
    """

    def __init__(
        self,
        system: Os,
        address: PciAddress,
        start_guard: Callable[[int, int], Guard] = ProcessGuard,
    ):
        """`start_guard` is given descriptors of config space and of what is locked."""
        self._os = system
        self._address = address
        self._folder = tree.folder_of(address)
        self._start_guard = start_guard
        self._guard: Guard | None = None
        self._mapped: list[tuple[int, int]] = []
        self._windows: list[Window] = []
        self._memory: list[PinnedMemory] = []
        self._config_fd = self._lock_fd = -1

    @property
    def address(self) -> PciAddress:
        """Where it is."""
        return self._address

    @cached_property
    def ids(self) -> PciIds:
        """What it is. Raises FormatError, TransportError."""
        return tree.ids_of(self._os, self._address)

    @cached_property
    def config(self) -> TrappedWindow:
        """Config space: of 64 bytes without rights, else 256 or 4096; written once it is taken."""
        size = len(self._os.read_file(f"{self._folder}/config"))
        return TrappedWindow(size, self._read_config, self._write_config, widest=4)

    @property
    def bars(self) -> Mapping[int, Bar]:
        """Its ranges. Raises FormatError, TransportError."""
        return {index: found.bar for index, found in self._ranges.items()}

    @cached_property
    def _ranges(self) -> dict[int, tree.Range]:
        return tree.ranges_of(self._os, self._address)

    def take(self) -> SysfsFunction:
        """Makes it this process's: locked, awake, and its memory decoded.

        Raises TransportError(EBUSY) where a kernel driver or another process has it, AccessDenied.
        """
        self._check_free()
        self._lock_fd = self._os.open(f"{self._folder}/resource{min(self.bars)}", os.O_RDWR)
        try:
            self._os.lock(self._lock_fd)
            if self._os.read_file(f"{self._folder}/enable").strip() == b"0":
                self._os.write_file(f"{self._folder}/enable", b"1\n")
            self._config_fd = self._os.open(f"{self._folder}/config", os.O_RDWR | os.O_SYNC)
            self._bars_taken = self.config.load(FIRST_BAR, BARS_SIZE)
            change(self.config, COMMAND, add=MEMORY, remove=MASTER)
        except BaseException as error:
            self.close()
            if isinstance(error, TransportError) and error.errno == errno.EWOULDBLOCK:
                path = f"{self._folder}/resource{min(self.bars)}"
                raise TransportError(
                    f"{self._address} is in use: `sudo fuser -v {path}` names by whom", errno.EBUSY
                ) from error
            raise
        return self

    def window(self, bar: int) -> Window:
        """All of a BAR. Raises as `map` does."""
        facts, skew = self._free_bar(bar)
        with self._opened(bar) as fd:
            window = self._os.window(fd, skew + facts.size, 0)
        self._windows.append(window)
        return window.sub(skew, facts.size) if skew else window

    def map(self, bar: int, offset: int, size: int) -> MemoryWindow:
        """A part of a BAR that begins at a page.

        Raises TransportError: EBUSY while a kernel driver has the function; AccessDenied;
        Unsupported for ports; InvalidIndex, InvalidValue.
        """
        check_range(self._bar(bar).size, offset, size)
        if not size or offset % hostmem.page_size:
            raise InvalidValue(
                f"{size:#x} bytes at {offset:#x} of BAR {bar}: a mapping begins at a page of"
                f" {hostmem.page_size:#x}"
            )
        _, skew = self._free_bar(bar)
        whole = align_up(skew + size, hostmem.page_size)
        protection = hostmem.PROT_READ | hostmem.PROT_WRITE
        with self._opened(bar) as fd:
            address = self._os.mmap(fd, whole, protection, hostmem.MAP_SHARED, offset)
        self._mapped.append((address, whole))
        return MemoryWindow(address + skew, size)

    def set_bus_master(self, allowed: bool) -> None:
        """Changes the command register, once the guard is there. Raises TransportError."""
        self._need_taken()
        if allowed:
            self._start()
            if self.config.load(FIRST_BAR, BARS_SIZE) != self._bars_taken:
                self.config.store(FIRST_BAR, self._bars_taken)
        set_master(self.config, allowed)

    def allocate(self, size: int) -> SysfsDma:
        """Pages of the system that stay where they are. Raises OutOfMemory, AccessDenied.

        They are kept until `close`, as nothing takes them from the card before.
        """
        self._need_taken()
        if size < 1:
            raise InvalidValue(f"{size} bytes of memory for {self._address}: at least 1 is needed")
        memory = PinnedMemory(self._os, self._start(), size)
        self._memory.append(memory)
        return SysfsDma(memory)

    def share(self, address: int, size: int) -> SysfsDma:
        """Raises Unsupported: pages of a process may be moved at any time."""
        raise Unsupported(
            f"pages of this process for {self._address}: without an IOMMU they may move while the"
            " card writes; copy by way of `allocate`, or use VFIO"
        )

    def interrupts(self, count: int) -> Sequence[Interrupt]:
        """Raises Unsupported: sysfs has none."""
        raise Unsupported(f"interrupts of {self._address}: not through sysfs, VFIO would be needed")

    def check(self) -> None:
        """Raises DeviceLost where nothing answers any more."""
        if self.config.read(0, 2) == _GONE:
            raise DeviceLost(
                f"{self._address} does not answer: it is gone from the bus, or its power is off"
            )

    def resize(self, bar: int, size: int) -> None:
        """`resourceN_resize`, for who may write it; the function must be free, as for `map`.

        Raises TransportError, AccessDenied, InvalidValue for a size that it does not list.
        """
        self._bar(bar)
        self._check_free()
        resize(self._os, self._address, bar, size)
        with contextlib.suppress(AttributeError):
            del self._ranges

    def reset(self) -> None:
        """The reset that the kernel has for it. Raises TransportError, AccessDenied."""
        self._check_free()
        self._os.write_file(f"{self._folder}/reset", b"1\n")

    def close(self) -> None:
        """Ends bus mastering, then unmaps its BARs and gives memory and lock back."""
        if self._config_fd >= 0:
            with contextlib.suppress(TransportError):  # gone; the guard sees that too
                change(self.config, COMMAND, remove=MASTER)
        while self._windows:
            self._os.close_window(self._windows.pop())
        while self._mapped:
            self._os.munmap(*self._mapped.pop())
        if self._guard is not None:
            guard, self._guard = self._guard, None
            guard.close()
        while self._memory:
            self._memory.pop().close()
        for fd in (self._config_fd, self._lock_fd):
            if fd >= 0:
                self._os.close(fd)
        self._config_fd = self._lock_fd = -1

    def _start(self) -> Guard:
        if self._guard is None:
            self._guard = self._start_guard(self._config_fd, self._lock_fd)
        return self._guard

    @contextlib.contextmanager
    def _opened(self, bar: int) -> Iterator[int]:
        fd = self._os.open(f"{self._folder}/resource{bar}", os.O_RDWR | os.O_SYNC)
        try:
            yield fd
        finally:
            self._os.close(fd)

    def _free_bar(self, bar: int) -> tuple[Bar, int]:
        """A BAR of memory, and how far from a page it begins: all of that page is mapped."""
        facts = self._bar(bar)
        if facts.is_io:
            raise Unsupported(f"BAR {bar} of {self._address} is of ports, which are not mapped")
        self._check_free()
        return facts, self._ranges[bar].start % hostmem.page_size

    def _bar(self, bar: int) -> Bar:
        if bar not in self.bars:
            known = ", ".join(map(str, self.bars)) or "none"
            raise InvalidIndex(f"{self._address} has no BAR {bar}, but {known}")
        return self.bars[bar]

    def _need_taken(self) -> None:
        if self._config_fd < 0:
            raise TransportError(
                f"{self._address} is only looked at: it was not taken, or closed", errno.EBADF
            )

    def _check_free(self) -> None:
        """Raises TransportError(EBUSY) where a kernel driver has the function."""
        if driver := tree.driver(self._os, self._address):
            raise TransportError(
                f"{self._address} belongs to the kernel's driver {driver}, and two drivers of one"
                f" device destroy each other's work: `sudo PCI_ACCESS=sysfs gpu pci take"
                f" {self._address}`",
                errno.EBUSY,
            )

    def _read_config(self, offset: int, width: int) -> int:
        if self._config_fd >= 0:
            data = self._os.pread(self._config_fd, width, offset)
        else:
            data = self._os.read_file(f"{self._folder}/config")[offset : offset + width]
        return int.from_bytes(data, "little")

    def _write_config(self, offset: int, width: int, value: int) -> None:
        self._need_taken()
        self._os.pwrite(self._config_fd, value.to_bytes(width, "little"), offset)
