"""KFD's memory calls: allocate, free, map, unmap, export, import.

Checks, their order and the errno of each are those of Linux 6.12 kfd_chardev.c and
amdgpu_amdkfd_gpuvm.c.
"""

from __future__ import annotations

import errno
from typing import Final

from gpu.autogen import kfd
from gpu.core.bits import align_up
from gpu.sim.amd.kfd.gpu import Bo
from gpu.sim.amd.kfd.process import DOORBELL_SLICE, Allocation, KfdProcess, ProcessDevice
from gpu.sim.kernel import SysError
from gpu.sim.physical import UserPages
from gpu.sim.process import SimFile
from gpu.sim.translate import PAGE_SIZE, Mapping

_VRAM: Final = kfd.KFD_IOC_ALLOC_MEM_FLAGS_VRAM
_GTT: Final = kfd.KFD_IOC_ALLOC_MEM_FLAGS_GTT
_USERPTR: Final = kfd.KFD_IOC_ALLOC_MEM_FLAGS_USERPTR
_DOORBELL: Final = kfd.KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL
_MMIO: Final = kfd.KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP
_DOMAINS: Final = _VRAM | _GTT | _USERPTR | _DOORBELL | _MMIO
_UNCACHED: Final = (
    kfd.KFD_IOC_ALLOC_MEM_FLAGS_COHERENT
    | kfd.KFD_IOC_ALLOC_MEM_FLAGS_UNCACHED
    | kfd.KFD_IOC_ALLOC_MEM_FLAGS_EXT_COHERENT
)
_KNOWN: Final = (
    _DOMAINS
    | _UNCACHED
    | kfd.KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
    | kfd.KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE
    | kfd.KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC
    | kfd.KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE
    | kfd.KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM
    | kfd.KFD_IOC_ALLOC_MEM_FLAGS_CONTIGUOUS
)
_LAST_PAGE: Final = 1 << 36  # amdgpu_vm.c max_pfn with 48-bit addresses
MMAP_MMIO: Final = 0
MMAP_GPU_SHIFT: Final = 46


class DmaBuf(SimFile):
    """A descriptor of a buffer that other processes and devices can import."""

    def __init__(self, bo: Bo):
        self.bo = bo
        bo.users += 1

    def released(self) -> None:
        """One holder less."""
        self.bo.gpu.drop(self.bo)


def alloc_memory(p: KfdProcess, args: kfd.kfd_ioctl_alloc_memory_of_gpu_args) -> None:
    """ALLOC_MEMORY_OF_GPU."""
    if args.size == 0:
        raise SysError(errno.EINVAL, "size 0")
    if args.flags & _USERPTR and not p.is_primary:
        # "amdkfd: process USERPTR allocation only on the primary kfd process", amd-gfx, 2025
        raise SysError(errno.EOPNOTSUPP, "user memory is of the primary context only")
    device = p.device(args.gpu_id)
    device.bind()
    _note_flags(device, args.flags)
    bo = _new_bo(p, device, args)
    double = bool(args.flags & kfd.KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM)
    allocation = Allocation(bo, args.va_addr, args.flags, double)
    args.handle = args.gpu_id << 32 | device.allocations.add(allocation)
    args.mmap_offset = bo.mmap_offset
    if args.flags & _MMIO:
        args.mmap_offset = MMAP_MMIO | args.gpu_id << MMAP_GPU_SHIFT
    assert device.drm is not None
    device.drm.allowed[bo.mmap_offset] = bo


def _note_flags(device: ProcessDevice, flags: int) -> None:
    """The kernel ignores what it does not know and takes the first domain; we do not like it."""
    domains = flags & _DOMAINS
    if domains & (domains - 1) or flags & ~_KNOWN:
        device.gpu.sim.debug.violation(
            f"ALLOC_MEMORY_OF_GPU flags {flags:#x}: one domain of VRAM, GTT, USERPTR, DOORBELL,"
            f" MMIO_REMAP, and no bits of {flags & ~_KNOWN:#x}"
        )


