"""Events: section 6.19."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.sim.cuda.codes import INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, CudaError
from gpu.sim.cuda.context import Context
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import export, put64, put_float
from gpu.sim.cuda.work import Op

_BLOCKING, _NO_TIMING, _INTERPROCESS = 1, 2, 4
_RESOLUTION_NS: Final = 500  # "a resolution of approximately 0.5 microseconds"


@dataclass(eq=False)
class Event:
    """A place in a stream.

    Attributes:
        recorded: its last record; None before there was one.
    """

    context: Context
    flags: int
    recorded: Op | None = None


def _event(call: Call, handle: int) -> Event:
    return call.driver.handles.get(handle, Event)


@export("cuEventCreate", "pu")
def _create(call: Call, result: int, flags: int) -> None:
    if flags & ~(_BLOCKING | _NO_TIMING | _INTERPROCESS) or not result:
        raise CudaError(INVALID_VALUE, f"flags {flags:#x} of an event, or no place for it")
    if flags & _INTERPROCESS:
        if not flags & _NO_TIMING:
            raise CudaError(INVALID_VALUE, "an event between processes takes no time")
        raise CudaError(NOT_SUPPORTED, "events between processes are not modelled")
    put64(result, call.driver.own(call.context, Event(call.context, flags)))


@export("cuEventDestroy_v2", "p", needs="driver", since=4000)
def _destroy(call: Call, handle: int) -> None:
    context = _event(call, handle).context
    context.check()
    call.driver.disown(context, handle)


@export("cuEventRecord", "pp", twin="ptsz")
def _record(call: Call, handle: int, stream: int) -> None:
    _record_with_flags(call, handle, stream, 0)


@export("cuEventRecordWithFlags", "ppu", twin="ptsz", since=11010)
def _record_with_flags(call: Call, handle: int, stream: int, flags: int) -> None:
    event, queue = _event(call, handle), call.stream(stream)
    if flags not in (0, 1):
        raise CudaError(INVALID_VALUE, f"flags {flags:#x} of a record")
    if queue.space is not event.context:
        raise CudaError(INVALID_HANDLE, "the event and the stream are of different contexts")
    event.recorded = call.driver.work.submit(queue, "record of an event", lambda _: True)


@export("cuEventQuery", "p")
def _query(call: Call, handle: int) -> None:
    event = _event(call, handle)
    done = call.driver.work.look(event.recorded)
    event.context.check()
    if not done:
        raise CudaError(NOT_READY, "the event has not come")


@export("cuEventSynchronize", "p")
def _synchronize(call: Call, handle: int) -> None:
    event = _event(call, handle)
    call.wait([event.recorded])
    event.context.check()


@export("cuStreamWaitEvent", "ppu", twin="ptsz", since=3020)
def _wait(call: Call, stream: int, handle: int, flags: int) -> None:
    event, queue = _event(call, handle), call.stream(stream)
    if flags not in (0, 1):
        raise CudaError(INVALID_VALUE, f"flags {flags:#x} of a wait")
    if event.recorded is not None:
        call.driver.work.submit(queue, "wait for an event", lambda _: True, (), [event.recorded])


@export("cuEventElapsedTime", "ppp")
@export("cuEventElapsedTime_v2", "ppp", since=12080)
def _elapsed(call: Call, result: int, start: int, end: int) -> None:
    events = _event(call, start), _event(call, end)
    times = []
    for event in events:
        if event.recorded is None or event.flags & _NO_TIMING:
            raise CudaError(INVALID_HANDLE, "an event was not recorded, or takes no time")
        if event.context is not events[0].context:
            raise CudaError(INVALID_HANDLE, "the events are of different contexts")
        times.append(event.recorded)
    if not all(call.driver.work.look(op) for op in times):
        event.context.check()
        raise CudaError(NOT_READY, "an event has not come")
    before, after = (op.finished_ns // _RESOLUTION_NS * _RESOLUTION_NS for op in times)
    put_float(result, (after - before) / 1e6)
