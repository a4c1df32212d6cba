"""The ioctls of /dev/nvidia-uvm: raw numbers and argument structs.

The request is the number itself, without the usual encoding of size and direction. From
kernel-open/nvidia-uvm/{uvm_ioctl.h,uvm_linux_ioctl.h} and
kernel-open/common/inc/nv_uvm_user_types.h of open-gpu-kernel-modules.
"""

import ctypes
from typing import Annotated, Final

from gpu.autogen.nv.layout import Bytes, i32, layout, u8, u32, u64

UVM_INITIALIZE: Final = 0x30000001
UVM_DEINITIALIZE: Final = 0x30000002
UVM_REGISTER_GPU_VASPACE: Final = 25
UVM_UNREGISTER_GPU_VASPACE: Final = 26
UVM_REGISTER_CHANNEL: Final = 27
UVM_UNREGISTER_CHANNEL: Final = 28
UVM_MAP_EXTERNAL_ALLOCATION: Final = 33
UVM_FREE: Final = 34
UVM_REGISTER_GPU: Final = 37
UVM_UNREGISTER_GPU: Final = 38
UVM_CREATE_EXTERNAL_RANGE: Final = 73
UVM_MM_INITIALIZE: Final = 75

NAMES: Final[dict[int, str]] = {
    number: name for name, number in list(globals().items()) if isinstance(number, int)
}

UVM_GPU_MAPPING_TYPE_READ_WRITE_ATOMIC: Final = 1
UVM_GPU_MAPPING_TYPE_READ_WRITE: Final = 2
UVM_GPU_MAPPING_TYPE_READ_ONLY: Final = 3

UVM_MAX_GPUS_V1: Final = 32  # branch 535
UVM_MAX_GPUS_V2: Final = 256  # from branch 550 on
UVM_INIT_FLAGS_DISABLE_HMM: Final = 0x1

Uuid = Annotated[Bytes, ctypes.c_uint8 * 16]


@layout
class UVM_INITIALIZE_PARAMS(ctypes.Structure):
    """Binds the file to this process's memory."""

    flags: u64
    rmStatus: u32


@layout
class UVM_MM_INITIALIZE_PARAMS(ctypes.Structure):
    """On a second file: keeps the memory of the first one's process alive."""

    uvmFd: i32
    rmStatus: u32


@layout
class UVM_REGISTER_GPU_PARAMS(ctypes.Structure):
    """Tells UVM to drive a GPU."""

    gpu_uuid: Uuid
    numaEnabled: u8
    numaNodeId: i32
    rmCtrlFd: i32
    hClient: u32
    hSmcPartRef: u32
    rmStatus: u32


@layout
class UVM_UNREGISTER_GPU_PARAMS(ctypes.Structure):
    """Undoes UVM_REGISTER_GPU."""

    gpu_uuid: Uuid
    rmStatus: u32


@layout
class UVM_REGISTER_GPU_VASPACE_PARAMS(ctypes.Structure):
    """Hands the page tables of an RM VA space to UVM."""

    gpuUuid: Uuid
    rmCtrlFd: i32
    hClient: u32
    hVaSpace: u32
    rmStatus: u32


@layout
class UVM_UNREGISTER_GPU_VASPACE_PARAMS(ctypes.Structure):
    """Undoes UVM_REGISTER_GPU_VASPACE."""

    gpuUuid: Uuid
    rmStatus: u32


@layout
class UVM_REGISTER_CHANNEL_PARAMS(ctypes.Structure):
    """Maps a channel's own buffers into ``base .. base + length``."""

    gpuUuid: Uuid
    rmCtrlFd: i32
    hClient: u32
    hChannel: u32
    base: u64
    length: u64
    rmStatus: u32


@layout
class UVM_UNREGISTER_CHANNEL_PARAMS_535(ctypes.Structure):
    """Undoes UVM_REGISTER_CHANNEL, in branches 535 to 580."""

    gpuUuid: Uuid
    hClient: u32
    hChannel: u32
    rmStatus: u32


@layout
class UVM_UNREGISTER_CHANNEL_PARAMS(ctypes.Structure):
    """Undoes UVM_REGISTER_CHANNEL, from branch 590 on."""

    hClient: u32
    hChannel: u32
    rmStatus: u32


@layout
class UVM_CREATE_EXTERNAL_RANGE_PARAMS(ctypes.Structure):
    """Reserves addresses that allocations of RM can then be mapped at."""

    base: u64
    length: u64
    rmStatus: u32


@layout
class UvmGpuMappingAttributes(ctypes.Structure):
    """How one GPU sees an external allocation."""

    gpuUuid: Uuid
    gpuMappingType: u32
    gpuCachingType: u32
    gpuFormatType: u32
    gpuElementBits: u32
    gpuCompressionType: u32


@layout
class UVM_MAP_EXTERNAL_ALLOCATION_PARAMS(ctypes.Structure):
    """Maps an RM memory object into an external range, from branch 550 on."""

    base: u64
    length: u64
    offset: u64
    perGpuAttributes: Annotated[
        ctypes.Array[UvmGpuMappingAttributes], UvmGpuMappingAttributes * UVM_MAX_GPUS_V2
    ]
    gpuAttributesCount: u64
    rmCtrlFd: i32
    hClient: u32
    hMemory: u32
    rmStatus: u32


@layout
class UVM_MAP_EXTERNAL_ALLOCATION_PARAMS_535(ctypes.Structure):
    """Maps an RM memory object into an external range, in branch 535."""

    base: u64
    length: u64
    offset: u64
    perGpuAttributes: Annotated[
        ctypes.Array[UvmGpuMappingAttributes], UvmGpuMappingAttributes * UVM_MAX_GPUS_V1
    ]
    gpuAttributesCount: u64
    rmCtrlFd: i32
    hClient: u32
    hMemory: u32
    rmStatus: u32


@layout
class UVM_FREE_PARAMS_535(ctypes.Structure):
    """Frees an external range and its mappings, in branches 535 to 580."""

    base: u64
    length: u64
    rmStatus: u32


@layout
class UVM_FREE_PARAMS(ctypes.Structure):
    """Frees an external range and its mappings, from branch 590 on."""

    base: u64
    rmStatus: u32


def uvm_name(request: int) -> str:
    """The name of a UVM ioctl."""
    return NAMES.get(request, f"UVM ioctl {request:#x}")