def _new_bo(
    p: KfdProcess, device: ProcessDevice, args: kfd.kfd_ioctl_alloc_memory_of_gpu_args
) -> Bo:
    gpu, flags = device.gpu, args.flags
    if flags & _DOORBELL and args.size != DOORBELL_SLICE:
        raise SysError(errno.EINVAL, f"doorbells are {DOORBELL_SLICE:#x} bytes")
    if flags & _MMIO and not flags & _DOORBELL and args.size != PAGE_SIZE:
        raise SysError(errno.EINVAL, "remapped registers are one page")
    size = args.size
    if flags & kfd.KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM:
        size //= 2
    if not align_up(size, PAGE_SIZE):
        raise SysError(errno.EINVAL, "an AQL ring of less than 2 bytes")
    if flags & (_VRAM | _GTT):
        return gpu.allocate(size, flags, p.process)
    if flags & _USERPTR:
        return _wrap_user(p, device, args.mmap_offset, size, flags)
    if flags & _DOORBELL:
        return gpu.wrap(device.need_doorbells(), 0, size, flags)
    if flags & _MMIO:
        return gpu.wrap(gpu.remap, 0, size, flags)
    raise SysError(errno.EINVAL, "no domain in the flags")


def _wrap_user(p: KfdProcess, device: ProcessDevice, address: int, size: int, flags: int) -> Bo:
    """User memory: every page must be there and writable (`init_user_pages`)."""
    if not address:
        raise SysError(errno.EINVAL, "the address of user memory goes into mmap_offset")
    if address % PAGE_SIZE:
        device.gpu.sim.debug.violation(f"user memory at {address:#x} does not begin at a page")
        raise SysError(errno.EINVAL)
    user = p.process.user
    for page in range(address, address + size, PAGE_SIZE):
        byte = user.read(page, 1)
        try:
            user.write(page, byte)
        except SysError as error:
            raise SysError(errno.EPERM, f"page {page:#x} is read-only") from error
    return device.gpu.wrap(UserPages(user), address, size, flags)


def free_memory(p: KfdProcess, args: kfd.kfd_ioctl_free_memory_of_gpu_args) -> None:
    """FREE_MEMORY_OF_GPU."""
    if p.events.page_handle is not None and p.events.page_handle == args.handle:
        raise SysError(errno.EPERM, "the event page lives as long as the process")
    device, allocation = p.allocation(args.handle, errno.EINVAL)
    if allocation.mapped:
        raise SysError(errno.EBUSY, "the buffer is still mapped to a GPU")
    release(device, args.handle & 0xFFFFFFFF)


def release(device: ProcessDevice, number: int) -> None:
    """Forgets an allocation."""
    allocation = device.allocations.get(number)
    assert allocation is not None and device.drm is not None
    device.allocations.remove(number)
    device.drm.allowed.pop(allocation.bo.mmap_offset, None)
    device.gpu.drop(allocation.bo)


def map_memory(p: KfdProcess, args: kfd.kfd_ioctl_map_memory_to_gpu_args) -> None:
    """MAP_MEMORY_TO_GPU; `n_success` tells how far it came."""
    ids = _device_ids(p, args)
    owner, allocation = p.allocation(args.handle, errno.ENOMEM)
    owner.bind()
    for i in range(args.n_success, args.n_devices):
        device = p.device(ids[i])
        device.bind()
        if device not in allocation.mapped:
            _map_to(allocation, device)
        args.n_success = i + 1
    for gpu_id in ids:
        p.device(gpu_id).space.flush_tlb()


def _map_to(allocation: Allocation, device: ProcessDevice) -> None:
    bo, va = allocation.bo, allocation.va
    if not va:
        raise SysError(errno.EINVAL, "the buffer was allocated without an address")
    total = bo.size * (2 if allocation.double else 1)
    if va % PAGE_SIZE or (va + total - 1) >> 12 >= _LAST_PAGE:
        raise SysError(errno.EINVAL, f"address {va:#x} of the buffer cannot be mapped")
    taken = device.space.overlapping(va, va + total)
    if taken:
        raise SysError(errno.EINVAL, f"{taken.start:#x} to {taken.end:#x} is mapped already")
    flags = allocation.flags
    made = []
    at = va
    for piece in bo.pieces() * (2 if allocation.double else 1):
        mapping = Mapping(
            at,
            at + piece.size,
            bo.region,
            piece.offset,
            writable=bool(flags & kfd.KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE),
            executable=bool(flags & kfd.KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE),
            cached=not flags & (_UNCACHED | _DOORBELL | _MMIO),
            owner=allocation,
        )
        device.space.map(mapping)
        made.append(mapping)
        at += piece.size
    allocation.mapped[device] = made


