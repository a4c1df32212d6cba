"""A PCI function behind a bridge on USB. See `gpu.transport.pci.function.PciFunction`.

Nothing is mapped into this process: registers are single requests, and video memory streams, of
which each ends in a request that is answered. The function reaches no memory of this machine.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from gpu.core.errors import (
    DeviceError,
    InvalidIndex,
    InvalidValue,
    TransportError,
    Unsupported,
)
from gpu.core.log import get_logger
from gpu.core.pci import Bar, PciAddress, PciIds
from gpu.core.wait import Waiter
from gpu.core.window import (
    MemoryWindow,
    TrappedWindow,
    Window,
    check_access,
    check_range,
    check_value,
)
from gpu.transport.asm24.find import open_bridge
from gpu.transport.asm24.link import Link
from gpu.transport.asm24.sram import Sram
from gpu.transport.asm24.topology import (
    Found,
    Walk,
    config_of,
    enlarge,
    open_path,
    place_bars,
    resizable,
    resize,
    starts_of,
)
from gpu.transport.pci.config import (
    BARS_SIZE,
    COMMAND,
    FIRST_BAR,
    MASTER,
    MEMORY,
    change,
    set_master,
)
from gpu.transport.pci.function import DmaMemory, Interrupt
from gpu.transport.usb import UsbBus

_DWORD: Final = 4
_log = get_logger(__name__)


class UsbFunction:
    """One function behind a bridge, both this process's until `close`."""

    def __init__(self, link: Link, found: Found):
        """``found`` is of a walk over ``link``; it gets addresses, and decodes them."""
        self._link = link
        self._found = found
        self._raw = config_of(link, found.address)
        self._answered: set[int] = set()  # BARs that were seen to decode
        self._is_open = True
        change(self._raw, COMMAND, remove=MEMORY)
        enlarge(self._raw)
        self._place()
        change(self._raw, COMMAND, remove=MASTER)  # whoever had it before may have left it
        self._config = TrappedWindow(
            self._raw.size, self._read_config, self._write_config, widest=_DWORD
        )

    def _place(self) -> None:
        """Addresses for the BARs as large as they are now, and the way there."""
        self._ranges = place_bars(self._raw)
        open_path(self._link, self._found.path, self._ranges)
        self._answered.clear()
        change(self._raw, COMMAND, add=MEMORY)

    @property
    def sram(self) -> Sram | None:
        """Memory of the bridge that it reaches, being a bus master; the maker's keeps its own."""
        return Sram(self._link) if self._link.bridge.has_streams else None

    @property
    def address(self) -> PciAddress:
        """Where it is behind its bridge."""
        return self._found.address

    @property
    def ids(self) -> PciIds:
        """What it is."""
        return self._found.ids

    @property
    def config(self) -> Window:
        """All of config space; its BARs are not written."""
        return self._config

    @property
    def bars(self) -> Mapping[int, Bar]:
        """Its ranges of memory; those of ports are not reached."""
        return {index: placed.bar for index, placed in self._ranges.bars.items()}

    def _read_config(self, offset: int, width: int) -> int:
        self._need_open()
        return self._raw.read(offset, width)

    def _write_config(self, offset: int, width: int, value: int) -> None:
        self._need_open()
        if FIRST_BAR <= offset < FIRST_BAR + BARS_SIZE:
            raise Unsupported(f"BARs of {self._title} are where the bridges look for them")
        if offset < COMMAND + 2 and offset + width > COMMAND:
            self._answered.clear()  # they may not be decoded any more
        self._raw.write(offset, width, value)

    def window(self, bar: int) -> Window:
        """Registers or memory; copies of memory that is prefetchable are streams."""
        self._start_of(bar)
        return BarWindow(self, bar, 0, self.bars[bar].size)

    def map(self, bar: int, offset: int, size: int) -> MemoryWindow:
        """Raises Unsupported."""
        raise Unsupported(f"BAR {bar} of {self._title} is no memory of this process: use `window`")

    def set_bus_master(self, allowed: bool) -> None:
        """Whether it may reach the bridge's memory; it decodes its BARs in either case.

        When it may, they are as they were, also after a reset that the card did by itself.
        """
        self._need_open()
        if allowed and starts_of(self._raw, self._ranges) != self._ranges.starts():
            self._restore()
        set_master(self._raw, allowed)

    def _restore(self) -> None:
        """Sizes and places as they were, in config space that has forgotten them."""
        change(self._raw, COMMAND, remove=MEMORY)
        for bar, (control, sizes) in resizable(self._raw).items():
            resize(self._raw, bar, control, sizes, self.bars[bar].size.bit_length() - 21)
        self._place()

    def allocate(self, size: int) -> DmaMemory:
        """Raises Unsupported."""
        self._refuse_memory()

    def share(self, address: int, size: int) -> DmaMemory:
        """Raises Unsupported."""
        self._refuse_memory()

    def _refuse_memory(self) -> NoReturn:
        raise Unsupported(
            f"{self._title} reaches no memory of this machine: what both see is on the card"
        )

    def interrupts(self, count: int) -> Sequence[Interrupt]:
        """Raises Unsupported: they would go to the bridge, which passes none on."""
        raise Unsupported(f"{self._title} sends no interrupts over USB: it is polled")

    def check(self) -> None:
        """Raises DeviceLost where it was unplugged, or its link is down."""
        self._need_open()
        self._link.check()

    def resize(self, bar: int, size: int) -> None:
        """All BARs get new addresses. Raises Unsupported for a size that it cannot have."""
        self._start_of(bar)
        known = resizable(self._raw)
        if bar not in known:
            raise Unsupported(f"BAR {bar} of {self._title} has one size only")
        if size < 1 << 20 or size & (size - 1):
            raise InvalidValue(f"BAR {bar}: {size:#x} bytes; sizes are powers of two from 1 MiB up")
        change(self._raw, COMMAND, remove=MEMORY)
        try:
            resize(self._raw, bar, *known[bar], size.bit_length() - 21)
        finally:
            self._place()

    def reset(self) -> None:
        """Raises Unsupported."""
        raise Unsupported(
            f"{self._title} is not reset by itself over USB: take the enclosure's power away"
        )

    def close(self) -> None:
        """Ends bus mastering, and gives the bridge back; again does nothing."""
        if not self._is_open:
            return
        try:
            self.set_bus_master(False)
        except DeviceError as error:  # what is gone reaches nothing
            _log.debug("%s: bus mastering could not be ended: %s", self._title, error.message)
        self._is_open = False
        self._link.bridge.close()

    # What its windows ask for

    def read(self, bar: int, offset: int, width: int) -> int:
        """One access, which tells that the BAR is decoded."""
        value = self._link.read(self._start_of(bar) + offset, width)
        self._answered.add(bar)
        return value

    def write(self, bar: int, offset: int, width: int, value: int) -> None:
        """One access, posted."""
        start = self._memory_at(bar, offset) if width > _DWORD else self._start_of(bar) + offset
        self._link.write(start, width, value)

    def load(self, bar: int, offset: int, size: int) -> bytes:
        """A copy of prefetchable memory."""
        return self._link.load(self._memory_at(bar, offset), size)

    def store(self, bar: int, offset: int, data: memoryview) -> None:
        """A copy to prefetchable memory."""
        self._link.store(self._memory_at(bar, offset), data)

    def _memory_at(self, bar: int, offset: int) -> int:
        """Where a part of a BAR is that is known to be decoded: one read of it was answered."""
        if bar not in self._answered:
            self.read(bar, offset - offset % _DWORD, _DWORD)
        return self._start_of(bar) + offset

    def _start_of(self, bar: int) -> int:
        self._need_open()
        if bar not in self._ranges.bars:
            known = ", ".join(map(str, self._ranges.bars)) or "none"
            raise InvalidIndex(f"{self._title} has no BAR {bar}, but {known}")
        return self._ranges.bars[bar].start

    def _need_open(self) -> None:
        if not self._is_open:
            raise TransportError(f"{self._title} was closed", errno.EBADF)

    @property
    def _title(self) -> str:
        return f"{self._found.address} behind {self._link.name}"


