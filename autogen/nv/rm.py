"""The escapes of /dev/nvidiactl and /dev/nvidiaN: numbers and argument structs.

An escape is the ioctl ``_IOWR('F', number, struct)``. From
src/nvidia/arch/nvalloc/unix/include/{nv_escape.h,nv-unix-nvos-params-wrappers.h},
src/common/sdk/nvidia/inc/{nvos.h,nv-ioctl.h,nv-ioctl-numbers.h} of open-gpu-kernel-modules.
"""

import ctypes
from typing import Annotated, Final

from gpu.autogen.nv.layout import Bytes, i32, layout, u8, u16, u32, u64

NV_IOCTL_MAGIC: Final = "F"

NV_ESC_RM_ALLOC_MEMORY: Final = 0x27
NV_ESC_RM_FREE: Final = 0x29
NV_ESC_RM_CONTROL: Final = 0x2A
NV_ESC_RM_ALLOC: Final = 0x2B
NV_ESC_RM_MAP_MEMORY: Final = 0x4E
NV_ESC_RM_UNMAP_MEMORY: Final = 0x4F
NV_ESC_CARD_INFO: Final = 200
NV_ESC_REGISTER_FD: Final = 201

NV_MAX_CARDS: Final = 32

# NVOS02 flags of NV_ESC_RM_ALLOC_MEMORY with an OS descriptor.
NVOS02_FLAGS_PHYSICALITY_NONCONTIGUOUS: Final = 1 << 4
NVOS02_FLAGS_COHERENCY_CACHED: Final = 1 << 12
NVOS02_FLAGS_MAPPING_NO_MAP: Final = 1 << 30


@layout
class nv_pci_info_t(ctypes.Structure):
    """Where a card is on its bus."""

    domain: u32
    bus: u8
    slot: u8
    function: u8
    vendor_id: u16
    device_id: u16


@layout
class nv_ioctl_card_info_t(ctypes.Structure):
    """NV_ESC_CARD_INFO fills an array of these."""

    valid: u8
    pci_info: nv_pci_info_t
    gpu_id: u32
    interrupt_line: u16
    reg_address: u64
    reg_size: u64
    fb_address: u64
    fb_size: u64
    minor_number: u32
    dev_name: Annotated[Bytes, ctypes.c_uint8 * 10]


@layout
class nv_ioctl_register_fd_t(ctypes.Structure):
    """NV_ESC_REGISTER_FD: ties a card's file to the control file of a client."""

    ctl_fd: i32


@layout
class NVOS00_PARAMETERS(ctypes.Structure):
    """NV_ESC_RM_FREE."""

    hRoot: u32
    hObjectParent: u32
    hObjectOld: u32
    status: u32


@layout
class NVOS02_PARAMETERS(ctypes.Structure):
    """NV_ESC_RM_ALLOC_MEMORY."""

    hRoot: u32
    hObjectParent: u32
    hObjectNew: u32
    hClass: u32
    flags: u32
    pMemory: u64
    limit: u64
    status: u32


@layout
class nv_ioctl_nvos02_parameters_with_fd(ctypes.Structure):
    """NV_ESC_RM_ALLOC_MEMORY as an ioctl takes it."""

    params: NVOS02_PARAMETERS
    fd: i32


@layout
class NVOS21_PARAMETERS(ctypes.Structure):
    """NV_ESC_RM_ALLOC, the older form."""

    hRoot: u32
    hObjectParent: u32
    hObjectNew: u32
    hClass: u32
    pAllocParms: u64
    paramsSize: u32
    status: u32


@layout
class NVOS64_PARAMETERS(ctypes.Structure):
    """NV_ESC_RM_ALLOC, the newer form; the kernel tells the two apart by size."""

    hRoot: u32
    hObjectParent: u32
    hObjectNew: u32
    hClass: u32
    pAllocParms: u64
    pRightsRequested: u64
    paramsSize: u32
    flags: u32
    status: u32


@layout
class NVOS54_PARAMETERS(ctypes.Structure):
    """NV_ESC_RM_CONTROL."""

    hClient: u32
    hObject: u32
    cmd: u32
    flags: u32
    params: u64
    paramsSize: u32
    status: u32


@layout
class NVOS33_PARAMETERS(ctypes.Structure):
    """NV_ESC_RM_MAP_MEMORY."""

    hClient: u32
    hDevice: u32
    hMemory: u32
    offset: u64
    length: u64
    pLinearAddress: u64
    status: u32
    flags: u32


@layout
class nv_ioctl_nvos33_parameters_with_fd(ctypes.Structure):
    """NV_ESC_RM_MAP_MEMORY as an ioctl takes it; ``fd`` then holds one pending mmap."""

    params: NVOS33_PARAMETERS
    fd: i32


@layout
class NVOS34_PARAMETERS(ctypes.Structure):
    """NV_ESC_RM_UNMAP_MEMORY."""

    hClient: u32
    hDevice: u32
    hMemory: u32
    pLinearAddress: u64
    status: u32
    flags: u32


@layout
class NvNotification(ctypes.Structure):
    """A slot of a channel's notifier memory; RM writes it when the channel fails (nvgputypes.h)."""

    timeStamp: u64
    info32: u32
    info16: u16
    status: u16


# The slots of a channel's notifier (nvos.h).
NV_CHANNELGPFIFO_NOTIFICATION_TYPE_ERROR: Final = 0
NV_CHANNELGPFIFO_NOTIFICATION_TYPE_WORK_SUBMIT_TOKEN: Final = 1
NV_CHANNELGPFIFO_NOTIFICATION_TYPE_KEY_ROTATION_STATUS: Final = 2

# What info32 of the error slot says: the numbers the kernel log calls Xid (nverror.h).
ROBUST_CHANNEL_ERRORS: Final[dict[int, str]] = {
    13: "GR_EXCEPTION",
    31: "FIFO_ERROR_MMU_ERR_FLT",
    32: "PBDMA_ERROR",
    39: "CE0_ERROR",
    40: "CE1_ERROR",
    41: "CE2_ERROR",
    43: "RESETCHANNEL_VERIF_ERROR",
    44: "GR_FAULT_DURING_CTXSW",
    45: "PREEMPTIVE_REMOVAL",
    48: "GPU_ECC_DBE",
    69: "GR_CLASS_ERROR",
    70: "CE3_ERROR",
    71: "CE4_ERROR",
    72: "CE5_ERROR",
    75: "CE6_ERROR",
    76: "CE7_ERROR",
    77: "CE8_ERROR",
    79: "GPU_HAS_FALLEN_OFF_THE_BUS",
    80: "PBDMA_PUSHBUFFER_CRC_MISMATCH",
    85: "CE9_ERROR",
    94: "CONTAINED_ERROR",
    95: "UNCONTAINED_ERROR",
    109: "CTXSW_TIMEOUT_ERROR",
    119: "GSP_RPC_TIMEOUT",
    120: "GSP_ERROR",
}
