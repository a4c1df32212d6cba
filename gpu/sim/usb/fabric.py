"""PCI Express behind the bridge: its two ports, the card's two, and the card's functions.

Four bridges in a row, then functions on the last bus, as a scan through such an enclosure showed
(R: app/README.md of geohot/asm2464pd-firmware). Requests are routed as PCI Express Base 5.0, 2.2,
2.3.1 and 7.3.1 say. What card and bridges do not answer ends as an unsupported request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from gpu.core.pci import PciIds
from gpu.core.window import Window
from gpu.sim.machine import Machine
from gpu.sim.pci.function import Card, CardBus
from gpu.sim.physical import Region
from gpu.sim.translate import Mapping
from gpu.sim.usb.config import BridgeConfig, FunctionConfig, Refuse

SUCCESS, UNSUPPORTED, RETRY = 0, 1, 2  # PCI Express Base 5.0, table 2-34
_CLASS: Final = 0x060400
_PORTS: Final = tuple(
    PciIds(vendor, device, vendor, device, revision, _CLASS)
    for vendor, device, revision in (
        (0x174C, 0x2461, 1),
        (0x174C, 0x2461, 1),
        (0x1002, 0x1478, 0x10),
        (0x1002, 0x1479, 0x10),
    )
)
_INSIDE: Final = 2  # ports that the bridge's own chip has
_ALL: Final = 0xF


class Completion(NamedTuple):
    """How a request ended; `value` counts for a read that succeeded only."""

    status: int
    value: int = 0


class Place(NamedTuple):
    """Where a request of memory arrives: a window, where in it, and how many bytes follow."""

    window: Window
    offset: int
    left: int


class UpstreamBus(CardBus):
    """A card's way up to the bridge's memory. See `gpu.sim.pci.function.CardBus`.

    Attributes:
        ports: the bridges above it, which forward what it sends where they are bus masters.
        is_cut: whether the link above it is down.
    """

    def __init__(
        self,
        machine: Machine,
        config: FunctionConfig,
        title: str,
        ports: Sequence[BridgeConfig],
        refuse: Refuse,
    ):
        super().__init__(machine, config, title)
        self.ports = ports
        self.is_cut = False
        self._refuse = refuse

    def load(self, offset: int, size: int) -> bytes:
        """What the bridge's memory holds; ones where nothing is let through."""
        if self._passes(offset):
            return super().load(offset, size)
        return b"\xff" * size

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes to the bridge's memory, where it is let through."""
        if self._passes(offset):
            super().store(offset, data)

    def deliver(self, number: int) -> None:
        """A message is a write like others: where it goes, no host is told of it."""
        low, high, data = (self._config.window.read(at, 4) for at in (0x44, 0x48, 0x4C))
        self.store(high << 32 | low, (data & 0xFFFF | number).to_bytes(4, "little"))

    def _passes(self, address: int) -> bool:
        if self.is_cut:
            self._debug.fault(f"{self._title}: DMA at {address:#x}, while the link is down")
            return False
        for number, port in enumerate(self.ports):
            if not port.is_master:
                self._refuse("port-master", f"{address:#x}: bus {number}'s port is no bus master")
                return False
            if port.forwards(address):
                self._refuse("dma-window", f"{address:#x} is in a window of bus {number}'s port")
                return False
        return True


