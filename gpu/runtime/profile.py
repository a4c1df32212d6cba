"""What each kernel computed, for which line of the user's code, and how fast.

`GPU_PROFILE=1` times kernels and writes a table to the error output when the process ends,
`GPU_PROFILE=file.json` writes a timeline (`gpu/runtime/timeline.py`). Nothing waits for a kernel
where its device tells the time (`gpu/runtime/timer.py`); `DEBUG=2` logs each as it runs, and does.
What a kernel is called and how much it computes and moves is known when it is compiled, and kept
with it (`gpu/runtime/recipe.py:About`); the line is that of the graph at hand, and in no cache.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpu.compiler.ir.graph import Node
from gpu.core.config import TABLE, config, for_settings
from gpu.core.errors import GpuError, Unsupported
from gpu.core.log import follow_debug, get_logger
from gpu.runtime.device import Compiled, Device
from gpu.runtime.origins import origin_of, origins
from gpu.runtime.program import LaunchSize, Program
from gpu.runtime.recipe import About
from gpu.runtime.timeline import RECORDINGS, Facts, Recording, Span, recording
from gpu.runtime.timer import Copied, HostTimer, Timed, Timer

if TYPE_CHECKING:
    from gpu.compiler.ir.kernel import Kernel
    from gpu.compiler.opt.opts import Opt
    from gpu.compiler.targets import Target

log = get_logger(__name__)

_DETAILS: Final = 2  # the level of DEBUG from which each kernel is logged
_MOST_ROWS: Final = 40
_MOST_PENDING: Final = 4096  # launches that are timed before a device is waited for


@for_settings
def is_profiling() -> bool:
    """Whether kernels are timed, here and now."""
    return bool(config.GPU_PROFILE) or config.DEBUG >= _DETAILS


class Row(NamedTuple):
    """Kernels that computed the same for one line: where, what, and why without vectors."""

    device: str
    label: str
    line: str
    scalar: str


@dataclass
class Total:
    """What the runs of such kernels add up to: seconds, operations, bytes, events; the fastest."""

    runs: int = 0
    seconds: float = 0.0
    operations: int = 0
    nbytes: int = 0
    least: float = math.inf
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, about: About, seconds: float, counts: Mapping[str, int]) -> None:
        """One more run."""
        self.counts.update(counts)
        self.runs += 1
        self.seconds += seconds
        self.least = min(self.least, seconds)
        self.operations += about.operations
        self.nbytes += about.nbytes

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        return (
            f"{self.seconds / self.runs * 1e6:10.1f} us {self.nbytes / seconds / 1e9:8.2f} GB/s"
            f" {self.operations / seconds / 1e9:8.2f} GFLOP/s"
        )


class Chosen(NamedTuple):
    """A kernel that was compiled, and the schedule that it got for a target."""

    kernel: Kernel
    opts: tuple[Opt, ...]
    target: Target


@dataclass
class _Launched:
    """A launch that is timed: of what and for which line, and by whom and when it was made.

    Attributes:
        recording: where it is noted; None where there is none.
        is_counted, is_logged: whether it is added for the table, and logged.
        thread: of the host.
        start_ns, end_ns: when the host was launching it.
    """

    device: str
    program: Program
    about: About
    line: str
    recording: Recording | None
    is_counted: bool
    is_logged: bool
    thread: int = 0
    start_ns: int = 0
    end_ns: int = 0


@dataclass
class Profile:
    """All that was timed in this process, and the schedules of kernels by device and label."""

    schedules: dict[tuple[str, str], Chosen] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _rows: dict[Row, Total] = field(default_factory=dict)
    _timers: dict[tuple[Compiled, tuple[str, ...]], Timer] = field(default_factory=dict)
    _is_shown_at_exit: bool = False

    @property
    def rows(self) -> dict[Row, Total]:
        """What was timed, when all of it is done."""
        self.settle()
        return self._rows

    def note_schedule(
        self, device: str, label: str, kernel: Kernel, opts: Sequence[Opt], target: Target
    ) -> None:
        """A kernel was compiled for a device, with a schedule."""
        self.schedules[device, label] = Chosen(kernel, tuple(opts), target)

    def launch(
        self,
        device: str,
        program: Program,
        memories: Sequence[Any],
        vals: Sequence[int],
        about: About,
        line: str,
    ) -> None:
        """Launches a kernel, and times it. Errors as of the launch, and ConfigError."""
        launched = self._launched(device, program, about, line)
        timer = _WAITING if launched.is_logged else self._timer(Device[device])
        launched.start_ns = launched.end_ns = time.perf_counter_ns()
        timer.launch(program, memories, vals, launched)
        launched.end_ns = time.perf_counter_ns()
        if timer.pending >= timer.batch:
            self._collect(timer, wait=timer.pending >= _MOST_PENDING)

    @contextmanager
    def on_host(
        self, device: str, category: str, about: About, line: str, **facts: object
    ) -> Iterator[None]:
        """Times what a `with` block does on the host for a device: a copy, or a call."""
        found = recording()
        began = time.perf_counter_ns()
        yield
        if found is None:
            Device[device].synchronize()
        seconds = (time.perf_counter_ns() - began) * 1e-9
        row, is_counted = Row(device, about.label, line, about.scalar), bool(config.GPU_PROFILE)
        self._note(row, about, seconds, {}, is_counted, config.DEBUG >= _DETAILS)
        if found is not None:
            args = Facts({**facts, "line": line})
            found.add(found.host_span(about.label, category, began, args))

    def settle(self) -> None:
        """Waits for all that is timed, and adds it. What a device reports is logged."""
        for (device, _), timer in [*self._timers.items()]:
            try:
                self._collect(timer, wait=True)
            except GpuError as error:
                log.warning("kernels of %s were not timed: %s", device.device, error.message)

    def save(self) -> None:
        """Writes the files of all recordings, which end by that. Raises OSError."""
        self.settle()
        if RECORDINGS.by_setting:
            from gpu.runtime.tracefile import write  # only now: few processes write one

            while RECORDINGS.by_setting:
                write(RECORDINGS.by_setting.popitem()[1])

    def finish(self) -> None:
        """Writes what is asked for as the process ends; what cannot be written is logged."""
        self.settle()
        while RECORDINGS.by_setting:
            try:
                self.save()
            except OSError as error:
                log.error("GPU_PROFILE=%s cannot be written: %s", error.filename, error.strerror)
        if self._is_shown_at_exit and self._rows:
            sys.stderr.write(self.table())
        self._rows.clear()

    def finish_at_exit(self) -> None:
        """Has the process end by `finish`, before devices that are open now are closed."""
        atexit.unregister(self.finish)
        atexit.register(self.finish)
        if "multiprocessing.util" in sys.modules:  # whose forked children run nothing else
            from multiprocessing import parent_process, util

            if parent_process() is not None:
                util.Finalize(None, self.finish, exitpriority=1)

    def clear(self) -> None:
        """Forgets what was timed so far, and schedules."""
        self.rows.clear()
        self.schedules.clear()

    def forked(self) -> None:
        """In a forked child: all of it is the parent's."""
        self.lock = threading.Lock()
        self._rows.clear()
        self._timers.clear()
        self._is_shown_at_exit = False

    def _launched(self, device: str, program: Program, about: About, line: str) -> _Launched:
        found = recording()
        if config.GPU_PROFILE == TABLE and not self._is_shown_at_exit:
            self._is_shown_at_exit = True
            self.finish_at_exit()
        wanted = bool(config.GPU_PROFILE), config.DEBUG >= _DETAILS
        launched = _Launched(device, program, about, line, found, *wanted)
        if found is not None:
            launched.thread = found.thread()
        return launched

    def _timer(self, device: Compiled) -> Timer:
        key = device, config.GPU_COUNTERS
        found = self._timers.get(key)
        if found is None:
            made = device.make_timer()
            if config.GPU_COUNTERS and not made.counts_events:
                raise Unsupported(
                    f"GPU_COUNTERS={','.join(config.GPU_COUNTERS)} on {device.device}, which has no"
                    " counters here: AMD's GPUs have"
                )
            with self.lock:
                found = self._timers.setdefault(key, made)
            self.finish_at_exit()
        return found

    def _collect(self, timer: Timer, wait: bool) -> None:
        for timed in timer.collect(wait):
            if isinstance(timed.key, _Launched):
                self._ran(timed.key, timed, timer)
            elif isinstance(timed.key, Copied):
                copied, lane = timed.key, (timed.key.device, timed.queue)
                args = Facts(bytes=copied.nbytes)
                copied.recording.add(
                    Span(lane, timed.name, "copy", timed.start_ns, timed.end_ns, args)
                )

    def _ran(self, launched: _Launched, timed: Timed, timer: Timer) -> None:
        about, line = launched.about, launched.line
        row = Row(launched.device, about.label, line, about.scalar)
        told = launched.is_counted, launched.is_logged
        self._note(row, about, timed.seconds, timed.counts, *told)
        found = launched.recording
        if found is None:
            return
        cause = Span(
            *(launched.thread, f"launch {about.label}", "launch"),
            *(launched.start_ns, launched.end_ns, _NOTHING),
        )
        lane = (launched.device, timed.queue)
        size = launched.program.launch_size
        args = _Ran(about, line, timed.seconds, size, timed.counts)
        found.add(Span(lane, about.label, "kernel", timed.start_ns, timed.end_ns, args, cause))
        found.clocks[launched.device] = timer.clock
        worst = max(timed.error_ns, found.error_ns.get(launched.device, 0))
        found.error_ns[launched.device] = worst

    def _note(
        self,
        row: Row,
        about: About,
        seconds: float,
        counts: Mapping[str, int],
        is_counted: bool,
        is_logged: bool,
    ) -> None:
        """Something took so many seconds: it is logged, and added for the table."""
        if is_logged:
            once = Total()
            once.add(about, seconds, counts)
            follow_debug()
            log.debug("%-32s %s  %s%s", about.label, once, row.line, _because(row.scalar))
        if is_counted:
            with self.lock:
                self._rows.setdefault(row, Total()).add(about, seconds, counts)

    def table(self) -> str:
        """The rows that took most time, a line each, with their share of it."""
        ordered = sorted(self._rows.items(), key=lambda item: -item[1].seconds)
        total = sum(each.seconds for _, each in ordered)
        lines = [
            f"{each.seconds / total:6.1%} {each.runs:7} x {each}  {row.device} {row.label:<32}"
            f" {row.line}{_because(row.scalar)}"
            for row, each in ordered[:_MOST_ROWS]
        ]
        rest = len(ordered) - _MOST_ROWS
        more = [f"and {rest} more that took less"] if rest > 0 else []
        head = f"{total * 1e3:.3f} ms in {sum(e.runs for _, e in ordered)} kernels"
        return "\n".join([head, *lines, *more]) + "\n"


