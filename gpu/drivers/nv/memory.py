"""Memory of a GPU: RM objects at addresses that host and GPU share, through UVM.

Life of an allocation: take addresses, allocate the object, map it for the host if it is visible,
reserve the range in UVM, map the object into it; undone in reverse. Attribute bits: nvos.h of
open-gpu-kernel-modules; which of them to set is what tinygrad's ops_nv.py is known to run with.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import alloc
from gpu.autogen.nv import classes as ids
from gpu.core import hostmem
from gpu.core.bits import align_down, align_up
from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.window import MemoryWindow
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.probes import COHERENCY
from gpu.drivers.nv.rm.escapes import CardPort
from gpu.drivers.nv.rm.object import Mapping, RmObject
from gpu.drivers.nv.uvm.ranges import PageTables
from gpu.drivers.nv.uvm.va import AddressSpace
from gpu.drivers.questions import Variants
from gpu.hcq.ports import Memory, MemoryKind, MemoryPort
from gpu.hcq.symbol import GpuVA

HUGE_PAGE: Final = 2 << 20
_HUGE_FROM: Final = 8 << 20  # below it 2 MiB pages waste more than they save
_LINEAR_FORMAT: Final = 6  # of surfaces without a layout

_FLAGS: Final = (
    alloc.NVOS32_ALLOC_FLAGS_IGNORE_BANK_PLACEMENT
    | alloc.NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE
    | alloc.NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED
    | alloc.NVOS32_ALLOC_FLAGS_MAP_NOT_REQUIRED
)
_CONTIGUOUS: Final = alloc.NVOS32_ATTR_PHYSICALITY_CONTIGUOUS
_ALLOW_NONCONTIGUOUS: Final = alloc.NVOS32_ATTR_PHYSICALITY_ALLOW_NONCONTIGUOUS
_HUGE_PAGES: Final = alloc.NVOS32_ATTR_PAGE_SIZE_HUGE
_HUGE_2MB: Final = alloc.NVOS32_ATTR2_PAGE_SIZE_HUGE_2MB
_COHERENCY: Final = {
    "cached": alloc.NVOS32_ATTR_COHERENCY_CACHED,
    "write back": alloc.NVOS32_ATTR_COHERENCY_WRITE_BACK,
    "uncached": alloc.NVOS32_ATTR_COHERENCY_UNCACHED,
}


_REMEMBERED: Final = 64  # allocations that were freed, for messages


@dataclass(frozen=True, slots=True)
class Extent:
    """Where an allocation is or was, and its name."""

    address: int
    size: int
    name: str
    freed: bool = False

    def __contains__(self, address: int) -> bool:
        return self.address <= address < self.address + self.size

    def place_of(self, address: int) -> str:
        """Where an address is relative to it, in words."""
        what = f"{self.name} at {self.address:#x}" + (", which was freed" if self.freed else "")
        if address in self:
            return f"{address - self.address:#x} into {what}"
        return f"{address - self.address - self.size:#x} bytes behind {what}"


@dataclass(frozen=True, slots=True, eq=False)
class BufferObject:
    """An RM object in whole pages of the GPU's addresses; ``undo`` frees it."""

    object: RmObject
    address: int
    size: int
    undo: Undo


@dataclass(frozen=True, slots=True, eq=False)
class _Guest:
    """Memory of another GPU, whose object is dead once its owner freed it."""

    owner: PageTables
    made: BufferObject


