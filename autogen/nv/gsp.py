"""What driver and GSP firmware 570.144 say to each other: boot arguments, queues, messages.

By hand, as no package has that branch's headers. From open-gpu-kernel-modules at tag 570.144,
src/nvidia/: arch/nvalloc/common/inc/gsp/{gsp_fw_wpr_meta.h,gspifpub.h}, inc/kernel/gpu/gsp/{
gsp_init_args.h,gsp_static_config.h,message_queue_priv.h,gsp_fw_heap.h}, inc/kernel/vgpu/
{rpc_headers.h,rpc_global_enums.h}, inc/kernel/gpu/gpu_acpi_data.h,
inc/kernel/gpu/fsp/kern_fsp_cot_payload.h, arch/nvalloc/common/inc/{rmgspseq.h,fsp/*.h},
generated/{g_rpc-structures.h,g_rpc-message-header.h,g_os_nvoc.h}; src/common/shared/msgq/inc/msgq/
msgq_priv.h; src/common/uproc/os/common/include/libos_init_args.h. Where those have a union, the
members are those of a first boot. Structures of other branches differ: no other is served.
"""

import ctypes
from typing import Annotated, Final

from gpu.autogen.nv.layout import Bytes, Words, layout, u8, u16, u32, u64

VERSION: Final = "570.144"

# Arguments of the boot

GSP_FW_WPR_META_MAGIC: Final = 0xDC3AAE21371A60B3
GSP_FW_WPR_META_REVISION: Final = 1
GSP_FW_WPR_META_VERIFIED: Final = 0xA0A0A0A0A0A0A0A0

GSP_FW_HEAP_PARAM_OS_SIZE_LIBOS3_BAREMETAL: Final = 22 << 20
GSP_FW_HEAP_PARAM_BASE_RM_SIZE_TU10X: Final = 8 << 20  # Turing to Ada
GSP_FW_HEAP_PARAM_BASE_RM_SIZE_GH100: Final = 14 << 20  # Hopper and later
GSP_FW_HEAP_PARAM_SIZE_PER_GB_FB: Final = 96 << 10
GSP_FW_HEAP_PARAM_CLIENT_ALLOC_SIZE: Final = (48 << 10) * 2048
GSP_FW_HEAP_SIZE_OVERRIDE_LIBOS3_BAREMETAL_MIN_MB: Final = 88

GSP_DMA_TARGET_LOCAL_FB: Final = 0
GSP_DMA_TARGET_COHERENT_SYSTEM: Final = 1
GSP_DMA_TARGET_NONCOHERENT_SYSTEM: Final = 2

LIBOS_MEMORY_REGION_CONTIGUOUS: Final = 1
LIBOS_MEMORY_REGION_RADIX3: Final = 2
LIBOS_MEMORY_REGION_LOC_SYSMEM: Final = 1
LIBOS_MEMORY_REGION_LOC_FB: Final = 2
LIBOS_MEMORY_REGION_RADIX_PAGE_LOG2: Final = 12
LIBOS_INIT_ARGUMENTS_SIZE: Final = 0x1000


@layout
class GspFwWprMeta(ctypes.Structure):
    """Where GSP's parts are in memory, and what video memory they get: 256 bytes."""

    magic: u64
    revision: u64
    sysmemAddrOfRadix3Elf: u64
    sizeOfRadix3Elf: u64
    sysmemAddrOfBootloader: u64
    sizeOfBootloader: u64
    bootloaderCodeOffset: u64
    bootloaderDataOffset: u64
    bootloaderManifestOffset: u64
    sysmemAddrOfSignature: u64
    sizeOfSignature: u64
    gspFwRsvdStart: u64
    nonWprHeapOffset: u64
    nonWprHeapSize: u64
    gspFwWprStart: u64
    gspFwHeapOffset: u64
    gspFwHeapSize: u64
    gspFwOffset: u64
    bootBinOffset: u64
    frtsOffset: u64
    frtsSize: u64
    gspFwWprEnd: u64
    fbSize: u64
    vgaWorkspaceOffset: u64
    vgaWorkspaceSize: u64
    bootCount: u64
    partitionRpcPadding: Annotated[Words, ctypes.c_uint32 * 4]
    sysmemAddrOfCrashReportQueue: u64
    sizeOfCrashReportQueue: u32
    lsUcodeVersionPadding: u32
    gspFwHeapVfPartitionCount: u8
    flags: u8
    padding: Annotated[Bytes, ctypes.c_uint8 * 2]
    pmuReservedSize: u32
    verified: u64


