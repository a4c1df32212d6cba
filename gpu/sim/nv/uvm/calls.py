"""The calls of /dev/nvidia-uvm.

From kernel-open/nvidia-uvm of open-gpu-kernel-modules 580.142: uvm.c, uvm_va_space.c,
uvm_user_channel.c. The request is a plain number, the status is in the
argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gpu.sim.nv.chip.channel import Channel
from gpu.sim.nv.chip.chips import HOPPER_COMPUTE
from gpu.sim.nv.chip.hardware import ENGINE_GRAPHICS
from gpu.sim.nv.rm.layout import Layout, Record
from gpu.sim.nv.rm.objects import ChannelObject, VaSpace
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.nv.uvm import layouts
from gpu.sim.nv.uvm.map import map_memory, span, unmap_memory
from gpu.sim.nv.uvm.peers import disable_peers, enable_peers
from gpu.sim.nv.uvm.space import GpuSpace, Range, UvmSpace

_INIT_FLAGS: Final = 0x3  # DISABLE_HMM, MULTI_PROCESS_SHARING_MODE
_MAX_CHANNEL_VA: Final = 1 << 57
_CONTEXT_ALIGN: Final = 2 << 20


def answer(uvm: UvmSpace, request: int, data: bytes) -> bytes:
    """A call with its argument; returns what it becomes. A failure is a status in it."""
    call = CALLS[request]
    args = uvm.rm.branch.layout(call.layout).parse(data)
    args["rmStatus"] = Status.OK
    try:
        ready = uvm.flags is not None or not call.needs_space
        check(ready, Status.ILLEGAL_ACTION, "UVM_INITIALIZE must come first")
        call.handler(uvm, args)
    except RmError as error:
        args["rmStatus"] = error.status
        uvm.rm.debug.note(f"UVM call {request:#x} answers {error}")
    return bytes(args.data)


def _initialize(uvm: UvmSpace, args: Record) -> None:
    flags = args["flags"]
    check(uvm.keeps is None, Status.INVALID_ARGUMENT, "this file keeps another's memory")
    check(not flags & ~_INIT_FLAGS, Status.INVALID_ARGUMENT, f"flags {flags:#x}")
    same = uvm.flags in (None, flags)
    check(same, Status.INVALID_ARGUMENT, f"it was initialised with flags {uvm.flags}")
    uvm.flags = flags


def _mm_initialize(uvm: UvmSpace, args: Record) -> None:
    other = uvm.opened(args.signed("uvmFd"))
    if other is None or other.flags is None:
        what = f"fd {args['uvmFd']} is no initialised file of UVM"
        raise RmError(Status.INVALID_ARGUMENT, what)
    fresh = uvm.flags is None and uvm.keeps is None
    check(fresh, Status.IN_USE, "this file has another purpose already")
    check(not other.mm_alive, Status.INVALID_STATE, "another file keeps that memory already")
    other.mm_alive = True
    uvm.keeps = other


def _register_gpu(uvm: UvmSpace, args: Record) -> None:
    uuid = args.raw("uuid")
    gpu = next((g for g in uvm.rm.gpus if g.uuid == uuid), None)
    if gpu is None:
        raise RmError(Status.GPU_UUID_NOT_FOUND, f"there is no GPU {uuid.hex()}")
    check(uuid not in uvm.gpus, Status.INVALID_DEVICE, f"{gpu} is registered already")
    uvm.gpus[uuid] = gpu
    args["numaEnabled"] = 0
    args["numaNodeId"] = 0xFFFF_FFFF


def _unregister_gpu(uvm: UvmSpace, args: Record) -> None:
    uvm.drop_gpu(uvm.gpu(args.raw("uuid")))


def _register_space(uvm: UvmSpace, args: Record) -> None:
    """nvGpuOpsDupAddressSpace, then check_gpu_va_space."""
    uuid = args.raw("uuid")
    gpu = uvm.gpu(uuid)
    found = uvm.rm.find(args["hClient"], args["hVaSpace"])
    if not isinstance(found, VaSpace):
        raise RmError(Status.INVALID_OBJECT, f"{found} is no VA space")
    check(found.gpu is gpu, Status.OTHER_DEVICE_FOUND, f"{found} is of another GPU")
    check(found.external, Status.INVALID_FLAGS, f"{found} is not IS_EXTERNALLY_OWNED")
    check(uuid not in uvm.spaces, Status.INVALID_DEVICE, f"{gpu} has a VA space already")
    # nvGpuOpsSetPageDirectory: it has another's page directory already.
    check(not found.uvm_owner, Status.NOT_SUPPORTED, f"{found} is registered elsewhere")
    found.uvm_owner = True
    uvm.spaces[uuid] = GpuSpace(gpu, found)


def _unregister_space(uvm: UvmSpace, args: Record) -> None:
    uvm.space(args.raw("uuid"))
    uvm.drop_space(args.raw("uuid"))


def _register_channel(uvm: UvmSpace, args: Record) -> None:
    """uvm_register_channel: retain, find room for the context's buffers, bind them."""
    space = uvm.space(args.raw("uuid"))
    found = uvm.rm.any_client(args["hClient"]).objects.get(args["hChannel"])
    if not isinstance(found, ChannelObject):
        raise RmError(Status.INVALID_OBJECT_HANDLE, f"{args['hChannel']:#x} is no channel")
    same = found.vaspace is space.vaspace
    check(same, Status.INVALID_CHANNEL, f"{found} is of another VA space")
    buffers = _context_buffers(found.channel)
    base, length = args["base"], args["length"]
    if buffers:
        span(args)
    check(found not in space.channels, Status.INVALID_CHANNEL, f"{found} is registered already")
    if buffers:
        check(base + length - 1 < _MAX_CHANNEL_VA, Status.OUT_OF_RANGE, f"a window at {base:#x}")
    group = found.channel.group
    siblings = [ranges for c, ranges in space.channels.items() if c.channel.group is group]
    space.channels[found] = siblings[0] if siblings else _reserve(uvm, base, length, buffers)
    found.channel.bound, found.channel.stopped = True, False


