"""Constructors of channel groups, context shares, channels, and of the objects on them.

Named beside each: the function of open-gpu-kernel-modules 580.142 it follows. What only the GSP
firmware checks is not public and marked U.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gpu.core.bits import bits, is_power_of_two
from gpu.sim.nv.chip.channel import USERD_SIZE, Channel, Group, Unit
from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.chip.hardware import ENGINE_COPY0
from gpu.sim.nv.chip.memory import Physical
from gpu.sim.nv.rm.objects import (
    ChannelObject,
    ContextShare,
    EngineObject,
    GroupObject,
    Memory,
    Resource,
    VaSpace,
)
from gpu.sim.nv.rm.request import Request
from gpu.sim.nv.rm.status import RmError, Status, check

_SKIP_SCRUBBER: Final = 1 << 23  # NVOS04_FLAGS_CHANNEL_SKIP_SCRUBBER, alloc_channel.h
_SUBCONTEXTS: Final = range(4)  # NV_CTXSHARE_ALLOCATION_FLAGS_SUBCONTEXT_*
_ENGINE_TYPES: Final = range(1, 0x54)  # NV2080_ENGINE_TYPE_IS_VALID, cl2080_notification.h


def make_group(request: Request) -> Resource:
    """kchangrpapiConstruct."""
    params = request.required
    group = GroupObject("group", *request.base)
    group.group = _group(request.parent.gpu, params["engineType"])
    if params["hVASpace"]:
        group.vaspace = request.find(params["hVASpace"], VaSpace)
        group.vaspace.dependants.append(group)
    group.error_handle = params["hObjectError"]
    request.parent.gpu.groups.append(group.group)
    return group


def _group(gpu: NvGpu, engine: int) -> Group:
    """A group of the chip, on the runlist of its engine. Raises RmError."""
    check(gpu.has_engine(engine), Status.INVALID_ARGUMENT, f"{gpu} has no engine {engine}")
    return Group(engine, gpu.runlist(engine))


def make_share(request: Request) -> Resource:
    """kctxshareapiConstruct; without a VA space it takes the device's own, which UVM cannot own.

    A VA space that is externally owned has a page directory once UVM has registered it.
    """
    params = request.required
    flags = params["flags"]
    check(flags in _SUBCONTEXTS, Status.INVALID_ARGUMENT, f"flags {flags:#x} of a context share")
    share = ContextShare("share", *request.base)
    if params["hVASpace"]:
        share.vaspace = request.find(params["hVASpace"], VaSpace)
        ready = share.vaspace.uvm_owner or not share.vaspace.external
        check(ready, Status.INVALID_STATE, f"UVM has not registered {share.vaspace} yet")
        share.vaspace.dependants.append(share)
    else:
        share.vaspace = request.default_vaspace()
    share.subcontext = params["flags"] & 1
    params["subctxId"] = share.subcontext
    return share


class Places(NamedTuple):
    """Who tells where what a channel is made of lies, and its number.

    Attributes:
        error: its notifier, by the handle of the group's.
        userd: its control words, in memory and from where on.
        number: of the channel, on its group's runlist.
    """

    error: Callable[[Request, int], Physical | None]
    userd: Callable[[Request], tuple[Physical, int]]
    number: Callable[[Request, Group], int]


def make_channel(request: Request) -> Resource:
    """kchannelConstruct: memory is named by handles, and RM draws the number."""
    return make_channel_of(request, Places(_error_of, _userd, _new_number))


def make_channel_of(request: Request, places: Places) -> Resource:
    """A channel; one without a group gets a group of its own."""
    params, parent = request.required, request.parent
    share, vaspace, flags = params["hContextShare"], params["hVASpace"], params["flags"]
    physical = bits(flags, 1, 0) == 0  # NVOS04_FLAGS_CHANNEL_TYPE
    check(physical, Status.NOT_SUPPORTED, f"flags {flags:#x}: the channel type is not PHYSICAL")
    if isinstance(parent, GroupObject):
        check(not vaspace, Status.INVALID_ARGUMENT, "a VA space for a channel of a group")
        space, error, group = parent.vaspace, parent.error_handle, parent.group
    else:
        check(not share, Status.INVALID_ARGUMENT, "a context share without a group")
        group, error = _group(parent.gpu, params["engineType"]), 0
        space = request.find(vaspace, VaSpace) if vaspace else None
    scrubbed = not flags & _SKIP_SCRUBBER
    check(scrubbed, Status.INVALID_ARGUMENT, "SKIP_SCRUBBER is the kernel's own")
    made = _channel_of(request, group, space, error, places)
    if not isinstance(parent, GroupObject):
        parent.gpu.groups.append(group)
    return made


def _channel_of(
    request: Request, group: Group, own_space: VaSpace | None, group_errors: int, places: Places
) -> ChannelObject:
    params, gpu = request.required, request.parent.gpu
    error = places.error(request, group_errors)
    share = _share_of(request)
    engine = params["engineType"]
    own = engine not in _ENGINE_TYPES or engine == group.engine
    check(own, Status.INVALID_ARGUMENT, f"engine {engine} in a group of engine {group.engine}")
    vaspace = share.vaspace if share else own_space or request.default_vaspace()
    entries = params["gpFifoEntries"]  # U: checked by firmware only
    good = is_power_of_two(entries) and params["gpFifoOffset"] % 8 == 0
    check(good, Status.INVALID_ARGUMENT, f"a ring of {entries} at {params['gpFifoOffset']:#x}")
    userd, userd_offset = places.userd(request)
    number = places.number(request, group)
    made = ChannelObject("channel", *request.base)
    made.vaspace = vaspace
    needs_context = group.runlist == 0 and vaspace.external  # kchannelIsSchedulable
    made.channel = Channel(
        *(gpu, f"channel {request.handle:#x}", request.number, group, number, vaspace.seen),
        *(params["gpFifoOffset"], entries, userd, userd_offset, error, needs_context),
    )
    made.held = [userd, *([error] if error else [])]
    for physical in made.held:
        physical.hold()
    if isinstance(request.parent, GroupObject):
        request.parent.uses_shares = share is not None
    (share or vaspace).dependants.append(made)
    params["cid"] = number
    return made


def _error_of(request: Request, group_errors: int) -> Physical | None:
    params = request.required
    error = _error_memory(request, params["hObjectError"] or group_errors)
    _error_memory(request, params["hObjectEccError"])
    return error


def _new_number(request: Request, group: Group) -> int:
    number = request.parent.gpu.new_channel_id(group.runlist)
    if number is None:
        raise RmError(Status.NO_FREE_FIFOS, f"runlist {group.runlist} has no channel left")
    return number


def _error_memory(request: Request, handle: int) -> Physical | None:
    """kchannelGetNotifierInfo; what is no memory leaves no descriptor, which is INVALID_STATE."""
    if not handle:
        return None
    found = request.client.objects.get(handle)
    if not isinstance(found, Memory):
        raise RmError(Status.INVALID_STATE, f"the notifier {handle:#x} is no memory")
    return found.physical


def _share_of(request: Request) -> ContextShare | None:
    handle, group = request.required["hContextShare"], request.parent
    if isinstance(group, GroupObject) and group.uses_shares is not None and group.group.channels:
        same = group.uses_shares == bool(handle)
        check(same, Status.INVALID_ARGUMENT, "channels with and without context share in a group")
    if not handle:
        return None
    share: ContextShare = request.find(handle, ContextShare)
    mine = share.parent is request.parent
    check(mine, Status.INVALID_OBJECT_PARENT, f"{share} is of another group")
    return share


def _userd(request: Request) -> tuple[Physical, int]:
    """kchannelCreateUserdMemDesc_GV100."""
    params = request.required
    if not params["hUserdMemory"]:
        raise RmError(Status.NOT_SUPPORTED, "USERD that RM allocates is not modelled")
    found = request.client.objects.get(params["hUserdMemory"])
    if not isinstance(found, Memory):
        raise RmError(Status.OBJECT_NOT_FOUND, "hUserdMemory is no memory")
    offset = params["userdOffset"]
    inside = offset + USERD_SIZE <= found.length
    check(inside, Status.INVALID_ARGUMENT, f"USERD at {offset:#x} of {found.length:#x} bytes")
    if offset % USERD_SIZE:
        raise RmError(
            Status.INVALID_ADDRESS, f"USERD at {offset:#x}: a multiple of {USERD_SIZE:#x}"
        )
    return found.physical, offset


def make_engine_object(request: Request) -> Resource:
    """chandesConstruct: from Ampere on the channel's engine counts, not the parameters.

    A copy object on a channel of graphics gets the partner engine of its run queue, GRCE 0.
    """
    parent, gpu = request.parent, request.parent.gpu
    assert isinstance(parent, ChannelObject)
    group = parent.channel.group
    is_copy = request.number == gpu.chip.copy
    graphics = group.runlist == 0 and group.engine < ENGINE_COPY0
    if not graphics and not is_copy:
        raise RmError(
            Status.INVALID_CLASS, f"class {request.number:#x} on a channel of a copy engine"
        )
    made = EngineObject("copy" if is_copy else "compute", *request.base)
    made.unit = Unit(request.number, 0 if graphics else group.engine - ENGINE_COPY0)
    made.channel = parent
    parent.channel.units.append(made.unit)
    return made