class BarWindow:
    """A part of a BAR. See `gpu.core.window.Window`."""

    def __init__(self, function: UsbFunction, bar: int, base: int, size: int):
        self._function = function
        self._bar = bar
        self._base = base
        self.size = size
        self._is_memory = function.bars[bar].prefetchable

    def read(self, offset: int, width: int) -> int:
        """One request, or two for 8 bytes; see `Window.read`."""
        check_access(self.size, offset, width, self._base)
        return self._function.read(self._bar, self._base + offset, width)

    def write(self, offset: int, width: int, value: int) -> None:
        """One request, or two for 8 bytes; see `Window.write`."""
        check_access(self.size, offset, width, self._base)
        check_value(offset, width, value)
        self._function.write(self._bar, self._base + offset, width, value)

    def load(self, offset: int, size: int) -> bytes:
        """A stream of memory; of registers an access for each dword. `InvalidIndex` outside."""
        check_range(self.size, offset, size)
        if self._is_memory and size:
            return self._function.load(self._bar, self._base + offset, size)
        return self._single().load(self._base + offset, size)

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """A stream to memory; to registers an access for each dword. `InvalidIndex` outside."""
        source = memoryview(data).cast("B")
        check_range(self.size, offset, source.nbytes)
        if self._is_memory and source.nbytes:
            self._function.store(self._bar, self._base + offset, source)
        else:
            self._single().store(self._base + offset, source)

    def sub(self, offset: int, size: int) -> BarWindow:
        """The part of ``size`` bytes at ``offset``; `InvalidIndex` outside the window."""
        check_range(self.size, offset, size)
        return BarWindow(self._function, self._bar, self._base + offset, size)

    def _single(self) -> TrappedWindow:
        function, bar = self._function, self._bar

        def read(offset: int, width: int) -> int:
            return function.read(bar, offset, width)

        def write(offset: int, width: int, value: int) -> None:
            function.write(bar, offset, width, value)

        return TrappedWindow(function.bars[bar].size, read, write, _DWORD)


def open_link(bus: UsbBus, waiter: Waiter, index: int) -> Link:
    """A bridge by its place, its link up. Raises DeviceError, InvalidIndex, DeviceLost, ..."""
    bridge = open_bridge(bus, index)
    try:
        link = Link(bridge, waiter)
        link.train()
    except BaseException:
        bridge.close()
        raise
    return link


def open_function(bus: UsbBus, waiter: Waiter, index: int, vendor: int) -> UsbFunction:
    """The first function of a vendor behind a bridge, by the bridge's place.

    Raises as `open_link`; DeviceError where there is none.
    """
    link = open_link(bus, waiter, index)
    try:
        found = Walk(link).found
        for each in found:
            if each.ids.vendor == vendor:
                return UsbFunction(link, each)
        seen = ", ".join(f"{f.ids.vendor:04x}:{f.ids.device:04x}" for f in found) or "nothing"
        raise DeviceError(f"{link.name}: no function of vendor {vendor:04x} is behind it: {seen}")
    except BaseException:
        link.bridge.close()
        raise