@layout
class GSP_FMC_INIT_PARAMS(ctypes.Structure):
    """Switches of confidential computing."""

    regkeys: u32


@layout
class GSP_ACR_BOOT_GSP_RM_PARAMS(ctypes.Structure):
    """Where the FMC finds `GspFwWprMeta`."""

    target: u32
    gspRmDescSize: u32
    gspRmDescOffset: u64
    wprCarveoutOffset: u64
    wprCarveoutSize: u32
    bIsGspRmBoot: u8


@layout
class GSP_RM_PARAMS(ctypes.Structure):
    """Where libos finds its `LibosMemoryRegionInitArgument`."""

    target: u32
    bootArgsOffset: u64


@layout
class GSP_SPDM_PARAMS(ctypes.Structure):
    """A buffer of confidential computing."""

    target: u32
    payloadBufferOffset: u64
    payloadBufferSize: u32


@layout
class GSP_FMC_BOOT_PARAMS(ctypes.Structure):
    """What the chain of trust hands to the FMC."""

    initParams: GSP_FMC_INIT_PARAMS
    bootGspRmParams: GSP_ACR_BOOT_GSP_RM_PARAMS
    gspRmParams: GSP_RM_PARAMS
    gspSpdmParams: GSP_SPDM_PARAMS


@layout
class LibosMemoryRegionInitArgument(ctypes.Structure):
    """A region of memory that a task of libos finds by name, eight characters as a number."""

    id8: u64
    pa: u64
    size: u64
    kind: u8
    loc: u8


@layout
class MESSAGE_QUEUE_INIT_ARGUMENTS(ctypes.Structure):
    """Where the queues are: a table of pages' addresses, then the queues."""

    sharedMemPhysAddr: u64
    pageTableEntryCount: u32
    cmdQueueOffset: u64
    statQueueOffset: u64


@layout
class GSP_SR_INIT_ARGUMENTS(ctypes.Structure):
    """Whether this is a resume."""

    oldLevel: u32
    flags: u32
    bInPMTransition: u8


@layout
class GSP_PROFILER_ARGS(ctypes.Structure):
    """A buffer for samples; the header gives this structure no name."""

    pa: u64
    size: u64


@layout
class GSP_ARGUMENTS_CACHED(ctypes.Structure):
    """RMARGS."""

    messageQueueInitArguments: MESSAGE_QUEUE_INIT_ARGUMENTS
    srInitArguments: GSP_SR_INIT_ARGUMENTS
    gpuInstance: u32
    bDmemStack: u8
    profilerArgs: GSP_PROFILER_ARGS


# The chain of trust of Hopper and Blackwell

FSP_EMEM_CHANNEL_RM: Final = 0
FSP_EMEM_CHANNEL_RM_SIZE: Final = 1024
MCTP_HEADER_SEQ_SHIFT: Final = 28
MCTP_HEADER_EOM: Final = 1 << 30
MCTP_HEADER_SOM: Final = 1 << 31
MCTP_MSG_HEADER_TYPE_VENDOR_PCI: Final = 0x7E
MCTP_MSG_HEADER_VENDOR_ID_NV: Final = 0x10DE
NVDM_TYPE_COT: Final = 0x14
NVDM_TYPE_FSP_RESPONSE: Final = 0x15
FSP_ERR_IFR_FILE_NOT_FOUND: Final = 0x9F
FSP_ERR_IFS_ERR_NOT_SUPPORTED: Final = 0xA0
FSP_ERR_IFS_ERR_INVALID_DATA: Final = 0xA1


