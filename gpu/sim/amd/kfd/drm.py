"""The render node: versions, facts about the board, and mapping of memory that KFD allocated.

Linux 6.12: drm_ioctl.c, amdgpu_kms.c `amdgpu_info_ioctl`, amdgpu_gem.c `amdgpu_gem_object_mmap`.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable
from typing import Final

from gpu.autogen import amdgpu_drm as drm
from gpu.autogen import kfd
from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.sim.amd.kfd.gpu import Bo, KfdGpu
from gpu.sim.clock import GPU_CLOCK_HZ
from gpu.sim.ids import IdTable
from gpu.sim.kernel import SysError
from gpu.sim.process import ArgumentBytes, SimFile, SimProcess

DRIVER_NAME: Final = b"amdgpu"
_DATE: Final = b"20150101"
_DESCRIPTION: Final = b"AMD GPU"
_DRIVER_VERSION: Final = (3, 59, 0)  # KMS_DRIVER_* of amdgpu_drv.c, Linux 6.12
_MAPPABLE: Final = kfd.KFD_IOC_ALLOC_MEM_FLAGS_VRAM | kfd.KFD_IOC_ALLOC_MEM_FLAGS_GTT


class DrmFile(SimFile):
    """One open render node.

    Attributes:
        acquired: whether its VM became that of a compute process.
        allowed: buffers that may be mapped through this file.
        graphics: by handle, buffers that GEM_CREATE made.
    """

    def __init__(self, gpu: KfdGpu):
        self.gpu = gpu
        self.acquired = False
        self.allowed: dict[int, Bo] = {}
        self.graphics: IdTable[Bo] = IdTable()

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """The calls of `_CALLS`; the others are refused and recorded."""
        self.gpu.check_plugged()
        if request >> 8 & 0xFF != ord("d"):
            raise SysError(errno.ENOTTY, "a render node answers calls of type 'd'")
        if request not in _CALLS:
            self.gpu.sim.debug.violation(f"ioctl {request:#x} on a render node is not modelled")
            raise SysError(errno.EINVAL)
        if len(argument) < request >> 16 & 0x3FFF:
            raise SysError(errno.EFAULT, "the argument is smaller than the request says")
        _CALLS[request](self, process, argument)
        return 0

    def released(self) -> None:
        """The graphics buffers end with the file."""
        for _, bo in self.graphics:
            self.gpu.drop(bo)

    def mmap(
        self, process: SimProcess, size: int, prot: int, flags: int, offset: int, address: int
    ) -> int:
        """Maps a buffer by the offset that its allocation gave."""
        self.gpu.check_plugged()
        bo = self.gpu.mmap_offsets.get(offset)
        size = align_up(size, hostmem.page_size)
        if bo is None or size > align_up(bo.size, hostmem.page_size):
            raise SysError(errno.EINVAL, f"no buffer has {size:#x} bytes at offset {offset:#x}")
        if offset not in self.allowed:
            raise SysError(errno.EACCES, "the buffer was allocated through another render node")
        if not bo.domain & _MAPPABLE:
            raise SysError(errno.EPERM, "user memory and doorbells are not mapped through here")
        if flags & hostmem.MAP_PRIVATE and prot:
            raise SysError(errno.EINVAL, "private mappings of device memory cannot be")
        if bo.domain == kfd.KFD_IOC_ALLOC_MEM_FLAGS_VRAM and prot:
            self._note_private(bo)
        kept = flags & (hostmem.MAP_FIXED | hostmem.MAP_FIXED_NOREPLACE | hostmem.MAP_POPULATE)
        kept |= hostmem.MAP_SHARED
        bo.cpu_mapped = True
        return bo.pool.map_for_cpu(bo.pieces(), size, prot, kept, address, process.mapper)

    def _note_private(self, bo: Bo) -> None:
        if not bo.flags & kfd.KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC:
            self.gpu.sim.debug.violation(
                "VRAM without the flag PUBLIC is mapped: this kernel allows it where all VRAM is"
                " visible, others refuse with EPERM"
            )


def _version(file: DrmFile, process: SimProcess, argument: ArgumentBytes) -> None:
    """DRM_IOCTL_VERSION (drm_ioctl.c `drm_version`, `drm_copy_field`)."""
    args = drm.drm_version.from_buffer(argument)
    args.version_major, args.version_minor, args.version_patchlevel = _DRIVER_VERSION
    for text, pointer, length in (
        (DRIVER_NAME, "name", "name_len"),
        (_DATE, "date", "date_len"),
        (_DESCRIPTION, "desc", "desc_len"),
    ):
        room = getattr(args, length)
        setattr(args, length, len(text))
        if getattr(args, pointer) and room:
            process.user.write(getattr(args, pointer), text[:room])


def _info(file: DrmFile, process: SimProcess, argument: ArgumentBytes) -> None:
    """DRM_IOCTL_AMDGPU_INFO for queries about the whole board."""
    args = drm.drm_amdgpu_info.from_buffer(argument)
    if not args.return_size or not args.return_pointer:
        raise SysError(errno.EINVAL)
    answer = _answer(file.gpu, args.query)
    if answer is None:
        file.gpu.sim.debug.violation(f"AMDGPU_INFO query {args.query:#x} is not modelled")
        raise SysError(errno.EINVAL)
    process.user.write(args.return_pointer, answer[: args.return_size])


def _gem_create(file: DrmFile, process: SimProcess, argument: ArgumentBytes) -> None:
    """DRM_IOCTL_AMDGPU_GEM_CREATE: a buffer that takes VRAM; nothing in the model accesses it."""
    args = drm.drm_amdgpu_gem_create.from_buffer(argument)
    asked = args.in_
    if not asked.bo_size or asked.domains != drm.AMDGPU_GEM_DOMAIN_VRAM:
        file.gpu.sim.debug.violation(
            f"GEM_CREATE of {asked.bo_size:#x} bytes in domains {asked.domains:#x}: only memory in"
            " VRAM is modelled"
        )
        raise SysError(errno.EINVAL)
    bo = file.gpu.allocate_graphics(asked.bo_size, process)
    args.out.handle = file.graphics.add(bo, first=1)


def _gem_close(file: DrmFile, process: SimProcess, argument: ArgumentBytes) -> None:
    """DRM_IOCTL_GEM_CLOSE."""
    handle = drm.drm_gem_close.from_buffer(argument).handle
    bo = file.graphics.get(handle)
    if bo is None:
        raise SysError(errno.EINVAL, f"handle {handle} names no buffer of this file")
    file.graphics.remove(handle)
    file.gpu.drop(bo)


_CALLS: Final[dict[int, Callable[[DrmFile, SimProcess, ArgumentBytes], None]]] = {
    drm.DRM_IOCTL_VERSION: _version,
    drm.DRM_IOCTL_AMDGPU_INFO: _info,
    drm.DRM_IOCTL_AMDGPU_GEM_CREATE: _gem_create,
    drm.DRM_IOCTL_GEM_CLOSE: _gem_close,
}


def _answer(gpu: KfdGpu, query: int) -> bytes | None:
    if query == drm.AMDGPU_INFO_ACCEL_WORKING:
        return (1).to_bytes(4, "little")
    if query == drm.AMDGPU_INFO_DEV_INFO:
        return bytes(_device_info(gpu))
    numbers = {
        drm.AMDGPU_INFO_TIMESTAMP: gpu.sim.clock.gpu_ticks,
        drm.AMDGPU_INFO_VRAM_USAGE: gpu.vram_used,
        drm.AMDGPU_INFO_VIS_VRAM_USAGE: gpu.vram_used,
        drm.AMDGPU_INFO_GTT_USAGE: 0,
    }
    if query in numbers:
        return numbers[query].to_bytes(8, "little")
    if query == drm.AMDGPU_INFO_VRAM_GTT:
        vram = gpu.asic.vram.size
        return bytes(drm.drm_amdgpu_info_vram_gtt(vram, vram, gpu.host.size))
    return None


def _device_info(gpu: KfdGpu) -> ctypes.Structure:
    chip = gpu.chip
    return drm.drm_amdgpu_info_device(
        device_id=chip.device_id,
        pci_rev=0xC8,
        family=chip.family,
        ids_flags=drm.AMDGPU_IDS_FLAGS_FUSION if chip.integrated else 0,
        num_shader_engines=chip.engines,
        num_shader_arrays_per_engine=chip.arrays,
        gpu_counter_freq=GPU_CLOCK_HZ // 1000,
        max_engine_clock=chip.engine_mhz * 1000,
        max_memory_clock=chip.memory_mhz * 1000,
        virtual_address_offset=1 << 16,
        virtual_address_max=1 << 47,
        virtual_address_alignment=hostmem.page_size,
        pte_fragment_size=1 << 21,
        gart_page_size=hostmem.page_size,
        cu_active_number=chip.cus,
        vram_bit_width=chip.vram_bits,
        wave_front_size=chip.wave_size,
        num_cu_per_sh=chip.cus_per_array,
    )
