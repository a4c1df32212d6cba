"""Memory of a GPU: RM objects at addresses that host and GPU share, through UVM.

Life of an allocation: take addresses, allocate the object, map it for the host if it is visible,
reserve the range in UVM, map the object into it; undone in reverse. Attribute bits: nvos.h of
open-gpu-kernel-modules; which of them to set is what tinygrad's ops_nv.py is known to run with.
"""

from __future__ import annotations

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
from gpu.drivers.nv.memory import Extent, Extents
from gpu.drivers.nv.nvk.addresses import AddressSpace
from gpu.drivers.nv.nvk.kernel import CardPort
from gpu.drivers.nv.nvk.pagetables import PageTables
from gpu.drivers.nv.rm.object import Mapping, RmObject
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
        self.extents = Extents()

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
            return self._keep(memory, BufferObject(object_, address, whole, undo.take()))

    def free(self, memory: Memory) -> None:
        """Gives memory back; the GPU must not use it any more. Raises InvalidValue if it is not."""
        made = self._made(memory)
        del self._live[memory]
        self.extents.remove(memory)
        made.undo.close()

    def _keep(self, memory: Memory, made: BufferObject) -> Memory:
        self._live[memory] = made
        self.extents.add(memory, Extent(made.address, made.size, made.object.name))
        return memory

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
            return self._keep(memory, BufferObject(object_, start, whole, undo.take()))

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
