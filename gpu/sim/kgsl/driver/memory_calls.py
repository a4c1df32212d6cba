"""Calls on objects, and mmap (kgsl.c, kgsl_sharedmem.c)."""

from __future__ import annotations

import ctypes
import errno
from typing import Final

from gpu.autogen import kgsl
from gpu.core.bits import align_up
from gpu.sim.kernel import ENOTSUPP, SysError
from gpu.sim.kgsl.driver.call import Call
from gpu.sim.kgsl.driver.device import Device
from gpu.sim.kgsl.driver.objects import MemObject, is_cached
from gpu.sim.kgsl.driver.properties import MEMSTORE_TOKEN
from gpu.sim.translate import PAGE_SIZE

_MOST_ALIGNED: Final = 25  # 32 MiB (kgsl.c, KGSL_MAX_ALIGN)
_MOST_BYTES: Final = 0xFFFF_FFFF
_MOST_SYNCED: Final = 128
_WRITE_BACK: Final = kgsl.KGSL_CACHEMODE_WRITEBACK << kgsl.KGSL_CACHEMODE_SHIFT
_WRITE_THROUGH: Final = kgsl.KGSL_CACHEMODE_WRITETHROUGH << kgsl.KGSL_CACHEMODE_SHIFT
_IMPORT_FLAGS: Final = (
    kgsl.KGSL_MEMFLAGS_GPUREADONLY
    | kgsl.KGSL_CACHEMODE_MASK
    | kgsl.KGSL_MEMFLAGS_USE_CPU_MAP
    | kgsl.KGSL_MEMTYPE_MASK
    | kgsl.KGSL_MEMFLAGS_FORCE_32BIT
    | kgsl.KGSL_MEMFLAGS_IOCOHERENT
)


def allocate(call: Call[kgsl.kgsl_gpuobj_alloc]) -> None:
    """GPUOBJ_ALLOC."""
    args = call.args
    item = _allocate(call, args.size, args.flags)
    args.size, args.flags = item.size, item.flags
    args.mmapsize, args.id = item.footprint, item.id


def allocate_id(call: Call[kgsl.kgsl_gpumem_alloc_id]) -> None:
    """GPUMEM_ALLOC_ID."""
    args = call.args
    item = _allocate(call, args.size, args.flags)
    args.size, args.flags, args.gpuaddr = item.size, item.flags & 0xFFFF_FFFF, item.address
    args.mmapsize, args.id = item.footprint, item.id


def _allocate(call: Call[ctypes.Structure], size: int, flags: int) -> MemObject:
    """`gpumem_alloc_entry`."""
    device = call.device
    known = device.release.memory_flags
    if flags & known & kgsl.KGSL_MEMFLAGS_SECURE:
        raise SysError(errno.EOPNOTSUPP, "there is no secure memory here")
    flags = _granted(device, _cap_alignment(flags & known))
    if not 1 <= size <= _MOST_BYTES:
        raise SysError(errno.EINVAL, f"an object of {size:#x} bytes")
    if flags & kgsl.KGSL_CACHEMODE_MASK == _WRITE_THROUGH:
        flags = flags & ~kgsl.KGSL_CACHEMODE_MASK | _WRITE_BACK
    if device.machine.faults.due("no-memory", about="gtt"):
        raise SysError(errno.ENOMEM, "a fault that was injected")
    size = align_up(size, PAGE_SIZE)
    pieces, extents = device.pages.allocate(size, flags, "an object")
    has_guard = flags & kgsl.KGSL_MEMFLAGS_GUARD_PAGE
    item = MemObject(0, size, size, flags, pieces, extents)
    if has_guard:
        item.guard = device.pages.guard
        item.footprint += PAGE_SIZE
    return _attach(call, item)


def _granted(device: Device, flags: int) -> int:
    """Flags less those that chip or memory do not have (`kgsl_memdesc_init`)."""
    if not device.gpu.chip.io_coherent:
        flags &= ~kgsl.KGSL_MEMFLAGS_IOCOHERENT
    if device.release.coherent_if_cached and not is_cached(flags):
        flags &= ~kgsl.KGSL_MEMFLAGS_IOCOHERENT
    align = (flags & kgsl.KGSL_MEMALIGN_MASK) >> kgsl.KGSL_MEMALIGN_SHIFT
    flags &= ~kgsl.KGSL_MEMALIGN_MASK
    return flags | max(align, 12) << kgsl.KGSL_MEMALIGN_SHIFT


