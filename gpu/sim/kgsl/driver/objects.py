"""GPU objects of a process: their pages, their addresses, and how long they live.

An object that was freed lives on while the CPU maps it (kgsl.c, `kgsl_gpumem_vm_close` gives the
last reference back), and with it what the GPU sees of it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu.autogen import kgsl
from gpu.core.bits import align_down, align_up
from gpu.sim.ids import IdTable
from gpu.sim.kernel import SysError
from gpu.sim.kgsl.chip.cpucache import Cached
from gpu.sim.kgsl.chip.tables import PageTables
from gpu.sim.physical import Extent, Pool, Region, UserPages
from gpu.sim.process import SimProcess
from gpu.sim.translate import PAGE_SIZE, Mapping


class Memory(NamedTuple):
    """The machine's memory in three copies; see `gpu.sim.kgsl.chip.cpucache`.

    Attributes:
        pages: what the GPU sees; it hands out pages.
        cpu, synced: what the CPU sees of write-back memory, and what both last agreed on.
    """

    pages: Pool
    cpu: Pool
    synced: Pool

    def release(self, extents: tuple[Extent, ...]) -> None:
        """Takes pages back."""
        for pool in (self.cpu, self.synced):
            pool.forget(extents)
        self.pages.release(extents)

    def close(self) -> None:
        """Gives those back that the machine does not own."""
        self.cpu.close()
        self.synced.close()


class Piece(NamedTuple):
    """A part of an object's bytes.

    Attributes:
        cached: the CPU's caches in front of it, if it has any that the GPU does not snoop.
    """

    region: Region
    offset: int
    size: int
    cached: Cached | None


@dataclass(eq=False)
class MemObject:
    """An object.

    Attributes:
        id: 0 when its number was given back.
        size, footprint: in bytes, without and with its guard page.
        flags: as GPUOBJ_INFO tells them.
        pieces: its bytes.
        extents: of the machine's memory that it holds.
        guard: the page behind it.
        address: of the GPU; 0 where USE_CPU_MAP has not chosen it yet.
        is_user: whether it is memory of the process.
        is_freed: whether it lives on for the CPU's mappings alone.
        cpu_mappings: addresses of those.
        users: commands under way that were told of it.
    """

    id: int
    size: int
    footprint: int
    flags: int
    pieces: list[Piece]
    extents: tuple[Extent, ...] = ()
    guard: Piece | None = None
    address: int = 0
    is_user: bool = False
    is_freed: bool = False
    cpu_mappings: list[int] = field(default_factory=list)
    users: int = 0

    def __str__(self) -> str:
        return f"object {self.id}"

    @property
    def uses_cpu_map(self) -> bool:
        """Whether its address is that of the CPU's first mapping."""
        return bool(self.flags & kgsl.KGSL_MEMFLAGS_USE_CPU_MAP)

    @property
    def alignment(self) -> int:
        """What its addresses are multiples of."""
        return 1 << ((self.flags & kgsl.KGSL_MEMALIGN_MASK) >> kgsl.KGSL_MEMALIGN_SHIFT)

    def holds(self, address: int, size: int = 1) -> bool:
        """Whether a range of addresses lies in it."""
        return self.address <= address and address + size <= self.address + self.size


