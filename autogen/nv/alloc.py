"""What NV_ESC_RM_ALLOC takes for each class: parameter structs and their flags.

The layouts are the newest (driver 580.142). Alloc structs have only grown at their end from 535
to 595, and the kernel copies as much as it knows, so one layout serves all of them. From
src/common/sdk/nvidia/inc/{nvos.h,alloc/alloc_channel.h,class/*.h} of open-gpu-kernel-modules.
"""

import ctypes
from typing import Annotated, Final

from gpu.autogen.nv.layout import Bytes, Words, Longs, layout, u8, u32, u64

NV2080_ENGINE_TYPE_GRAPHICS: Final = 1
NV2080_ENGINE_TYPE_COPY0: Final = 9
COPY_ENGINES: Final = 10  # COPY0 to COPY9 are numbered on from COPY0

NV_DEVICE_ALLOCATION_VAMODE_OPTIONAL_MULTIPLE_VASPACES: Final = 0

NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED: Final = 1 << 3
NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING: Final = 1 << 6

NV_CTXSHARE_ALLOCATION_FLAGS_SUBCONTEXT_ASYNC: Final = 1

NVB0B5_ALLOCATION_PARAMETERS_VERSION_1: Final = 1  # engineType is an NV2080_ENGINE_TYPE

NVOS32_TYPE_IMAGE: Final = 0
NVOS32_TYPE_NOTIFIER: Final = 13

NVOS32_ALLOC_FLAGS_IGNORE_BANK_PLACEMENT: Final = 0x1
NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE: Final = 0x100
NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED: Final = 0x4000
NVOS32_ALLOC_FLAGS_MAP_NOT_REQUIRED: Final = 0x8000

NVOS32_ATTR_PAGE_SIZE_4KB: Final = 1 << 23
NVOS32_ATTR_PAGE_SIZE_HUGE: Final = 3 << 23
NVOS32_ATTR_LOCATION_VIDMEM: Final = 0 << 25
NVOS32_ATTR_LOCATION_PCI: Final = 1 << 25
NVOS32_ATTR_PHYSICALITY_NONCONTIGUOUS: Final = 1 << 27
NVOS32_ATTR_PHYSICALITY_CONTIGUOUS: Final = 2 << 27
NVOS32_ATTR_PHYSICALITY_ALLOW_NONCONTIGUOUS: Final = 3 << 27
NVOS32_ATTR_COHERENCY_UNCACHED: Final = 0 << 29
NVOS32_ATTR_COHERENCY_CACHED: Final = 1 << 29
NVOS32_ATTR_COHERENCY_WRITE_BACK: Final = 5 << 29

NVOS32_ATTR2_ZBC_PREFER_NO_ZBC: Final = 1 << 0
NVOS32_ATTR2_GPU_CACHEABLE_YES: Final = 1 << 2
NVOS32_ATTR2_GPU_CACHEABLE_NO: Final = 2 << 2
NVOS32_ATTR2_PAGE_SIZE_HUGE_2MB: Final = 1 << 20


@layout
class NV0000_ALLOC_PARAMETERS(ctypes.Structure):
    """NV01_ROOT_CLIENT."""

    hClient: u32
    processID: u32
    processName: Annotated[Bytes, ctypes.c_uint8 * 100]
    pOsPidInfo: u64


@layout
class NV0080_ALLOC_PARAMETERS(ctypes.Structure):
    """NV01_DEVICE_0."""

    deviceId: u32
    hClientShare: u32
    hTargetClient: u32
    hTargetDevice: u32
    flags: u32
    vaSpaceSize: u64
    vaStartInternal: u64
    vaLimitInternal: u64
    vaMode: u32


@layout
class NV2080_ALLOC_PARAMETERS(ctypes.Structure):
    """NV20_SUBDEVICE_0."""

    subDeviceId: u32


@layout
class NV_MEMORY_ALLOCATION_PARAMS(ctypes.Structure):
    """NV01_MEMORY_LOCAL_USER and NV01_MEMORY_SYSTEM."""

    owner: u32
    type: u32
    flags: u32
    width: u32
    height: u32
    pitch: u32
    attr: u32
    attr2: u32
    format: u32
    comprCovg: u32
    zcullCovg: u32
    rangeLo: u64
    rangeHi: u64
    size: u64
    alignment: u64
    offset: u64
    limit: u64
    address: u64
    ctagOffset: u32
    hVASpace: u32
    internalflags: u32
    tag: u32
    numaNode: u32


@layout
class NV_VASPACE_ALLOCATION_PARAMETERS(ctypes.Structure):
    """FERMI_VASPACE_A."""

    index: u32
    flags: u32
    vaSize: u64
    vaStartInternal: u64
    vaLimitInternal: u64
    bigPageSize: u32
    vaBase: u64
    pasid: u32


@layout
class NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS(ctypes.Structure):
    """KEPLER_CHANNEL_GROUP_A."""

    hObjectError: u32
    hObjectEccError: u32
    hVASpace: u32
    engineType: u32
    bIsCallingContextVgpuPlugin: u8


@layout
class NV_CTXSHARE_ALLOCATION_PARAMETERS(ctypes.Structure):
    """FERMI_CONTEXT_SHARE_A."""

    hVASpace: u32
    flags: u32
    subctxId: u32


@layout
class NV_HOPPER_USERMODE_A_PARAMS(ctypes.Structure):
    """HOPPER_USERMODE_A and later."""

    bBar1Mapping: u8
    bPriv: u8


@layout
class NV_MEMORY_DESC_PARAMS(ctypes.Structure):
    """Memory that RM itself describes; zero from outside."""

    base: u64
    size: u64
    addressSpace: u32
    cacheAttrib: u32


@layout
class NV_CHANNEL_ALLOC_PARAMS(ctypes.Structure):
    """All CHANNEL_GPFIFO classes."""

    hObjectError: u32
    hObjectBuffer: u32
    gpFifoOffset: u64
    gpFifoEntries: u32
    flags: u32
    hContextShare: u32
    hVASpace: u32
    hUserdMemory: Annotated[Words, ctypes.c_uint32 * 8]
    userdOffset: Annotated[Longs, ctypes.c_uint64 * 8]
    engineType: u32
    cid: u32
    subDeviceId: u32
    hObjectEccError: u32
    instanceMem: NV_MEMORY_DESC_PARAMS
    userdMem: NV_MEMORY_DESC_PARAMS
    ramfcMem: NV_MEMORY_DESC_PARAMS
    mthdbufMem: NV_MEMORY_DESC_PARAMS
    hPhysChannelGroup: u32
    internalFlags: u32
    errorNotifierMem: NV_MEMORY_DESC_PARAMS
    eccErrorNotifierMem: NV_MEMORY_DESC_PARAMS
    ProcessID: u32
    SubProcessID: u32
    encryptIv: Annotated[Words, ctypes.c_uint32 * 3]
    decryptIv: Annotated[Words, ctypes.c_uint32 * 3]
    hmacNonce: Annotated[Words, ctypes.c_uint32 * 8]
    tpcConfigID: u32


@layout
class NVB0B5_ALLOCATION_PARAMETERS(ctypes.Structure):
    """All DMA_COPY classes: which copy engine."""

    version: u32
    engineType: u32


@layout
class NV83DE_ALLOC_PARAMETERS(ctypes.Structure):
    """GT200_DEBUGGER."""

    hDebuggerClient_Obsolete: u32
    hAppClient: u32
    hClass3dObject: u32
