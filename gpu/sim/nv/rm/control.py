"""RM_CONTROL: the commands, the exact size of each one's parameters, and what they answer.

The order of checks is that of rmapi/control.c and resserv: parameters against the exported size
when the upper half of the command is a class that RM knows (INVALID_ARGUMENT), then the object,
then the command in its class (NOT_SUPPORTED, INVALID_PARAM_STRUCT).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from gpu.sim.nv.chip.channel import Group
from gpu.sim.nv.chip.copyunits import CopyUnit
from gpu.sim.nv.chip.hardware import ENGINE_COPY0
from gpu.sim.nv.rm.classes import RULES, chip_classes
from gpu.sim.nv.rm.commands import Call, Command, Lists
from gpu.sim.nv.rm.layout import Layout
from gpu.sim.nv.rm.objects import ChannelObject, Debugger, GroupObject
from gpu.sim.nv.rm.peer_control import PEER_COMMANDS
from gpu.sim.nv.rm.state import Caller, RmState
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.nv.rm.version_control import VERSION_COMMANDS

_MAX_ATTACHED: Final = 32
_SM_CALL: Final = 100  # NV83DE_CTRL_DEBUG_MAX_SMS_PER_CALL
_SM_STATE: Final = 48
_GID_BINARY: Final = 2
_GR_INFO_MAX: Final = 0x39

_ID_INFO: Final = Layout(
    "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS",
    32,
    "gpuId@0 gpuFlags@4 deviceInstance@8 subDeviceInstance@12 sliStatus@16 boardId@20"
    " gpuInstance@24 numaId@28",
)
_ATTACHED: Final = Layout("NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS", 128, "gpuIds@0:128")
_CLASSLIST: Final = Layout("NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS", 16, "count@0 list@8:8")
_CLASSLIST_V2: Final = Layout("NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS", 804, "count@0 list@4:800")
_GID: Final = Layout(
    "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS", 268, "index@0 flags@4 length@8 data@12:256"
)
_GR_INFO: Final = Layout("NV2080_CTRL_GR_GET_INFO_PARAMS", 32, "size@0 list@8:8 route@16:16")
_GPC_MASK: Final = Layout("NV2080_CTRL_GR_GET_GPC_MASK_PARAMS", 24, "route@0:16 gpcMask@16")
_TPC_MASK: Final = Layout("NV2080_CTRL_GR_GET_TPC_MASK_PARAMS", 24, "route@0:16 gpc@16 tpcMask@20")
_BOOST: Final = Layout("NV2080_CTRL_PERF_BOOST_PARAMS", 8, "flags@0 duration@4")
_PCE_MASK: Final = Layout("NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS", 8, "engine@0 mask@4")
_CE_CAPS: Final = Layout("NV2080_CTRL_CE_GET_CAPS_V2_PARAMS", 8, "engine@0 caps@4:2")
_ALL_CAPS: Final = Layout("NV2080_CTRL_CE_GET_ALL_CAPS_PARAMS", 136, "caps@0:128 present@128:8")
_FLUSH: Final = Layout("NV2080_CTRL_FB_FLUSH_GPU_CACHE_PARAMS", 4024, "flags@4016")
_SM_STATES: Final = Layout(
    "NV83DE_CTRL_DEBUG_READ_ALL_SM_ERROR_STATES_PARAMS",
    4824,
    "hTargetChannel@0 count@4 states@8:4800 mmuFaultInfo@4808 fault@4812:1 faultInfo@4816"
    " startingSM@4820",
)
_MMU_INFO: Final = Layout("NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_PARAMS", 72, "list@0:64 count@64")
_EXCEPTIONS: Final = Layout("NV83DE_CTRL_DEBUG_SET_EXCEPTION_MASK_PARAMS", 4, "mask@0")
_CLEAR_SM: Final = Layout("NV83DE_CTRL_DEBUG_CLEAR_ALL_SM_ERROR_STATES_PARAMS", 8, "channel@0")
_SCHEDULE: Final = Layout(
    "NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS", 3, "bEnable@0:1 bSkipSubmit@1:1 bSkipEnable@2:1"
)
_TIMESLICE: Final = Layout("NVA06C_CTRL_TIMESLICE_PARAMS", 8, "timesliceUs@0:8")
_BIND: Final = Layout("NVA06F_CTRL_BIND_PARAMS", 4, "engineType@0")
_TOKEN: Final = Layout(
    "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS", 4, "workSubmitToken@0"
)


def command_of(
    rm: RmState,
    client: int,
    number: int,
    size: int,
    commands: Mapping[int, Command] | None = None,
) -> Command | None:
    """A command, after what is checked before its parameters are copied in. Raises RmError."""
    check(client in rm.clients, Status.INVALID_CLIENT, f"client {client:#x}")
    command = (COMMANDS if commands is None else commands).get(number)
    if command and number >> 16 in RULES:
        good = size == rm.branch.layout(command.layout).size
        check(good, Status.INVALID_ARGUMENT, f"command {number:#x}: {size} bytes of parameters")
    return command


def control(
    rm: RmState,
    caller: Caller,
    client: int,
    handle: int,
    number: int,
    data: bytes,
    lists: Lists,
    commands: Mapping[int, Command] | None = None,
) -> bytes:
    """RM_CONTROL: parameters as they come back. Raises RmError.

    `lists` has what each pointer among them leads to, which is changed in place; `commands` are
    those that there are, by default `COMMANDS`.
    """
    command = command_of(rm, client, number, len(data), commands)
    target = rm.client(caller, client).find(handle)
    if command is None or target.kind not in command.kinds:
        if command is None:
            rm.debug.note(f"RM command {number:#x} is not modelled")
        raise RmError(Status.NOT_SUPPORTED, f"{target} has no command {number:#x}")
    layout = rm.branch.layout(command.layout)
    what = f"command {number:#x}: {len(data)} bytes of parameters, not {layout.size}"
    check(len(data) == layout.size, Status.INVALID_PARAM_STRUCT, what)
    params = layout.parse(data)
    command.handler(Call(rm, target, params, lists))
    return bytes(params.data)


# The root.


def _id_info(call: Call) -> None:
    gpu = next((g for g in call.rm.gpus if g.gpu_id == call.params["gpuId"]), None)
    if gpu is None:
        raise RmError(Status.INVALID_ARGUMENT, f"there is no GPU {call.params['gpuId']:#x}")
    params = call.params
    params["deviceInstance"] = params["gpuInstance"] = gpu.index
    params["subDeviceInstance"] = 0
    params["boardId"] = gpu.gpu_id
    params["numaId"] = 0xFFFF_FFFF


def _attached_ids(call: Call) -> None:
    ids = [gpu.gpu_id for gpu in call.rm.gpus] + [0xFFFF_FFFF] * _MAX_ATTACHED
    data = b"".join(number.to_bytes(4, "little") for number in ids[:_MAX_ATTACHED])
    call.params.put("gpuIds", data)


# Devices.


def _class_list(call: Call) -> None:
    classes = chip_classes(call.gpu.chip)
    if "list" in call.lists:
        room = call.params["count"]
        check(room >= len(classes), Status.INVALID_PARAM_STRUCT, f"{room} of {len(classes)}")
        data = b"".join(number.to_bytes(4, "little") for number in classes)
        call.lists["list"][: len(data)] = data
    call.params["count"] = len(classes)


def _class_list_v2(call: Call) -> None:
    classes = chip_classes(call.gpu.chip)
    call.params["count"] = len(classes)
    call.params.put("list", b"".join(number.to_bytes(4, "little") for number in classes))


# Subdevices.


def _gid_info(call: Call) -> None:
    params = call.params
    if params["flags"] & _GID_BINARY:
        data = call.gpu.uuid
    else:
        text = call.gpu.uuid.hex()
        cuts = (0, 8, 12, 16, 20, 32)
        data = b"GPU-" + "-".join(text[a:b] for a, b in pairwise(cuts)).encode()
        data += b"\0"
    params["length"] = len(data)
    params.put("data", data)


def _gr_info(call: Call) -> None:
    count = call.params["size"]
    good = 0 < count <= _GR_INFO_MAX + 1 and "list" in call.lists
    check(good, Status.INVALID_ARGUMENT, f"{count} GR infos at {call.params['list']:#x}")
    chip = call.gpu.chip
    known = {
        0x0C: chip.sm_version,
        0x0D: chip.warps,
        0x0E: 32,
        0x14: chip.litter_gpcs,
        0x17: chip.litter_tpcs,
        0x20: 2,
        0x2C: 64,
    }
    data = call.lists["list"]
    for at in range(0, len(data), 8):
        index = int.from_bytes(data[at : at + 4], "little")
        check(index <= _GR_INFO_MAX, Status.INVALID_ARGUMENT, f"GR info {index:#x}")
        if index not in known:
            call.rm.debug.note(f"GR info {index:#x} is not modelled; 0 is answered")
        data[at + 4 : at + 8] = known.get(index, 0).to_bytes(4, "little")


def _gpc_mask(call: Call) -> None:
    call.params["gpcMask"] = (1 << len(call.gpu.chip.tpcs)) - 1


def _tpc_mask(call: Call) -> None:
    gpc, tpcs = call.params["gpc"], call.gpu.chip.tpcs
    check(gpc < len(tpcs), Status.INVALID_ARGUMENT, f"GPC {gpc} of {len(tpcs)}")
    call.params["tpcMask"] = (1 << tpcs[gpc]) - 1


def _copy_unit(call: Call) -> CopyUnit:
    found = call.gpu.chip.copy_engine(call.params["engine"] - ENGINE_COPY0)
    if found is None:
        what = f"engine {call.params['engine']} is no copy engine here"
        raise RmError(Status.NOT_SUPPORTED, what)
    return found


def _ce_caps(call: Call) -> None:
    call.params.put("caps", bytes([_copy_unit(call).caps, 0]))


def _pce_mask(call: Call) -> None:
    call.params["mask"] = _copy_unit(call).pces


def _all_caps(call: Call) -> None:
    table = bytearray(len(call.params.raw("caps")))
    for unit in call.gpu.chip.copy_engines:
        table[2 * unit.index] = unit.caps
        call.params["present"] |= 1 << unit.index
    call.params.put("caps", bytes(table))


def _nothing(call: Call) -> None:
    """Accepted without effect."""


# Groups and channels.


def _schedule(call: Call) -> None:
    """kchangrpapiCtrlCmdGpFifoSchedule, and that of a channel in a group of its own."""
    target = call.target
    assert isinstance(target, GroupObject | ChannelObject)
    group = target.group if isinstance(target, GroupObject) else target.channel.group
    for channel in group.channels:
        ready = channel.bound or not channel.needs_context
        check(ready, Status.INVALID_STATE, f"{channel} was not registered with UVM")
    group.enabled = bool(call.params["bEnable"])


def _token(call: Call) -> None:
    assert isinstance(call.target, ChannelObject)
    call.params["workSubmitToken"] = call.target.channel.token
    call.target.channel.notify_token()


def _bind(call: Call) -> None:
    assert isinstance(call.target, ChannelObject)
    engine = call.params["engineType"]
    check(call.gpu.has_engine(engine), Status.INVALID_ARGUMENT, f"no engine {engine}")
    same = call.gpu.runlist(engine) == call.target.channel.group.runlist
    check(same, Status.INVALID_STATE, f"engine {engine} is on another runlist")


# The debugger.


def _group_of(call: Call) -> Group:
    assert isinstance(call.target, Debugger)
    return call.target.target.channel.channel.group


def _sm_states(call: Call) -> None:
    group, params = _group_of(call), call.params
    count, start = params["count"], params["startingSM"]
    sms = call.gpu.chip.sms
    good = 0 < count <= _SM_CALL and start + count <= sms
    check(good, Status.INVALID_ARGUMENT, f"{count} SMs from {start} of {sms}")
    states = bytearray(4800)
    for sm, error in enumerate(group.sm_errors[start : start + count]):
        at = sm * _SM_STATE
        states[at : at + 8] = b"\1\0\0\0" + error.warp_error.to_bytes(4, "little")
        states[at + 8 : at + 12] = (error.pc & 0xFFFF_FFFF).to_bytes(4, "little")
        states[at + 24 : at + 32] = error.address.to_bytes(8, "little")
        states[at + 32 : at + 40] = error.pc.to_bytes(8, "little")
    params.put("states", bytes(states))
    params["fault"] = bool(group.mmu_faults)


def _clear_sm_states(call: Call) -> None:
    group = _group_of(call)
    group.sm_errors.clear()
    group.mmu_faults.clear()


def _mmu_faults(call: Call) -> None:
    found = _group_of(call).mmu_faults[:4]
    data = b"".join(
        f.address.to_bytes(8, "little")
        + f.kind.to_bytes(4, "little")
        + f.access.to_bytes(4, "little")
        for f in found
    )
    call.params.put("list", data)
    call.params["count"] = len(found)


COMMANDS: Final[dict[int, Command]] = {
    0x201: Command(("client",), _ATTACHED, _attached_ids),
    0x205: Command(("client",), _ID_INFO, _id_info),
    0x800201: Command(
        *(("device",), _CLASSLIST, _class_list), {"list": lambda params: 4 * params["count"]}
    ),
    0x800292: Command(("device",), _CLASSLIST_V2, _class_list_v2),
    0x2080014A: Command(("subdevice",), _GID, _gid_info),
    0x20801201: Command(
        *(("subdevice",), _GR_INFO, _gr_info), {"list": lambda params: 8 * params["size"]}
    ),
    0x2080122A: Command(("subdevice",), _GPC_MASK, _gpc_mask),
    0x2080122B: Command(("subdevice",), _TPC_MASK, _tpc_mask),
    0x20802A02: Command(("subdevice",), _PCE_MASK, _pce_mask),
    0x20802A03: Command(("subdevice",), _CE_CAPS, _ce_caps),
    0x20802A0A: Command(("subdevice",), _ALL_CAPS, _all_caps),
    0x2080130E: Command(("subdevice",), _FLUSH, _nothing),
    0x2080200A: Command(("subdevice",), _BOOST, _nothing),
    0x83DE0309: Command(("debugger",), _EXCEPTIONS, _nothing),
    0x83DE030C: Command(("debugger",), _SM_STATES, _sm_states),
    0x83DE0310: Command(("debugger",), _CLEAR_SM, _clear_sm_states),
    0x83DE0328: Command(("debugger",), _MMU_INFO, _mmu_faults),
    0xA06C0101: Command(("group",), _SCHEDULE, _schedule),
    0xA06C0103: Command(("group",), _TIMESLICE, _nothing),
    0xA06F0103: Command(("channel",), _SCHEDULE, _schedule),
    0xA06F0104: Command(("channel",), _BIND, _bind),
    0xC36F0108: Command(("channel",), _TOKEN, _token),
    **PEER_COMMANDS,
    **VERSION_COMMANDS,
}
