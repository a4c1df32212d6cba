"""GPU_COMMAND, and timelines and fences (kgsl.c, kgsl_drawobj.c, kgsl_timeline.c)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from gpu.autogen import kgsl
from gpu.sim.kernel import SysError
from gpu.sim.kgsl.chip.processor import Buffer
from gpu.sim.kgsl.driver.call import Call
from gpu.sim.kgsl.driver.commands import Marker, Submission, SyncPoints
from gpu.sim.kgsl.driver.contexts import Context, Queued, compare
from gpu.sim.kgsl.driver.dispatcher import MS
from gpu.sim.kgsl.driver.fences import Fence, Timeline
from gpu.sim.kgsl.driver.objects import MemObject

_MOST_BUFFERS: Final = 2000  # KGSL_MAX_NUMIBS
_MOST_POINTS: Final = 32  # KGSL_MAX_SYNCPOINTS
_MOST_DWORDS: Final = 0xFFFFF
_QUEUE_WAIT_NS: Final = 10_000 * MS  # _context_queue_wait
_BUFFER_FLAGS: Final = (
    kgsl.KGSL_CMDLIST_IB | kgsl.KGSL_CMDLIST_CTXTSWITCH_PREAMBLE | kgsl.KGSL_CMDLIST_IB_PREAMBLE
)
Command = Call[kgsl.kgsl_gpu_command]


def gpu_command(call: Command) -> None:
    """GPU_COMMAND."""
    args, device = call.args, call.device
    if args.numcmds > _MOST_BUFFERS or args.numobjs > _MOST_BUFFERS:
        raise SysError(errno.EINVAL, f"{args.numcmds} buffers and {args.numobjs} objects")
    if args.numsyncs > _MOST_POINTS:
        raise SysError(errno.EINVAL, f"{args.numsyncs} points to wait for")
    context = device.context(call.owner, args.context_id)
    is_wait = bool(args.flags & kgsl.KGSL_CMDBATCH_SYNC)
    is_empty = not (args.numcmds or args.numsyncs)
    is_marker = bool(args.flags & kgsl.KGSL_CMDBATCH_MARKER) or (is_empty and not is_wait)
    only_waits = not is_marker and (is_wait or not args.numcmds)
    points = SyncPoints(_points(call, context)) if args.numsyncs and not is_marker else None
    if only_waits and points is None:
        raise SysError(errno.EINVAL, "a wait without points to wait for")
    buffers, objects = ([], []) if is_marker or only_waits else _lists(call)
    count = (points is not None) + (not only_waits)
    _check_state(context)
    _wait_for_room(call, context, count)
    if points:
        context.queue.append(points)
        args.timestamp = args.timestamp if count == 2 else 0
    if not only_waits:
        _queue(call, context, is_marker, buffers, objects)
    device.dispatcher.pump()
    if context.has_recovered:
        context.has_recovered = False
        raise SysError(errno.EPROTO, f"{context} had a fault before; the command is accepted")


def _queue(
    call: Command,
    context: Context,
    is_marker: bool,
    buffers: list[Buffer],
    objects: list[MemObject],
) -> None:
    """Gives it a timestamp, and a place in the queue."""
    args, dispatcher = call.args, call.device.dispatcher
    if context.chooses_timestamps:
        if compare(context.timestamp, args.timestamp) >= 0:
            raise SysError(errno.ERANGE, f"timestamp {args.timestamp} after {context.timestamp}")
        context.timestamp = args.timestamp
    else:
        context.timestamp = (context.timestamp + 1) & 0xFFFF_FFFF
    args.timestamp = context.timestamp
    item: Queued
    if is_marker:
        item = Marker(context.timestamp, context.queued_timestamp)
    else:
        for waiting in context.queue:
            if isinstance(waiting, Marker):
                waiting.is_forced = True
        item = Submission(context, context.timestamp, buffers, objects, dispatcher.over)
    context.queued_timestamp = context.timestamp
    context.queue.append(item)


def _check_state(context: Context) -> None:
    """`kgsl_check_context_state`."""
    if context.is_invalid:
        raise SysError(errno.EDEADLK, f"{context} is invalid")
    if context.is_detached:
        raise SysError(errno.ENOENT, f"{context} is being destroyed")


def _wait_for_room(call: Command, context: Context, count: int) -> None:
    """`_wait_for_room_in_context_queue`: blocks for up to 10 s."""
    most, machine = call.device.release.queue, call.device.machine
    if len(context.queue) + count <= most:
        return

    def is_over() -> bool:
        call.device.dispatcher.pump()
        return context.is_bad or len(context.queue) + count <= most

    machine.wait(is_over, _QUEUE_WAIT_NS)
    if not is_over():
        raise SysError(errno.ETIMEDOUT, f"{context} has {len(context.queue)} commands queued")
    _check_state(context)


def _lists(call: Command) -> tuple[list[Buffer], list[MemObject]]:
    """The buffers of a command, and the objects that it names."""
    args, owner, debug = call.args, call.owner, call.device.machine.debug
    commands = call.list_of(args.cmdlist, args.cmdsize, args.numcmds, kgsl.kgsl_command_object)
    listed = call.list_of(args.objlist, args.objsize, args.numobjs, kgsl.kgsl_command_object)
    for each in commands:
        if not each.flags & _BUFFER_FLAGS:
            raise SysError(errno.EINVAL, f"a command object with flags {each.flags:#x}")
        _check_buffer(call, each)
    for each in listed:
        if not each.flags & kgsl.KGSL_OBJLIST_MEMOBJ:
            raise SysError(errno.EINVAL, f"an object in the list with flags {each.flags:#x}")
    objects: list[MemObject] = []
    for each in (*commands, *listed):
        item = owner.find(each.id) if each.id else owner.find_address(each.gpuaddr)
        if item is None or (each.gpuaddr and not item.holds(each.gpuaddr, max(each.size, 1))):
            debug.violation(
                f"GPU_COMMAND names object {each.id} and {each.size:#x} bytes at"
                f" {each.gpuaddr:#x}, which are not there: the kernel does not look"
            )
        elif item not in objects:
            objects.append(item)
    return [Buffer(each.gpuaddr, each.size // 4) for each in commands], objects


def _check_buffer(call: Command, each: kgsl.kgsl_command_object) -> None:
    """`_verify_ib`."""
    if not 1 <= each.size // 4 <= _MOST_DWORDS:
        raise SysError(errno.EINVAL, f"an indirect buffer of {each.size:#x} bytes")
    release = call.device.release
    is_known = any(
        span.start <= each.gpuaddr and each.gpuaddr + each.size < span.stop
        for span in (release.va, release.svm, range(2 << 20, 0xF000_0000))
    )
    if not is_known or each.gpuaddr % 4:
        raise SysError(errno.EINVAL, f"an indirect buffer at {each.gpuaddr:#x}")


# Points to wait for.


def _points(call: Command, context: Context) -> list[Callable[[], bool]]:
    args = call.args
    found = call.list_of(args.synclist, args.syncsize, args.numsyncs, kgsl.kgsl_command_syncpoint)
    return [_point(call, context, each) for each in found]


def _point(
    call: Command, context: Context, each: kgsl.kgsl_command_syncpoint
) -> Callable[[], bool]:
    device = call.device
    if each.type == kgsl.KGSL_CMD_SYNCPOINT_TYPE_TIMESTAMP:
        (at,) = call.structs(each.priv, each.size, 1, kgsl.kgsl_cmd_syncpoint_timestamp)
        other = device.contexts.get(at.context_id)
        if other is None:
            raise SysError(errno.EINVAL, f"there is no context {at.context_id}")
        if not other.chooses_timestamps and other.is_ahead(at.timestamp):
            raise SysError(errno.EINVAL, f"timestamp {at.timestamp} was not queued yet")
        return lambda: other.is_bad or other.has_retired(at.timestamp)
    if each.type == kgsl.KGSL_CMD_SYNCPOINT_TYPE_FENCE:
        (fence,) = call.structs(each.priv, each.size, 1, kgsl.kgsl_cmd_syncpoint_fence)
        file = call.process.file(fence.fd).file
        if not isinstance(file, Fence):
            raise SysError(errno.EINVAL, f"fd {fence.fd} is no fence")
        return file.is_signalled
    if each.type == kgsl.KGSL_CMD_SYNCPOINT_TYPE_TIMELINE and not device.release.absent:
        (what,) = call.structs(each.priv, each.size, 1, kgsl.kgsl_cmd_syncpoint_timeline)
        wanted = _values(call, what.timelines, what.timelines_size, what.count)
        return lambda: all(timeline.has_reached(value) for timeline, value in wanted)
    raise SysError(errno.EINVAL, f"there is no point of type {each.type}")


# Timelines.


def _values(
    call: Call[kgsl.kgsl_timeline_wait] | Command | Call[kgsl.kgsl_timeline_signal],
    address: int,
    size: int,
    count: int,
) -> list[tuple[Timeline, int]]:
    """Timelines of a list, each with a value."""
    if not count:
        raise SysError(errno.EINVAL, "a list of no timelines")
    found = []
    for each in call.structs(address, size, count, kgsl.kgsl_timeline_val):
        if each.padding:
            raise SysError(errno.EINVAL, "padding that is not 0")
        found.append((_timeline(call.device.timelines.get(each.timeline)), each.seqno))
    return found


def _timeline(found: Timeline | None) -> Timeline:
    if found is None:
        raise SysError(errno.ENODEV, "there is no such timeline")
    return found


def timeline_create(call: Call[kgsl.kgsl_timeline_create]) -> None:
    """TIMELINE_CREATE."""
    made = Timeline(call.file, call.args.seqno)
    call.args.id = call.device.timelines.add(made, first=1)


def timeline_query(call: Call[kgsl.kgsl_timeline_val]) -> None:
    """TIMELINE_QUERY."""
    if call.args.padding:
        raise SysError(errno.EINVAL, "padding that is not 0")
    call.args.seqno = _timeline(call.device.timelines.get(call.args.timeline)).value


def timeline_signal(call: Call[kgsl.kgsl_timeline_signal]) -> None:
    """TIMELINE_SIGNAL."""
    args = call.args
    if not args.timelines_size:
        raise SysError(errno.EAGAIN, "the size of a value is not given")
    for timeline, value in _values(call, args.timelines, args.timelines_size, args.count):
        timeline.signal(value)
    call.device.dispatcher.pump()


def timeline_wait(call: Call[kgsl.kgsl_timeline_wait]) -> None:
    """TIMELINE_WAIT, for all or for any."""
    args, machine = call.args, call.device.machine
    if args.flags not in (kgsl.KGSL_TIMELINE_WAIT_ALL, kgsl.KGSL_TIMELINE_WAIT_ANY) or args.padding:
        raise SysError(errno.EINVAL, f"flags {args.flags:#x}")
    wanted = _values(call, args.timelines, args.timelines_size, args.count)
    wait_all = args.flags == kgsl.KGSL_TIMELINE_WAIT_ALL

    def is_over() -> bool:
        return (all if wait_all else any)(line.has_reached(value) for line, value in wanted)

    timeout = (args.tv_sec * 1000 + args.tv_nsec // MS) * MS
    if not is_over() and timeout:
        machine.wait(is_over, timeout)
    if not is_over():
        raise SysError(errno.ETIMEDOUT if timeout else errno.EBUSY, "timelines are not there yet")


def timeline_fence(call: Call[kgsl.kgsl_timeline_fence_get]) -> None:
    """TIMELINE_FENCE_GET."""
    timeline = _timeline(call.device.timelines.get(call.args.timeline))
    value = call.args.seqno
    fence = Fence(lambda: timeline.has_reached(value))
    call.args.handle = call.process.add_file(fence, "a fence")


def timeline_destroy(call: Call[kgsl.kgsl_drawctxt_destroy]) -> None:
    """TIMELINE_DESTROY, whose structure is a number, as that of DRAWCTXT_DESTROY."""
    number = call.args.drawctxt_id
    timeline = _timeline(call.device.timelines.get(number))
    if timeline.file is not call.file:
        raise SysError(errno.EINVAL, f"timeline {number} is another file's")
    timeline.destroy()
    call.device.timelines.remove(number)
    call.device.dispatcher.pump()


def timestamp_event(call: Call[kgsl.kgsl_timestamp_event]) -> None:
    """TIMESTAMP_EVENT: a fence at a timestamp of a context."""
    args = call.args
    if args.type != kgsl.KGSL_TIMESTAMP_EVENT_FENCE:
        raise SysError(errno.EINVAL, f"there is no event of type {args.type}")
    context = call.device.context(call.owner, args.context_id)
    if args.len != 4:
        raise SysError(errno.EINVAL, "a descriptor has 4 bytes")
    if not context.chooses_timestamps and context.is_ahead(args.timestamp):
        raise SysError(errno.EINVAL, f"timestamp {args.timestamp} was not queued yet")
    wanted = args.timestamp
    fence = Fence(lambda: context.is_bad or context.has_retired(wanted))
    fd = call.process.add_file(fence, "a fence")
    call.user.write(args.priv, fd.to_bytes(4, "little"))
