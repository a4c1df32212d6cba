"""Constructors of RM's objects: each class's own checks, in the kernel's order.

Named beside each: the function of open-gpu-kernel-modules 580.142 it follows. What only the GSP
firmware checks is not public and marked U.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpu.core.bits import bits, is_power_of_two
from gpu.sim.nv.channel import USERD_SIZE, Channel
from gpu.sim.nv.classes import GROUP, MEMORY_LOCAL, Kind
from gpu.sim.nv.gpu import ENGINE_COPY0, NvGpu
from gpu.sim.nv.layout import Record
from gpu.sim.nv.memory import allocate
from gpu.sim.nv.objects import (
    ChannelGroup,
    Client,
    ContextShare,
    Debugger,
    Device,
    EngineObject,
    Event,
    Memory,
    Resource,
    Subdevice,
    Usermode,
    VaSpace,
    expect,
)
from gpu.sim.nv.status import RmError, Status, check

if TYPE_CHECKING:
    from gpu.sim.nv.files import RmFile
    from gpu.sim.nv.rm import ResourceManager

_MAX_DEVICES: Final = 32
_VASPACE_EXTERNAL: Final = 1 << 3
_VASPACE_FAULTING: Final = 1 << 6
_NVOS32_VIRTUAL: Final = 1 << 19  # NVOS32_ALLOC_FLAGS_VIRTUAL
_NVOS32_USE_BEGIN_END: Final = 1 << 20
_LOCATION_VIDMEM: Final = 0
_CONTIGUOUS: Final = 2
_PAGE_SIZES: Final = {1: 4 << 10, 2: 64 << 10, 3: 2 << 20}
_READ_ONLY: Final = 1 << 22  # ATTR2_PROTECTION_USER
_EVENT_FLAGS: Final = 0xFF00_0000


@dataclass(frozen=True, slots=True)
class Request:
    """One RM_ALLOC after the checks that all classes share."""

    rm: ResourceManager
    file: RmFile
    client: Client
    parent: Resource
    handle: int
    number: int
    params: Record | None

    @property
    def base(self) -> tuple[Any, ...]:
        """What every object is made of, after its kind."""
        return self.number, self.client, self.handle, self.parent

    @property
    def required(self) -> Record:
        """Parameters of a class that needs them."""
        assert self.params is not None
        return self.params

    def find(self, handle: int, kind: type[Any]) -> Any:
        """clientGetResourceRefByType: OBJECT_NOT_FOUND, or INVALID_CLASS for another kind."""
        return expect(self.client.find(handle), kind, Status.INVALID_CLASS)


def make_device(request: Request) -> Resource:
    """deviceConstruct and what comes before it in resservResourceFactory."""
    instance = request.required["deviceId"]
    check(instance < _MAX_DEVICES, Status.INVALID_ARGUMENT, f"device instance {instance}")
    check(instance < len(request.rm.gpus), Status.INVALID_STATE, f"there is no GPU {instance}")
    device = Device("device", *request.base)
    device.device_gpu = request.rm.gpus[instance]
    return device


def make_subdevice(request: Request) -> Resource:
    """subdeviceConstruct: one of each instance for a device."""
    instance = request.params["subDeviceId"] if request.params else 0
    check(instance == 0, Status.INVALID_CLASS, f"subdevice {instance} of one GPU")
    twice = any(isinstance(child, Subdevice) for child in request.parent.children)
    check(not twice, Status.INSUFFICIENT_RESOURCES, "the device has its subdevice already")
    return Subdevice("subdevice", *request.base)


def make_vaspace(request: Request) -> Resource:
    """vaspaceapiConstruct, of a new VA space."""
    params = request.required
    check(params["index"] == 0, Status.NOT_SUPPORTED, f"VA space index {params['index']}")
    flags = params["flags"]
    external, faulting = bool(flags & _VASPACE_EXTERNAL), bool(flags & _VASPACE_FAULTING)
    return VaSpace("vaspace", *request.base, external=external, faulting=faulting)


def make_memory(request: Request) -> Resource:
    """vidmemConstruct and sysmemConstruct, after stdmemValidateParams."""
    params = request.required
    check(params["internalflags"] == 0, Status.INVALID_ARGUMENT, "internalflags")
    check(params["size"] > 0, Status.INVALID_ARGUMENT, "memory of size 0")
    check(params["owner"] not in (0, 0xFFFF_FFFF), Status.INVALID_OWNER, "owner 0")
    if not params["flags"] & _NVOS32_USE_BEGIN_END:
        span = params["rangeLo"] or params["rangeHi"]
        check(not span, Status.INVALID_ARGUMENT, "a range without USE_BEGIN_END")
    attr, local = params["attr"], request.number == MEMORY_LOCAL
    in_vidmem = bits(attr, 26, 25) == _LOCATION_VIDMEM
    check(in_vidmem == local, Status.INVALID_ARGUMENT, f"location of class {request.number:#x}")
    virtual = params["flags"] & _NVOS32_VIRTUAL
    check(not virtual, Status.INVALID_ARGUMENT, "the flag VIRTUAL")
    check(not (local and params["hVASpace"]), Status.INVALID_ARGUMENT, "a VA space for vidmem")
    gpu = request.parent.gpu
    size = params["size"]
    default = (2 << 20) if size >= 2 << 20 else (64 << 10) if size >= 64 << 10 else 4 << 10
    page_size = _PAGE_SIZES.get(bits(attr, 24, 23), default if local else 4 << 10)
    contiguous = bits(attr, 28, 27) == _CONTIGUOUS
    pool = gpu.vram if local else gpu.host
    memory = Memory("memory", *request.base)
    memory.physical = allocate(gpu, pool, size, page_size, contiguous)
    memory.length = memory.physical.size
    memory.read_only = bool(params["attr2"] & _READ_ONLY)
    params["size"] = memory.physical.size
    params["limit"] = memory.physical.size - 1
    params["offset"] = memory.physical.extents[0].offset
    return memory


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
    """kctxshareapiConstruct; without a VA space it takes the device's own, which UVM cannot own."""
    params = request.required
    share = ContextShare("share", *request.base)
    if params["hVASpace"]:
        share.vaspace = request.find(params["hVASpace"], VaSpace)
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
    share, vaspace = params["hContextShare"], params["hVASpace"]
    both = share and vaspace
    check(not both, Status.INVALID_ARGUMENT, "both a context share and a VA space")
    group = request.parent
    if not isinstance(group, ChannelGroup):
        check(not share, Status.INVALID_ARGUMENT, "a context share without a group")
        engine = params["engineType"]
        check(gpu.has_engine(engine), Status.INVALID_ARGUMENT, f"{gpu} has no engine {engine}")
        group = new_group(request, gpu, engine, vaspace, 0, inner=True)
    else:
        check(not vaspace, Status.INVALID_ARGUMENT, "a VA space for a channel of a group")
    try:
        return _channel_of(request, group)
    except RmError:
        if group is not request.parent:
            gpu.groups.remove(group)
        raise