class Space:
    """The addresses of a process on the GPU: who has which."""

    def __init__(self) -> None:
        self.tables = PageTables()
        self._taken: dict[int, int] = {}

    def low_hole(self, among: range, size: int, align: int) -> int:
        """The lowest free address, as the kernel chooses. Raises SysError(ENOMEM)."""
        at = align_up(among.start, align)
        for start, length in sorted(self._taken.items()):
            if at + size <= start:
                break
            at = max(at, align_up(start + length, align))
        if at + size > among.stop:
            raise SysError(errno.ENOMEM, f"no room for {size:#x} bytes of addresses")
        return at

    def high_hole(self, among: range, below: int, size: int, align: int) -> int:
        """The highest free address below one. Raises SysError(ENOMEM)."""
        at = align_down(min(below, among.stop) - size, align)
        for start, length in sorted(self._taken.items(), reverse=True):
            if start + length <= at:
                break
            if start < at + size:
                at = align_down(start - size, align)
        if at < among.start:
            raise SysError(errno.ENOMEM, f"no room for {size:#x} bytes that the CPU maps, too")
        return at

    def is_free(self, address: int, size: int) -> bool:
        """Whether nobody has a range."""
        return all(
            address + size <= start or start + n <= address for start, n in self._taken.items()
        )

    def take(self, address: int, size: int) -> None:
        """A range has an owner now."""
        self._taken[address] = size

    def give_back(self, address: int) -> None:
        """The range that begins there has none any more."""
        del self._taken[address]

    def map(self, item: MemObject) -> None:
        """Puts an object into the page tables, at its address."""
        self.take(item.address, item.footprint)
        writable = not item.flags & kgsl.KGSL_MEMFLAGS_GPUREADONLY
        at = item.address
        for piece in item.pieces:
            owner = piece.cached or item
            end = at + piece.size
            self.tables.map(
                Mapping(at, end, piece.region, piece.offset, writable=writable, owner=owner)
            )
            at = end
        if guard := item.guard:
            self.tables.map(
                Mapping(at, at + guard.size, guard.region, guard.offset, writable=False)
            )
        self.tables.forget_holes()

    def unmap(self, item: MemObject) -> None:
        """Takes an object out again; the kernel flushes the TLB."""
        self.give_back(item.address)
        at, end = item.address, item.address + item.footprint
        while at < end:
            at = self.tables.unmap(at).end
        self.tables.flush_tlb()


class KgslProcess:
    """What the kernel keeps of a process that has opened the device.

    Attributes:
        process: whose it is.
        objects: by id.
        space: its addresses on the GPU.
        contexts: how many it has.
        files: how many descriptors of the device it has opened.
    """

    def __init__(self, process: SimProcess):
        self.process = process
        self.objects: IdTable[MemObject] = IdTable()
        self.mapped: dict[int, MemObject] = {}  # by where the CPU maps them
        self.space = Space()
        self.contexts = 0
        self.files = 0

    def find(self, number: int) -> MemObject | None:
        """The object of an id that was not freed (`kgsl_sharedmem_find_id`)."""
        found = self.objects.get(number)
        return None if found is None or found.is_freed else found

    def find_address(self, address: int) -> MemObject | None:
        """The object that an address of the GPU lies in (`kgsl_sharedmem_find`)."""
        for _, item in self.objects:
            if item.address and item.holds(address):
                return None if item.is_freed else item
        return None


class Pages:
    """Makes objects, and takes them apart."""

    def __init__(self, memory: Memory, has_caches: bool):
        self.memory = memory
        self._has_caches = has_caches
        self.guard = Piece(
            memory.pages, memory.pages.allocate(PAGE_SIZE)[0].offset, PAGE_SIZE, None
        )

    def allocate(self, size: int, flags: int, name: str) -> tuple[list[Piece], tuple[Extent, ...]]:
        """New pages, all zero. Raises SysError(ENOMEM)."""
        extents = self.memory.pages.allocate(size)
        snooped = not is_cached(flags) or flags & kgsl.KGSL_MEMFLAGS_IOCOHERENT
        pieces = []
        for extent in extents:
            cached = None
            if self._has_caches and not snooped:
                memory, view = self.memory, self.memory.cpu
                cached = Cached(name, memory.pages, memory.synced, view, extent.offset, extent)
            pieces.append(Piece(self.memory.pages, extent.offset, extent.size, cached))
        return pieces, extents

    def adopt(
        self, process: SimProcess, address: int, size: int, flags: int, name: str
    ) -> tuple[list[Piece], tuple[Extent, ...]]:
        """Memory of a process itself. Raises SysError(EFAULT)."""
        process.user.read(address, size)
        user = UserPages(process.user)
        if not self._has_caches or flags & kgsl.KGSL_MEMFLAGS_IOCOHERENT:
            return [Piece(user, address, size, None)], ()
        extents = self.memory.pages.allocate(size)
        pieces, at = [], address
        for extent in extents:
            cached = Cached(name, self.memory.pages, self.memory.synced, user, at, extent)
            pieces.append(Piece(self.memory.pages, extent.offset, extent.size, cached))
            at += extent.size
        return pieces, extents


def is_cached(flags: int) -> bool:
    """Whether the CPU's caches hold such memory (`kgsl_cachemode_is_cached`)."""
    mode = (flags & kgsl.KGSL_CACHEMODE_MASK) >> kgsl.KGSL_CACHEMODE_SHIFT
    return mode in (kgsl.KGSL_CACHEMODE_WRITEBACK, kgsl.KGSL_CACHEMODE_WRITETHROUGH)
