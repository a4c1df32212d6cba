"""The arguments of UVM's calls: sizes and offsets as driver 580.142 compiles them.

From uvm_ioctl.h and uvm_linux_ioctl.h of NVIDIA/open-gpu-kernel-modules.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.nv.rm.layout import Layout

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