def unmap_memory(p: KfdProcess, args: kfd.kfd_ioctl_unmap_memory_from_gpu_args) -> None:
    """UNMAP_MEMORY_FROM_GPU; `n_success` tells how far it came."""
    ids = _device_ids(p, args)
    _, allocation = p.allocation(args.handle, errno.ENOMEM)
    for i in range(args.n_success, args.n_devices):
        device = p.device(ids[i])
        if device not in allocation.mapped:
            raise SysError(errno.EINVAL, f"the buffer is not mapped to GPU {ids[i]:#x}")
        if device.is_held(allocation):
            raise SysError(errno.EBUSY, "a queue uses the buffer")
        unmap(allocation, device)
        args.n_success = i + 1
    for gpu_id in ids:
        p.device(gpu_id).space.flush_tlb()


def unmap(allocation: Allocation, device: ProcessDevice) -> None:
    """Takes an allocation out of a GPU's page tables; flushing the TLB is left to the caller."""
    for mapping in allocation.mapped.pop(device):
        device.space.unmap(mapping.start)


def restore(p: KfdProcess) -> None:
    """Brings what was evicted back to VRAM, at the addresses it had, and lets the queues go on.

    Linux 6.12 amdgpu_amdkfd_gpuvm.c `amdgpu_amdkfd_gpuvm_restore_process_bos`; where there is no
    room it is tried again later.
    """
    for device in p.devices.values():
        for _, allocation in device.allocations:
            try:
                if allocation.bo.is_evicted:
                    allocation.bo.return_to_vram(p.process)
            except SysError:
                p.delay_restore()
                return
            for mapped_to in list(allocation.mapped):
                unmap(allocation, mapped_to)
                _map_to(allocation, mapped_to)
    for device in p.devices.values():
        device.space.flush_tlb()
    p.resume()


def _device_ids(
    p: KfdProcess,
    args: kfd.kfd_ioctl_map_memory_to_gpu_args | kfd.kfd_ioctl_unmap_memory_from_gpu_args,
) -> list[int]:
    if not args.n_devices or args.n_success > args.n_devices:
        raise SysError(errno.EINVAL, f"n_success {args.n_success} of {args.n_devices} devices")
    data = p.process.user.read(args.device_ids_array_ptr, 4 * args.n_devices)
    return list(memoryview(data).cast("I"))


def export_dmabuf(p: KfdProcess, args: kfd.kfd_ioctl_export_dmabuf_args) -> None:
    """EXPORT_DMABUF."""
    _, allocation = p.allocation(args.handle, errno.EINVAL)
    if allocation.bo.domain == _USERPTR:
        raise SysError(errno.EPERM, "user memory is not exported")
    args.dmabuf_fd = p.process.add_file(DmaBuf(allocation.bo), "a buffer (dma-buf)")


def import_dmabuf(p: KfdProcess, args: kfd.kfd_ioctl_import_dmabuf_args) -> None:
    """IMPORT_DMABUF."""
    device = p.device(args.gpu_id)
    device.bind()
    bo = _dmabuf(p, args.dmabuf_fd)
    if not bo.domain & (_VRAM | _GTT):
        raise SysError(errno.EINVAL, "only VRAM and system memory are imported")
    bo.users += 1
    access = (
        kfd.KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
        | kfd.KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE
        | (bo.flags & _UNCACHED)
    )
    allocation = Allocation(bo, args.va_addr, bo.domain | access)
    args.handle = args.gpu_id << 32 | device.allocations.add(allocation)
    assert device.drm is not None
    device.drm.allowed[bo.mmap_offset] = bo


def dmabuf_info(p: KfdProcess, args: kfd.kfd_ioctl_get_dmabuf_info_args) -> None:
    """GET_DMABUF_INFO; buffers of compute carry no metadata."""
    bo = _dmabuf(p, args.dmabuf_fd)
    args.size = bo.size
    args.metadata_size = 0
    args.gpu_id = bo.gpu.gpu_id
    args.flags = bo.domain | (bo.flags & kfd.KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC)


def _dmabuf(p: KfdProcess, fd: int) -> Bo:
    file = p.process.file(fd).file
    if not isinstance(file, DmaBuf):
        raise SysError(errno.EINVAL, f"fd {fd} is no dma-buf")
    return file.bo