class _Ran(NamedTuple):
    """What a timeline tells of a kernel, put into words when it is written."""

    about: About
    line: str
    seconds: float
    size: LaunchSize | None
    counts: Mapping[str, int]

    def told(self) -> dict[str, Any]:
        """By name."""
        about, seconds = self.about, max(self.seconds, 1e-9)
        size = {"grid": self.size.grid, "block": self.size.block} if self.size else {}
        return {
            "line": self.line,
            "computes": about.computes,
            "bytes": about.nbytes,
            "operations": about.operations,
            "GB/s": round(about.nbytes / seconds / 1e9, 3),
            "GFLOP/s": round(about.operations / seconds / 1e9, 3),
            "seconds": self.seconds,
            **size,
            **self.counts,
            "not vectorised because": about.scalar,
        }


_NOTHING: Final = Facts()
_WAITING: Final = HostTimer()
"""Times what is logged as it runs."""
PROFILE: Final = Profile()
RECORDINGS.when_begun = PROFILE.finish_at_exit
os.register_at_fork(after_in_child=PROFILE.forked)


def lines_of(abouts: Sequence[About], order: Sequence[Node]) -> tuple[str, ...]:
    """For each step of a schedule the line that it is for; `order` has the nodes of its graph.

    A node that no line made by itself is part of what reads it.
    """
    readers: dict[Node, list[Node]] = {}
    for node in order:
        for source in node.src:
            readers.setdefault(source, []).append(node)
    return tuple([_line_of(order[a.origin], readers) if a.origin >= 0 else "" for a in abouts])


def _line_of(node: Node, readers: Mapping[Node, Sequence[Node]]) -> str:
    waiting, seen = deque([node]), {node}
    while waiting:
        site = origin_of(reader := waiting.popleft())
        if site is not None:
            return str(site)
        new = [each for each in readers.get(reader, ()) if each not in seen]
        seen.update(new)
        waiting.extend(new)
    return next(map(str, origins([node])), "")


def _because(scalar: str) -> str:
    return f" (not vectorised because {scalar})" if scalar else ""
