"""Calls that peers need: RM's question whether there are any, and UVM's for access and its end.

From ctrl0000system.h and kernel-open/nvidia-uvm/uvm_ioctl.h of open-gpu-kernel-modules, branches
535 to 595; UVM's are the same in all of them.
"""

from __future__ import annotations

import ctypes
from typing import Annotated, Final

from gpu.autogen.nv.layout import Bytes, Words, layout, u32, u64
from gpu.autogen.nv.uvm import Uuid

GET_P2P_CAPS_V2: Final = 0x12B
"""NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2, a control of the client."""
CAN_WRITE: Final = 1 << 0
CAN_READ: Final = 1 << 1

UVM_ENABLE_PEER_ACCESS: Final = 29
UVM_DISABLE_PEER_ACCESS: Final = 30
UVM_UNMAP_EXTERNAL: Final = 66
NAMES: Final = {
    UVM_ENABLE_PEER_ACCESS: "UVM_ENABLE_PEER_ACCESS",
    UVM_DISABLE_PEER_ACCESS: "UVM_DISABLE_PEER_ACCESS",
    UVM_UNMAP_EXTERNAL: "UVM_UNMAP_EXTERNAL",
}

_MAX_GPUS: Final = 32  # NV0000_CTRL_SYSTEM_MAX_ATTACHED_GPUS
_Ids = Annotated[Words, ctypes.c_uint32 * _MAX_GPUS]
_Pairs = Annotated[Words, ctypes.c_uint32 * _MAX_GPUS**2]
_Statuses = Annotated[Bytes, ctypes.c_uint8 * 9]


@layout
class P2pCaps(ctypes.Structure):
    """NV0000_CTRL_SYSTEM_GET_P2P_CAPS_V2_PARAMS, from branch 550 on."""

    gpuIds: _Ids
    gpuCount: u32
    p2pCaps: u32
    p2pOptimalReadCEs: u32
    p2pOptimalWriteCEs: u32
    p2pCapsStatus: _Statuses
    busPeerIds: _Pairs
    busEgmPeerIds: _Pairs


@layout
class P2pCaps535(ctypes.Structure):
    """The same in branch 535."""

    gpuIds: _Ids
    gpuCount: u32
    p2pCaps: u32
    p2pOptimalReadCEs: u32
    p2pOptimalWriteCEs: u32
    p2pCapsStatus: _Statuses
    busPeerIds: _Pairs


@layout
class PeerAccess(ctypes.Structure):
    """UVM_ENABLE_PEER_ACCESS_PARAMS, and those of DISABLE: two GPUs in any order."""

    gpuUuidA: Uuid
    gpuUuidB: Uuid
    rmStatus: u32


@layout
class UnmapExternal(ctypes.Structure):
    """UVM_UNMAP_EXTERNAL_PARAMS: takes a part of a range from one GPU."""

    base: u64
    length: u64
    gpuUuid: Uuid
    rmStatus: u32
