"""Memory of a card that we booted: its own and the machine's, in page tables of ours.

Video memory is what the firmware's list of regions leaves. BAR 1 shows it by its physical addresses
from 0 on; where the BAR is smaller, what the host must see, and page tables, lie in its reach, and
all else is taken beyond it first. All of it is zeros when somebody gets it, whoever had it before,
and when the card is given back: what the host sees it clears itself, the rest a copy engine. What
the host maps, and what queues fetch, has addresses of 40 bits. After each change translations are
invalidated, as the card keeps those that it did not find too.

Sources: mem_mgr_regions_gsp_client.c, kern_gmmu_tu102.c, dev_vm.h of ampere/ga100 of
open-gpu-kernel-modules at tag 570.144.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpu.core.bits import align_down, align_up
from gpu.core.errors import DeviceError, InvalidValue, OutOfMemory, Unsupported
from gpu.core.log import get_logger
from gpu.core.pagetable import PageTable
from gpu.core.tlsf import Tlsf
from gpu.core.window import MemoryWindow, Window
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.memory import Extent, Extents
from gpu.drivers.nv.pci.boot import BootCard
from gpu.drivers.nv.pci.chip import PAGE, VRAM_BAR
from gpu.drivers.nv.pci.gmmu import ROOT_V2, ROOT_V3, SYSTEM, GmmuV2, GmmuV3
from gpu.drivers.nv.pci.registers import MMU_INVALIDATE
from gpu.drivers.spans import Spans
from gpu.hcq.ports import Memory, MemoryKind, MemoryPort
from gpu.hcq.symbol import GpuVA

LARGE_PAGE: Final = 64 << 10
HUGE_PAGE: Final = 2 << 20
_LOW, _LOW_SIZE = 1 << 36, 1 << 37
_HIGH, _HIGH_SIZE = 1 << 40, 1 << 42
_FLUSH_SECONDS: Final = 1.0
_CHUNK: Final = 1 << 20
_KEPT: Final = 32 << 20  # of a small BAR's reach, for rings, code, tables and contexts
_log = get_logger(__name__)


@dataclass(eq=False)
class Held:
    """Some memory: where engines find it, how much; in video memory also where it is there.

    Attributes:
        address: of engines.
        size: whole pages.
        place: its first byte in video memory, or on the bus.
        is_system: whether it is the machine's.
        window: as the host sees it, None where it does not.
        wipes: whether a copy engine clears it.
        undo: gives it back.
    """

    address: int
    size: int
    place: int
    is_system: bool
    window: Window | None
    wipes: bool = False
    undo: Undo = field(default_factory=Undo)

    def window_of_host(self) -> Window:
        """As the host sees it, which it must."""
        assert self.window is not None, "memory of this kind is mapped for the host"
        return self.window


class Clearing(Protocol):
    """What clears memory that the host does not see."""

    def clear(self, address: int, size: int) -> None:
        """Zeros so many bytes at an address of engines. Raises HwTimeout, DeviceError."""
        ...

    def close(self) -> None:
        """Gives back what it works with; again does nothing."""
        ...


class Vram:
    """Which video memory is whose.

    Attributes:
        window: what the host sees of it, from its beginning on.
    """

    def __init__(self, free: range, window: MemoryWindow):
        """``free`` is what firmware leaves. Raises OutOfMemory where the host sees none of it."""
        start, end = align_up(free.start, HUGE_PAGE), align_down(free.stop, HUGE_PAGE)
        seen = min(end, align_down(window.size, HUGE_PAGE))
        if seen <= start:
            raise OutOfMemory(
                f"the host sees {window.size:#x} bytes of video memory, of which firmware leaves"
                f" {free.start:#x} to {free.stop:#x}: `gpu pci take --resize`"
            )
        self.window = window
        self._seen = Tlsf(start, seen - start, PAGE)
        self._beyond = Tlsf(seen, end - seen, PAGE) if end > seen else None
        self._used = Spans()  # and not cleared since

    def take(self, size: int, align: int, *, visible: bool) -> int:
        """Zeroed if the host is to see it; else its bytes are as they were. Raises OutOfMemory."""
        if not visible and self._beyond is not None:
            with suppress(OutOfMemory):
                return self._beyond.alloc(size, align)
            if self._seen.in_use + size > self._seen.size - _KEPT:
                raise OutOfMemory(
                    f"no {size:#x} bytes of video memory: what is left is for what the host sees"
                )
        place = self._seen.alloc(size, align)
        if visible:
            self.clear(place, size)
        return place

    def take_pieces(self, size: int, align: int) -> list[tuple[int, int]]:
        """Places and sizes of memory that the host need not see, together so much.

        As few as there is room for. Raises OutOfMemory.
        """
        try:
            return [(self.take(size, align, visible=False), size)]
        except OutOfMemory:
            if size <= HUGE_PAGE:
                raise
        half = align_up(size // 2, HUGE_PAGE)
        with Undo() as undo:
            pieces = self.take_pieces(half, align)
            for place, _ in pieces:
                undo.add(self.give_clear, place)
            pieces += self.take_pieces(size - half, align)
            undo.take()
        return pieces

    def give(self, place: int) -> None:
        """Gives back what `take` gave; what the host sees of it `clear_used` clears."""
        pool = self._of(place)
        if pool is self._seen:
            self._used.add(place, pool.size_of(place))
        pool.free(place)

    def give_clear(self, place: int) -> None:
        """The same of what nobody has used, or was cleared since."""
        self._of(place).free(place)

    def clear_used(self) -> None:
        """Zeros what was given back as it was."""
        for place, size in self._used.take():
            self.clear(place, size)

    def clear(self, place: int, size: int) -> None:
        """Stores zeros."""
        zeros = bytes(min(size, _CHUNK))
        for at in range(place, place + size, len(zeros) or 1):
            self.window.store(at, zeros[: place + size - at])

    @property
    def in_use(self) -> int:
        """Bytes that are taken."""
        return self._seen.in_use + (self._beyond.in_use if self._beyond is not None else 0)

    def _of(self, place: int) -> Tlsf:
        if self._beyond is not None and place >= self._beyond.base:
            return self._beyond
        return self._seen

    # Page tables. See `gpu.core.pagelevels.TableMemory`.

    def read64(self, address: int) -> int:
        """Eight bytes of a table."""
        return self.window.read(address, 8)

    def write64(self, address: int, value: int) -> None:
        """Stores eight bytes in one access."""
        self.window.write(address, 8, value)

    def alloc_table(self, size: int) -> int:
        """A zeroed table. Raises OutOfMemory."""
        return self.take(align_up(size, PAGE), PAGE, visible=True)

    def free_table(self, address: int, size: int) -> None:
        """Takes one back."""
        self.give(address)


class CardMemory:
    """Allocates memory of one card; the `gpu.drivers.nv.memory.NvMemory` of bare cards.

    Attributes:
        extents: of all allocations.
        wiper: what clears memory that the host does not see, once there is one.
        vram: video memory.
        table: the page tables, in which all of it is.
    """

    def __init__(self, card: BootCard, free: range):
        """``free`` is the video memory that firmware leaves."""
        self._card = card
        size = min(card.function.bars[VRAM_BAR].size, card.vram_size)
        self.vram = Vram(free, card.function.map(VRAM_BAR, 0, size))
        is_v2 = card.chip.gmmu == 2
        self.table = PageTable(self.vram, *((GmmuV2(), ROOT_V2) if is_v2 else (GmmuV3(), ROOT_V3)))
        self._low = Tlsf(_LOW, _LOW_SIZE, PAGE)
        self._high = Tlsf(_HIGH, _HIGH_SIZE, PAGE)
        self.extents = Extents()
        self.wiper: Clearing | None = None
        self._live: dict[Memory, Held] = {}

    @property
    def root_entries(self) -> int:
        """How many entries the topmost table has."""
        level = self.table.level
        return level.table_bytes // level.entry_bytes

    # What the device asks for

    def allocate(
        self, size: int, kind: MemoryKind, *, contiguous: bool = False, name: str = "buffer"
    ) -> Memory:
        """As `NvMemory.allocate`; what the host sees is in one piece. Raises OutOfMemory."""
        if size < 1:
            raise InvalidValue(f"{size} bytes for {name}: at least 1 is needed")
        if kind is MemoryKind.SYSTEM:
            held = self.hold_system(size)
        else:
            visible = contiguous or kind is MemoryKind.VISIBLE
            held = self.hold_video(size) if visible else self._hold_unseen(size)
        window = held.window if kind is not MemoryKind.VRAM else None
        seen = window.sub(0, size) if window is not None else None
        return self._keep(Memory(GpuVA(held.address), size, kind, seen), held, name)

    def free(self, memory: Memory) -> None:
        """Gives memory back; the GPU must not use it any more. Raises InvalidValue if it is not."""
        held = self.held(memory)
        del self._live[memory]
        self.extents.remove(memory)
        with Undo() as undo:
            undo.add(held.undo.close)
            if held.wipes and self.wiper is not None:
                self._has_wiped(self.wiper, held)

    def _has_wiped(self, wiper: Clearing, held: Held) -> bool:
        """Clears memory that is given back; where that fails, it is when somebody gets it next."""
        try:
            wiper.clear(held.address, held.size)
        except DeviceError as error:
            _log.warning("%s: memory is not cleared: %s", self._card.name, error.message)
            return False
        return True

    def held(self, memory: Memory) -> Held:
        """What an allocation is. Raises InvalidValue for what is none of this card's."""
        if memory not in self._live:
            raise InvalidValue(
                f"memory at {memory.address:#x} is not of {self._card.name}, or was freed before"
            )
        return self._live[memory]

    def map_host(self, address: int, size: int) -> Memory:
        """As `MemoryPort.map_host`; the GPU has the pages at addresses of its own."""
        start = align_down(address, PAGE)
        whole = align_up(address + size, PAGE) - start
        with Undo() as undo:
            shared = self._card.function.share(start, whole)
            undo.add(shared.close)
            pieces = [(int(piece.address), piece.size) for piece in shared.pieces]
            held = self._map(pieces, whole, SYSTEM, PAGE, shared.window, self._low, undo)
        at = GpuVA(held.address + address - start)
        memory = Memory(at, size, MemoryKind.SYSTEM, MemoryWindow(address, size))
        return self._keep(memory, held, f"host memory at {start:#x}")

    def map_peer(self, memory: Memory, owner: MemoryPort) -> None:
        """Raises Unsupported: two cards copy through the machine's memory."""
        raise Unsupported(f"{self._card.name} does not reach memory of other cards")

    def unmap_peer(self, memory: Memory) -> None:
        """Raises InvalidValue: nothing of other cards is mapped."""
        raise InvalidValue(f"memory at {memory.address:#x} is not mapped into {self._card.name}")

    def _keep(self, memory: Memory, held: Held, name: str) -> Memory:
        self._live[memory] = held
        self.extents.add(memory, Extent(held.address, held.size, name))
        return memory

    # What channels ask for as well

    def hold_video(self, size: int, align: int = PAGE) -> Held:
        """Zeroed video memory in one piece, which the host sees. Raises OutOfMemory."""
        whole, page = _whole(size)
        align = max(align, page)
        with Undo() as undo:
            place = self.vram.take(whole, align, visible=True)
            undo.add(self.vram.give, place)
            window = self.vram.window.sub(place, whole)
            return self._map([(place, whole)], whole, 0, align, window, self._low, undo)

    def _hold_unseen(self, size: int) -> Held:
        """Zeroed video memory in any pieces. Raises OutOfMemory, and as `Clearing.clear` does."""
        whole, page = _whole(size)
        assert self.wiper is not None, "whoever opens the card gives it one"
        with Undo() as undo:
            pieces = self.vram.take_pieces(whole, page)
            for place, _ in pieces:
                undo.add(self.vram.give_clear, place)
            held = self._map(pieces, whole, 0, page, None, self._high, undo)
        with Undo() as undo:
            undo.add(held.undo.close)
            self.wiper.clear(held.address, whole)
            undo.take()
        held.wipes = True
        return held

    def hold_system(self, size: int) -> Held:
        """Zeroed memory of the machine, in whole pages. Raises OutOfMemory."""
        whole = align_up(size, PAGE)
        with Undo() as undo:
            memory = self._card.function.allocate(whole)
            undo.add(memory.close)
            pieces = [(int(piece.address), piece.size) for piece in memory.pieces]
            self._card.bus_pages(memory, "memory")
            return self._map(pieces, whole, SYSTEM, PAGE, memory.window, self._low, undo)

    def _map(
        self,
        pieces: Sequence[tuple[int, int]],
        size: int,
        flags: int,
        align: int,
        window: Window | None,
        space: Tlsf,
        undo: Undo,
    ) -> Held:
        """Gives pieces addresses in a row; ``undo`` is taken where that succeeds."""
        address = space.alloc(size, max(align, LARGE_PAGE))
        undo.add(space.free, address)
        at = address
        for place, there in pieces:
            count = min(there, address + size - at)
            self.table.map(at, place, count, flags)
            undo.add(self._unmap, at, count)
            at += count
        self.invalidate()
        held = Held(address, size, pieces[0][0], bool(flags & SYSTEM), window)
        held.undo = undo.take()
        return held

    def _unmap(self, address: int, size: int) -> None:
        change = self.table.unmap(address, size)
        self.invalidate()
        self.table.release(change)

    def invalidate(self) -> None:
        """Has the card forget what it has translated. Raises BootTimeout, DeviceLost."""
        card, common = self._card, self._card.registers.common
        with card.lock:
            card.begin("a flush of TLBs", card.waiter.now_ns() + round(_FLUSH_SECONDS * 1e9))
            common.read("PMC_BOOT_0")  # stores to video memory come before what is read
            self._wait_flushed()  # one that was broken off may still run
            common.write(MMU_INVALIDATE(ALL_VA=1, ALL_PDB=1, TRIGGER=1))
            self._wait_flushed()

    def _wait_flushed(self) -> None:
        self._card.wait(
            *(self._card.registers.common, "MMU_INVALIDATE"),
            lambda value: not MMU_INVALIDATE.parse(value).TRIGGER,
            "TRIGGER 0: it is done",
        )

    @property
    def in_use(self) -> int:
        """Bytes of addresses that are taken."""
        return self._low.in_use + self._high.in_use

    def close(self) -> None:
        """Gives all back, the youngest first; all is tried before an error is raised."""
        with Undo() as order:
            order.add(self.vram.clear_used)
            order.add(self._end)
            order.add(self._free_all)
            if self.wiper is not None:
                order.add(self._wipe_all, self.wiper)

    def _wipe_all(self, wiper: Clearing) -> None:
        with Undo() as undo:
            undo.add(wiper.close)
            self.wiper = None
            for held in list(self._live.values()):
                if held.wipes and not self._has_wiped(wiper, held):
                    break

    def _free_all(self) -> None:
        with Undo() as order:
            for memory in self._live:
                order.add(self.free, memory)

    def _end(self) -> None:
        for address, size in list(self.table.tables()):
            self.vram.free_table(address, size)


def _whole(size: int) -> tuple[int, int]:
    """A size in whole pages, and of which size these are at best."""
    page = HUGE_PAGE if size >= HUGE_PAGE else LARGE_PAGE if size >= LARGE_PAGE else PAGE
    return align_up(size, min(page, LARGE_PAGE)), page