def _cap_alignment(flags: int) -> int:
    align = (flags & kgsl.KGSL_MEMALIGN_MASK) >> kgsl.KGSL_MEMALIGN_SHIFT
    align = min(align, _MOST_ALIGNED)
    return flags & ~kgsl.KGSL_MEMALIGN_MASK | align << kgsl.KGSL_MEMALIGN_SHIFT


def _attach(call: Call[ctypes.Structure], item: MemObject) -> MemObject:
    """Gives an object a number, and an address where mmap does not choose it."""
    owner, device = call.owner, call.device
    if not item.uses_cpu_map:
        among = device.release.va
        if item.flags & kgsl.KGSL_MEMFLAGS_FORCE_32BIT:
            among = range(2 * device.gpu.chip.gmem, MEMSTORE_TOKEN)
        item.address = owner.space.low_hole(among, item.footprint, item.alignment)
    item.id = owner.objects.add(item, first=1)
    if item.address:
        owner.space.map(item)
    return item


def import_object(call: Call[kgsl.kgsl_gpuobj_import]) -> None:
    """GPUOBJ_IMPORT of the process's own memory (`_gpuobj_map_useraddr`)."""
    args, device = call.args, call.device
    if args.type == kgsl.KGSL_USER_MEM_TYPE_DMABUF:
        call.device.machine.debug.violation("imports of a dma-buf are not modelled")
        raise SysError(errno.EINVAL)
    if args.type != kgsl.KGSL_USER_MEM_TYPE_ADDR:
        raise SysError(ENOTSUPP, f"memory of type {args.type}")
    flags = _granted(device, args.flags & _IMPORT_FLAGS & device.release.memory_flags)
    try:
        address = call.user.read_struct(args.priv, kgsl.kgsl_gpuobj_import_useraddr).virtaddr
    except SysError as error:
        raise SysError(errno.EINVAL, error.reason) from error
    size = args.priv_len
    if not address or address % PAGE_SIZE or not size or size % PAGE_SIZE:
        raise SysError(errno.EINVAL, f"{size:#x} bytes at {address:#x} are no whole pages")
    if any(
        at < address + size and address < at + i.footprint for at, i in call.owner.mapped.items()
    ):
        raise SysError(errno.EFAULT, f"at {address:#x} are objects of the GPU already")
    item = _adopted(call, address, size, flags)
    args.flags, args.id = item.flags, item.id


def _adopted(call: Call[ctypes.Structure], address: int, size: int, flags: int) -> MemObject:
    device, space = call.device, call.owner.space
    flags |= kgsl.KGSL_MEMFLAGS_USERMEM_ADDR
    shares = flags & kgsl.KGSL_MEMFLAGS_USE_CPU_MAP
    if shares and not (
        address in device.release.svm
        and address + size <= device.release.svm.stop
        and space.is_free(address, size)
    ):
        raise SysError(errno.ENOMEM, f"{address:#x} cannot be the GPU's address, too")
    pieces, extents = device.pages.adopt(call.process, address, size, flags, "imported memory")
    item = MemObject(0, size, size, flags, pieces, extents, is_user=True)
    if shares:
        item.address = address
        item.id = call.owner.objects.add(item, first=1)
        space.map(item)
    else:
        item.flags &= ~kgsl.KGSL_MEMFLAGS_USE_CPU_MAP
        _attach(call, item)
    for piece in item.pieces:
        if piece.cached:
            device.gpu.caches.cpu.begin(piece.cached)
    return item


def info(call: Call[kgsl.kgsl_gpuobj_info]) -> None:
    """GPUOBJ_INFO."""
    args = call.args
    item = _find(call, args.id, 0)
    args.gpuaddr, args.flags, args.size = item.address, item.flags, item.size
    args.va_len, args.va_addr = item.footprint, 0


def get_info(call: Call[kgsl.kgsl_gpumem_get_info]) -> None:
    """GPUMEM_GET_INFO: by id, else by any address in an object."""
    args = call.args
    item = _find(call, args.id, args.gpuaddr)
    args.gpuaddr, args.id, args.flags = item.address, item.id, item.flags & 0xFFFF_FFFF
    args.size, args.mmapsize, args.useraddr = item.size, item.footprint, 0


