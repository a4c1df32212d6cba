"""The parameters of RM's classes: sizes and offsets as driver 580.142 compiles them.

From class/*.h, alloc/*.h and nvos.h of NVIDIA/open-gpu-kernel-modules;
those of commands are in ctrl/*.h, and beside what answers them.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.nv.rm.layout import Layout

UNIX_EVENT: Final = Layout("NvUnixEvent", 16, "hObject@0 NotifyIndex@4 info32@8 info16@12:2")

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
