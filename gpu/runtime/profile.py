"""What each kernel computed, for which line of the user's code, and how fast.

`GPU_PROFILE=1` runs kernels one by one, waits for each, and writes a table to the error output when
the process ends; `DEBUG=2` logs each of them as it runs. What a kernel is called and how much it
computes and moves is known when it is compiled, and kept with it (`gpu/runtime/recipe.py:About`);
the line is that of the graph at hand, and in no cache.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from gpu.compiler.ir.graph import Node
from gpu.core.config import config
from gpu.core.log import follow_debug, get_logger
from gpu.runtime.origins import origin_of, origins
from gpu.runtime.recipe import About

if TYPE_CHECKING:
    from gpu.compiler.ir.kernel import Kernel
    from gpu.compiler.opt.opts import Opt
    from gpu.compiler.targets import Target

log = get_logger(__name__)

_DETAILS: Final = 2  # the level of DEBUG from which each kernel is logged
_MOST_ROWS: Final = 40


def is_profiling() -> bool:
    """Whether kernels are timed, here and now."""
    return config.GPU_PROFILE or config.DEBUG >= _DETAILS


class Row(NamedTuple):
    """Kernels that computed the same for one line: where, what, and why without vectors."""

    device: str
    label: str
    line: str
    scalar: str


@dataclass
class Total:
    """What the runs of such kernels add up to: seconds, operations and bytes; and the fastest."""

    runs: int = 0
    seconds: float = 0.0
    operations: int = 0
    nbytes: int = 0
    least: float = math.inf

    def add(self, about: About, seconds: float) -> None:
        """One more run."""
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
class Profile:
    """All that was timed in this process, and the schedules of kernels by device and label."""

    rows: dict[Row, Total] = field(default_factory=dict)
    schedules: dict[tuple[str, str], Chosen] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_shown_at_exit: bool = False

    def note_schedule(
        self, device: str, label: str, kernel: Kernel, opts: Sequence[Opt], target: Target
    ) -> None:
        """A kernel was compiled for a device, with a schedule."""
        self.schedules[device, label] = Chosen(kernel, tuple(opts), target)

    def note(self, device: str, about: About, line: str, seconds: float) -> None:
        """A kernel ran for so many seconds: it is logged, and added for the table."""
        once = Total()
        once.add(about, seconds)
        follow_debug()
        log.debug("%-32s %s  %s%s", about.label, once, line, _because(about.scalar))
        if not config.GPU_PROFILE:
            return
        with self.lock:
            if not self.is_shown_at_exit:
                atexit.register(self._write)
                self.is_shown_at_exit = True
            row = Row(device, about.label, line, about.scalar)
            self.rows.setdefault(row, Total()).add(about, seconds)

    def table(self) -> str:
        """The rows that took most time, a line each, with their share of it."""
        ordered = sorted(self.rows.items(), key=lambda item: -item[1].seconds)
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

    def _write(self) -> None:
        if self.rows:
            sys.stderr.write(self.table())


PROFILE: Final = Profile()


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