@layout
class NVDM_PAYLOAD_COT(ctypes.Structure):
    """What FSP is asked to boot; packed, 0x35C bytes."""

    _layout_ = "ms"
    _pack_ = 1
    version: u16
    size: u16
    gspFmcSysmemOffset: u64
    frtsSysmemOffset: u64
    frtsSysmemSize: u32
    frtsVidmemOffset: u64
    frtsVidmemSize: u32
    hash384: Annotated[Words, ctypes.c_uint32 * 12]
    publicKey: Annotated[Words, ctypes.c_uint32 * 96]
    signature: Annotated[Words, ctypes.c_uint32 * 96]
    gspBootArgsSysmemOffset: u64


@layout
class NVDM_PAYLOAD_COMMAND_RESPONSE(ctypes.Structure):
    """FSP's answer to any command."""

    taskId: u32
    commandNvdmType: u32
    errorCode: u32


# Queues and messages

MSGQ_VERSION: Final = 0
MSGQ_FLAGS_SWAP_RX: Final = 1
GSP_MSG_QUEUE_ELEMENT_SIZE_MIN: Final = 0x1000
GSP_MSG_QUEUE_ELEMENT_SIZE_MAX: Final = 16 * GSP_MSG_QUEUE_ELEMENT_SIZE_MIN
GSP_MSG_QUEUE_ELEMENT_HDR_SIZE: Final = 0x30
GSP_MSG_QUEUE_SIZE: Final = 0x40000  # of each of the two
GSP_MSG_QUEUE_HEADER_ALIGN: Final = 4  # 2 ** 4
NV_VGPU_MSG_HEADER_VERSION: Final = 3 << 24
NV_VGPU_MSG_SIGNATURE_VALID: Final = 0x43505256  # "VRPC"
NV_VGPU_MSG_RESULT_RPC_PENDING: Final = 0xFFFFFFFF


@layout
class msgqTxHeader(ctypes.Structure):
    """Of a queue, by the side that fills it."""

    version: u32
    size: u32
    msgSize: u32
    msgCount: u32
    writePtr: u32
    flags: u32
    rxHdrOff: u32
    entryOff: u32


@layout
class msgqRxHeader(ctypes.Structure):
    """In a side's own queue: how far it has read the other's (MSGQ_FLAGS_SWAP_RX)."""

    readPtr: u32


@layout
class rpc_message_header_v03_00(ctypes.Structure):
    """Of each message; its parameters follow, and are in ``length``."""

    header_version: u32
    signature: u32
    length: u32
    function: u32
    rpc_result: u32
    rpc_result_private: u32
    sequence: u32
    cpuRmGfid: u32


@layout
class GSP_MSG_QUEUE_ELEMENT(ctypes.Structure):
    """The first element of a message; more may follow, which have no header."""

    authTagBuffer: Annotated[Bytes, ctypes.c_uint8 * 16]
    aadBuffer: Annotated[Bytes, ctypes.c_uint8 * 16]
    checkSum: u32
    seqNum: u32
    elemCount: u32
    padding: u32
    rpc: rpc_message_header_v03_00


NV_VGPU_MSG_FUNCTION_ALLOC_MEMORY: Final = 4
NV_VGPU_MSG_FUNCTION_FREE: Final = 10
NV_VGPU_MSG_FUNCTION_DUP_OBJECT: Final = 21
NV_VGPU_MSG_FUNCTION_UNLOADING_GUEST_DRIVER: Final = 47
NV_VGPU_MSG_FUNCTION_SET_PAGE_DIRECTORY: Final = 54
NV_VGPU_MSG_FUNCTION_GET_GSP_STATIC_INFO: Final = 65
NV_VGPU_MSG_FUNCTION_UPDATE_BAR_PDE: Final = 70
NV_VGPU_MSG_FUNCTION_CONTINUATION_RECORD: Final = 71
NV_VGPU_MSG_FUNCTION_GSP_SET_SYSTEM_INFO: Final = 72
NV_VGPU_MSG_FUNCTION_SET_REGISTRY: Final = 73
NV_VGPU_MSG_FUNCTION_GSP_RM_CONTROL: Final = 76
NV_VGPU_MSG_FUNCTION_GSP_RM_ALLOC: Final = 103

