"""Cards in a machine: what a driver is given of one, and what the card is given of the machine.

`SimFunction` is what `gpu.transport.pci.function.PciFunction` asks for. Behind it is a `Card`, a
model of some chip: its BARs are windows, of which those of functions see every register access, and
its `CardBus` takes it to the machine's memory by an IOMMU, through which it reaches what was given
to it and nothing else.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import InvalidIndex, InvalidValue, OutOfMemory, TransportError, Unsupported
from gpu.core.pci import Bar, BusAddr, DmaPiece, PciAddress, PciIds
from gpu.core.window import MemoryWindow, TrappedWindow, Window, check_range
from gpu.sim.kernel import SysError
from gpu.sim.machine import Machine
from gpu.sim.mapping import Mapper
from gpu.sim.pci.config import ConfigSpace
from gpu.sim.physical import Extent, Pool, Region, UserPages
from gpu.sim.translate import PAGE_SIZE, AddressSpace, PageFault
from gpu.sim.translate import Mapping as Translated

_FIRST_BUS_ADDRESS: Final = 1 << 32
_FIRST_BARS: Final = {False: 1 << 31, True: 1 << 40}  # whether they have 64 bits


class MapPart(Protocol):
    """Maps a part of a BAR into a process. Raises SysError for one that is not memory."""

    def __call__(
        self, offset: int, size: int, prot: int, flags: int, address: int, mapper: Mapper
    ) -> int:
        """The address of `size` bytes from `offset` on; the rest as in `mmap`."""
        ...


class CardBar(NamedTuple):
    """A BAR of a card: what is behind it, and how it is told in config space.

    Memory (a `MemoryWindow`) can be mapped by a process, and then nobody sees what is done there;
    `map` does that for files of a kernel, also for pages of memory among registers.
    """

    window: Window
    bar: Bar
    map: MapPart | None = None


class Card(Protocol):
    """A model of what is behind a function."""

    @property
    def ids(self) -> PciIds:
        """What it is."""
        ...

    @property
    def vectors(self) -> int:
        """How many messages it can send: a power of two up to 32, or 0."""
        ...

    @property
    def bars(self) -> Mapping[int, CardBar]:
        """Its BARs, by their first register."""
        ...

    def plug(self, bus: CardBus) -> None:
        """It is in a machine from now on."""
        ...

    def reset(self) -> None:
        """All that it knows is forgotten."""
        ...


class CardBus:
    """A card's way to the machine. It is a `gpu.sim.physical.Region` by bus address.

    What is not let through is recorded: reads then bring ones, writes are lost.
    """

    name = "the bus"
    local = False

    def __init__(self, machine: Machine, config: ConfigSpace, title: str):
        self.space = AddressSpace()
        self.pending: dict[int, int] = {}
        self._debug = machine.debug
        self._config = config
        self._title = title

    def load(self, offset: int, size: int) -> bytes:
        """What memory holds at a bus address."""
        if self._is_master(f"a read of {size:#x} bytes at {offset:#x}"):
            try:
                spans = self.space.spans(offset, size, write=False)
                return b"".join(mapping.region.load(at, count) for mapping, at, count in spans)
            except (PageFault, SysError) as error:  # the latter: the process has unmapped it
                self._debug.fault(f"{self._title}: DMA {error}")
        return b"\xff" * size

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes to a bus address; nothing where a page of it is not given to the card."""
        view, done = memoryview(data), 0
        if self._is_master(f"a write of {len(data):#x} bytes at {offset:#x}"):
            try:
                for mapping, at, count in list(self.space.spans(offset, len(data), write=True)):
                    mapping.region.store(at, view[done : done + count])
                    done += count
            except (PageFault, SysError) as error:
                self._debug.fault(f"{self._title}: DMA {error}")

    def place(self, bar: int) -> int:
        """Where a BAR is in the machine's memory."""
        return self._config.place_of(bar)

    def config_word(self, offset: int) -> int:
        """Four bytes of config space, which the card shows among its registers."""
        return self._config.window.read(offset, 4)

    def interrupt(self, number: int = 0) -> None:
        """Sends a message, which is a write to memory like others."""
        if not self._is_master(f"message {number}"):
            return
        if number >= self._config.messages:
            self._debug.violation(f"{self._title}: message {number} is not enabled")
            return
        self.deliver(number)

    def deliver(self, number: int) -> None:
        """Counts a message for `SimInterrupt`; a world in which others are told replaces it."""
        self.pending[number] = self.pending.get(number, 0) + 1

    @property
    def is_master(self) -> bool:
        """Whether the card may reach memory now."""
        return self._config.is_master

    def _is_master(self, what: str) -> bool:
        if not self.is_master:
            self._debug.violation(f"{self._title}: {what} while it is no bus master")
        return self.is_master


