"""The arguments of escapes: sizes and offsets as driver 580.142 compiles them.

From nv-ioctl.h, nvos.h and nv-unix-nvos-params-wrappers.h of NVIDIA/open-gpu-kernel-modules.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.nv.rm.layout import Layout

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
OS46: Final = Layout(
    "NVOS46_PARAMETERS",
    64,
    "hClient@0 hDevice@4 hDma@8 hMemory@12 offset@16:8 length@24:8 flags@32 flags2@36"
    " kindOverride@40 dmaOffset@48:8 status@56",
)
OS47: Final = Layout(
    "NVOS47_PARAMETERS",
    48,
    "hClient@0 hDevice@4 hDma@8 hMemory@12 flags@16 dmaOffset@24:8 size@32:8 status@40",
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