NV_VGPU_MSG_EVENT_FIRST_EVENT: Final = 0x1000
NV_VGPU_MSG_EVENT_GSP_INIT_DONE: Final = 0x1001
NV_VGPU_MSG_EVENT_GSP_RUN_CPU_SEQUENCER: Final = 0x1002
NV_VGPU_MSG_EVENT_POST_EVENT: Final = 0x1003
NV_VGPU_MSG_EVENT_RC_TRIGGERED: Final = 0x1004
NV_VGPU_MSG_EVENT_MMU_FAULT_QUEUED: Final = 0x1005
NV_VGPU_MSG_EVENT_OS_ERROR_LOG: Final = 0x1006
NV_VGPU_MSG_EVENT_UCODE_LIBOS_PRINT: Final = 0x100C
NV_VGPU_MSG_EVENT_PERF_BRIDGELESS_INFO_UPDATE: Final = 0x100F
NV_VGPU_MSG_EVENT_NVLINK_FAULT_UP: Final = 0x101B
NV_VGPU_MSG_EVENT_GSP_LOCKDOWN_NOTICE: Final = 0x101C
NV_VGPU_MSG_EVENT_GSP_POST_NOCAT_RECORD: Final = 0x1020
NV_VGPU_MSG_EVENT_NUM_EVENTS: Final = 0x1023


@layout
class rpc_unloading_guest_driver_v1F_07(ctypes.Structure):
    """Asks RM to shut down."""

    bInPMTransition: u8
    bGc6Entering: u8
    newLevel: u32


@layout
class rpc_os_error_log_v17_00(ctypes.Structure):
    """An Xid."""

    exceptType: u32
    runlistId: u32
    chid: u32
    errString: Annotated[Bytes, ctypes.c_uint8 * 0x100]
    preemptiveRemovalPreviousXid: u32


@layout
class rpc_run_cpu_sequencer_v17_00(ctypes.Structure):
    """A program for the driver's CPU; ``bufferSizeDWord`` words of commands follow."""

    bufferSizeDWord: u32
    cmdIndex: u32
    regSaveArea: Annotated[Words, ctypes.c_uint32 * 8]


GSP_SEQ_BUF_OPCODE_REG_WRITE: Final = 0
GSP_SEQ_BUF_OPCODE_REG_MODIFY: Final = 1
GSP_SEQ_BUF_OPCODE_REG_POLL: Final = 2
GSP_SEQ_BUF_OPCODE_DELAY_US: Final = 3
GSP_SEQ_BUF_OPCODE_REG_STORE: Final = 4
GSP_SEQ_BUF_OPCODE_CORE_RESET: Final = 5
GSP_SEQ_BUF_OPCODE_CORE_START: Final = 6
GSP_SEQ_BUF_OPCODE_CORE_WAIT_FOR_HALT: Final = 7
GSP_SEQ_BUF_OPCODE_CORE_RESUME: Final = 8
GSP_SEQ_BUF_REG_SAVE_SIZE: Final = 8


# What RM is told of the machine before it starts

REGISTRY_TABLE_ENTRY_TYPE_DWORD: Final = 1
REGISTRY_TABLE_ENTRY_TYPE_BINARY: Final = 2
REGISTRY_TABLE_ENTRY_TYPE_STRING: Final = 3


@layout
class PACKED_REGISTRY_ENTRY(ctypes.Structure):
    """A setting; the name is at an offset in the table, with a zero behind it."""

    nameOffset: u32
    type: u8
    data: u32
    length: u32


@layout
class PACKED_REGISTRY_TABLE(ctypes.Structure):
    """SET_REGISTRY: entries follow, then their names and data."""

    size: u32
    numEntries: u32


@layout
class BUSINFO(ctypes.Structure):
    """A bridge."""

    deviceID: u16
    vendorID: u16
    subdeviceID: u16
    subvendorID: u16
    revisionID: u8