def _find(call: Call[ctypes.Structure], number: int, address: int) -> MemObject:
    owner = call.owner
    item = owner.find(number) if number else owner.find_address(address) if address else None
    if item is None:
        raise SysError(errno.EINVAL, f"there is no object {number} or at {address:#x}")
    return item


def free(call: Call[kgsl.kgsl_gpuobj_free]) -> None:
    """GPUOBJ_FREE, at once or when a timestamp has retired."""
    args = call.args
    item = _find(call, args.id, 0)
    if not args.flags & kgsl.KGSL_GPUOBJ_FREE_ON_EVENT:
        call.device.free(call.owner, item)
        return
    if args.type != kgsl.KGSL_GPU_EVENT_TIMESTAMP:
        raise SysError(errno.EINVAL, f"there is no event {args.type} here")
    (event,) = call.structs(args.priv, args.len, 1, kgsl.kgsl_gpu_event_timestamp)
    context = call.device.context(call.owner, event.context_id)
    if not context.chooses_timestamps and context.is_ahead(event.timestamp):
        raise SysError(errno.EINVAL, f"timestamp {event.timestamp} was not queued yet")
    if context.has_retired(event.timestamp):
        call.device.destroy(call.owner, item)
    else:
        item.is_freed = True
        context.frees.append((event.timestamp, item))


def free_id(call: Call[kgsl.kgsl_gpumem_free_id]) -> None:
    """GPUMEM_FREE_ID."""
    call.device.free(call.owner, _find(call, call.args.id, 0))


def free_address(call: Call[kgsl.kgsl_sharedmem_free]) -> None:
    """SHAREDMEM_FREE."""
    call.device.free(call.owner, _find(call, 0, call.args.gpuaddr))


def sync(call: Call[kgsl.kgsl_gpuobj_sync]) -> None:
    """GPUOBJ_SYNC: cleans and invalidates the CPU's caches by ranges of objects."""
    args = call.args
    if not 1 <= args.count <= _MOST_SYNCED:
        raise SysError(errno.EINVAL, f"{args.count} objects; there are 1 to {_MOST_SYNCED}")
    wanted = call.structs(args.objs, args.obj_len, args.count, kgsl.kgsl_gpuobj_sync_obj)
    for each in wanted:
        item = call.owner.find(each.id)
        if item is None:
            call.device.machine.debug.violation(
                f"GPUOBJ_SYNC of object {each.id}, which there is not: the kernel leaves it out"
            )
            continue
        _sync(call.device, item, each.offset, each.length, each.op)


def _sync(device: Device, item: MemObject, offset: int, length: int, op: int) -> None:
    """`_kgsl_gpumem_sync_cache` and `kgsl_cache_range_op`."""
    if not op & kgsl.KGSL_GPUMEM_CACHE_FLUSH:
        raise SysError(errno.EINVAL, f"the operation {op:#x} neither cleans nor invalidates")
    if not op & kgsl.KGSL_GPUMEM_CACHE_RANGE:
        offset, length = 0, item.size
    if not is_cached(item.flags) or item.flags & kgsl.KGSL_MEMFLAGS_IOCOHERENT:
        if item.is_user and not item.flags & kgsl.KGSL_MEMFLAGS_IOCOHERENT:
            device.machine.debug.violation(
                f"GPUOBJ_SYNC of imported {item}, whose cache mode says that nothing is cached:"
                " the kernel does nothing"
            )
        return
    if not 1 <= length <= _MOST_BYTES:
        raise SysError(errno.EINVAL, f"a range of {length:#x} bytes")
    if offset + length > item.size:
        raise SysError(errno.ERANGE, f"{offset:#x} + {length:#x} of {item.size:#x} bytes")
    at = 0
    for piece in item.pieces:
        first, last = max(offset, at), min(offset + length, at + piece.size)
        if piece.cached and first < last:
            if op & kgsl.KGSL_GPUMEM_CACHE_CLEAN:
                device.gpu.caches.cpu.clean(piece.cached, first - at, last - first)
            if op & kgsl.KGSL_GPUMEM_CACHE_INV:
                device.gpu.caches.cpu.invalidate(piece.cached, first - at, last - first)
        at += piece.size
