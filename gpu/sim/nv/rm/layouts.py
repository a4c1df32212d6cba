"""The structures of RM and UVM calls: sizes and offsets as driver 580.142 compiles them.

Escapes are in nv-ioctl.h, nvos.h and nv-unix-nvos-params-wrappers.h, parameters of classes in
class/*.h and alloc/*.h, of controls in ctrl/*.h, UVM's in uvm_ioctl.h and uvm_linux_ioctl.h of
NVIDIA/open-gpu-kernel-modules.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.nv.rm.layout import Layout

# Escapes.
CARD_INFO: Final = Layout(
    "nv_ioctl_card_info_t",
    72,
    "valid@0:1 domain@4 bus@8:1 slot@9:1 function@10:1 vendor_id@12:2 device_id@14:2 gpu_id@16"
    " interrupt_line@20:2 reg_address@24:8 reg_size@32:8 fb_address@40:8 fb_size@48:8"
    " minor_number@56 dev_name@60:10",
)
REGISTER_FD: Final = Layout("nv_ioctl_register_fd_t", 4, "ctl_fd@0")
XFER: Final = Layout("nv_ioctl_xfer_t", 16, "cmd@0 size@4 ptr@8:8")
SYS_PARAMS: Final = Layout("nv_ioctl_sys_params_t", 8, "memblock_size@0:8")
API_VERSION: Final = Layout("nv_ioctl_rm_api_version_t", 72, "cmd@0 reply@4 versionString@8:64")
WAIT_OPEN: Final = Layout("nv_ioctl_wait_open_complete_t", 8, "rc@0 adapterStatus@4")
OS_EVENT: Final = Layout("nv_ioctl_alloc_os_event_t", 16, "hClient@0 hDevice@4 fd@8 Status@12")
OS00: Final = Layout("NVOS00_PARAMETERS", 16, "hRoot@0 hObjectParent@4 hObjectOld@8 status@12")
OS02: Final = Layout(
    "nv_ioctl_nvos02_parameters_with_fd",
    56,
    "hRoot@0 hObjectParent@4 hObjectNew@8 hClass@12 flags@16 pMemory@24:8 limit@32:8 status@40"
    " fd@48",
)
OS21: Final = Layout(
    "NVOS21_PARAMETERS",
    32,
    "hRoot@0 hObjectParent@4 hObjectNew@8 hClass@12 pAllocParms@16:8 paramsSize@24 status@28",
)
OS64: Final = Layout(
    "NVOS64_PARAMETERS",
    48,
    "hRoot@0 hObjectParent@4 hObjectNew@8 hClass@12 pAllocParms@16:8 pRightsRequested@24:8"
    " paramsSize@32 flags@36 status@40",
)
OS33: Final = Layout(
    "nv_ioctl_nvos33_parameters_with_fd",
    56,
    "hClient@0 hDevice@4 hMemory@8 offset@16:8 length@24:8 pLinearAddress@32:8 status@40 flags@44"
    " fd@48",
)
OS34: Final = Layout(
    "NVOS34_PARAMETERS",
    32,
    "hClient@0 hDevice@4 hMemory@8 pLinearAddress@16:8 status@24 flags@28",
)
OS41: Final = Layout("NVOS41_PARAMETERS", 16, "pEvent@0:8 MoreEvents@8 status@12")
OS54: Final = Layout(
    "NVOS54_PARAMETERS",
    32,
    "hClient@0 hObject@4 cmd@8 flags@12 params@16:8 paramsSize@24 status@28",
)
OS55: Final = Layout(
    "NVOS55_PARAMETERS",
    28,
    "hClient@0 hParent@4 hObject@8 hClientSrc@12 hObjectSrc@16 flags@20 status@24",
)
OS57: Final = Layout(
    "NVOS57_PARAMETERS",
    24,
    "hClient@0 hObject@4 target@8 accessMask@12 type@16:2 action@18:1 status@20",
)
UNIX_EVENT: Final = Layout("NvUnixEvent", 16, "hObject@0 NotifyIndex@4 info32@8 info16@12:2")

# Parameters of classes.
ROOT: Final = Layout("NvHandle", 4, "handle@0")  # all that resource_list.h takes of a client
EVENT: Final = Layout(
    "NV0005_ALLOC_PARAMETERS",
    24,
    "hParentClient@0 hSrcResource@4 hClass@8 notifyIndex@12 data@16:8",
)
DEVICE: Final = Layout(
    "NV0080_ALLOC_PARAMETERS",
    56,
    "deviceId@0 hClientShare@4 hTargetClient@8 hTargetDevice@12 flags@16 vaSpaceSize@24:8"
    " vaStartInternal@32:8 vaLimitInternal@40:8 vaMode@48",
)
SUBDEVICE: Final = Layout("NV2080_ALLOC_PARAMETERS", 4, "subDeviceId@0")
MEMORY: Final = Layout(
    "NV_MEMORY_ALLOCATION_PARAMS",
    128,
    "owner@0 type@4 flags@8 width@12 height@16 pitch@20 attr@24 attr2@28 format@32 comprCovg@36"
    " zcullCovg@40 rangeLo@48:8 rangeHi@56:8 size@64:8 alignment@72:8 offset@80:8 limit@88:8"
    " address@96:8 ctagOffset@104 hVASpace@108 internalflags@112 tag@116 numaNode@120",
)
MEMORY_VIRTUAL: Final = Layout(
    "NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS", 24, "offset@0:8 limit@8:8 hVASpace@16"
)
OS_DESCRIPTOR: Final = Layout("NV_OS_DESC_MEMORY_ALLOCATION_PARAMS", 40, "")
VASPACE: Final = Layout(
    "NV_VASPACE_ALLOCATION_PARAMETERS",
    56,
    "index@0 flags@4 vaSize@8:8 vaStartInternal@16:8 vaLimitInternal@24:8 bigPageSize@32"
    " vaBase@40:8 pasid@48",
)
CHANNEL_GROUP: Final = Layout(
    "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
    20,
    "hObjectError@0 hObjectEccError@4 hVASpace@8 engineType@12 bIsCallingContextVgpuPlugin@16:1",
)
CONTEXT_SHARE: Final = Layout(
    "NV_CTXSHARE_ALLOCATION_PARAMETERS", 12, "hVASpace@0 flags@4 subctxId@8"
)
CHANNEL: Final = Layout(
    "NV_CHANNELGPFIFO_ALLOCATION_PARAMETERS",
    368,
    "hObjectError@0 hObjectBuffer@4 gpFifoOffset@8:8 gpFifoEntries@16 flags@20 hContextShare@24"
    " hVASpace@28 hUserdMemory@32 userdOffset@64:8 engineType@128 cid@132 subDeviceId@136"
    " hObjectEccError@140 hPhysChannelGroup@240 internalFlags@244",
)
USERMODE: Final = Layout("NV_HOPPER_USERMODE_A_PARAMS", 2, "bBar1Mapping@0:1 bPriv@1:1")
COPY: Final = Layout("NVB0B5_ALLOCATION_PARAMETERS", 8, "version@0 engineType@4")
GRAPHICS: Final = Layout("NV_GR_ALLOCATION_PARAMETERS", 16, "version@0 flags@4 size@8 caps@12")
DEBUGGER: Final = Layout(
    "NV83DE_ALLOC_PARAMETERS", 12, "hDebuggerClient_Obsolete@0 hAppClient@4 hClass3dObject@8"
)

# UVM.
UVM_INITIALIZE: Final = Layout("UVM_INITIALIZE_PARAMS", 16, "flags@0:8 rmStatus@8")
UVM_MM_INITIALIZE: Final = Layout("UVM_MM_INITIALIZE_PARAMS", 8, "uvmFd@0 rmStatus@4")
UVM_REGISTER_GPU: Final = Layout(
    "UVM_REGISTER_GPU_PARAMS",
    40,
    "uuid@0:16 numaEnabled@16:1 numaNodeId@20 rmCtrlFd@24 hClient@28 hSmcPartRef@32 rmStatus@36",
)
UVM_UNREGISTER_GPU: Final = Layout("UVM_UNREGISTER_GPU_PARAMS", 20, "uuid@0:16 rmStatus@16")
UVM_REGISTER_VASPACE: Final = Layout(
    "UVM_REGISTER_GPU_VASPACE_PARAMS",
    32,
    "uuid@0:16 rmCtrlFd@16 hClient@20 hVaSpace@24 rmStatus@28",
)
UVM_UNREGISTER_VASPACE: Final = Layout(
    "UVM_UNREGISTER_GPU_VASPACE_PARAMS", 20, "uuid@0:16 rmStatus@16"
)
UVM_REGISTER_CHANNEL: Final = Layout(
    "UVM_REGISTER_CHANNEL_PARAMS",
    56,
    "uuid@0:16 rmCtrlFd@16 hClient@20 hChannel@24 base@32:8 length@40:8 rmStatus@48",
)
UVM_UNREGISTER_CHANNEL: Final = Layout(
    "UVM_UNREGISTER_CHANNEL_PARAMS", 28, "uuid@0:16 hClient@16 hChannel@20 rmStatus@24"
)
UVM_PEER: Final = Layout("UVM_ENABLE_PEER_ACCESS_PARAMS", 36, "uuidA@0:16 uuidB@16:16 rmStatus@32")
UVM_CREATE_RANGE: Final = Layout(
    "UVM_CREATE_EXTERNAL_RANGE_PARAMS", 24, "base@0:8 length@8:8 rmStatus@16"
)
UVM_MAP: Final = Layout(
    "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
    9264,
    "base@0:8 length@8:8 offset@16:8 attributes@24:9216 count@9240:8 rmCtrlFd@9248 hClient@9252"
    " hMemory@9256 rmStatus@9260",
)
UVM_ATTRIBUTES: Final = Layout(
    "UvmGpuMappingAttributes",
    36,
    "uuid@0:16 mapping@16 caching@20 format@24 elementBits@28 compression@32",
)
UVM_UNMAP: Final = Layout(
    "UVM_UNMAP_EXTERNAL_PARAMS", 40, "base@0:8 length@8:8 uuid@16:16 rmStatus@32"
)
UVM_FREE: Final = Layout("UVM_FREE_PARAMS", 24, "base@0:8 length@8:8 rmStatus@16")
UVM_PAGEABLE: Final = Layout("UVM_PAGEABLE_MEM_ACCESS_PARAMS", 8, "pageable@0:1 rmStatus@4")