@layout
class DOD_METHOD_DATA(ctypes.Structure):
    """Displays that ACPI lists."""

    status: u32
    acpiIdListLen: u32
    acpiIdList: Annotated[Words, ctypes.c_uint32 * 16]


@layout
class JT_METHOD_DATA(ctypes.Structure):
    """A method of ACPI for notebooks."""

    status: u32
    jtCaps: u32
    jtRevId: u16
    bSBIOSCaps: u8


@layout
class MUX_METHOD_DATA_ELEMENT(ctypes.Structure):
    """A switch of displays."""

    acpiId: u32
    mode: u32
    status: u32


@layout
class MUX_METHOD_DATA(ctypes.Structure):
    """All switches of displays."""

    tableLen: u32
    acpiIdMuxModeTable: Annotated[
        ctypes.Array[MUX_METHOD_DATA_ELEMENT], MUX_METHOD_DATA_ELEMENT * 16
    ]
    acpiIdMuxPartTable: Annotated[
        ctypes.Array[MUX_METHOD_DATA_ELEMENT], MUX_METHOD_DATA_ELEMENT * 16
    ]
    acpiIdMuxStateTable: Annotated[
        ctypes.Array[MUX_METHOD_DATA_ELEMENT], MUX_METHOD_DATA_ELEMENT * 16
    ]


@layout
class CAPS_METHOD_DATA(ctypes.Structure):
    """A method of ACPI for notebooks."""

    status: u32
    optimusCaps: u32


@layout
class ACPI_METHOD_DATA(ctypes.Structure):
    """What ACPI says of the card."""

    bValid: u8
    dodMethodData: DOD_METHOD_DATA
    jtMethodData: JT_METHOD_DATA
    muxMethodData: MUX_METHOD_DATA
    capsMethodData: CAPS_METHOD_DATA


@layout
class GSP_VF_INFO(ctypes.Structure):
    """Virtual functions."""

    totalVFs: u32
    firstVFOffset: u32
    FirstVFBar0Address: u64
    FirstVFBar1Address: u64
    FirstVFBar2Address: u64
    b64bitBar0: u8
    b64bitBar1: u8
    b64bitBar2: u8


@layout
class GspSystemInfo(ctypes.Structure):
    """GSP_SET_SYSTEM_INFO: the card on its bus."""

    gpuPhysAddr: u64
    gpuPhysFbAddr: u64
    gpuPhysInstAddr: u64
    gpuPhysIoAddr: u64
    nvDomainBusDeviceFunc: u64
    simAccessBufPhysAddr: u64
    notifyOpSharedSurfacePhysAddr: u64
    pcieAtomicsOpMask: u64
    consoleMemSize: u64
    maxUserVa: u64
    pciConfigMirrorBase: u32
    pciConfigMirrorSize: u32
    PCIDeviceID: u32
    PCISubDeviceID: u32
    PCIRevisionID: u32
    pcieAtomicsCplDeviceCapMask: u32
    oorArch: u8
    clPdbProperties: u64
    Chipset: u32
    bGpuBehindBridge: u8
    bFlrSupported: u8
    b64bBar0Supported: u8
    bMnocAvailable: u8
    chipsetL1ssEnable: u32
    bUpstreamL0sUnsupported: u8
    bUpstreamL1Unsupported: u8
    bUpstreamL1PorSupported: u8
    bUpstreamL1PorMobileOnly: u8
    bSystemHasMux: u8
    upstreamAddressValid: u8
    FHBBusInfo: BUSINFO
    chipsetIDInfo: BUSINFO
    acpiMethodData: ACPI_METHOD_DATA
    hypervisorType: u32
    bIsPassthru: u8
    sysTimerOffsetNs: u64
    gspVFInfo: GSP_VF_INFO
    bIsPrimary: u8
    isGridBuild: u8
    linkCap: u32
    gridBuildCsp: u32
    bPreserveVideoMemoryAllocations: u8
    bTdrEventSupported: u8
    bFeatureStretchVblankCapable: u8
    bEnableDynamicGranularityPageArrays: u8
    bClockBoostSupported: u8
    bRouteDispIntrsToCPU: u8
    hostPageSize: u64
