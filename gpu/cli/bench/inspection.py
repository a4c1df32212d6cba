"""`gpu bench kernels` and `gpu bench compile`: what is inside a workload's time, or a script's."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from gpu import Device, Tensor, jit
from gpu.cli.bench.adapters import GpuAdapter
from gpu.cli.bench.contest import Local
from gpu.cli.bench.report import time_text
from gpu.cli.bench.workloads import WORKLOADS, Scale
from gpu.compiler.opt.policy.alternatives import cost_of
from gpu.core.config import Context
from gpu.core.errors import InvalidValue
from gpu.core.files import read_bytes
from gpu.runtime.execute import forget_compiled
from gpu.runtime.profile import PROFILE, Row, Total
from gpu.runtime.stages import SECONDS

# Sides of a product, and bytes of a sum of two arrays, from which peaks are taken; runs of each.
_PRODUCTS: Final = (512, 1024)
_COPIED: Final = 1 << 26
_RUNS: Final = 5


class Peaks(NamedTuple):
    """The most that was reached here: operations and bytes a second."""

    operations: float
    bandwidth: float

    def seconds(self, operations: int, nbytes: int) -> float:
        """The least that so much work can take: the roofline."""
        return max(operations / self.operations, nbytes / self.bandwidth)


class Inspected(NamedTuple):
    """Something to look into: its name, what is done once, and what is done again after that."""

    name: str
    begin: Callable[[], object]
    again: Callable[[], object]


def inspected(names: Sequence[str], script: Sequence[str], scale: Scale) -> Iterator[Inspected]:
    """The workloads `names`, or a script with its arguments."""
    if script:
        yield Inspected(script[0], lambda: _run_script(script), _nothing)
        return
    for name in names:
        if not WORKLOADS[name].at(scale).process:
            library = Local(GpuAdapter())
            begin = partial(library.prepare, name, scale)
            yield Inspected(name, begin, partial(library.measure, _RUNS))


def _nothing() -> None:
    """A script is run once."""


def _run_script(script: Sequence[str]) -> None:
    try:
        text = read_bytes(script[0])
    except OSError as error:
        raise InvalidValue(f"{script[0]} cannot be read: {error.strerror}") from error
    before, sys.argv = sys.argv, list(script)
    try:
        exec(compile(text, script[0], "exec"), {"__name__": "__main__", "__file__": script[0]})
    finally:
        sys.argv = before


def show_kernels(programs: Iterator[Inspected]) -> None:
    """Prints each kernel: time, what limits it, its schedule."""
    peaks = _measured_peaks()
    print(f"peaks reached here: {peaks.operations / 1e9:.1f} GFLOP/s in products of matrices,")
    print(f"{peaks.bandwidth / 1e9:.1f} GB/s in a sum of two large arrays; roof: the least time by")
    print("these, as a share of the time; cost: of the schedule, by the numbers that chose it\n")
    for program in programs:
        with _profiled():
            program.begin()
            if program.again is not _nothing:
                PROFILE.rows.clear()
                program.again()
            rows = sorted(PROFILE.rows.items(), key=lambda item: -item[1].seconds)
            total = sum(each.seconds for _, each in rows)
            print(f"{program.name}: {time_text(total)} in {sum(e.runs for _, e in rows)} launches")
            for row, each in rows:
                print(_kernel_line(row, each, total, peaks))


@contextmanager
def _profiled() -> Iterator[None]:
    """Kernels are compiled anew, and profiled; what was noted is gone afterwards."""
    forget_compiled()
    PROFILE.rows.clear()
    PROFILE.schedules.clear()
    try:
        with Context(GPU_PROFILE=1, CACHE=0):
            yield
    finally:
        PROFILE.rows.clear()
        PROFILE.schedules.clear()


def _kernel_line(row: Row, each: Total, total: float, peaks: Peaks) -> str:
    seconds = max(each.least, 1e-9)
    roof = peaks.seconds(each.operations // each.runs, each.nbytes // each.runs)
    chosen = PROFILE.schedules.get((row.device, row.label))
    parts = [
        f"  {each.seconds / total:6.1%}  {row.label:<36} {each.runs:>5} x {time_text(seconds):>9}",
        f"roof {roof / seconds:6.1%}",
    ]
    if chosen is not None:
        cost = cost_of(*chosen)
        parts.append(f"cost {cost:.3g} cycles" if cost else "cost -")
    lines = ["  ".join(parts)]
    if row.scalar:
        lines.append(f"          not vectorised because {row.scalar}")
    if row.line:
        lines.append(f"          for {row.line}")
    if chosen is not None:
        lines.append(f"          {' '.join(map(_short, chosen.opts)) or 'no transformations'}")
    return "\n".join(lines)


def _short(opt: object) -> str:
    """A transformation without the names of its fields."""
    assert isinstance(opt, tuple)
    return f"{type(opt).__name__}({', '.join(map(_field, opt))})"


def _field(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_field, value))})"
    return str(value)


def _measured_peaks() -> Peaks:
    """What products of matrices and a sum of large arrays reach on the default device."""
    operations = 0.0
    for side in _PRODUCTS:
        a, b = (Tensor(np.ones((side, side), np.float32)).realize() for _ in range(2))
        operations = max(operations, 2 * side**3 / _best(lambda x, y: x @ y, a, b))
    a, b = (Tensor(np.ones(_COPIED // 4, np.float32)).realize() for _ in range(2))
    return Peaks(operations, 3 * _COPIED / _best(lambda x, y: x + y, a, b))


def _best(function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> float:
    """Seconds of the fastest of a few calls."""
    run, device = jit(lambda x, y: function(x, y).realize()), Device[a.device]
    seconds = []
    for _ in range(2 + _RUNS):
        began = time.perf_counter()
        run(a, b)
        device.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds[2:])


def show_compiling(programs: Iterator[Inspected]) -> None:
    """Prints where the time of the first call went; caches on disk are left alone."""
    for program in programs:
        forget_compiled()
        SECONDS.clear()
        began = time.perf_counter()
        with Context(CACHE=0):
            program.begin()
        total = time.perf_counter() - began
        print(f"{program.name}: {time_text(total)}, runs included")
        for name, seconds in sorted(SECONDS.items(), key=lambda item: -item[1]):
            print(f"  {seconds / total:6.1%}  {time_text(seconds):>9}  {_STAGES.get(name, name)}")
        rest = total - sum(SECONDS.values())
        print(f"  {rest / total:6.1%}  {time_text(rest):>9}  all else: graphs, memory, running")


_STAGES: Final = {
    "plan": "plan: what is computed where, which nodes are one kernel",
    "build": "build: nodes to loops",
    "schedule": "schedule: transformations of loops, chosen and applied",
    "lower": "lower: loops to instructions",
    "render": "render: instructions to source",
    "compile": "compile: source to machine code",
    "load": "load: machine code into memory",
}
