"""Constructors of RM's objects: each class's own checks, in the kernel's order.

Named beside each: the function of open-gpu-kernel-modules 580.142 it follows. What only the GSP
firmware checks is not public and marked U.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.core.bits import align_up, bits
from gpu.sim.kernel import SysError
from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.chip.memory import Physical
from gpu.sim.nv.rm.classes import MEMORY_LOCAL, Kind
from gpu.sim.nv.rm.construct_channels import (
    make_channel,
    make_engine_object,
    make_group,
    make_share,
)
from gpu.sim.nv.rm.objects import (
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
from gpu.sim.nv.rm.request import Request
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.nv.rm.virtual import make_virtual
from gpu.sim.physical import Pool

_MAX_DEVICES: Final = 32
_VASPACE_EXTERNAL: Final = 1 << 3
_VASPACE_ATS: Final = 1 << 4
_VASPACE_FAULTING: Final = 1 << 6
_INDEX_HOST: Final = 1  # NV_VASPACE_ALLOCATION_INDEX_GPU_HOST
_BIG_PAGES: Final = (0, 64 << 10, 128 << 10)
_NVOS32_VIRTUAL: Final = 1 << 19  # NVOS32_ALLOC_FLAGS_VIRTUAL
_NVOS32_USE_BEGIN_END: Final = 1 << 20
_LOCATION_VIDMEM: Final = 0
_CONTIGUOUS: Final = 2
_PAGE_SIZES: Final = {1: 4 << 10, 2: 64 << 10, 3: 2 << 20}
_READ_ONLY: Final = 1 << 22  # ATTR2_PROTECTION_USER
_NO_OFFLINING: Final = 1 << 19  # ATTR2_PAGE_OFFLINING_OFF
_SUBHEAP: Final = 1 << 27  # ATTR2_ALLOCATE_FROM_SUBHEAP
_ENCRYPTED: Final = 1 << 18  # NVOS32_ALLOC_FLAGS_TURBO_CIPHER_ENCRYPTED
_SCRATCH_OWNERS: Final = range(0xDEAF_0000, 0xDEAF_0004)  # HEAP_OWNER_RM_SCRATCH_*
_EVENT_FLAGS: Final = 0xFF00_0000


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
    index, flags = params["index"], params["flags"]
    check(index != _INDEX_HOST, Status.INVALID_ARGUMENT, "the VA space of BAR1 is the kernel's own")
    check(index == 0, Status.NOT_SUPPORTED, f"VA space index {index} is not modelled")
    big = params["bigPageSize"]
    check(big in _BIG_PAGES, Status.INVALID_ARGUMENT, f"big pages of {big:#x} bytes")
    ats = flags & _VASPACE_ATS
    check(not ats, Status.NOT_SUPPORTED, "address translation services, which PCIe cards lack")
    end = params["vaBase"] + params["vaSize"]
    check(end <= 1 << 64, Status.INVALID_ARGUMENT, f"a VA space up to {end:#x}")
    external, faulting = bool(flags & _VASPACE_EXTERNAL), bool(flags & _VASPACE_FAULTING)
    return VaSpace("vaspace", *request.base, external=external, faulting=faulting)


def make_memory(request: Request) -> Resource:
    """vidmemConstruct and sysmemConstruct, after stdmemValidateParams."""
    params = request.required
    check(params["internalflags"] == 0, Status.INVALID_ARGUMENT, "internalflags")
    check(params["size"] > 0, Status.INVALID_ARGUMENT, "memory of size 0")
    owner = params["owner"]
    good = owner not in (0, 0xFFFF_FFFF) and owner not in _SCRATCH_OWNERS
    check(good, Status.INVALID_OWNER, f"owner {owner:#x}")
    offlining = not params["attr2"] & _NO_OFFLINING
    check(offlining, Status.INSUFFICIENT_PERMISSIONS, "PAGE_OFFLINING OFF is the kernel's own")
    if not params["flags"] & _NVOS32_USE_BEGIN_END:
        span = params["rangeLo"] or params["rangeHi"]
        check(not span, Status.INVALID_ARGUMENT, "a range without USE_BEGIN_END")
    subheap = params["attr2"] & _SUBHEAP
    check(not subheap, Status.INVALID_ARGUMENT, "ALLOCATE_FROM_SUBHEAP, of which there is none")
    attr, local = params["attr"], request.number == MEMORY_LOCAL
    encrypted = params["flags"] & _ENCRYPTED and bits(attr, 26, 25) == _LOCATION_VIDMEM
    check(not encrypted, Status.INVALID_ARGUMENT, "encrypted video memory")
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
    refused = gpu.faults.due("no-memory", about="vram" if local else "gtt")
    check(not refused, Status.NO_MEMORY, "a fault that was injected")
    memory = Memory("memory", *request.base)
    memory.physical = _allocate(gpu, pool, size, page_size, contiguous)
    memory.length = memory.physical.size
    memory.read_only = bool(params["attr2"] & _READ_ONLY)
    params["size"] = memory.physical.size
    params["limit"] = memory.physical.size - 1
    params["offset"] = memory.physical.extents[0].offset
    return memory


def _allocate(gpu: NvGpu, pool: Pool, size: int, page_size: int, contiguous: bool) -> Physical:
    """New memory, zeroed. Raises RmError(NO_MEMORY)."""
    wanted = align_up(size, page_size)
    try:
        extents = pool.allocate(wanted)
    except SysError as error:
        raise RmError(Status.NO_MEMORY, str(error)) from error
    if contiguous and len(extents) > 1:
        pool.release(extents)
        raise RmError(Status.NO_MEMORY, f"{wanted:#x} bytes in one piece of {pool.name}")
    return Physical(gpu, pool, extents, wanted, page_size)


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
    owner = request.rm.any_client(params["hAppClient"] or request.client.handle)
    found = owner.find(params["hClass3dObject"], Status.INVALID_OBJECT_PARENT)
    shared = owner.pid == request.client.pid
    check(shared, Status.INSUFFICIENT_PERMISSIONS, f"{found} is another process's")
    target = expect(found, EngineObject, Status.INVALID_OBJECT)
    check(target.kind == "compute", Status.INVALID_OBJECT, f"{target} is no object of graphics")
    same = target.gpu is request.parent.gpu
    check(same, Status.INVALID_ARGUMENT, f"{target} is of another GPU")
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
    request.rm.events.append(event)
    event.hub = request.rm.events
    return event


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
    "virtual": make_virtual,
    "os_memory": refuse_described,
}
