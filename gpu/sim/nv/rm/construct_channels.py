"""Constructors of channel groups, context shares, channels, and of the objects on them.

Named beside each: the function of open-gpu-kernel-modules 580.142 it follows. What only the GSP
firmware checks is not public and marked U.
"""

from __future__ import annotations

from typing import Final

from gpu.core.bits import bits, is_power_of_two
from gpu.sim.nv.chip.channel import USERD_SIZE, Channel
from gpu.sim.nv.chip.gpu import ENGINE_COPY0, NvGpu
from gpu.sim.nv.rm.classes import GROUP
from gpu.sim.nv.rm.objects import (
    ChannelGroup,
    ContextShare,
    EngineObject,
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
    gpu, engine = request.parent.gpu, params["engineType"]
    check(gpu.has_engine(engine), Status.INVALID_ARGUMENT, f"{gpu} has no engine {engine}")
    return new_group(request, gpu, engine, params["hVASpace"], params["hObjectError"])


def new_group(
    request: Request, gpu: NvGpu, engine: int, vaspace: int, error: int, inner: bool = False
) -> ChannelGroup:
    """A group, on the runlist of its engine; an `inner` one wraps a channel that has none."""
    base = (GROUP, request.client, request.handle, request.parent) if inner else request.base
    group = ChannelGroup("group", *base)
    group.engine, group.runlist = engine, gpu.runlist(engine)
    if vaspace:
        group.vaspace = request.find(vaspace, VaSpace)
        if not inner:
            group.vaspace.dependants.append(group)
    group.error_handle = error
    gpu.groups.append(group)
    return group


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
        share.vaspace = _default_vaspace(request)
    share.subcontext = params["flags"] & 1
    params["subctxId"] = share.subcontext
    return share


def _default_vaspace(request: Request) -> VaSpace:
    return VaSpace("vaspace", 0x90F1, request.client, 0, None, external=False, faulting=False)


def make_channel(request: Request) -> Resource:
    """kchannelConstruct."""
    params, gpu = request.required, request.parent.gpu
    share, vaspace, flags = params["hContextShare"], params["hVASpace"], params["flags"]
    physical = bits(flags, 1, 0) == 0  # NVOS04_FLAGS_CHANNEL_TYPE
    check(physical, Status.NOT_SUPPORTED, f"flags {flags:#x}: the channel type is not PHYSICAL")
    group = request.parent
    if not isinstance(group, ChannelGroup):
        check(not share, Status.INVALID_ARGUMENT, "a context share without a group")
        engine = params["engineType"]
        check(gpu.has_engine(engine), Status.INVALID_ARGUMENT, f"{gpu} has no engine {engine}")
        group = new_group(request, gpu, engine, vaspace, 0, inner=True)
    else:
        check(not vaspace, Status.INVALID_ARGUMENT, "a VA space for a channel of a group")
    try:
        scrubbed = not flags & _SKIP_SCRUBBER
        check(scrubbed, Status.INVALID_ARGUMENT, "SKIP_SCRUBBER is the kernel's own")
        return _channel_of(request, group)
    except RmError:
        if group is not request.parent:
            gpu.groups.remove(group)
        raise


def _channel_of(request: Request, group: ChannelGroup) -> Channel:
    params = request.required
    error = _error_memory(request, params["hObjectError"] or group.error_handle)
    _error_memory(request, params["hObjectEccError"])
    share = _share_of(request, group)
    engine = params["engineType"]
    own = engine not in _ENGINE_TYPES or engine == group.engine
    check(own, Status.INVALID_ARGUMENT, f"engine {engine} in a group of engine {group.engine}")
    vaspace = share.vaspace if share else group.vaspace or _default_vaspace(request)
    entries = params["gpFifoEntries"]  # U: checked by firmware only
    good = is_power_of_two(entries) and params["gpFifoOffset"] % 8 == 0
    check(good, Status.INVALID_ARGUMENT, f"a ring of {entries} at {params['gpFifoOffset']:#x}")
    userd = _userd(request)
    channel = Channel(
        *("channel", *request.base),
        group=group,
        vaspace=vaspace,
        ring=params["gpFifoOffset"],
        entries=entries,
        userd=userd.physical,
        userd_offset=params["userdOffset"],
        error_memory=error,
    )
    group.uses_shares = share is not None
    channel.share = share
    (share or vaspace).dependants.append(channel)
    params["cid"] = channel.number_on_runlist
    if group is not request.parent:
        channel.own_group = group
    return channel


def _error_memory(request: Request, handle: int) -> Memory | None:
    """kchannelGetNotifierInfo; what is no memory leaves no descriptor, which is INVALID_STATE."""
    if not handle:
        return None
    found = request.client.objects.get(handle)
    if not isinstance(found, Memory):
        raise RmError(Status.INVALID_STATE, f"the notifier {handle:#x} is no memory")
    return found


def _share_of(request: Request, group: ChannelGroup) -> ContextShare | None:
    handle = request.required["hContextShare"]
    mixed = group.uses_shares is not None and group.uses_shares != bool(handle) and group.channels
    check(not mixed, Status.INVALID_ARGUMENT, "channels with and without context share in a group")
    if not handle:
        return None
    share: ContextShare = request.find(handle, ContextShare)
    mine = share.parent is request.parent
    check(mine, Status.INVALID_OBJECT_PARENT, f"{share} is of another group")
    return share


def _userd(request: Request) -> Memory:
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
    return found


def make_engine_object(request: Request) -> Resource:
    """chandesConstruct: from Ampere on the channel's engine counts, not the parameters.

    A copy object on a channel of graphics gets the partner engine of its run queue, GRCE 0.
    """
    channel, gpu = request.parent, request.parent.gpu
    assert isinstance(channel, Channel)
    is_copy = request.number == gpu.chip.copy
    graphics = channel.group.runlist == 0 and channel.group.engine < ENGINE_COPY0
    if not graphics and not is_copy:
        raise RmError(
            Status.INVALID_CLASS, f"class {request.number:#x} on a channel of a copy engine"
        )
    made = EngineObject("copy" if is_copy else "compute", *request.base)
    made.engine = 0 if graphics else channel.group.engine - ENGINE_COPY0
    return made
