"""A world whose every call is recorded, with its time and what the kernel answered.

Two files grow, line by line, so that a crash loses at most the call it happened in: a trace with
all bytes (`gpu.core.trace`, which `gpu.transport.replay` runs drivers on), and a log for people
with a line a call. Line n of the log tells of event n of the trace.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu.core.ref import Argument, Ref
from gpu.core.trace import Recorder
from gpu.core.traceevent import Event, Exists, Ioctl, Map, Open, call_name
from gpu.core.wait import Waiter
from gpu.transport.os import Os
from gpu.transport.traced import TracedOs
from gpu.transport.world import World
from tools.hw_acceptance.ioctls import describe_event
from tools.hw_acceptance.scrub import without_serials
from tools.hw_acceptance.steplog import CALLS, open_lines


class TimedOs:
    """An `Os` that passes every call on and knows when the last one began and how long it took."""

    def __init__(self, inner: Os):
        self._inner = inner
        self.began_ns = 0
        self.took_ns = 0

    @contextmanager
    def _timed(self) -> Iterator[Os]:
        self.began_ns = time.monotonic_ns()
        try:
            yield self._inner
        finally:
            self.took_ns = time.monotonic_ns() - self.began_ns

    def open(self, path: str, flags: int) -> int:
        """See `Os.open`."""
        with self._timed() as inner:
            return inner.open(path, flags)

    def close(self, fd: int) -> None:
        """See `Os.close`."""
        with self._timed() as inner:
            inner.close(fd)

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        """See `Os.ioctl`."""
        with self._timed() as inner:
            return inner.ioctl(fd, request, argument, refs)

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        """See `Os.mmap`."""
        with self._timed() as inner:
            return inner.mmap(fd, size, prot, flags, offset, address)

    def munmap(self, address: int, size: int) -> None:
        """See `Os.munmap`."""
        with self._timed() as inner:
            inner.munmap(address, size)

    def read_file(self, path: str) -> bytes:
        """See `Os.read_file`; numbers of one board or machine are zeros, also for the driver."""
        with self._timed() as inner:
            return without_serials(path, inner.read_file(path))

    def write_file(self, path: str, data: bytes) -> None:
        """See `Os.write_file`."""
        with self._timed() as inner:
            inner.write_file(path, data)

    def list_dir(self, path: str) -> list[str]:
        """See `Os.list_dir`."""
        with self._timed() as inner:
            return inner.list_dir(path)

    def exists(self, path: str) -> bool:
        """See `Os.exists`."""
        with self._timed() as inner:
            return inner.exists(path)


class CallRecorder(Recorder):
    """Writes ``trace.jsonl`` and ``calls.jsonl`` in a folder."""

    def __init__(self, folder: Path, clock: TimedOs):
        super().__init__(folder / "trace.jsonl")
        self._calls = open_lines(folder / CALLS)
        self._clock = clock

    def record(self, event: Event) -> None:
        """Writes one event to both files."""
        super().record(event)
        line: dict[str, Any] = {
            "at_ns": self._clock.began_ns,
            "took_ns": self._clock.took_ns,
            "call": call_name(event),
            **_facts(event),
        }
        if not isinstance(event, Exists):
            line["errno"] = event.failure.errno if event.failure is not None else 0
        described = describe_event(event)
        if described is not None:
            line |= {"name": described.name, "status": described.status_name}
        self._calls.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Closes both files."""
        super().close()
        self._calls.close()


def traced_world(system: Os, waiter: Waiter, folder: Path) -> tuple[World, CallRecorder]:
    """A world over another system, and what records it; close the recorder at the end.

    Raises OSError where the files cannot be made.
    """
    clock = TimedOs(system)
    recorder = CallRecorder(folder, clock)
    return World(TracedOs(clock, recorder), waiter), recorder


def _facts(event: Event) -> dict[str, Any]:
    match event:
        case Open() | Ioctl():
            return {"fd": event.fd, "path": event.path}
        case Map():
            kind = event.path or "anonymous"
            place = f"{event.result:#x}"
            return {"fd": event.fd, "path": kind, "size": event.size, "address": place}
        case _:
            return {}
