"""Kernels timed by the GPU's clock, in events before and after each.

libcuda tells the time between two events, in milliseconds as a float, and nothing else. Times are
counted from an event of the last comparison with the host's clock, so that numbers stay small.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gpu.backends.cuda import codes
from gpu.backends.cuda.context import CudaContext
from gpu.backends.cuda.library import Words
from gpu.backends.cuda.program import CudaProgram
from gpu.backends.cuda.streams import Event
from gpu.core.clocks import Bracket, ClockMap
from gpu.runtime.program import Program
from gpu.runtime.timer import Timed, Timer

_TICKS_A_SECOND: Final = 1_000_000_000


class _Anchor(NamedTuple):
    """An event that was reached, and when, in nanoseconds since the first."""

    event: Event
    ticks: int


class _Running(NamedTuple):
    """A launch between two events, and the anchor before it."""

    key: object
    name: str
    began: Event
    ended: Event
    anchor: _Anchor


class CudaTimer(Timer):
    """Events around each launch; the clocks are compared on a stream that does nothing else."""

    def __init__(self, context: CudaContext):
        """Raises the error of a code."""
        self._context = context
        self._running: list[_Running] = []
        self._lock = threading.Lock()
        self._stream = self._new_stream()
        self._anchors: list[_Anchor] = []  # those that something is timed from, the latest last
        self._clocks = ClockMap(self._bracket, _TICKS_A_SECOND)
        context.note(self)

    def lose(self) -> None:
        """The context was made anew: what was timed is gone."""
        self._running.clear()
        self._anchors.clear()
        self._stream = self._new_stream()
        self._clocks = ClockMap(self._bracket, _TICKS_A_SECOND)

    def close(self) -> None:
        """Gives the stream and its events back."""
        events = [anchor.event for anchor in self._anchors]
        for each in self._running:
            events += (each.began, each.ended)
        self._running.clear()
        self._anchors.clear()
        for event in events:
            event.destroy()
        destroyed = self._context.library.cuStreamDestroy_v2(self._stream)
        self._context.check(destroyed, "give a stream back")

    def _new_stream(self) -> int:
        context, words = self._context, Words()
        with context.lock:
            context.enter()
            made = context.library.cuStreamCreate(words.address, codes.STREAM_NON_BLOCKING)
            context.check(made, "make a stream")
        return words[0]

    def launch(
        self, program: Program, memories: Sequence[Any], vals: Sequence[int], key: object
    ) -> None:
        """As `Timer.launch`."""
        assert isinstance(program, CudaProgram)
        self._clocks.refresh()
        began, ended = program.launch_between_events(tuple(memories), vals)
        with self._lock:
            self._running.append(_Running(key, program.name, began, ended, self._anchors[-1]))

    @property
    def pending(self) -> int:
        """As `Timer.pending`."""
        return len(self._running)

    def collect(self, wait: bool) -> list[Timed]:
        """As `Timer.collect`."""
        with self._lock:
            running, self._running = self._running, []
        if wait:
            self._context.synchronize()
        done = []
        while running and (wait or running[0].ended.is_reached()):
            done.append(running.pop(0))
        with self._lock:
            self._running[:0] = running
        if not done:
            return []
        self._clocks.compare()
        found = [self._timed(each) for each in done]
        self._forget()
        return found

    def _forget(self) -> None:
        """Gives back anchors that nothing is timed from any more."""
        with self._lock:
            used = {each.anchor.ticks for each in self._running} | {self._anchors[-1].ticks}
            old = [anchor for anchor in self._anchors if anchor.ticks not in used]
            self._anchors = [anchor for anchor in self._anchors if anchor.ticks in used]
        for anchor in old:
            anchor.event.destroy()

    def _timed(self, each: _Running) -> Timed:
        base, clocks = each.anchor, self._clocks
        start, end = (
            base.ticks + round(event.seconds_since(base.event) * _TICKS_A_SECOND)
            for event in (each.began, each.ended)
        )
        seconds = each.ended.seconds_since(each.began)
        for event in (each.began, each.ended):
            event.destroy()
        return Timed(
            *(each.key, each.name, "launches", clocks.host_ns(start), clocks.host_ns(end)),
            *(seconds, clocks.error_ns(end)),
        )

    def _bracket(self) -> Bracket:
        """An event that is waited for; it becomes the anchor."""
        context = self._context
        before = self._anchors[-1] if self._anchors else None
        with context.lock:
            context.enter()
            event = Event(context.library, context.check, codes.EVENT_DEFAULT)
            began = time.perf_counter_ns()
            event.record(self._stream)
        event.wait()
        ended = time.perf_counter_ns()
        passed = 0.0 if before is None else event.seconds_since(before.event)
        ticks = round(passed * _TICKS_A_SECOND) + (0 if before is None else before.ticks)
        with self._lock:
            self._anchors.append(_Anchor(event, ticks))
        return Bracket(began, ticks, ended)
