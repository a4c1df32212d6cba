"""A recording as a file in the trace event format, which Perfetto and chrome://tracing open.

The format: "Trace Event Format" of the Chromium project. Each device is a process of the file, each
of its queues a thread; what overlaps on a queue is put on threads of its own. An arrow leads from
the launch of a kernel to the kernel. Times are microseconds of the host's monotonic clock, so that
files of several processes can be joined; the numbers of devices never are those of processes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gpu.core.files import atomic_file
from gpu.runtime.timeline import RECORDINGS, Recording, Span

_MOST_PROCESSES: Final = 1 << 22
"""Numbers of Linux's processes are below it (PID_MAX_LIMIT); those of devices are from there on."""

Event = dict[str, Any]
Track = tuple[int, int]
"""Process and thread of an event."""


def write(recording: Recording) -> Path:
    """Writes the file, whole or not at all, and returns its path. Raises OSError."""
    path = path_here(recording.path)
    with atomic_file(path) as file:
        file.write(b'{"displayTimeUnit":"ns","otherData":')
        file.write(_encoded(_about(recording)))
        file.write(b',"traceEvents":[')
        separator = b"\n"
        for event in events_of(recording):
            file.write(separator + _encoded(event))
            separator = b",\n"
        file.write(b"\n]}\n")
    return path


def path_here(path: Path) -> Path:
    """Where this process writes: ``%p`` stands for its number.

    Without that the number is added where another process, its parent, writes to the path.
    """
    here = os.getpid()
    if "%p" in path.name:
        return path.with_name(path.name.replace("%p", str(here)))
    if RECORDINGS.are_forked or multiprocessing.parent_process() is not None:
        return path.with_name(f"{path.stem}.{here}{path.suffix}")
    return path


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _about(recording: Recording) -> dict[str, Any]:
    """What is true of the file as a whole."""
    return {
        "clock": "the host's monotonic clock, in microseconds",
        "clocks of devices": recording.clocks,
        "nanoseconds that times of devices may be off": recording.error_ns,
        "earlier spans that were dropped": recording.dropped,
    }


def events_of(recording: Recording) -> Iterator[Event]:
    """The events of spans in the order of their beginnings, what contains others before them."""
    spans = [*recording.spans]
    causes = [span.cause for span in spans if span.cause is not None]
    flows = {id(cause): number for number, cause in enumerate(causes)}
    tracks = _Tracks(recording)
    for span in sorted([*spans, *causes], key=lambda span: (span.start_ns, -span.end_ns)):
        track = tracks.of(span)
        yield from tracks.new()
        yield _slice(span, track)
        if id(span) in flows:
            yield _flow("s", flows[id(span)], track, span)
        if span.cause is not None:
            yield {**_flow("f", flows[id(span.cause)], track, span), "bp": "e"}


def _flow(phase: str, number: int, track: Track, span: Span) -> Event:
    """One end of the arrow from a launch to its kernel."""
    what = {"ph": phase, "cat": "launch", "name": "launch", "id": number}
    return {**what, **_place(track), "ts": _microseconds(span.start_ns)}


def _slice(span: Span, track: Track) -> Event:
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.category,
        **_place(track),
        "ts": _microseconds(span.start_ns),
        "dur": _microseconds(span.end_ns - span.start_ns),
        "args": {
            name: value for name, value in span.args.told().items() if value not in ("", None)
        },
    }


def _place(track: Track) -> Event:
    return {"pid": track[0], "tid": track[1]}


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000


class _Tracks:
    """The threads of the file: those of the host, and for each queue as many as overlap there."""

    def __init__(self, recording: Recording):
        self._recording = recording
        self._here = os.getpid()
        self._devices: dict[str, int] = {}
        self._known: set[Track] = set()
        # For each queue its threads, with the time until which each is taken.
        self._lanes: dict[tuple[str, str], list[tuple[Track, int]]] = {}
        self._queues: dict[str, int] = {}
        self._names: list[Event] = []

    def new(self) -> Iterator[Event]:
        """What names the tracks that were not known before."""
        while self._names:
            yield self._names.pop(0)

    def of(self, span: Span) -> Track:
        """Where a span is shown."""
        if isinstance(span.lane, int):
            track = (self._here, span.lane)
            if track not in self._known:
                if not self._known:
                    self._name_process(self._here, f"Python: {self._recording.program}", 0)
                self._name(track, self._recording.threads.get(span.lane, str(span.lane)))
            return track
        lanes = self._lanes.setdefault(span.lane, [])
        for number, (track, taken) in enumerate(lanes):
            if taken <= span.start_ns:
                lanes[number] = (track, span.end_ns)
                return track
        track = self._new_lane(*span.lane, len(lanes))
        lanes.append((track, span.end_ns))
        return track

    def _new_lane(self, device: str, queue: str, number: int) -> Track:
        if device not in self._devices:
            order = len(self._devices) + 1
            self._devices[device] = self._here + order * _MOST_PROCESSES
            self._name_process(self._devices[device], device, order)
        process, thread = self._devices[device], self._queues.get(device, 0)
        self._queues[device] = thread + 1
        track = (process, thread)
        self._name(track, f"{queue} ({number + 1})" if number else queue)
        return track

    def _name_process(self, process: int, name: str, order: int) -> None:
        self._note("process_name", (process, 0), {"name": name})
        self._note("process_sort_index", (process, 0), {"sort_index": order})

    def _name(self, track: Track, name: str) -> None:
        self._known.add(track)
        self._note("thread_name", track, {"name": name})

    def _note(self, what: str, track: Track, args: Mapping[str, Any]) -> None:
        self._names.append({"ph": "M", "name": what, **_place(track), "args": args})
