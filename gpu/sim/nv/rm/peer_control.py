"""What RM tells of peers: NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS, _V2 and _MATRIX.

From CliGetSystemP2pCaps and its callers in src/nvidia/src/kernel/rmapi/client_resource.c of
open-gpu-kernel-modules 580.142, numbers from ctrl/ctrl0000/ctrl0000system.h.
NV2080_CTRL_CMD_GET_P2P_CAPS is for virtual GPUs; on bare metal RM answers NOT_SUPPORTED, as the
model does to every command that it does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.rm.commands import Call, Command
from gpu.sim.nv.rm.layout import Layout
from gpu.sim.nv.rm.peers import NO_PEER, Support
from gpu.sim.nv.rm.status import RmError, Status, check

_MAX_GPUS: Final = 32
_MAX_GROUP: Final = 8
_READS: Final = 1 << 1  # bits of p2pCaps
_WRITES: Final = 1 << 0
_PROPRIETARY: Final = 1 << 2
_LOOPBACK: Final = 1 << 5
_PCI: Final = 1 << 6
_STATUS_READ, _STATUS_WRITE, _STATUS_PROPRIETARY = 0, 1, 4  # indices of p2pCapsStatus
_STATUS_LOOPBACK, _STATUS_PCI = 5, 6
_STATUSES: Final = 9

_COMMON: Final = "gpuIds@0:128 gpuCount@128 p2pCaps@132 readCEs@136 writeCEs@140 status@144:9"
_CAPS: Final = Layout(
    "NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS",
    176,
    f"{_COMMON} busPeerIds@160:8 busEgmPeerIds@168:8",
)
_CAPS_V2: Final = Layout(
    "NV0000_CTRL_SYSTEM_GET_P2P_CAPS_V2_PARAMS",
    8348,
    f"{_COMMON} busPeerIds@156:4096 busEgmPeerIds@4252:4096",
)
_MATRIX: Final = Layout(
    "NV0000_CTRL_SYSTEM_GET_P2P_CAPS_MATRIX_PARAMS",
    1352,
    "countA@0 countB@4 idsA@8:32 idsB@40:32 p2pCaps@72:256 a2bReadCes@328:256 a2bWriteCes@584:256"
    " b2aReadCes@840:256 b2aWriteCes@1096:256",
)


def _caps(call: Call) -> None:
    """GET_P2P_CAPS: the tables of peer ids go where the parameters point to."""
    gpus = _named(call)
    _answer(call, gpus)
    for name, table in (("busPeerIds", _ids(call, gpus)), ("busEgmPeerIds", _no_ids(gpus))):
        if name in call.lists:
            call.lists[name][:] = table


def _caps_v2(call: Call) -> None:
    """GET_P2P_CAPS_V2; one GPU named twice asks for its loopback."""
    gpus = _named(call)
    if len(gpus) == 2 and gpus[0] is gpus[1]:
        gpus = gpus[:1]
    _answer(call, gpus)
    for name, table in (("busPeerIds", _ids(call, gpus)), ("busEgmPeerIds", _no_ids(gpus))):
        old = call.params.raw(name)
        call.params.put(name, table + old[len(table) :])


def _matrix(call: Call) -> None:
    """GET_P2P_CAPS_MATRIX; without a second group, the first with itself. No CEs without NVLink."""
    params = call.params
    rows, columns = params["countA"], params["countB"]
    good = 0 < rows <= _MAX_GROUP and columns <= _MAX_GROUP
    check(good, Status.INVALID_ARGUMENT, f"groups of {rows} and {columns} GPUs")
    first = _find(call, params.raw("idsA"), rows)
    second = _find(call, params.raw("idsB"), columns) if columns else first
    table = bytearray(params.raw("p2pCaps"))
    for i, gpu in enumerate(first):
        for j, other in enumerate(second):
            pair = (gpu,) if gpu is other else (gpu, other)
            at = 4 * (i * _MAX_GROUP + j)
            table[at : at + 4] = _bits(call, pair).to_bytes(4, "little")
    params.put("p2pCaps", bytes(table))


def _named(call: Call) -> list[NvGpu]:
    count = call.params["gpuCount"]
    check(0 < count <= _MAX_GPUS, Status.INVALID_ARGUMENT, f"{count} GPUs")
    return _find(call, call.params.raw("gpuIds"), count)


def _find(call: Call, ids: bytes, count: int) -> list[NvGpu]:
    known = {gpu.gpu_id: gpu for gpu in call.rm.gpus}
    found = []
    for number in memoryview(ids).cast("I").tolist()[:count]:
        if number not in known:
            raise RmError(Status.INVALID_ARGUMENT, f"there is no GPU {number:#x}")
        found.append(known[number])
    return found


def _bits(call: Call, gpus: Sequence[NvGpu]) -> int:
    """p2pCaps. Atomics do not cross PCIe; a GPU's own memory over the bus is loopback."""
    if call.rm.peers.support(gpus) is not Support.OK:
        return 0
    return _READS | _WRITES | _PCI | _PROPRIETARY | (_LOOPBACK if len(gpus) == 1 else 0)


def _answer(call: Call, gpus: Sequence[NvGpu]) -> None:
    support, params = call.rm.peers.support(gpus), call.params
    statuses = [Support.NOT_SUPPORTED] * _STATUSES
    statuses[_STATUS_READ] = statuses[_STATUS_WRITE] = support
    if support is Support.OK:
        statuses[_STATUS_PCI] = statuses[_STATUS_PROPRIETARY] = Support.OK
        if len(gpus) == 1:
            statuses[_STATUS_LOOPBACK] = Support.OK
    params["p2pCaps"] = _bits(call, gpus)
    params["readCEs"] = params["writeCEs"] = 0
    params.put("status", bytes(statuses))


def _ids(call: Call, gpus: Sequence[NvGpu]) -> bytes:
    """Row by row, what each GPU calls the others."""
    peers = call.rm.peers
    return b"".join(peers.peer_id(a, b).to_bytes(4, "little") for a in gpus for b in gpus)


def _no_ids(gpus: Sequence[NvGpu]) -> bytes:
    return NO_PEER.to_bytes(4, "little") * len(gpus) ** 2


PEER_COMMANDS: Final[dict[int, Command]] = {
    0x127: Command(
        *(("client",), _CAPS, _caps),
        dict.fromkeys(("busPeerIds", "busEgmPeerIds"), lambda params: 4 * params["gpuCount"] ** 2),
    ),
    0x12B: Command(("client",), _CAPS_V2, _caps_v2),
    0x13A: Command(("client",), _MATRIX, _matrix),
}
