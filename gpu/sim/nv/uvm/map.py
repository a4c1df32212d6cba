"""Mapping memory into external ranges of UVM, on one GPU or several.

From kernel-open/nvidia-uvm/uvm_map_external.c of open-gpu-kernel-modules 580.142.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.nv.chip.memory import Physical
from gpu.sim.nv.rm.layout import Record
from gpu.sim.nv.rm.objects import Memory
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.nv.uvm import layouts
from gpu.sim.nv.uvm.space import External, GpuSpace, Range, UvmSpace
from gpu.sim.translate import Mapping

_PAGE: Final = 4096
_MAPPING_TYPES: Final = 4
_READ_ONLY: Final = 3
_CACHING_TYPES: Final = 3
_GPU_VA_LIMIT: Final = 1 << 49


def span(args: Record) -> tuple[int, int]:
    """base and length, of whole 4 KiB pages (uvm_api_range_invalid_4k). Raises RmError."""
    base, length = args["base"], args["length"]
    good = base and length and base % _PAGE == 0 and length % _PAGE == 0 and base + length < 1 << 64
    check(bool(good), Status.INVALID_ADDRESS, f"{length:#x} bytes at {base:#x}")
    return base, length


def map_memory(uvm: UvmSpace, args: Record) -> None:
    """uvm_map_external_allocation; what fails on a later GPU undoes the earlier ones."""
    base, length = span(args)
    count, table = args["count"], args.raw("attributes")
    size = layouts.UVM_ATTRIBUTES.size
    check(0 < count <= len(table) // size, Status.INVALID_ARGUMENT, f"{count} GPUs")
    found = _external(uvm, base, length)
    made: list[External] = []
    try:
        for i in range(count):
            attributes = layouts.UVM_ATTRIBUTES.parse(table[i * size : (i + 1) * size])
            made.append(_map_on(uvm, found, args, attributes))
    except RmError:
        for external in made:
            if external in found.mapped:  # the list may name a GPU twice
                uvm.unmap(found, external)
        raise


def unmap_memory(uvm: UvmSpace, args: Record) -> None:
    """uvm_unmap_external."""
    base, length = span(args)
    found = _external(uvm, base, length)
    gpu = uvm.gpu(args.raw("uuid"))
    for external in [e for e in found.mapped if e.gpu is gpu]:
        if external.start < base + length and base < external.start + external.size:
            uvm.unmap(found, external)


def _external(uvm: UvmSpace, base: int, length: int) -> Range:
    found = uvm.overlapping(base, base + 1)
    good = found is not None and not found.channel and found.end >= base + length
    check(good, Status.INVALID_ADDRESS, f"{length:#x} bytes at {base:#x} are in no external range")
    assert found is not None
    return found


def _map_on(uvm: UvmSpace, found: Range, args: Record, attributes: Record) -> External:
    """uvm_map_external_allocation_on_gpu."""
    kind = attributes["mapping"]
    good = kind < _MAPPING_TYPES and attributes["caching"] < _CACHING_TYPES
    plain = not (attributes["format"] or attributes["elementBits"] or attributes["compression"])
    check(good and plain, Status.INVALID_ARGUMENT, f"attributes {attributes}")
    space = uvm.space(attributes.raw("uuid"))
    base, length, offset = args["base"], args["length"], args["offset"]
    check(base + length <= _GPU_VA_LIMIT, Status.OUT_OF_RANGE, f"{base:#x} is beyond the GPU")
    for old in [e for e in found.mapped if e.gpu is space.gpu]:
        if old.start < base + length and base < old.start + old.size:
            uvm.unmap(found, old)
    memory = _memory(uvm, args["hClient"], args["hMemory"])
    physical = memory.physical
    _check_location(uvm, space, physical)
    check(offset % _PAGE == 0, Status.INVALID_ADDRESS, f"offset {offset:#x}")
    inside = offset + length <= physical.size
    check(inside, Status.INVALID_OFFSET, f"{length:#x} from {offset:#x} of {memory.length:#x}")
    physical.hold()
    physical.seen_by.add(space.gpu)
    writable = kind != _READ_ONLY and not memory.read_only
    mappings, at = [], base
    for piece in physical.pieces(offset, length):
        end = at + piece.size
        mapping = Mapping(at, end, physical.region, piece.offset, writable, owner=physical)
        space.vaspace.space.map(mapping)
        mappings.append(mapping)
        at = end
    external = External(space.gpu, base, length, physical, mappings)
    found.mapped.append(external)
    return external


def _check_location(uvm: UvmSpace, space: GpuSpace, physical: Physical) -> None:
    """set_ext_gpu_map_location: the owner is registered, and a peer if it is its video memory."""
    owner = physical.gpu
    check(owner.uuid in uvm.gpus, Status.INVALID_DEVICE, f"memory of {owner}, not registered")
    near = owner is space.gpu or not physical.local or frozenset((owner, space.gpu)) in uvm.peers
    check(near, Status.INVALID_DEVICE, f"memory of {owner}, to which {space.gpu} has no access")


def _memory(uvm: UvmSpace, client: int, handle: int) -> Memory:
    """nvGpuOpsDupMemory."""
    found = uvm.rm.find(client, handle)
    if not isinstance(found, Memory):
        raise RmError(Status.INVALID_OBJECT_HANDLE, f"{found} is no memory")
    same = found.client.pid == uvm.pid
    check(same, Status.INSUFFICIENT_PERMISSIONS, f"{found} is another process's")
    return found
