"""The calls of /dev/nvidia-uvm.

From kernel-open/nvidia-uvm of open-gpu-kernel-modules 580.142: uvm.c, uvm_va_space.c,
uvm_user_channel.c. The request is a plain number, the status is in the
argument.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable
from typing import Final, NamedTuple

from gpu.sim.kernel import SysError
from gpu.sim.nv.chip.channel import Channel
from gpu.sim.nv.chip.gpu import ENGINE_GRAPHICS
from gpu.sim.nv.rm import layouts
from gpu.sim.nv.rm.layout import Layout, Record
from gpu.sim.nv.rm.objects import VaSpace
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.nv.uvm.map import map_memory, span, unmap_memory
from gpu.sim.nv.uvm.peers import disable_peers, enable_peers
from gpu.sim.nv.uvm.space import GpuSpace, Range, UvmSpace
from gpu.sim.process import ArgumentBytes, SimProcess

_INIT_FLAGS: Final = 0x3  # DISABLE_HMM, MULTI_PROCESS_SHARING_MODE
_MAX_CHANNEL_VA: Final = 1 << 57
_CONTEXT_ALIGN: Final = 2 << 20


class UvmFile(UvmSpace):
    """One open /dev/nvidia-uvm."""

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """Makes a call; see `CALLS`."""
        call = CALLS.get(request)
        if call is None:
            self.world.debug.note(f"UVM call {request:#x} is unknown or not modelled")
            raise SysError(errno.EINVAL, f"UVM call {request:#x}")
        if process is not self.process:
            raise SysError(errno.EBADF, "a file of UVM belongs to the process that opened it")
        if call.handler is None:
            return 0
        layout = self.world.rm.branch.layout(call.layout)
        size = layout.size
        if len(argument) < size:
            raise SysError(errno.EFAULT, f"an argument of {len(argument)} bytes, not {size}")
        args = layout.parse(ctypes.string_at(argument, size))
        args["rmStatus"] = Status.OK
        try:
            ready = self.flags is not None or not call.needs_space
            check(ready, Status.ILLEGAL_ACTION, "UVM_INITIALIZE must come first")
            call.handler(self, args)
        except RmError as error:
            args["rmStatus"] = error.status
            self.world.debug.note(f"UVM call {request:#x} answers {error}")
        ctypes.memmove(argument, bytes(args.data), size)
        return 0


def _initialize(file: UvmSpace, args: Record) -> None:
    flags = args["flags"]
    check(file.keeps is None, Status.INVALID_ARGUMENT, "this file keeps another's memory")
    check(not flags & ~_INIT_FLAGS, Status.INVALID_ARGUMENT, f"flags {flags:#x}")
    same = file.flags in (None, flags)
    check(same, Status.INVALID_ARGUMENT, f"it was initialised with flags {file.flags}")
    file.flags = flags


def _mm_initialize(file: UvmSpace, args: Record) -> None:
    try:
        other = file.process.file(args.signed("uvmFd")).file
    except SysError as error:
        raise RmError(Status.INVALID_ARGUMENT, str(error)) from error
    good = isinstance(other, UvmSpace) and other.flags is not None
    check(good, Status.INVALID_ARGUMENT, f"fd {args['uvmFd']} is no initialised file of UVM")
    assert isinstance(other, UvmSpace)
    fresh = file.flags is None and file.keeps is None
    check(fresh, Status.IN_USE, "this file has another purpose already")
    check(not other.mm_alive, Status.INVALID_STATE, "another file keeps that memory already")
    other.mm_alive = True
    file.keeps = other


def _register_gpu(file: UvmSpace, args: Record) -> None:
    uuid = args.raw("uuid")
    gpu = next((g for g in file.world.rm.gpus if g.uuid == uuid), None)
    if gpu is None:
        raise RmError(Status.GPU_UUID_NOT_FOUND, f"there is no GPU {uuid.hex()}")
    check(uuid not in file.gpus, Status.INVALID_DEVICE, f"{gpu} is registered already")
    file.gpus[uuid] = gpu
    args["numaEnabled"] = 0
    args["numaNodeId"] = 0xFFFF_FFFF


def _unregister_gpu(file: UvmSpace, args: Record) -> None:
    file.drop_gpu(file.gpu(args.raw("uuid")))


def _register_space(file: UvmSpace, args: Record) -> None:
    """nvGpuOpsDupAddressSpace, then check_gpu_va_space."""
    uuid = args.raw("uuid")
    gpu = file.gpu(uuid)
    found = file.world.rm.find(args["hClient"], args["hVaSpace"])
    if not isinstance(found, VaSpace):
        raise RmError(Status.INVALID_OBJECT, f"{found} is no VA space")
    check(found.gpu is gpu, Status.OTHER_DEVICE_FOUND, f"{found} is of another GPU")
    check(found.external, Status.INVALID_FLAGS, f"{found} is not IS_EXTERNALLY_OWNED")
    check(uuid not in file.spaces, Status.INVALID_DEVICE, f"{gpu} has a VA space already")
    # nvGpuOpsSetPageDirectory: it has another's page directory already.
    check(not found.uvm_owner, Status.NOT_SUPPORTED, f"{found} is registered elsewhere")
    found.uvm_owner = True
    file.spaces[uuid] = GpuSpace(gpu, found)


def _unregister_space(file: UvmSpace, args: Record) -> None:
    file.space(args.raw("uuid"))
    file.drop_space(args.raw("uuid"))


def _register_channel(file: UvmSpace, args: Record) -> None:
    """uvm_register_channel: retain, find room for the context's buffers, bind them."""
    space = file.space(args.raw("uuid"))
    rm = file.world.rm
    client = rm.clients.get(args["hClient"])
    check(client is not None, Status.INVALID_OBJECT_HANDLE, f"no client {args['hClient']:#x}")
    assert client is not None
    found = client.objects.get(args["hChannel"])
    if not isinstance(found, Channel):
        raise RmError(Status.INVALID_OBJECT_HANDLE, f"{args['hChannel']:#x} is no channel")
    same = found.vaspace is space.vaspace
    check(same, Status.INVALID_CHANNEL, f"{found} is of another VA space")
    buffers = _context_buffers(found)
    base, length = args["base"], args["length"]
    if buffers:
        span(args)
    check(found not in space.channels, Status.INVALID_CHANNEL, f"{found} is registered already")
    if buffers:
        check(base + length - 1 < _MAX_CHANNEL_VA, Status.OUT_OF_RANGE, f"a window at {base:#x}")
    siblings = [ranges for c, ranges in space.channels.items() if c.group is found.group]
    space.channels[found] = siblings[0] if siblings else _reserve(file, base, length, buffers)
    found.bound, found.stopped = True, False