class NvMemoryPort:
    """Allocates memory of one GPU, in whole pages; the `gpu.hcq.ports.MemoryPort` of NVIDIA's.

    All methods raise as `CallLog.check` does, and TransportError.
    """

    def __init__(
        self,
        device: RmObject,
        card: CardPort,
        tables: PageTables,
        addresses: AddressSpace,
        variants: Variants,
    ):
        self._device = device
        self._card = card
        self._tables = tables
        self._addresses = addresses
        self._variants = variants
        self._live: dict[Memory, BufferObject] = {}
        self._guests: dict[Memory, _Guest] = {}
        self._closed = False
        self._freed: deque[Extent] = deque(maxlen=_REMEMBERED)

    def allocate(
        self, size: int, kind: MemoryKind, *, contiguous: bool = False, name: str = "buffer"
    ) -> Memory:
        """At least ``size`` bytes, 64 KiB aligned; what the host maps lies below 1 << 40.

        ``name`` is for messages. Raises InvalidValue for a size below 1, OutOfMemory.
        """
        if size < 1:
            raise InvalidValue(f"{size} bytes for {name}: at least 1 is needed")
        huge = kind is not MemoryKind.SYSTEM and size >= _HUGE_FROM
        page = HUGE_PAGE if huge else hostmem.page_size
        whole = align_up(size, page)
        low = kind is not MemoryKind.VRAM
        with Undo() as undo:
            address = self._addresses.take(whole, page, low=low)
            undo.add(self._addresses.give, address)
            object_ = self._new_object(whole, page, kind, contiguous, name)
            undo.add(object_.free)
            window = None
            if low:
                on_card = kind is MemoryKind.VISIBLE
                mapping = self._card.map(
                    self._device, object_, whole, on_card=on_card, address=address
                )
                undo.add(self._unmap, mapping)
                window = mapping.window.sub(0, size)
            self._map_to_gpu(object_, address, whole, undo)
            memory = Memory(GpuVA(address), size, kind, window)
            self._live[memory] = BufferObject(object_, address, whole, undo.take())
            return memory

    def free(self, memory: Memory) -> None:
        """Gives memory back; the GPU must not use it any more. Raises InvalidValue if it is not."""
        made = self._made(memory)
        del self._live[memory]
        self._freed.append(Extent(made.address, made.size, made.object.name, freed=True))
        made.undo.close()

    def _made(self, memory: Memory) -> BufferObject:
        if memory not in self._live:
            raise InvalidValue(
                f"memory at {memory.address:#x} is not of {self._device}, or was freed before"
            )
        return self._live[memory]

    def map_host(self, address: int, size: int) -> Memory:
        """Pins the pages around memory of this process for the GPU, at their own address.

        Pages that are mapped already cannot be mapped again: raises RmError for those.
        """
        start = align_down(address, hostmem.page_size)
        whole = align_up(address + size, hostmem.page_size) - start
        with Undo() as undo:
            name = f"host memory at {start:#x}"
            object_ = self._card.describe_host_memory(self._device, start, whole, name=name)
            undo.add(object_.free)
            self._map_to_gpu(object_, start, whole, undo)
            window = MemoryWindow(address, size)
            memory = Memory(GpuVA(address), size, MemoryKind.SYSTEM, window)
            self._live[memory] = BufferObject(object_, start, whole, undo.take())
            return memory

    def map_peer(self, memory: Memory, owner: MemoryPort) -> None:
        """Lets this GPU read and write memory of another one, where it is; atomics do not cross.

        Raises Unsupported with the reason where the two are no peers, InvalidValue for memory that
        is not the owner's or is mapped already.
        """
        if not isinstance(owner, NvMemoryPort):
            raise Unsupported(
                f"memory at {memory.address:#x} is of no NVIDIA GPU: copy through system memory"
            )
        if memory in self._guests:
            raise InvalidValue(f"{memory.address:#x} is mapped into {self._device} already")
        guest = _Guest(owner._tables, owner._made(memory))
        self._tables.connect(guest.owner)
        self._map_guest(guest)
        self._guests[memory] = guest

    def unmap_peer(self, memory: Memory) -> None:
        """Ends what `map_peer` began; nothing to do where owner or port are closed.

        Raises InvalidValue for other memory.
        """
        guest = self._guests.pop(memory, None)
        if guest is None:
            if self._closed:
                return
            raise InvalidValue(f"{memory.address:#x} is no peer's memory in {self._device}")
        made = guest.made
        if made.object.alive:
            self._tables.unmap(made.address, made.size)

    def _map_guest(self, guest: _Guest) -> None:
        made = guest.made
        self._tables.map_peer(guest.owner, made.object, made.address, made.size)

    def unmap_all(self) -> None:
        """Takes all memory out of the GPU's page tables; `map_all` puts it where it was."""
        self._guests = {memory: g for memory, g in self._guests.items() if g.made.object.alive}
        guests = (guest.made for guest in self._guests.values())
        for made in (*guests, *self._live.values()):
            self._tables.unmap(made.address, made.size)

    def map_all(self) -> None:
        """Maps all memory where it was, into the page tables that are registered now."""
        for made in self._live.values():
            self._tables.map(made.object, made.address, made.size)
        for guest in self._guests.values():
            self._map_guest(guest)

    def object_of(self, memory: Memory) -> RmObject:
        """The RM object of memory of this port. Raises InvalidValue for other memory."""
        return self._made(memory).object

    @property
    def live(self) -> tuple[Memory, ...]:
        """What is allocated and not freed, the oldest first."""
        return tuple(self._live)

    def nearest(self, address: int) -> Extent | None:
        """The allocation that an address is in, was in before it was freed, or is behind."""
        live = self.extents()
        for extent in (*live, *reversed(self._freed)):
            if address in extent:
                return extent
        before = [extent for extent in live if extent.address <= address]
        return max(before, key=lambda extent: extent.address, default=None)

    def describe(self, address: int) -> str:
        """That allocation in words, and where in or behind it the address is."""
        near = self.nearest(address)
        return "before all buffers" if near is None else near.place_of(address)

    def extents(self) -> list[Extent]:
        """All allocations."""
        live = list(self._live.values())  # at once: other threads may allocate
        return [Extent(m.address, m.size, m.object.name) for m in live]

    def read(self, address: int, size: int) -> bytes | None:
        """Bytes at an address of the GPU; None where the host does not see all of them."""
        for memory in self._live:
            at = address - memory.address
            if at >= 0 and at + size <= memory.size and memory.window is not None:
                return memory.window.load(at, size)
        return None

    def close(self) -> None:
        """Frees what is left, the youngest first; all is tried before an error is raised."""
        self._closed = True
        with Undo() as order:
            for memory in self._live:
                order.add(self.free, memory)
            for memory in self._guests:
                order.add(self.unmap_peer, memory)

    def _new_object(
        self, size: int, page: int, kind: MemoryKind, contiguous: bool, name: str
    ) -> RmObject:
        params = alloc.NV_MEMORY_ALLOCATION_PARAMS(
            owner=self._device.client.handle,
            flags=_FLAGS,
            attr=_CONTIGUOUS if contiguous else _ALLOW_NONCONTIGUOUS,
            attr2=alloc.NVOS32_ATTR2_ZBC_PREFER_NO_ZBC,
            format=_LINEAR_FORMAT,
            size=size,
            alignment=page,
            limit=size - 1,
        )
        name = f"{name} ({size:#x} bytes)"
        if kind is not MemoryKind.SYSTEM:
            huge = page == HUGE_PAGE
            params.type = alloc.NVOS32_TYPE_IMAGE
            params.attr |= _HUGE_PAGES if huge else alloc.NVOS32_ATTR_PAGE_SIZE_4KB
            params.attr2 |= alloc.NVOS32_ATTR2_GPU_CACHEABLE_YES | (_HUGE_2MB if huge else 0)
            return self._device.alloc(ids.NV01_MEMORY_LOCAL_USER, params, name=name)
        params.type = alloc.NVOS32_TYPE_NOTIFIER
        params.attr2 |= alloc.NVOS32_ATTR2_GPU_CACHEABLE_NO
        attributes = params.attr | alloc.NVOS32_ATTR_LOCATION_PCI

        def attempt(coherency: str) -> RmObject:
            params.attr = attributes | _COHERENCY[coherency]
            return self._device.alloc(ids.NV01_MEMORY_SYSTEM, params, name=name)

        return self._variants.attempt(COHERENCY, attempt)

    def _map_to_gpu(self, memory: RmObject, address: int, size: int, undo: Undo) -> None:
        self._tables.reserve(address, size)
        undo.add(self._tables.give_back, address, size)
        self._tables.map(memory, address, size)

    def _unmap(self, mapping: Mapping) -> None:
        try:
            self._card.unmap(mapping)
        finally:
            self._addresses.reserve_again(mapping.address, mapping.size)
