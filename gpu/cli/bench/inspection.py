"""`gpu bench kernels` and `gpu bench compile`: what is inside a workload's time, or a script's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from gpu import Device
from gpu.cli.bench.adapters import GpuAdapter
from gpu.cli.bench.contest import Local
from gpu.cli.bench.report import time_text
from gpu.cli.bench.workloads import WORKLOADS, Scale
from gpu.cli.kernels import measured_peaks, timed_kernels
from gpu.cli.script import read_script, run_script
from gpu.core.config import Context
from gpu.runtime.execute import forget_compiled
from gpu.runtime.profile import PROFILE
from gpu.runtime.stages import SECONDS

_RUNS: Final = 5


class Inspected(NamedTuple):
    """Something to look into: its name, what is done once, and what is done again after that."""

    name: str
    begin: Callable[[], object]
    again: Callable[[], object]


def inspected(names: Sequence[str], script: Sequence[str], scale: Scale) -> Iterator[Inspected]:
    """The workloads `names`, or a script with its arguments."""
    if script:
        yield Inspected(script[0], partial(run_script, script, read_script(script[0])), _nothing)
        return
    for name in names:
        if not WORKLOADS[name].at(scale).process:
            library = Local(GpuAdapter())
            begin = partial(library.prepare, name, scale)
            yield Inspected(name, begin, partial(library.measure, _RUNS))


def _nothing() -> None:
    """A script is run once."""


def show_kernels(programs: Iterator[Inspected]) -> None:
    """Prints each kernel: time, what limits it, its schedule."""
    device = Device.DEFAULT
    peaks = {device: measured_peaks(device)}
    print(f"peaks reached here: {peaks[device] or 'none, as this is a model'}")
    print("roof: the least time by these, as a share of the time; cost: of the schedule, by the")
    print("numbers that chose it\n")
    for program in programs:
        with _profiled():
            program.begin()
            if program.again is not _nothing:
                PROFILE.rows.clear()
                program.again()
            kernels = timed_kernels(peaks)
            total = sum(each.total.seconds for each in kernels)
            runs = sum(each.total.runs for each in kernels)
            print(f"{program.name}: {time_text(total)} in {runs} launches")
            for each in kernels:
                print(each.text(with_schedule=True))


@contextmanager
def _profiled() -> Iterator[None]:
    """Kernels are compiled anew, and profiled; what was noted is gone afterwards."""
    forget_compiled()
    PROFILE.clear()
    try:
        with Context(GPU_PROFILE=1, CACHE=0):
            yield
    finally:
        PROFILE.clear()


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
