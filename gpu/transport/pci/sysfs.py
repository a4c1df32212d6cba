"""PCI functions by their files in sysfs: what they are, and their BARs.

Formats: Linux 6.12 drivers/pci/pci-sysfs.c. Sysfs tells nobody at which addresses a function finds
memory, and keeps no function from reaching all of it: DMA, interrupts and writes to config space
take VFIO.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, NoReturn

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import FormatError, InvalidIndex, InvalidValue, TransportError, Unsupported
from gpu.core.pci import Bar, PciAddress, PciIds
from gpu.core.window import MemoryWindow, TrappedWindow, check_range
from gpu.transport.os import Os
from gpu.transport.pci.function import DmaMemory, Interrupt

DEVICES: Final = "/sys/bus/pci/devices"
_BARS: Final = range(6)
# include/linux/ioport.h
_IO: Final = 0x100
_PREFETCH: Final = 0x2000
_MEM_64: Final = 0x100000


class SysfsBus:
    """The functions that a system lists in sysfs. See `gpu.transport.pci.function.PciBus`."""

    def __init__(self, system: Os):
        self._os = system

    def list_functions(self) -> Sequence[PciAddress]:
        """All of them, in order; none where the system has no PCI."""
        if not self._os.exists(DEVICES):
            return ()
        return sorted(PciAddress.parse(name) for name in self._os.list_dir(DEVICES))

    def open(self, address: PciAddress) -> SysfsFunction:
        """A function to look at. Raises TransportError(ENODEV)."""
        if not self._os.exists(f"{DEVICES}/{address}"):
            raise TransportError(f"there is no PCI function {address}", errno.ENODEV)
        return SysfsFunction(self._os, address)


class SysfsFunction:
    """One of them. See `gpu.transport.pci.function.PciFunction`.

    BARs are only for functions that no kernel driver has.
    """

    def __init__(self, system: Os, address: PciAddress):
        self._os = system
        self._address = address
        self._folder = f"{DEVICES}/{address}"
        self._mapped: list[tuple[int, int]] = []

    @property
    def address(self) -> PciAddress:
        """Where it is."""
        return self._address

    @cached_property
    def ids(self) -> PciIds:
        """What it is. Raises FormatError, TransportError."""
        names = ("vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class")
        return PciIds(*(self._number(name) for name in names))

    @cached_property
    def config(self) -> TrappedWindow:
        """Config space for reading: of 64 bytes without rights, else 256 or 4096."""
        size = len(self._os.read_file(f"{self._folder}/config"))
        return TrappedWindow(size, self._read_config, self._write_config, widest=4)

    @property
    def bars(self) -> Mapping[int, Bar]:
        """Its ranges. Raises FormatError, TransportError."""
        return {index: bar for index, (bar, _) in self._ranges.items()}

    @cached_property
    def _ranges(self) -> dict[int, tuple[Bar, int]]:
        """The same, and where each begins on the bus."""
        found = {}
        lines = self._os.read_file(f"{self._folder}/resource").decode().splitlines()
        for index, line in zip(_BARS, lines, strict=False):
            try:
                start, end, flags = (int(word, 16) for word in line.split())
            except ValueError as error:
                raise FormatError(f"{self._folder}/resource, line {index}: {line!r}") from error
            if end > start:
                wide, ahead = bool(flags & _MEM_64), bool(flags & _PREFETCH)
                found[index] = Bar(end - start + 1, bool(flags & _IO), wide, ahead), start
        return found

    def window(self, bar: int) -> MemoryWindow:
        """All of a BAR. Raises as `map` does."""
        return self.map(bar, 0, self._bar(bar).size)

    def map(self, bar: int, offset: int, size: int) -> MemoryWindow:
        """A part of a BAR that begins at a page.

        Raises TransportError: EBUSY while a kernel driver has the function; AccessDenied;
        Unsupported for ports; InvalidIndex, InvalidValue.
        """
        facts = self._bar(bar)
        check_range(facts.size, offset, size)
        if facts.is_io:
            raise Unsupported(f"BAR {bar} of {self._address} is of ports, which are not mapped")
        if not size or offset % hostmem.page_size:
            raise InvalidValue(
                f"{size:#x} bytes at {offset:#x} of BAR {bar}: a mapping begins at a page of"
                f" {hostmem.page_size:#x}"
            )
        self._check_free()
        fd = self._os.open(f"{self._folder}/resource{bar}", os.O_RDWR | os.O_SYNC)
        try:
            # A BAR of less than a page begins within one, and all of that is mapped.
            skew = self._ranges[bar][1] % hostmem.page_size
            whole = align_up(skew + size, hostmem.page_size)
            protection = hostmem.PROT_READ | hostmem.PROT_WRITE
            address = self._os.mmap(fd, whole, protection, hostmem.MAP_SHARED, offset)
        finally:
            self._os.close(fd)
        self._mapped.append((address, whole))
        return MemoryWindow(address + skew, size)

    def set_bus_master(self, allowed: bool) -> None:
        """Raises Unsupported."""
        self._refuse("bus mastering")

    def allocate(self, size: int) -> DmaMemory:
        """Raises Unsupported."""
        self._refuse("memory for DMA")

    def share(self, address: int, size: int) -> DmaMemory:
        """Raises Unsupported."""
        self._refuse("memory for DMA")

    def interrupts(self, count: int) -> Sequence[Interrupt]:
        """Raises Unsupported."""
        self._refuse("interrupts")

    def resize(self, bar: int, size: int) -> None:
        """`resourceN_resize`, for who may write it; the function must be free, as for `map`.

        Raises TransportError, AccessDenied, InvalidValue for a size that it does not list.
        """
        self._bar(bar)
        self._check_free()
        path = f"{self._folder}/resource{bar}_resize"
        listed = int(self._os.read_file(path), 16)  # bit n: 2^n MiB
        number = size.bit_length() - 21
        if size != 1 << max(size.bit_length() - 1, 0) or number < 0 or not listed >> number & 1:
            raise InvalidValue(f"size {size:#x} of BAR {bar}: 2^n MiB of n in mask {listed:#x}")
        self._os.write_file(path, f"{number}\n".encode())
        with contextlib.suppress(AttributeError):
            del self._ranges

    def reset(self) -> None:
        """The reset that the kernel has for it. Raises TransportError, AccessDenied."""
        self._check_free()
        self._os.write_file(f"{self._folder}/reset", b"1\n")

    def close(self) -> None:
        """Unmaps its BARs."""
        while self._mapped:
            self._os.munmap(*self._mapped.pop())

    def _bar(self, bar: int) -> Bar:
        if bar not in self.bars:
            known = ", ".join(map(str, self.bars)) or "none"
            raise InvalidIndex(f"{self._address} has no BAR {bar}, but {known}")
        return self.bars[bar]

    def _number(self, name: str) -> int:
        text = self._os.read_file(f"{self._folder}/{name}").decode().strip()
        try:
            return int(text, 16)
        except ValueError as error:
            raise FormatError(f"{self._folder}/{name}: {text!r} is no number") from error

    def _check_free(self) -> None:
        """Raises TransportError(EBUSY) where a kernel driver has the function."""
        if self._os.exists(f"{self._folder}/driver"):
            raise TransportError(
                f"{self._address} belongs to a kernel driver, see {self._folder}/driver: two"
                " drivers of one device destroy each other's work",
                errno.EBUSY,
            )

    def _read_config(self, offset: int, width: int) -> int:
        data = self._os.read_file(f"{self._folder}/config")[offset : offset + width]
        return int.from_bytes(data, "little")

    def _write_config(self, offset: int, width: int, value: int) -> None:
        self._refuse("writing to config space")

    def _refuse(self, what: str) -> NoReturn:
        raise Unsupported(f"{what} of {self._address}: not through sysfs, VFIO would be needed")
