"""Kernels and copies timed by the device's clock, which OpenCL notes in the event of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from ctypes import byref, c_void_p
from typing import Any, Final, NamedTuple

from gpu.autogen import opencl as cl
from gpu.backends.cl.api import handles
from gpu.backends.cl.context import CLContext
from gpu.backends.cl.order import Event
from gpu.core.clocks import Bracket, ClockMap
from gpu.runtime.program import Program
from gpu.runtime.timeline import recording
from gpu.runtime.timer import Copied, Timed, Timer

_TICKS_A_SECOND: Final = 1e9
_EVERY_NS: Final = 10_000_000
_START: Final = cl.CL_PROFILING_COMMAND_START
_END: Final = cl.CL_PROFILING_COMMAND_END


class _Running(NamedTuple):
    """A command, and what it is of."""

    key: object
    name: str
    event: Event


class CLTimer(Timer):
    """Gets the event of each command while something is launched by it, or recorded.

    A command's event tells when the host put it into its queue, on the device's clock: the clocks
    are compared by commands of a queue of their own, which does nothing else.
    """

    def __init__(self, name: str, context: CLContext):
        """`name` is what tensors call the device. Raises what OpenCL says of another queue."""
        self._name, self._context = name, context
        self._queue = context.api.make(
            *("clCreateCommandQueue", context.context, context.info.handle),
            cl.CL_QUEUE_PROFILING_ENABLE,
            what=f"make a queue for {context.info.name}",
        )
        self._running: list[_Running] = []
        self._lock = threading.Lock()
        self._launching = threading.local()  # the key of what this thread launches
        self._clocks = ClockMap(self._bracket, _TICKS_A_SECOND, every_ns=_EVERY_NS)
        context.watch = self._watch

    def launch(
        self, program: Program, memories: Sequence[Any], vals: Sequence[int], key: object
    ) -> None:
        """As `Timer.launch`."""
        self._clocks.refresh()
        self._launching.key = key
        try:
            program(*memories, vals=vals)
        finally:
            self._launching.key = None

    @property
    def pending(self) -> int:
        """As `Timer.pending`."""
        return len(self._running)

    def collect(self, wait: bool) -> list[Timed]:
        """As `Timer.collect`."""
        with self._lock:
            running, self._running = self._running, []
        if wait:
            self._context.finish()
        ends = [self._context.event_time(each.event.handle, _END) for each in running]
        pairs = [*zip(running, ends, strict=True)]
        with self._lock:
            self._running[:0] = [each for each, end in pairs if end is None]
        done = [(each, end) for each, end in pairs if end is not None]
        if done:
            self._clocks.compare()
        return [self._timed(each, end) for each, end in done]

    def _timed(self, each: _Running, end: int) -> Timed:
        start = self._context.event_time(each.event.handle, _START) or end
        clocks = self._clocks
        return Timed(
            *(each.key, each.name, "queue", clocks.host_ns(start), clocks.host_ns(end)),
            *((end - start) / _TICKS_A_SECOND, clocks.error_ns(end)),
        )

    def _watch(self, event: Event, nbytes: int) -> None:
        """A command was put into the queue; one of `nbytes` is a copy."""
        key = getattr(self._launching, "key", None)
        found = recording() if key is None else None
        if found is not None and nbytes:
            key = Copied(found, self._name, nbytes)
        if key is not None:
            with self._lock:
                self._running.append(_Running(key, "copy" if nbytes else "kernel", event))

    def _bracket(self) -> Bracket:
        context, event = self._context, c_void_p()
        before = time.perf_counter_ns()
        code = context.api.clEnqueueMarkerWithWaitList(self._queue, 0, None, byref(event))
        after = time.perf_counter_ns()
        context.check(code, "compare its clock with the host's")
        owner = Event(context, event.value or 0)
        waited = context.api.clWaitForEvents(1, handles(owner.handle))
        context.check(waited, "compare its clock with the host's")
        ticks = context.event_time(owner.handle, cl.CL_PROFILING_COMMAND_QUEUED)
        assert ticks is not None, "it was waited for"
        return Bracket(before, ticks, after)
