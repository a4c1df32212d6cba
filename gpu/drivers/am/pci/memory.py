"""Memory of a GPU that we boot ourselves: video memory and the machine's, in tables of ours.

The device has one address space, of which addresses from `BASE` on are given out; what is at which
is in tables in video memory. Kernels can run code and not write it, and data they cannot run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpu.core.bits import align_down, align_up
from gpu.core.errors import DeviceError, InvalidValue, Unsupported
from gpu.core.log import get_logger
from gpu.core.pagetable import Change, PageTable
from gpu.core.tlsf import Tlsf
from gpu.core.window import MemoryWindow, TrappedWindow, Window
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.entries import HUGE_PAGE, PAGE, ROOT, Access, format_of
from gpu.drivers.am.pci.ip.gmc import Hub
from gpu.drivers.am.pci.vram import FarTables, VramTables
from gpu.drivers.cleanup import Undo
from gpu.drivers.spans import Spans
from gpu.hcq.ports import Memory, MemoryKind, MemoryPort
from gpu.hcq.symbol import GpuVA
from gpu.transport.pci.function import DmaMemory

BASE: Final = 0x2000_0000_0000
_SIZE: Final = 1 << 44
_REMEMBERED: Final = 64
_DATA: Final = Access.READ | Access.WRITE
_SHARED: Final = _DATA | Access.SYSTEM | Access.UNCACHED
_SMALL: Final = PAGE  # what is no larger the host clears as fast
_FLUSH_SECONDS: Final = 1.0
_log = get_logger(__name__)


@dataclass(eq=False)
class Allocation:
    """Some memory: where the GPU has it, how much, what for; ``undo`` gives it back.

    ``video`` says that it is the card's own, and ``wipes`` that the card clears it.
    """

    address: int
    size: int
    label: str
    window: Window
    video: bool = False
    wipes: bool = False
    undo: Undo = field(default_factory=Undo)

    def __contains__(self, address: int) -> bool:
        return self.address <= address < self.address + self.size


class FlushedWindow:
    """Video memory whose stores the card sees at once, as it sees those in the machine's."""

    def __init__(self, inner: Window, flush: Callable[[], None]):
        """``flush`` empties the host's data path; ``inner`` is the same without that."""
        self.inner = inner
        self._flush = flush
        self.size = inner.size
        self.read, self.load = inner.read, inner.load

    def write(self, offset: int, width: int, value: int) -> None:
        """As `Window.write`."""
        self.inner.write(offset, width, value)
        self._flush()

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """As `Window.store`."""
        self.inner.store(offset, data)
        self._flush()

    def sub(self, offset: int, size: int) -> FlushedWindow:
        """As `Window.sub`."""
        return FlushedWindow(self.inner.sub(offset, size), self._flush)


class Clearing(Protocol):
    """What clears memory of the device faster than the host does."""

    def clear(self, address: int, size: int) -> None:
        """Clears memory that the device may write."""
        ...


