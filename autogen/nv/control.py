"""NV_ESC_RM_CONTROL: command numbers and parameter structs, whose size must be exact.

Where a struct's size differs between driver branches, the class name carries the branch. From
src/common/sdk/nvidia/inc/ctrl/ of open-gpu-kernel-modules; sizes measured for driver 580.142,
and for the older branches named where they differ.
"""

import ctypes
from typing import Annotated, Final

from gpu.autogen.nv.layout import Bytes, layout, u8, u32, u64

Struct = ctypes.Structure

NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION: Final = 0x101
NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2: Final = 0x13E
NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2: Final = 0x205
NV0080_CTRL_CMD_GPU_GET_CLASSLIST: Final = 0x800201
NV2080_CTRL_CMD_GPU_GET_GID_INFO: Final = 0x2080014A
NV2080_CTRL_CMD_GR_GET_INFO: Final = 0x20801201
NV2080_CTRL_CMD_GR_GET_GPC_MASK: Final = 0x2080122A
NV2080_CTRL_CMD_GR_GET_TPC_MASK: Final = 0x2080122B
NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK: Final = 0x20802A02
NV2080_CTRL_CMD_CE_GET_CAPS_V2: Final = 0x20802A03
NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES: Final = 0x83DE030C
NV83DE_CTRL_CMD_DEBUG_READ_MMU_FAULT_INFO: Final = 0x83DE0328
NVA06C_CTRL_CMD_GPFIFO_SCHEDULE: Final = 0xA06C0101
NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN: Final = 0xC36F0108

NAMES: Final[dict[int, str]] = {
    number: name for name, number in list(globals().items()) if isinstance(number, int)
}

NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY: Final = 2
GID_LENGTH: Final = 16  # bytes of a binary GPU UUID

NV2080_CTRL_GR_INFO_INDEX_SM_VERSION: Final = 0x0C
NV2080_CTRL_GR_INFO_INDEX_MAX_WARPS_PER_SM: Final = 0x0D
NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS: Final = 0x14
NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC: Final = 0x17
NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_SM_PER_TPC: Final = 0x20
NV2080_CTRL_GR_INFO_INDEX_MAX_SUBCONTEXT_COUNT: Final = 0x2C

NV2080_CTRL_CE_CAPS_CE_GRCE: Final = 0x01  # in byte 0 of capsTbl, as all of these
NV2080_CTRL_CE_CAPS_CE_SHARED: Final = 0x02
NV2080_CTRL_CE_CAPS_CE_SYSMEM_READ: Final = 0x04
NV2080_CTRL_CE_CAPS_CE_SYSMEM_WRITE: Final = 0x08
NV2080_CTRL_CE_CAPS_CE_NVLINK_P2P: Final = 0x10
NV2080_CTRL_CE_CAPS_CE_SYSMEM: Final = 0x20
NV2080_CTRL_CE_CAPS_CE_P2P: Final = 0x40


@layout
class NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS(Struct):
    """Version strings, in buffers of ``sizeOfStrings`` bytes each; the first is like "580.142"."""

    sizeOfStrings: u32
    pDriverVersionBuffer: u64
    pVersionBuffer: u64
    pTitleBuffer: u64
    changelistNumber: u32
    officialChangelistNumber: u32


@layout
class NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS(Struct):
    """From a gpuId of CARD_INFO to the instance number that NV01_DEVICE_0 takes."""

    gpuId: u32
    gpuFlags: u32
    deviceInstance: u32
    subDeviceInstance: u32
    sliStatus: u32
    boardId: u32
    gpuInstance: u32
    numaId: u32


@layout
class NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS(Struct):
    """The classes of a device: with a null list only their number is filled."""

    numClasses: u32
    classList: u64


@layout
class NV2080_CTRL_GPU_GET_GID_INFO_PARAMS(Struct):
    """The UUID of a GPU."""

    index: u32
    flags: u32
    length: u32
    data: Annotated[Bytes, ctypes.c_uint8 * 256]


