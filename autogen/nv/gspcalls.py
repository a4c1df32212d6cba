"""Calls of GSP firmware 570.144 about objects, and what only firmware is asked.

By hand, as no package has that branch's headers. From open-gpu-kernel-modules at tag 570.144:
src/nvidia/generated/{g_rpc-structures.h,g_sdk-structures.h}, inc/kernel/vgpu/rpc_global_enums.h,
inc/kernel/gpu/fifo/engine_info.h, inc/kernel/gpu/gsp/gsp_static_config.h,
src/common/sdk/nvidia/inc/ctrl/{ctrl0080/ctrl0080{dma,fifo}.h,
ctrl2080/{ctrl2080gpu,ctrl2080fifo,ctrl2080ce,ctrl2080internal}.h}, alloc/alloc_channel.h.
"""

import ctypes
from typing import Annotated, Final

from gpu.autogen.nv.control import NV2080_CTRL_GR_INFO
from gpu.autogen.nv.layout import Bytes, Words, layout, u8, u16, u32, u64

NV_VGPU_MSG_FUNCTION_UNSET_PAGE_DIRECTORY: Final = 79
NV01_ROOT: Final = 0

NV2080_CTRL_CMD_GPU_PROMOTE_CTX: Final = 0x2080012B
NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS: Final = 0x20800A26
NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_INFO: Final = 0x20800A2A
NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO: Final = 0x20800A32
NV2080_CTRL_CMD_FIFO_GET_DEVICE_INFO_TABLE: Final = 0x20801112
NV2080_CTRL_CMD_CE_GET_PHYSICAL_CAPS: Final = 0x20802A07
NV2080_CTRL_CMD_CE_GET_FAULT_METHOD_BUFFER_SIZE: Final = 0x20802A08

ENGINE_INFO_TYPE_RM_ENGINE_TYPE: Final = 2
ENGINE_INFO_TYPE_RUNLIST: Final = 3
ADDR_SYSMEM: Final = 1
ADDR_FBMEM: Final = 2
NVOS04_FLAGS_CHANNEL_USERD_INDEX_VALUE_SHIFT: Final = 8
NVOS04_FLAGS_CHANNEL_USERD_INDEX_PAGE_VALUE_SHIFT: Final = 12
NVOS04_FLAGS_CHANNEL_USERD_INDEX_PAGE_FIXED: Final = 1 << 21
NV2080_CTRL_GPU_INITIALIZE_CTX_GPU_CACHEABLE_NO: Final = 1 << 2
GSP_STATIC_CONFIG_INFO_SIZE: Final = 1656
GSP_STATIC_CONFIG_INFO_GID: Final = 36
"""Where 16 bytes of its identity are, in GspStaticConfigInfo."""
GSP_STATIC_CONFIG_INFO_REGIONS: Final = 344
"""Where its regions of memory are, their number first, which has 8 bytes with its padding."""

# NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ID_* by NV0080_CTRL_FIFO_GET_ENGINE_CONTEXT_PROPERTIES_*
CONTEXT_BUFFERS: Final = {
    0: 0x00,  # MAIN: GRAPHICS
    2: 0x10,  # PATCH
    3: 0x11,  # BUFFER_BUNDLE_CB
    4: 0x12,  # PAGEPOOL
    5: 0x13,  # ATTRIBUTE_CB
    6: 0x14,  # RTV_CB_GLOBAL
    9: 0x17,  # FECS_EVENT
    10: 0x18,  # PRIV_ACCESS_MAP
    11: 0x18,  # UNRESTRICTED_PRIV_ACCESS_MAP
}
_ENGINES: Final = 8  # NV2080_CTRL_INTERNAL_GR_MAX_ENGINES


@layout
class rpc_gsp_rm_alloc_v03_00(ctypes.Structure):
    """GSP_RM_ALLOC, before the parameters of the class."""

    hClient: u32
    hParent: u32
    hObject: u32
    hClass: u32
    status: u32
    paramsSize: u32
    flags: u32
    reserved: u32


@layout
class rpc_gsp_rm_control_v03_00(ctypes.Structure):
    """GSP_RM_CONTROL, before the parameters of the command."""

    hClient: u32
    hObject: u32
    cmd: u32
    status: u32
    paramsSize: u32
    flags: u32


@layout
class NVOS00_PARAMETERS_v03_00(ctypes.Structure):
    """FREE."""

    hRoot: u32
    hObjectParent: u32
    hObjectOld: u32
    status: u32


@layout
class NV0080_CTRL_DMA_SET_PAGE_DIRECTORY_PARAMS_v1E_05(ctypes.Structure):
    """Where a VA space's topmost table is."""

    physAddress: u64
    numEntries: u32
    flags: u32
    hVASpace: u32
    chId: u32
    subDeviceId: u32
    pasid: u32


@layout
class rpc_set_page_directory_v1E_05(ctypes.Structure):
    """SET_PAGE_DIRECTORY."""

    hClient: u32
    hDevice: u32
    pasid: u32
    params: NV0080_CTRL_DMA_SET_PAGE_DIRECTORY_PARAMS_v1E_05


@layout
class rpc_unset_page_directory_v1E_05(ctypes.Structure):
    """UNSET_PAGE_DIRECTORY."""

    hClient: u32
    hDevice: u32
    hVASpace: u32
    subDeviceId: u32