class PciMemory:
    """Allocates memory of one GPU; the `gpu.drivers.am.port.AmMemory` of cards without a driver.

    Attributes:
        wiper: what clears more than a page, if the host does not.
    """

    def __init__(self, chip: Chip, hub: Hub, vmid: int):
        """Its address space is that of a VMID of the hub, from now on."""
        self._chip = chip
        self._hub = hub
        self._vmid = vmid
        self._space = Tlsf(BASE, _SIZE, PAGE)
        tables = FarTables if chip.is_far else VramTables
        self._tables = tables(chip.vram, chip.pa_base)
        self._table = PageTable(self._tables, format_of(chip.gc), ROOT)
        self._live: dict[int, Allocation] = {}
        self._of: dict[Memory, Allocation] = {}
        self._freed: deque[Allocation] = deque(maxlen=_REMEMBERED)
        self._used = Spans()  # of video memory
        self.wiper: Clearing | None = None
        self.begin()

    @property
    def vmid(self) -> int:
        """The VMID that its addresses are of."""
        return self._vmid

    def begin(self) -> None:
        """Has the hub translate by these tables."""
        self._tables.send()
        self._chip.flush_hdp()
        self._hub.set_context(self._vmid, self._table.root)
        self._invalidate()

    def _invalidate(self) -> None:
        chip = self._chip
        chip.begin("a flush of TLBs", chip.waiter.now_ns() + round(_FLUSH_SECONDS * 1e9))
        self._hub.invalidate(self._vmid)

    # What the device asks for

    def allocate(self, size: int, kind: MemoryKind) -> Memory:
        """As `MemoryPort.allocate`: zeroed whole pages. Raises OutOfMemory."""
        if kind is MemoryKind.SYSTEM:
            held = self.hold_system(size, Access.EXECUTE, kind.value)
        else:
            held = self.hold_video(size, _DATA, kind.value)
        window = held.window if kind is not MemoryKind.VRAM else None
        return self._give_out(held, size, kind, window)

    def allocate_code(self, size: int) -> Memory:
        """As `AmMemory.allocate_code`."""
        held = self.hold_video(size, Access.READ | Access.EXECUTE, "code")
        return self._give_out(held, size, MemoryKind.VISIBLE, held.window)

    def _give_out(
        self, held: Allocation, size: int, kind: MemoryKind, window: Window | None
    ) -> Memory:
        seen = window.sub(0, size) if window is not None else None
        memory = Memory(GpuVA(held.address), size, kind, seen)
        self._of[memory] = held
        return memory

    def free(self, memory: Memory) -> None:
        """As `MemoryPort.free`. Raises InvalidValue for what is not of here, or freed before."""
        held = self._of.pop(memory, None)
        if held is None:
            raise InvalidValue(
                f"memory at {memory.address:#x} is not of {self._chip.name}, or was freed"
            )
        self.drop(held)

    def map_host(self, address: int, size: int) -> Memory:
        """As `MemoryPort.map_host`; the GPU has the pages at an address of its own."""
        start = align_down(address, PAGE)
        whole = align_up(address + size, PAGE) - start
        with Undo() as undo:
            shared = self._chip.function.share(start, whole)
            undo.add(shared.close)
            held = self._map_pieces(shared, whole, _SHARED, "memory of this process", undo)
        memory = Memory(
            *(GpuVA(held.address + address - start), size),
            *(MemoryKind.SYSTEM, MemoryWindow(address, size)),
        )
        self._of[memory] = held
        return memory

    def map_peer(self, memory: Memory, owner: MemoryPort) -> None:
        """Raises Unsupported: two cards copy through the machine's memory."""
        raise Unsupported(f"{self._chip.name} does not reach memory of other cards")

    def unmap_peer(self, memory: Memory) -> None:
        """Raises InvalidValue: nothing of other cards is mapped."""
        raise InvalidValue(f"memory at {memory.address:#x} is not mapped into {self._chip.name}")

    # What queues ask for as well

    def hold_video(self, size: int, access: Access, label: str) -> Allocation:
        """Zeroed video memory. Raises OutOfMemory, InvalidValue for a size below 1."""
        size, align = _whole(size)
        chip = self._chip
        with Undo() as undo:
            wipes = self.wiper is not None and bool(access & Access.WRITE) and size > _SMALL
            place = (chip.vram.take if wipes else chip.vram.allocate)(size, align)
            undo.add(self._give_back, place, size, wipes)
            pieces = [(chip.pa_base + place, size)]
            window = chip.vram.sub(place, size)
            held = self._map(pieces, size, access, label, window, undo)
        held.video, held.wipes = True, wipes
        if wipes:
            with Undo() as undo:
                undo.add(self.drop, held)
                self._wipe(held)
                undo.take()
        return held

    def _wipe(self, held: Allocation) -> None:
        if self.wiper is not None:
            self.wiper.clear(held.address, held.size)

    def _give_back(self, place: int, size: int, wiped: bool) -> None:
        """Video memory that is not used any more; the host clears it when the device is closed."""
        if not wiped:
            self._used.add(place, size)
        self._chip.vram.free(place)

    def hold_system(self, size: int, access: Access, label: str) -> Allocation:
        """Zeroed memory that both sides see at once. Raises OutOfMemory.

        It is the machine's; over USB, where the GPU reaches none of that, video memory.
        """
        size, _ = _whole(size)
        if self._chip.is_far:
            held = self.hold_video(size, _DATA | Access.UNCACHED | access, label)
            held.window = FlushedWindow(held.window, self._chip.post_flush)
            return held
        with Undo() as undo:
            memory = self._chip.function.allocate(size)
            undo.add(memory.close)
            return self._map_pieces(memory, size, _SHARED | access, label, undo)

    def hold_bus(self, place: int, size: int, label: str) -> Allocation:
        """Memory of somebody else's on the bus, whole pages; not reached through its window."""
        with Undo() as undo:
            window = TrappedWindow(size, _no_read, _no_write)
            return self._map([(place, size)], size, _SHARED, label, window, undo)

    def _map_pieces(
        self, memory: DmaMemory, size: int, access: Access, label: str, undo: Undo
    ) -> Allocation:
        pieces = [(int(piece.address), piece.size) for piece in memory.pieces]
        return self._map(pieces, size, access, label, memory.window, undo)

    def _map(
        self,
        pieces: Sequence[tuple[int, int]],
        size: int,
        access: Access,
        label: str,
        window: Window,
        undo: Undo,
    ) -> Allocation:
        """Gives pieces addresses in a row; ``undo`` is taken where that succeeds."""
        address = self._space.alloc(size, HUGE_PAGE if size >= HUGE_PAGE else PAGE)
        undo.add(self._space.free, address)
        at = address
        for place, there in pieces:
            count = min(there, address + size - at)
            if not count:
                break
            self._table.map(at, place, count, int(access))
            undo.add(self._unmap, at, count)
            at += count
        self._tables.send()
        self._chip.flush_hdp()
        self._invalidate()  # an entry that was not there may be remembered as such
        held = Allocation(address, size, label, window)
        held.undo = undo.take()
        self._live[address] = held
        return held

    def _unmap(self, address: int, size: int) -> None:
        change: Change = self._table.unmap(address, size)
        self._tables.send()
        self._chip.flush_hdp()
        self._invalidate()
        self._table.release(change)

    def drop(self, held: Allocation) -> None:
        """Gives an allocation back; nothing on the GPU uses it any more."""
        del self._live[held.address]
        self._freed.append(held)
        if held.wipes:
            try:
                self._wipe(held)
            except DeviceError as error:
                _log.warning("%s: memory is not cleared: %s", self._chip.name, error.message)
                self.wiper = None
        held.undo.close()

    def clear(self) -> None:
        """Has the card clear what it can and what is not given back; nothing uses it any more."""
        for held in self._live.values():
            if held.wipes:
                self._wipe(held)
        self.wiper = None

    def close(self) -> None:
        """Gives all back, and leaves nothing of it in video memory."""
        with Undo() as undo:
            undo.add(self._clear_used)
            undo.add(self._end)
            for held in list(self._live.values()):
                undo.add(self.drop, held)

    def _clear_used(self) -> None:
        for start, size in self._used.take():
            self._chip.vram.clear(start, size)

    def _end(self) -> None:
        self._hub.end_context(self._vmid)
        for address, size in list(self._table.tables()):
            self._table.memory.free_table(address, size)

    # Reports

    @property
    def in_use(self) -> int:
        """Bytes of all allocations."""
        return sum(held.size for held in self._live.values())

    def nearest(self, address: int) -> Allocation | None:
        """As `AmMemory.nearest`."""
        for held in (*self._live.values(), *reversed(self._freed)):
            if address in held:
                return held
        before = [each for each in self._live.values() if each.address <= address]
        return max(before, key=lambda each: each.address, default=None)

    def extents(self) -> list[Allocation]:
        """All allocations."""
        return list(self._live.values())

    def describe(self, address: int) -> str:
        """As `AmMemory.describe`."""
        near = self.nearest(address)
        if near is None:
            return "before all buffers"
        name = f"{near.size:#x} bytes of {near.label} at {near.address:#x}"
        if address not in near:
            return f"{address - near.address - near.size:#x} bytes behind {name}"
        freed = "" if self._live.get(near.address) is near else ", which was freed"
        return f"{address - near.address:#x} into {name}{freed}"

    def translation(self, address: int) -> list[str]:
        """As `AmMemory.translation`: as the card has it, and not as we believe it to be."""
        from gpu.drivers.am.pci.translation import translate

        return translate(self._chip, self._hub, self._vmid, address).lines

    def read(self, address: int, size: int) -> bytes | None:
        """As `AmMemory.read`."""
        near = self.nearest(address)
        if near is None or self._live.get(near.address) is not near:
            return None
        start = address - near.address
        return near.window.load(start, size) if start + size <= near.size else None


def _no_read(offset: int, width: int) -> int:
    raise Unsupported(f"memory on the bus, at {offset:#x}: the card reaches it, this process not")


def _no_write(offset: int, width: int, value: int) -> None:
    _no_read(offset, width)


def _whole(size: int) -> tuple[int, int]:
    """A size in whole pages, and how it is aligned so that large pages serve it."""
    if size < 1:
        raise InvalidValue(f"{size} bytes: at least 1 is needed")
    size = align_up(size, PAGE)
    return size, HUGE_PAGE if size >= HUGE_PAGE else PAGE