@dataclass(eq=False)
class SimDma:
    """Memory that a card may reach. See `gpu.transport.pci.function.DmaMemory`."""

    window: MemoryWindow
    pieces: Sequence[DmaPiece]
    give_back: Callable[[], None]
    closed: bool = False

    def close(self) -> None:
        """Takes it away from the card, then gives it back."""
        if not self.closed:
            self.closed = True
            self.give_back()


class SimInterrupt:
    """One message. See `gpu.transport.pci.function.Interrupt`."""

    def __init__(self, machine: Machine, bus: CardBus, number: int):
        self._machine = machine
        self._bus = bus
        self._number = number

    def wait(self, timeout_ns: int) -> int:
        """How often it came; lets the machine's engines work meanwhile."""
        waiter = self._machine.waiter
        deadline = waiter.now_ns() + timeout_ns
        while not (came := self._bus.pending.pop(self._number, 0)):
            left = deadline - waiter.now_ns()
            if left <= 0:
                break
            waiter.idle(left)
        return came


class SimFunction:
    """A card as a driver has it. See `gpu.transport.pci.function.PciFunction`."""

    def __init__(self, machine: Machine, host: Pool, address: PciAddress, card: Card):
        self.address = address
        self.ids = card.ids
        self.bars: Mapping[int, Bar] = {index: bar for index, (_, bar, _) in card.bars.items()}
        self._machine = machine
        self._host = host
        self._card = card
        self._config = ConfigSpace(card.ids, self.bars, card.vectors)
        self._bus = CardBus(machine, self._config, f"card {address}")
        self._next_bus_address = _FIRST_BUS_ADDRESS
        self._memory: set[SimDma] = set()
        self._is_open = False
        card.plug(self._bus)

    def open(self) -> SimFunction:
        """For who takes it. Raises TransportError(EBUSY) while someone has it."""
        if self._is_open:
            raise TransportError(f"{self.address} is in use", errno.EBUSY)
        self._is_open = True
        places = dict(_FIRST_BARS)
        for index, bar in self.bars.items():
            place = align_up(places[bar.is_64bit], bar.size)
            self._config.place(index, bar, place)
            places[bar.is_64bit] = place + bar.size
        self._config.allow(memory=True, master=False)
        return self

    @property
    def config(self) -> Window:
        """Config space, 4096 bytes."""
        return self._config.window

    def window(self, bar: int) -> TrappedWindow:
        """A BAR, whose card sees each access; while it does not decode memory there is nothing."""
        inner = self._bar(bar).window

        def read(offset: int, width: int) -> int:
            with self._machine.lock, self._machine.undisturbed:
                if self._decodes(f"a read of BAR {bar} at {offset:#x}"):
                    return inner.read(offset, width)
                return (1 << 8 * width) - 1

        def write(offset: int, width: int, value: int) -> None:
            with self._machine.lock, self._machine.undisturbed:
                if self._decodes(f"a write to BAR {bar} at {offset:#x}"):
                    inner.write(offset, width, value)

        return TrappedWindow(inner.size, read, write)

    def map(self, bar: int, offset: int, size: int) -> MemoryWindow:
        """Memory behind a BAR. Raises Unsupported for registers."""
        inner = self._bar(bar).window
        check_range(inner.size, offset, size)
        if not isinstance(inner, MemoryWindow):
            raise Unsupported(f"BAR {bar} of {self.address} is of registers: use its window")
        return inner.sub(offset, size)

    def set_bus_master(self, allowed: bool) -> None:
        """Lets the card reach memory, or not any more."""
        self._need_open()
        self._config.allow(master=allowed)

    def allocate(self, size: int) -> SimDma:
        """Pages of the machine's memory, one behind the other for the card."""
        self._need_open()
        size = align_up(size, PAGE_SIZE)
        try:
            extents = self._host.allocate(size)
        except SysError as error:
            raise OutOfMemory(f"memory for {self.address}: {error}") from error
        protection = hostmem.PROT_READ | hostmem.PROT_WRITE
        address = self._host.map_for_cpu(extents, size, protection, hostmem.MAP_SHARED, 0)

        def give_back() -> None:
            hostmem.unmap(address, size)
            self._host.release(extents)

        return self._give(MemoryWindow(address, size), self._host, extents, give_back)

    def share(self, address: int, size: int) -> SimDma:
        """Pages of the process. Raises InvalidValue for parts of pages."""
        self._need_open()
        if address % PAGE_SIZE or size % PAGE_SIZE or not size:
            raise InvalidValue(f"{size:#x} bytes at {address:#x}: whole pages are shared")
        window, user = MemoryWindow(address, size), UserPages(self._machine.process.user)
        return self._give(window, user, (Extent(address, size),), lambda: None)

    def interrupts(self, count: int) -> Sequence[SimInterrupt]:
        """Messages. Raises InvalidValue for more than the card can send."""
        self._need_open()
        if not 0 < count <= self._card.vectors:
            raise InvalidValue(
                f"{count} messages of {self.address}: 1 to {self._card.vectors} can be"
            )
        self._config.enable_messages(1 << (count - 1).bit_length())
        return [SimInterrupt(self._machine, self._bus, number) for number in range(count)]

    def check(self) -> None:
        """Nobody wants it back, and it is not gone."""
        self._need_open()

    def resize(self, bar: int, size: int) -> None:
        """Raises Unsupported: no BAR of a model has another size."""
        raise Unsupported(f"BAR {bar} of {self.address} has one size, {self._bar(bar).bar.size:#x}")

    def reset(self) -> None:
        """Forgets all that the card knows, and brings back config space as VFIO does."""
        self._need_open()
        saved = self._config.save()
        self._card.reset()
        self._bus.pending.clear()
        self._config.reset(saved)

    def close(self) -> None:
        """Ends bus mastering, takes all memory away, and lets others have it."""
        if self._is_open:
            self._config.reset()
            for memory in list(self._memory):
                memory.close()
            self._bus.pending.clear()
            self._is_open = False

    def _need_open(self) -> None:
        if not self._is_open:
            raise TransportError(f"{self.address} was closed", errno.EBADF)

    def _bar(self, bar: int) -> CardBar:
        self._need_open()
        if bar not in self._card.bars:
            raise InvalidIndex(f"{self.address} has no BAR {bar}, but {list(self._card.bars)}")
        return self._card.bars[bar]

    def _decodes(self, what: str) -> bool:
        self._need_open()
        if not self._config.decodes_memory:
            self._machine.debug.violation(f"{self.address}: {what} while it decodes no memory")
        return self._config.decodes_memory

    def _give(
        self,
        window: MemoryWindow,
        region: Region,
        extents: Sequence[Extent],
        give_back: Callable[[], None],
    ) -> SimDma:
        """Maps pieces of memory for the card, one behind the other, with a hole behind them."""
        space, at = self._bus.space, self._next_bus_address
        piece = DmaPiece(BusAddr(at), window.size)
        starts = []
        with self._machine.lock:
            for offset, length in extents:
                space.map(Translated(at, at + length, region, offset))
                starts.append(at)
                at += length
        self._next_bus_address = at + PAGE_SIZE

        def take_back() -> None:
            with self._machine.lock:
                self._memory.discard(memory)
                for start in starts:
                    space.unmap(start)
                space.flush_tlb()
                give_back()

        memory = SimDma(window, (piece,), take_back)
        self._memory.add(memory)
        return memory


class SimPci:
    """The cards of a machine. See `gpu.transport.pci.function.PciBus`."""

    def __init__(self, machine: Machine, host: Pool, cards: Mapping[PciAddress, Card]):
        self._functions = {
            address: SimFunction(machine, host, address, card) for address, card in cards.items()
        }

    def list_functions(self) -> Sequence[PciAddress]:
        """Where its cards are."""
        return sorted(self._functions)

    def ids(self, address: PciAddress) -> PciIds:
        """What a card is. Raises TransportError(ENODEV)."""
        return self._function(address).ids

    def open(self, address: PciAddress) -> SimFunction:
        """Takes a card. Raises TransportError: ENODEV, EBUSY."""
        return self._function(address).open()

    def _function(self, address: PciAddress) -> SimFunction:
        if address not in self._functions:
            raise TransportError(f"there is no PCI function {address}", errno.ENODEV)
        return self._functions[address]
