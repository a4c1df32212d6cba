"""What is behind the link: bus numbers, and places in memory of the bus for one function's BARs.

Nobody has numbered the buses: each bridge between us and the card gets its numbers in one write of
four bytes, and is told exactly which addresses lead to the card.

Sources: PCI Local Bus 3.0, 6.2.5; PCI-to-PCI Bridge 1.2, 3.2.5; PCI Express Base 4.0, 7.5.3.2 (port
types) and 7.8.6 (resizable BARs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gpu.core.bits import align_up
from gpu.core.errors import OutOfMemory, Unsupported
from gpu.core.pci import Bar, PciAddress, PciIds
from gpu.core.window import TrappedWindow, Window
from gpu.transport.asm24.link import Link
from gpu.transport.asm24.tlp import RequestFailed
from gpu.transport.pci.config import (
    COMMAND,
    FIRST_BAR,
    MASTER,
    MEMORY,
    capabilities,
    change,
    extended_capabilities,
)

CONFIG_SIZE: Final = 4096
_NOBODY: Final = 0xFFFF
_REVISION, _HEADER, _SUBSYSTEM = 0x08, 0x0E, 0x2C
_IS_BRIDGE, _HAS_OTHERS = 1, 0x80
_BUSES, _MEMORY, _PREFETCHABLE, _BASE_HIGH, _LIMIT_HIGH = 0x18, 0x20, 0x24, 0x28, 0x2C
_ALL_BEHIND: Final = 0xFF  # subordinate bus, while nobody knows how many there are
_HAS_64BIT: Final = 1
_EXPRESS, _UPSTREAM = 0x10, 5
_RESIZABLE: Final = 0x15
_BARS: Final = 6
_IO, _IS_64BIT, _IS_PREFETCHABLE = 1, 4, 8
_ONES: Final = 0xFFFF_FFFF
_CLOSED: Final = 0xFFF0  # a window whose end lies before its beginning
_MIB: Final = 1 << 20  # windows of bridges are whole ones
MEMORY_START, MEMORY_END = 0x1000_0000, 1 << 32
PREFETCHABLE_START, PREFETCHABLE_END = 32 << 30, 1 << 44


class Found(NamedTuple):
    """A function, and the bridges that lead to it, the nearest to us first."""

    address: PciAddress
    ids: PciIds
    path: tuple[PciAddress, ...]


class Placed(NamedTuple):
    """A BAR, and where it begins on the bus."""

    bar: Bar
    start: int


class Ranges(NamedTuple):
    """What a function decodes, by BAR, and where each of its two spaces ends."""

    bars: Mapping[int, Placed]
    memory_end: int
    prefetchable_end: int

    def starts(self) -> dict[int, int]:
        """Where each BAR begins."""
        return {index: placed.start for index, placed in self.bars.items()}


def config_of(link: Link, function: PciAddress) -> TrappedWindow:
    """Config space of a function; each access is a request."""

    def read(offset: int, width: int) -> int:
        return link.read_config(function, offset, width)

    def write(offset: int, width: int, value: int) -> None:
        link.write_config(function, offset, width, value)

    return TrappedWindow(CONFIG_SIZE, read, write, widest=4)


class Walk:
    """Numbers the buses behind a link, once, and lists the functions there that are no bridges."""

    def __init__(self, link: Link):
        """``link`` is up."""
        self._link = link
        self._last = 0
        self.found: Sequence[Found] = list(self._bus(0, (), is_switch=False))

    def _bus(self, bus: int, path: tuple[PciAddress, ...], is_switch: bool) -> Iterator[Found]:
        """Functions on a bus and behind it. Of a link only device 0 is at the other end."""
        for device in range(32 if is_switch else 1):
            found = list(self._device(PciAddress(0, bus, device, 0), path))
            yield from found
            if found:  # an enclosure has one card
                return

    def _device(self, first: PciAddress, path: tuple[PciAddress, ...]) -> Iterator[Found]:
        for number in range(8):
            address = first._replace(function=number)
            config = config_of(self._link, address)
            if not _is_there(config):
                if number == 0:
                    return
                continue
            header = config.read(_HEADER, 1)
            if header & 0x7F == _IS_BRIDGE:
                yield from self._bridge(address, config, path)
            else:
                yield Found(address, ids_of(config), path)
            if number == 0 and not header & _HAS_OTHERS:
                return

    def _bridge(
        self, address: PciAddress, config: Window, path: tuple[PciAddress, ...]
    ) -> Iterator[Found]:
        self._last += 1
        bus = self._last
        config.write(_BUSES, 4, _ALL_BEHIND << 16 | bus << 8 | address.bus)
        yield from self._bus(bus, (*path, address), _is_upstream(config))
        config.write(_BUSES, 4, self._last << 16 | bus << 8 | address.bus)


def _is_there(config: Window) -> bool:
    try:
        return config.read(0, 2) != _NOBODY
    except RequestFailed:  # Unsupported Request: there is no such function
        return False


def _is_upstream(config: Window) -> bool:
    """Whether behind a bridge are the ports of its switch, not a link."""
    for kind, at in capabilities(config):
        if kind == _EXPRESS:
            return config.read(at + 2, 2) >> 4 & 0xF == _UPSTREAM
    return False


def ids_of(config: Window) -> PciIds:
    """What a function is."""
    identity, revision = config.read(0, 4), config.read(_REVISION, 4)
    subsystem = config.read(_SUBSYSTEM, 4)
    return PciIds(
        *(identity & 0xFFFF, identity >> 16, subsystem & 0xFFFF, subsystem >> 16),
        *(revision & 0xFF, revision >> 8),
    )


def enlarge(config: Window) -> None:
    """Gives all resizable BARs their largest size: behind USB there is room for it."""
    for bar, (control, sizes) in resizable(config).items():
        resize(config, bar, control, sizes, sizes.bit_length() - 1)


def resizable(config: Window) -> dict[int, tuple[int, int]]:
    """Where the control register of each resizable BAR is, and its sizes: bit n is 2^(n+20)."""
    found: dict[int, tuple[int, int]] = {}
    for kind, at in extended_capabilities(config):
        if kind != _RESIZABLE:
            continue
        count = config.read(at + 8, 4) >> 5 & 7
        for entry in range(at, at + 8 * count, 8):
            control = config.read(entry + 8, 4)
            sizes = config.read(entry + 4, 4) >> 4 | control >> 16 << 28
            if sizes:
                found[control & 7] = entry + 8, sizes
    return found


def resize(config: Window, bar: int, control: int, sizes: int, power: int) -> None:
    """One of them, to 2^(power+20) bytes; memory is not decoded. Raises Unsupported."""
    if not sizes >> power & 1:
        raise Unsupported(f"BAR {bar}: 2^{power + 20} bytes is not one of its sizes, {sizes:#x}")
    before = config.read(control, 4)
    config.write(control, 4, before & ~(0x3F << 8) | power << 8)


def place_bars(config: Window) -> Ranges:
    """Gives memory BARs addresses, the largest first; memory is not decoded meanwhile.

    Ports stay where they are: nobody reaches them. Raises OutOfMemory for what does not fit.
    """
    bars = dict(_bars(config))
    next_free = {False: MEMORY_START, True: PREFETCHABLE_START}
    ends = {False: MEMORY_END, True: PREFETCHABLE_END}
    placed = {}
    for index, bar in sorted(bars.items(), key=lambda each: -each[1].size):
        above = bar.prefetchable and bar.is_64bit  # windows of other memory have 32 bits
        start = align_up(next_free[above], bar.size)
        if start + bar.size > ends[above]:
            raise OutOfMemory(f"BAR {index} of {bar.size:#x} bytes: no room below {ends[above]:#x}")
        next_free[above] = start + bar.size
        at = FIRST_BAR + 4 * index
        config.write(at, 4, start & 0xFFFF_FFFF)
        if bar.is_64bit:
            config.write(at + 4, 4, start >> 32)
        placed[index] = Placed(bar, start)
    return Ranges(placed, next_free[False], next_free[True])


def starts_of(config: Window, ranges: Ranges) -> dict[int, int]:
    """Where BARs begin by their registers."""
    found = {}
    for index, placed in ranges.bars.items():
        at = FIRST_BAR + 4 * index
        high = config.read(at + 4, 4) if placed.bar.is_64bit else 0
        found[index] = high << 32 | config.read(at, 4) & ~0xF
    return found


def _bars(config: Window) -> Iterator[tuple[int, Bar]]:
    """Memory BARs, found by writing ones."""
    index = 0
    while index < _BARS:
        at = FIRST_BAR + 4 * index
        before = config.read(at, 4)
        config.write(at, 4, _ONES)
        low = config.read(at, 4)
        if low & _IO:
            config.write(at, 4, before)
            index += 1
            continue
        is_64bit = bool(low & _IS_64BIT)
        high = _ONES
        if is_64bit:
            config.write(at + 4, 4, _ONES)
            high = config.read(at + 4, 4)
        size = -(high << 32 | low & ~0xF) & (1 << 64) - 1
        if low & ~0xF or (is_64bit and size):
            yield index, Bar(size, False, is_64bit, bool(low & _IS_PREFETCHABLE))
        index += 2 if is_64bit else 1


def open_path(link: Link, path: Sequence[PciAddress], ranges: Ranges) -> None:
    """Has the bridges on the way pass on what a function decodes, and what it asks for itself.

    Raises Unsupported for a bridge that has no place for video memory above 4 GiB.
    """
    for address in path:
        config = config_of(link, address)
        if config.read(_PREFETCHABLE, 2) & 0xF != _HAS_64BIT:
            raise Unsupported(f"the bridge at {address} passes on addresses of 32 bits alone")
        config.write(_MEMORY, 4, _window(MEMORY_START, ranges.memory_end))
        config.write(_PREFETCHABLE, 4, _window(PREFETCHABLE_START, ranges.prefetchable_end))
        config.write(_BASE_HIGH, 4, PREFETCHABLE_START >> 32)
        config.write(_LIMIT_HIGH, 4, max(ranges.prefetchable_end - 1, PREFETCHABLE_START) >> 32)
        change(config, COMMAND, add=MEMORY | MASTER)


def _window(start: int, end: int) -> int:
    """Base and limit of a bridge's window, whole MiB; closed where there is nothing in it."""
    if start == end:
        return _CLOSED
    last = align_up(end, _MIB) - _MIB
    return (start >> 16 & 0xFFF0) | (last >> 16 & 0xFFF0) << 16
