"""What happens in a process over time, for a file that Perfetto opens: `GPU_PROFILE=file.json`.

A `Recording` has the latest spans of Python's threads, copies, and kernels of all devices, on the
host's monotonic clock (`time.perf_counter_ns`). It is written when the process ends
(`gpu/runtime/tracefile.py` says how); a forked child begins its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from gpu.core.config import TABLE, config
from gpu.core.errors import ConfigError
from gpu.core.files import why_unwritable

MOST_SPANS: Final = 250_000
"""Spans that a recording keeps, the latest: some 150 MB of memory and of file."""


class Told(Protocol):
    """What else is known of a span."""

    def told(self) -> Mapping[str, Any]:
        """By name, as JSON has it."""


class Facts(dict[str, Any]):
    """Such as is known at once."""

    def told(self) -> Mapping[str, Any]:
        """Itself."""
        return self


class Span(NamedTuple):
    """Something that took a while.

    Attributes:
        lane: a thread of the host by its number, or a device with one of its queues.
        name: of what was done.
        category: ``python``, ``compile``, ``copy``, ``launch``, ``wait`` or ``kernel``.
        start_ns, end_ns: when.
        args: what else is known of it.
        cause: what on a thread of the host had it done, earlier.
    """

    lane: int | tuple[str, str]
    name: str
    category: str
    start_ns: int
    end_ns: int
    args: Told
    cause: Span | None = None


@dataclass
class Recording:
    """What is going to be in one file.

    Attributes:
        path: of the file, as the setting says.
        program: what runs.
        spans: the latest; of two that one thread made the inner one comes first.
        dropped: how many there were before those.
        threads: names of the host's threads, by number.
        clocks: for each device whose clock it is timed by.
        error_ns: for each device how far off its times may be.
    """

    path: Path
    program: str = field(default_factory=lambda: os.path.basename(sys.argv[0] or sys.executable))
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=MOST_SPANS))
    dropped: int = 0
    threads: dict[int, str] = field(default_factory=dict)
    clocks: dict[str, str] = field(default_factory=dict)
    error_ns: dict[str, int] = field(default_factory=dict)

    def add(self, span: Span) -> None:
        """One more."""
        if len(self.spans) == MOST_SPANS:
            self.dropped += 1
        self.spans.append(span)

    def host_span(self, name: str, category: str, start_ns: int, args: Told) -> Span:
        """What this thread did from `start_ns` until now; it is not added."""
        return Span(self.thread(), name, category, start_ns, time.perf_counter_ns(), args)

    def thread(self) -> int:
        """The number of this thread, whose name is remembered."""
        number = threading.get_native_id()
        if number not in self.threads:
            self.threads[number] = threading.current_thread().name
        return number


class _Recordings:
    """All of this process.

    Attributes:
        by_setting: those that there are, by what GPU_PROFILE says.
        are_forked: whether this is a forked child.
        when_begun: called when one begins; it sees to it that they are written.
    """

    def __init__(self) -> None:
        self.by_setting: dict[str, Recording] = {}
        self.are_forked = False
        self.when_begun: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def begin(self, setting: str) -> Recording:
        """The recording of a setting, begun now. Raises ConfigError for an unwritable path."""
        with self._lock:
            found = self.by_setting.get(setting)
            if found is None:
                path = Path(setting)
                if why := why_unwritable(path):
                    raise ConfigError(f"GPU_PROFILE={path}: {why}")
                found = self.by_setting[setting] = Recording(path)
                self.when_begun()
            return found

    def forked(self) -> None:
        """In a forked child: what was recorded is the parent's to write."""
        self._lock = threading.Lock()
        self.are_forked = True
        self.by_setting.clear()


RECORDINGS: Final = _Recordings()
os.register_at_fork(after_in_child=RECORDINGS.forked)


def recording() -> Recording | None:
    """What is being recorded, here and now; begun if it has to be. Raises ConfigError."""
    setting = config.GPU_PROFILE
    if not setting or setting == TABLE:
        return None
    return RECORDINGS.by_setting.get(setting) or RECORDINGS.begin(setting)


def note_span(name: str, category: str, start_ns: int, **args: Any) -> None:
    """This thread did something from `start_ns` until now."""
    found = recording()
    if found is not None:
        found.add(found.host_span(name, category, start_ns, Facts(args)))


@contextmanager
def span(name: str, category: str = "python", **args: Any) -> Iterator[None]:
    """Records what is done in a `with` block. Raises ConfigError before it is."""
    found, began = recording(), time.perf_counter_ns()
    try:
        yield
    finally:
        if found is not None:
            found.add(found.host_span(name, category, began, Facts(args)))