def _reserve(uvm: UvmSpace, base: int, length: int, sizes: list[int]) -> list[Range]:
    """create_va_ranges: addresses for all buffers, or for none. Raises RmError."""
    ranges: list[Range] = []
    try:
        for size in sizes:
            ranges.append(_place(uvm, base, base + length, size))
    except RmError:
        for made in ranges:
            uvm.drop_range(made)
        raise
    return ranges


def _context_buffers(channel: Channel) -> list[int]:
    """Sizes of the buffers that UVM maps for a channel of graphics; U, as firmware decides.

    GR_GET_CTX_BUFFER_INFO has them once the group has an object of graphics.
    """
    if channel.group.runlist:
        return []
    # kgrctxFromKernelChannel: UVM takes the first engine of the runlist, which is graphics.
    graphics = channel.group.engine == ENGINE_GRAPHICS
    check(graphics, Status.OBJECT_NOT_FOUND, f"{channel} is of a GRCE, without graphics' context")
    chip = channel.gpu.chip
    made = [u for c in channel.group.channels for u in c.units if u.number == chip.compute]
    check(bool(made), Status.INVALID_STATE, f"the group of {channel} has no compute object yet")
    # tinygrad's ops_nv.py drives Ampere, Ada and GB20x with a window of 64 MiB; nothing public says
    # what Hopper needs, of which the model asks for more: a guess.
    main = chip.sms << (20 if chip.compute == HOPPER_COMPUTE else 18)
    return [main, 8 << 20, 4 << 20, 2 << 20]


def _place(uvm: UvmSpace, base: int, end: int, size: int) -> Range:
    """find_va_in_range: the first free addresses of the window. Raises RmError."""
    at = base
    while True:
        at = (at + _CONTEXT_ALIGN - 1) & ~(_CONTEXT_ALIGN - 1)
        check(at + size <= end, Status.INVALID_ADDRESS, f"{size:#x} bytes do not fit the window")
        taken = uvm.overlapping(at, at + size)
        if taken is None:
            break
        at = taken.end
    made = Range(at, size, channel=True)
    uvm.add_range(made)
    return made


def _unregister_channel(uvm: UvmSpace, args: Record) -> None:
    for space in uvm.spaces.values():
        for channel in space.channels:
            owner = channel.client.handle
            if (owner, channel.handle) == (args["hClient"], args["hChannel"]):
                uvm.drop_channel(space, channel)
                return
    raise RmError(Status.INVALID_CHANNEL, f"channel {args['hChannel']:#x} is not registered")


def _create_range(uvm: UvmSpace, args: Record) -> None:
    uvm.add_range(Range(*span(args)))


def _free(uvm: UvmSpace, args: Record) -> None:
    """uvm_api_free; from branch 590 on the range is found by its base alone."""
    found = uvm.ranges.get(args["base"])
    sized = "length" in args.layout.fields
    if found is None or found.channel or (sized and found.size != args["length"]):
        raise RmError(Status.INVALID_ADDRESS, f"no external range is of {args}")
    uvm.drop_range(found)


def _pageable(uvm: UvmSpace, args: Record) -> None:
    args["pageable"] = 0


class Call(NamedTuple):
    """A call: its argument, whether it needs UVM_INITIALIZE, and what does it."""

    layout: Layout
    needs_space: bool
    handler: Callable[[UvmSpace, Record], None]


CALLS: Final[dict[int, Call]] = {
    0x30000001: Call(layouts.UVM_INITIALIZE, False, _initialize),
    25: Call(layouts.UVM_REGISTER_VASPACE, True, _register_space),
    26: Call(layouts.UVM_UNREGISTER_VASPACE, True, _unregister_space),
    27: Call(layouts.UVM_REGISTER_CHANNEL, True, _register_channel),
    28: Call(layouts.UVM_UNREGISTER_CHANNEL, True, _unregister_channel),
    29: Call(layouts.UVM_PEER, True, enable_peers),
    30: Call(layouts.UVM_PEER, True, disable_peers),
    33: Call(layouts.UVM_MAP, True, map_memory),
    34: Call(layouts.UVM_FREE, True, _free),
    37: Call(layouts.UVM_REGISTER_GPU, True, _register_gpu),
    38: Call(layouts.UVM_UNREGISTER_GPU, True, _unregister_gpu),
    39: Call(layouts.UVM_PAGEABLE, True, _pageable),
    66: Call(layouts.UVM_UNMAP, True, unmap_memory),
    73: Call(layouts.UVM_CREATE_RANGE, True, _create_range),
    75: Call(layouts.UVM_MM_INITIALIZE, False, _mm_initialize),
}
