"""Addresses that RM itself maps: NV01_MEMORY_VIRTUAL, MAP_MEMORY_DMA and UNMAP_MEMORY_DMA.

Rules are those of mem_mgr/virt_mem_range.c, mem_mgr/virtual_mem.c, gpu/mem_mgr/dma.c, its
virt_mem_allocator_gm107.c, rmapi/mapping.c and resserv's rs_server.c of open-gpu-kernel-modules
580.142. Which addresses RM picks where it may is its own affair: the lowest that are free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gpu.core.bits import align_down, align_up, bits
from gpu.sim.nv.rm.objects import Device, Memory, Resource, Subdevice, VaSpace, expect
from gpu.sim.nv.rm.request import Request
from gpu.sim.nv.rm.state import Caller, RmState
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.physical import PAGE, Extent
from gpu.sim.translate import Mapping

_NO_VASPACE: Final = 0xFFFF_FFFF  # NV_MEMORY_VIRTUAL_SYSMEM_DYNAMIC_HVASPACE
_FIRST_VA: Final = 2 << 20
_READ_ONLY: Final = 1  # NVOS46_FLAGS_ACCESS
_FIXED: Final = 1 << 15
_KIND_VIRTUAL: Final = 1 << 3
_KIND_OVERRIDE: Final = 1 << 19
_PAGE_SIZES: Final = {1: 4 << 10, 2: 64 << 10, 4: 2 << 20, 5: 512 << 20}
_DEFAULT_SIZES: Final = (0, 3)
_DEFER_INVALIDATE: Final = 1  # NVOS47_FLAGS_DEFER_TLB_INVALIDATION


class DmaHandles(NamedTuple):
    """What a mapping is between: virtual memory, and memory, as a device sees it."""

    client: int
    device: int
    dma: int
    memory: int = 0


@dataclass(eq=False)
class _Mapped:
    """A part of memory that is mapped, in whole pages; `answer` is the address that RM told."""

    memory: Memory
    device: Resource
    answer: int
    start: int
    span: Extent
    writable: bool
    pieces: list[Mapping]

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.start + self.span.size


class VirtualMemory(Resource):
    """Addresses of a VA space that RM may map memory to; without a VA space none.

    Attributes:
        base, end: its addresses, `end` not included.
        mapped: what is mapped there.
    """

    vaspace: VaSpace | None

    def __init__(self, *args: Any, base: int, end: int):
        super().__init__(*args)
        self.base = base
        self.end = end
        self.mapped: list[_Mapped] = []

    def map(self, memory: Memory, device: Resource, span: Extent, flags: int, offset: int) -> int:
        """Maps a part of memory; returns its address. Raises RmError.

        `offset` counts from `base`, or is the address itself with the flag FIXED.
        """
        if self.vaspace is None:
            raise RmError(Status.OBJECT_NOT_FOUND, f"{self} has no VA space to map in")
        both = flags & _KIND_VIRTUAL and flags & _KIND_OVERRIDE
        check(not both, Status.INVALID_ARGUMENT, "PAGE_KIND_VIRTUAL and an override of the kind")
        physical, asked = memory.physical, bits(flags, 11, 8)
        known = asked in _DEFAULT_SIZES or asked in _PAGE_SIZES
        check(known, Status.INVALID_ARGUMENT, f"page size {asked} of a mapping")
        near = not physical.local or physical.gpu is self.gpu
        check(near, Status.NOT_SUPPORTED, "mapping another GPU's memory is not modelled")
        page = min(_PAGE_SIZES.get(asked, physical.page_size), physical.page_size)
        # gvaspaceAlloc
        own = not self.vaspace.external
        check(own, Status.NOT_SUPPORTED, f"{self.vaspace} is externally owned: UVM maps there")
        start = align_down(span.offset, page)
        size = align_up(span.offset + span.size, page) - start
        if flags & _FIXED:
            address = align_down(offset, page)
        else:
            address = self._free(align_up(max(self.base + offset, _FIRST_VA), page), size, page)
        end = address + size
        limit = self.gpu.chip.va_limit if flags & _FIXED else self.end
        free = end <= limit and not self.vaspace.space.overlapping(address, end)
        check(free, Status.NO_MEMORY, f"{size:#x} bytes at {address:#x} are not free")
        writable = bits(flags, 1, 0) != _READ_ONLY
        answer = address + span.offset - start
        self._add(_Mapped(memory, device, answer, address, Extent(start, size), writable, []))
        return answer

    def _free(self, address: int, size: int, page: int) -> int:
        """The first free addresses from one on."""
        assert self.vaspace
        while taken := self.vaspace.space.overlapping(address, address + size):
            address = align_up(taken.end, page)
        return address

    def _add(self, new: _Mapped) -> None:
        assert self.vaspace
        physical, at = new.memory.physical, new.start
        for extent in physical.pieces(*new.span):
            place = (at, at + extent.size, physical.region, extent.offset, new.writable)
            new.pieces.append(Mapping(*place, owner=physical))
            self.vaspace.space.map(new.pieces[-1])
            at += extent.size
        physical.seen_by.add(self.gpu)
        self.mapped.append(new)

    def unmap(self, device: Resource, address: int, size: int, flags: int) -> None:
        """Takes out the mapping of an address, or what of mappings is in a range. Raises RmError.

        `size` is 0 for the whole mapping. A range may cut mappings, between pages.
        """
        mine = [each for each in self.mapped if each.device is device]
        if size:
            end = address + size
            good = end < 1 << 64 and address % PAGE == 0 and end % PAGE == 0
            check(good, Status.INVALID_ARGUMENT, f"{size:#x} from {address:#x}")
            found = [each for each in mine if each.start < end and address < each.end]
        else:
            found = [each for each in mine if each.answer == address]
            check(bool(found), Status.OBJECT_NOT_FOUND, f"nothing is mapped at {address:#x}")
        for old in found:
            self._drop(old)
            if size:
                self._keep(old, old.start, address)
                self._keep(old, end, old.end)
        if self.vaspace and not flags & _DEFER_INVALIDATE:
            self.vaspace.space.flush_tlb()

    def _keep(self, old: _Mapped, start: int, end: int) -> None:
        """A part of what was a mapping stays one."""
        if start < end:
            span = Extent(old.span.offset + start - old.start, end - start)
            self._add(_Mapped(old.memory, old.device, start, start, span, old.writable, []))

    def _drop(self, old: _Mapped) -> None:
        assert self.vaspace
        for piece in old.pieces:
            self.vaspace.space.unmap(piece.start)
        self.mapped.remove(old)

    def forget(self, memory: Memory | None = None) -> None:
        """Memory ends, or the whole object: its mappings go, and translations with them."""
        for each in [m for m in self.mapped if memory in (None, m.memory)]:
            self._drop(each)
            assert self.vaspace
            self.vaspace.space.flush_tlb()

    def released(self) -> None:
        """Its mappings end with it."""
        self.forget()


def make_virtual(request: Request) -> Resource:
    """vmrangeConstruct."""
    params, vaspace = request.required, None
    handle, offset, limit = params["hVASpace"], params["offset"], params["limit"]
    end = request.parent.gpu.chip.va_limit
    if handle == _NO_VASPACE:
        end = 1 << 40
    elif handle:
        found = request.client.find(handle)
        vaspace = expect(found, VaSpace, Status.INVALID_OBJECT_HANDLE)
    else:
        vaspace = request.default_vaspace()
    if limit:
        check(limit < end, Status.INVALID_LIMIT, f"a limit of {limit:#x}, beyond {end:#x}")
        end = limit + 1
    check(offset < end, Status.INVALID_OFFSET, f"from {offset:#x} to {end:#x}")
    made = VirtualMemory("virtual", *request.base, base=offset, end=end)
    made.vaspace = vaspace
    if handle and vaspace:
        vaspace.dependants.append(made)
    params["limit"] = end - 1
    return made


def map_dma(
    rm: RmState, caller: Caller, handles: DmaHandles, span: Extent, flags: int, offset: int
) -> int:
    """MAP_MEMORY_DMA (serverInterMap): the address. Raises RmError."""
    check(span.size > 0, Status.INVALID_LIMIT, "a mapping of 0 bytes")
    client = rm.client(caller, handles.client)
    mapper, memory = client.find(handles.dma), client.find(handles.memory)
    device = _device(client.find(handles.device))
    if not isinstance(memory, Memory):
        raise RmError(Status.INVALID_OBJECT_HANDLE, f"{memory} is no memory")
    fits = span.offset + span.size <= memory.length
    check(fits, Status.INVALID_LIMIT, f"{span.size:#x} from {span.offset:#x} of {memory.length:#x}")
    return _mapper(mapper).map(memory, device, span, flags, offset)


def unmap_dma(
    rm: RmState, caller: Caller, handles: DmaHandles, address: int, size: int, flags: int
) -> None:
    """UNMAP_MEMORY_DMA (serverInterUnmap). Raises RmError."""
    client = rm.client(caller, handles.client)
    mapper, device = client.find(handles.dma), _device(client.find(handles.device))
    _mapper(mapper).unmap(device, address, size, flags)


def _device(found: Resource) -> Resource:
    good = isinstance(found, Device | Subdevice)
    check(good, Status.INVALID_OBJECT, f"{found} is no device")
    return found


def _mapper(found: Resource) -> VirtualMemory:
    """What has addresses to map at (resMapTo_IMPL)."""
    return expect(found, VirtualMemory, Status.INVALID_OBJECT_HANDLE)