def _reserve(file: UvmSpace, base: int, length: int, sizes: list[int]) -> list[Range]:
    """create_va_ranges: addresses for all buffers, or for none. Raises RmError."""
    ranges: list[Range] = []
    try:
        for size in sizes:
            ranges.append(_place(file, base, base + length, size))
    except RmError:
        for made in ranges:
            file.drop_range(made)
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
    made = [o for c in channel.group.channels for o in c.children if o.kind == "compute"]
    check(bool(made), Status.INVALID_STATE, f"the group of {channel} has no compute object yet")
    chip = channel.gpu.chip
    # A window of 64 MiB is known to serve Ada (tinygrad); Hopper is said to need more.
    main = chip.sms << (18 if chip.qmd_major == 3 else 20)
    return [main, 8 << 20, 4 << 20, 2 << 20]


def _place(file: UvmSpace, base: int, end: int, size: int) -> Range:
    """find_va_in_range: the first free addresses of the window. Raises RmError."""
    at = base
    while True:
        at = (at + _CONTEXT_ALIGN - 1) & ~(_CONTEXT_ALIGN - 1)
        check(at + size <= end, Status.INVALID_ADDRESS, f"{size:#x} bytes do not fit the window")
        taken = file.overlapping(at, at + size)
        if taken is None:
            break
        at = taken.end
    made = Range(at, size, channel=True)
    file.add_range(made)
    return made


def _unregister_channel(file: UvmSpace, args: Record) -> None:
    for space in file.spaces.values():
        for channel in space.channels:
            owner = channel.client.handle
            if (owner, channel.handle) == (args["hClient"], args["hChannel"]):
                file.drop_channel(space, channel)
                return
    raise RmError(Status.INVALID_CHANNEL, f"channel {args['hChannel']:#x} is not registered")


def _create_range(file: UvmSpace, args: Record) -> None:
    file.add_range(Range(*span(args)))


def _free(file: UvmSpace, args: Record) -> None:
    """uvm_api_free; from branch 590 on the range is found by its base alone."""
    found = file.ranges.get(args["base"])
    sized = "length" in args.layout.fields
    if found is None or found.channel or (sized and found.size != args["length"]):
        raise RmError(Status.INVALID_ADDRESS, f"no external range is of {args}")
    file.drop_range(found)


def _pageable(file: UvmSpace, args: Record) -> None:
    args["pageable"] = 0


class Call(NamedTuple):
    """A call: its argument, whether it needs UVM_INITIALIZE, and what does it, if anything."""

    layout: Layout
    needs_space: bool
    handler: Callable[[UvmSpace, Record], None] | None


CALLS: Final[dict[int, Call]] = {
    0x30000001: Call(layouts.UVM_INITIALIZE, False, _initialize),
    0x30000002: Call(layouts.UVM_INITIALIZE, False, None),
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