@layout
class rpc_rc_triggered_v17_02(ctypes.Structure):
    """RC_TRIGGERED: a channel failed."""

    nv2080EngineType: u32
    chid: u32
    gfid: u32
    exceptLevel: u32
    exceptType: u32
    scope: u32
    partitionAttributionId: u16
    mmuFaultAddrLo: u32
    mmuFaultAddrHi: u32
    mmuFaultType: u32
    bCallbackNeeded: u8
    rcJournalBufferSize: u32


@layout
class NV_VASPACE_ALLOCATION_PARAMETERS_570(ctypes.Structure):
    """FERMI_VASPACE_A, as up to this branch."""

    index: u32
    flags: u32
    vaSize: u64
    vaStartInternal: u64
    vaLimitInternal: u64
    bigPageSize: u32
    vaBase: u64


@layout
class NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO(ctypes.Structure):
    """A region of video memory; RM keeps those with ``reserved`` bytes to itself."""

    base: u64
    limit: u64
    reserved: u64
    performance: u32
    supportCompressed: u8
    supportISO: u8
    bProtected: u8
    blackList: Annotated[Bytes, ctypes.c_uint8 * 17]


@layout
class NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ENTRY(ctypes.Structure):
    """A buffer of a context."""

    gpuPhysAddr: u64
    gpuVirtAddr: u64
    size: u64
    physAttr: u32
    bufferId: u16
    bInitialize: u8
    bNonmapped: u8


@layout
class NV2080_CTRL_GPU_PROMOTE_CTX_PARAMS(ctypes.Structure):
    """GPU_PROMOTE_CTX: gives a channel's engine what its context lies in."""

    engineType: u32
    hClient: u32
    ChID: u32
    hChanClient: u32
    hObject: u32
    hVirtMemory: u32
    virtAddress: u64
    size: u64
    entryCount: u32
    promoteEntry: Annotated[
        "ctypes.Array[NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ENTRY]",
        NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ENTRY * 16,
    ]


@layout
class NV2080_CTRL_INTERNAL_ENGINE_CONTEXT_BUFFER_INFO(ctypes.Structure):
    """How large a buffer must be."""

    size: u32
    alignment: u32


@layout
class NV2080_CTRL_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO_PARAMS(ctypes.Structure):
    """Those of all graphics engines, of which 0x1a numbers each."""

    engine: Annotated[
        "ctypes.Array[NV2080_CTRL_INTERNAL_ENGINE_CONTEXT_BUFFER_INFO]",
        NV2080_CTRL_INTERNAL_ENGINE_CONTEXT_BUFFER_INFO * (0x1A * _ENGINES),
    ]


@layout
class NV2080_CTRL_INTERNAL_STATIC_KGR_GET_INFO_PARAMS(ctypes.Structure):
    """What GR_GET_INFO tells, of all graphics engines, 0x3a indices each."""

    infoList: Annotated[
        "ctypes.Array[NV2080_CTRL_GR_INFO]", NV2080_CTRL_GR_INFO * (0x3A * _ENGINES)
    ]


@layout
class NV2080_CTRL_INTERNAL_STATIC_GR_FLOORSWEEPING_MASKS(ctypes.Structure):
    """Which units of one graphics engine there are."""

    gpcMask: u32
    tpcMask: Annotated[Words, ctypes.c_uint32 * 12]
    tpcCount: Annotated[Words, ctypes.c_uint32 * 12]
    physGpcMask: u32
    mmuPerGpc: Annotated[Words, ctypes.c_uint32 * 12]
    tpcToPesMap: Annotated[Words, ctypes.c_uint32 * 10]
    numPesPerGpc: Annotated[Words, ctypes.c_uint32 * 12]
    zcullMask: Annotated[Words, ctypes.c_uint32 * 12]
    physGfxGpcMask: u32
    numGfxTpc: u32


@layout
class NV2080_CTRL_INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS_PARAMS(ctypes.Structure):
    """Those of all of them."""

    floorsweepingMasks: Annotated[
        "ctypes.Array[NV2080_CTRL_INTERNAL_STATIC_GR_FLOORSWEEPING_MASKS]",
        NV2080_CTRL_INTERNAL_STATIC_GR_FLOORSWEEPING_MASKS * _ENGINES,
    ]


@layout
class NV2080_CTRL_FIFO_DEVICE_ENTRY(ctypes.Structure):
    """An engine."""

    engineData: Annotated[Words, ctypes.c_uint32 * 16]
    pbdmaIds: Annotated[Words, ctypes.c_uint32 * 2]
    pbdmaFaultIds: Annotated[Words, ctypes.c_uint32 * 2]
    numPbdmas: u32
    engineName: Annotated[Bytes, ctypes.c_uint8 * 16]


@layout
class NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS(ctypes.Structure):
    """Engines from ``baseIndex`` on."""

    baseIndex: u32
    numEntries: u32
    bMore: u8
    entries: Annotated[
        "ctypes.Array[NV2080_CTRL_FIFO_DEVICE_ENTRY]", NV2080_CTRL_FIFO_DEVICE_ENTRY * 32
    ]


@layout
class NV2080_CTRL_CE_GET_FAULT_METHOD_BUFFER_SIZE_PARAMS(ctypes.Structure):
    """What a channel's method buffer must have."""

    size: u32