class Fabric:
    """All that is behind the bridge.

    Attributes:
        ports: the bridges, from bus 0 on.
        functions: config spaces of the card's functions, by their number.
        ready_ns: until when config requests of what was reset are put off.
        crs_ns: how long that is after a reset.
    """

    def __init__(
        self, machine: Machine, title: str, cards: Sequence[Card], refuse: Refuse, crs_ns: int
    ):
        self._clock = machine.clock
        self._cards = cards
        self._refuse = refuse
        self.crs_ns = crs_ns
        self.ready_ns = 0
        self._first_late = _INSIDE
        self.ports = [BridgeConfig(ids, number % 2 == 0) for number, ids in enumerate(_PORTS)]
        for number, port in enumerate(self.ports):
            port.on_reset = partial(self.reset, number + 1)
        self.functions = [
            FunctionConfig(
                card.ids,
                {index: bar for index, (_, bar, _) in card.bars.items()},
                card.vectors,
                refuse,
                many=len(cards) > 1,
            )
            for card in cards
        ]
        self._buses = [
            UpstreamBus(machine, config, title, self.ports, refuse) for config in self.functions
        ]
        for bus, card in zip(self._buses, cards, strict=True):
            card.plug(bus)

    def map(self, start: int, region: Region, size: int) -> None:
        """Memory of the bridge that the card's functions reach at an address."""
        for bus in self._buses:
            bus.space.map(Mapping(start, start + size, region, 0))

    def cut(self) -> None:
        """The link fails: nothing of the card gets through any more."""
        for bus in self._buses:
            bus.is_cut = True

    def reset(self, below: int = 0) -> None:
        """Forgets all from a bus on, the card too; it is ready some time later."""
        for bus in self._buses:
            bus.is_cut = False
        for port in self.ports[below:]:
            port.reset()
        for config, card in zip(self.functions, self._cards, strict=True):
            card.reset()
            config.reset()
        self._first_late = max(below, _INSIDE)
        self.ready_ns = self._clock.now_ns + self.crs_ns

    def request_config(
        self, is_type_1: bool, address: int, enables: int, value: int | None
    ) -> Completion:
        """A config request; `value` is what is written, in the lanes that `enables` has."""
        bus, device, function = address >> 24, address >> 19 & 31, address >> 16 & 7
        if address & 0xF003:
            self._refuse("config-address", f"config request of {address:#010x}: reserved bits")
        if is_type_1 == (bus == 0):
            self._refuse("config-type", f"config request of type {int(is_type_1)} for bus {bus}")
            return Completion(UNSUPPORTED)
        level = self._route(bus)
        if level is None or (bus and device):
            return Completion(UNSUPPORTED)
        if level >= self._first_late and self._clock.now_ns < self.ready_ns:
            return Completion(RETRY)
        here = self.ports[level : level + 1] if level < len(self.ports) else self.functions
        if function >= len(here):
            return Completion(UNSUPPORTED)
        return _access(here[function].window, address & 0xFFC, enables, value)

    def request_memory(self, address: int, enables: int, value: int | None) -> Completion:
        """A request of memory, of a dword."""
        place = self.find(address)
        if place is None:
            return Completion(UNSUPPORTED)
        return _access(place.window, place.offset, enables, value)

    def find(self, address: int) -> Place | None:
        """Where an address leads now; None where nobody claims it."""
        for port in self.ports:
            if not port.forwards(address) or port.holds_reset:
                return None
        found = list(self._claims(address))
        if len(found) > 1:
            self._refuse("bar-overlap", f"{address:#x} is in {len(found)} BARs")
        return found[0] if found else None

    def _route(self, bus: int) -> int | None:
        """How many bridges are above a bus; None where no bridge leads there."""
        if not bus:
            return 0
        for level, port in enumerate(self.ports, 1):
            if port.holds_reset or not port.secondary <= bus <= port.subordinate:
                return None
            if port.secondary == bus:
                return level
        return None

    def _claims(self, address: int) -> Iterator[Place]:
        for config, card in zip(self.functions, self._cards, strict=True):
            if not config.decodes_memory:
                continue
            for index, bar in card.bars.items():
                offset = address - config.place_of(index)
                size = min(config.size_of(index), bar.window.size)
                if 0 <= offset < size:
                    yield Place(bar.window, offset, size - offset)


def _access(window: Window, offset: int, enables: int, value: int | None) -> Completion:
    """A dword of a window, by the widest accesses that the enabled bytes make."""
    result = 0
    for start, width in _runs(enables):
        mask = (1 << 8 * width) - 1
        if value is None:
            result |= window.read(offset + start, width) << 8 * start
        else:
            window.write(offset + start, width, value >> 8 * start & mask)
    return Completion(SUCCESS, result)


def _runs(enables: int) -> Iterator[tuple[int, int]]:
    """Aligned pieces of a dword that enabled bytes make, as (first byte, width)."""
    if enables == _ALL:
        yield 0, 4
        return
    for half in (0, 2):
        pair = enables >> half & 3
        if pair == 3:
            yield half, 2
        elif pair:
            yield half + (pair >> 1), 1
