"""What a file in the trace event format has to be: the rules of Chromium's "Trace Event Format".

Perfetto drops what breaks them, without saying so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]
Track = tuple[int, int]


class TraceFile(NamedTuple):
    """A file that keeps the rules.

    Attributes:
        about: what it says of itself.
        slices: its complete events, in order.
        processes: names of processes by number.
        threads: names of threads by process and number.
        causes: for each slice that an arrow leads to, by its place in `slices`, where that begins.
    """

    about: Event
    slices: list[Event]
    processes: dict[int, str]
    threads: dict[Track, str]
    causes: dict[int, Event]

    def of(self, category: str) -> list[Event]:
        """The slices of a category."""
        return [each for each in self.slices if each["cat"] == category]

    def device_of(self, event: Event) -> str:
        """The process that a slice is of."""
        return self.processes[event["pid"]]


def checked(path: Path) -> TraceFile:
    """The file, of which all rules are asserted."""
    data = json.loads(path.read_bytes())
    assert set(data) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    events = data["traceEvents"]
    for event in events:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int), event
        assert 0 <= event["pid"] < 1 << 31, f"Perfetto keeps 31 bits of a process: {event}"
        assert event["ph"] in "MXsf" and event["name"], event
    processes, threads = _names(events)
    timed = [event for event in events if event["ph"] != "M"]
    for event in timed:
        assert isinstance(event["ts"], (int, float)) and event["ts"] > 0, event
        assert event["pid"] in processes and _track(event) in threads, f"without a name: {event}"
    assert all(a["ts"] <= b["ts"] for a, b in pairwise(timed)), "not in order"
    slices = [event for event in timed if event["ph"] == "X"]
    for event in slices:
        assert event["dur"] >= 0 and isinstance(event["args"], dict) and event["cat"], event
    _check_nesting(slices)
    causes = _causes(timed, slices, max(_errors(data["otherData"]).values(), default=0))
    return TraceFile(data["otherData"], slices, processes, threads, causes)


def _errors(about: Event) -> dict[str, int]:
    found: dict[str, int] = about["nanoseconds that times of devices may be off"]
    return found


def _track(event: Event) -> Track:
    return event["pid"], event["tid"]


def _names(events: list[Event]) -> tuple[dict[int, str], dict[Track, str]]:
    processes: dict[int, str] = {}
    threads: dict[Track, str] = {}
    for event in events:
        if event["ph"] != "M":
            continue
        if event["name"] == "process_name":
            assert event["pid"] not in processes, f"named twice: {event}"
            processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            assert _track(event) not in threads, f"named twice: {event}"
            threads[_track(event)] = event["args"]["name"]
        else:
            assert event["name"] == "process_sort_index"
    assert len(set(processes.values())) == len(processes), "two devices of one name"
    return processes, threads


def _check_nesting(slices: list[Event]) -> None:
    """On one thread a slice lies inside of another one or beside it; nanoseconds are exact."""
    open_until: dict[Track, list[int]] = defaultdict(list)
    for event in slices:
        start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
        stack = open_until[_track(event)]
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or start + length <= stack[-1], f"overlaps another one: {event}"
        stack.append(start + length)


def _causes(timed: list[Event], slices: list[Event], error_ns: int) -> dict[int, Event]:
    """Each arrow has one beginning and one end, both at slices, and leads on in time."""
    begins = [event for event in timed if event["ph"] == "s"]
    ends = {event["id"]: event for event in timed if event["ph"] == "f"}
    assert len({event["id"] for event in begins}) == len(begins) == len(ends)
    starts = {(*_track(event), event["ts"]): i for i, event in enumerate(slices)}
    found = {}
    for begin in begins:
        end = ends[begin["id"]]
        assert end["bp"] == "e" and (begin["cat"], begin["name"]) == (end["cat"], end["name"])
        assert (*_track(begin), begin["ts"]) in starts, f"begins at no slice: {begin}"
        assert begin["ts"] <= end["ts"] + error_ns / 1000, f"leads back in time: {begin} {end}"
        found[starts[*_track(end), end["ts"]]] = begin
    return found