def _channel_of(request: Request, group: ChannelGroup) -> Channel:
    params = request.required
    error = _error_memory(request, params["hObjectError"] or group.error_handle)
    share = _share_of(request, group)
    engine = params["engineType"]
    own = not request.parent.gpu.has_engine(engine) or engine == group.engine
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
        raise RmError(Status.INVALID_STATE, f"hObjectError {handle:#x} is no memory")
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


def make_usermode(request: Request) -> Resource:
    """usrmodeConstruct."""
    params = request.params
    bar1, private = (bool(params[n]) for n in ("bBar1Mapping", "bPriv")) if params else (False,) * 2
    check(bar1 or not private, Status.INVALID_PARAMETER, "bPriv without bBar1Mapping")
    check(not private, Status.INSUFFICIENT_PERMISSIONS, "bPriv is the kernel's own")
    usermode = Usermode("usermode", *request.base)
    usermode.bar1 = bar1
    return usermode


def make_debugger(request: Request) -> Resource:
    """ksmdbgssnConstruct."""
    params = request.required
    old = params["hDebuggerClient_Obsolete"]
    check(not old, Status.INVALID_ARGUMENT, "hDebuggerClient_Obsolete must be 0")
    owner = request.rm.clients.get(params["hAppClient"])
    if owner is None:
        raise RmError(Status.INVALID_OBJECT_HANDLE, f"no client {params['hAppClient']:#x}")
    target = expect(owner.find(params["hClass3dObject"]), EngineObject, Status.INVALID_OBJECT)
    check(target.kind == "compute", Status.INVALID_OBJECT, f"{target} is no object of graphics")
    debugger = Debugger("debugger", *request.base)
    debugger.target = target
    target.dependants.append(debugger)
    return debugger


def make_event(request: Request) -> Resource:
    """eventConstruct of NV01_EVENT_OS_EVENT; the descriptor must have been told to RM before."""
    params = request.required
    owner = request.rm.clients.get(params["hParentClient"] or request.client.handle)
    check(owner is not None, Status.INVALID_OBJECT, "no such client")
    assert owner is not None
    source = owner.find(params["hSrcResource"], Status.INVALID_OBJECT)
    has_notifiers = source.kind in ("subdevice", "channel", "compute", "copy")
    check(has_notifiers, Status.INVALID_OBJECT, f"{source} notifies of nothing")
    event = Event("event", *request.base)
    event.source, event.fd = source, params["data"]
    event.index, event.flags = params["notifyIndex"] & 0xFFFF, params["notifyIndex"] & _EVENT_FLAGS
    known = (request.client.handle, event.fd) in request.rm.os_events
    check(known, Status.INVALID_ARGUMENT, f"ALLOC_OS_EVENT was not called for fd {event.fd}")
    source.gpu.events.append(event)
    event.hub = source.gpu.events
    return event


def refuse_virtual(request: Request) -> Resource:
    """NV01_MEMORY_VIRTUAL: mapping through RM is not modelled, UVM owns the page tables."""
    raise RmError(Status.NOT_SUPPORTED, "NV01_MEMORY_VIRTUAL is not modelled")


def refuse_described(request: Request) -> Resource:
    """Memory of the process comes by NV_ESC_RM_ALLOC_MEMORY alone."""
    raise RmError(Status.NOT_SUPPORTED, "OS descriptors through RM_ALLOC are not modelled")


MAKERS: Final[dict[Kind, Callable[[Request], Resource]]] = {
    "device": make_device,
    "subdevice": make_subdevice,
    "vaspace": make_vaspace,
    "memory": make_memory,
    "group": make_group,
    "share": make_share,
    "channel": make_channel,
    "compute": make_engine_object,
    "copy": make_engine_object,
    "usermode": make_usermode,
    "debugger": make_debugger,
    "event": make_event,
    "virtual": refuse_virtual,
    "os_memory": refuse_described,
}