@layout
class NV2080_CTRL_GR_ROUTE_INFO(Struct):
    """Which graphics engine; zero without MIG."""

    flags: u32
    route: u64


@layout
class NV2080_CTRL_GR_INFO(Struct):
    """One number about the graphics engine."""

    index: u32
    data: u32


@layout
class NV2080_CTRL_GR_GET_INFO_PARAMS(Struct):
    """Fills ``data`` of a list of NV2080_CTRL_GR_INFO."""

    grInfoListSize: u32
    grInfoList: u64
    grRouteInfo: NV2080_CTRL_GR_ROUTE_INFO


@layout
class NV2080_CTRL_GR_GET_GPC_MASK_PARAMS(Struct):
    """The GPCs that this piece of silicon has enabled."""

    grRouteInfo: NV2080_CTRL_GR_ROUTE_INFO
    gpcMask: u32


@layout
class NV2080_CTRL_GR_GET_TPC_MASK_PARAMS(Struct):
    """The TPCs enabled in one GPC."""

    grRouteInfo: NV2080_CTRL_GR_ROUTE_INFO
    gpcId: u32
    tpcMask: u32


@layout
class NV2080_CTRL_CE_GET_CAPS_V2_PARAMS(Struct):
    """Capability bits of one copy engine; NOT_SUPPORTED where the engine is absent."""

    ceEngineType: u32
    capsTbl: Annotated[Bytes, ctypes.c_uint8 * 2]


@layout
class NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS(Struct):
    """The physical copy engines behind one logical one."""

    ceEngineType: u32
    pceMask: u32


@layout
class NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS(Struct):
    """Lets a channel group run, from branch 575 on."""

    bEnable: u8
    bSkipSubmit: u8
    bSkipEnable: u8


@layout
class NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS_535(Struct):
    """Lets a channel group run, in branches 535 to 570."""

    bEnable: u8
    bSkipSubmit: u8


@layout
class NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS(Struct):
    """What to write into the doorbell for a channel."""

    workSubmitToken: u32


@layout
class NV83DE_SM_ERROR_STATE_REGISTERS(Struct):
    """What one SM says about its last exception."""

    hwwGlobalEsr: u32
    hwwWarpEsr: u32
    hwwWarpEsrPc: u32
    hwwGlobalEsrReportMask: u32
    hwwWarpEsrReportMask: u32
    hwwEsrAddr: u64
    hwwWarpEsrPc64: u64
    hwwCgaEsr: u32
    hwwCgaEsrReportMask: u32


@layout
class NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_ENTRY(Struct):
    """One fault of READ_MMU_FAULT_INFO."""

    faultAddress: u64
    faultType: u32
    accessType: u32


@layout
class NV83DE_MMU_FAULT_INFO(Struct):
    """Whether the SMs stopped for an MMU fault."""

    valid: u8
    faultInfo: u32


@layout
class NV83DE_CTRL_DEBUG_READ_ALL_SM_ERROR_STATES_PARAMS(Struct):
    """At most 100 SMs a call, from ``startingSM`` on."""

    hTargetChannel: u32
    numSMsToRead: u32
    smErrorStateArray: Annotated[
        ctypes.Array[NV83DE_SM_ERROR_STATE_REGISTERS], NV83DE_SM_ERROR_STATE_REGISTERS * 100
    ]
    mmuFaultInfo: u32
    mmuFault: NV83DE_MMU_FAULT_INFO
    startingSM: u32


@layout
class NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_PARAMS(Struct):
    """The last MMU faults of the channel's engine."""

    mmuFaultInfoList: Annotated[
        ctypes.Array[NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_ENTRY],
        NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_ENTRY * 4,
    ]
    count: u32


def control_name(command: int) -> str:
    """The name of a control command with its number."""
    return f"{NAMES.get(command, 'control')} ({command:#x})"
