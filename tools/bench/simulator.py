#!/usr/bin/env python3
"""How fast the lane engine is, on matrix products of a simulated GPU.

    SIM=gfx1100 python tools/bench/simulator.py [--rounds 12] [--sizes 64 256 512]

Per product of N x N floats, of the round whose kernel took least: milliseconds of the kernel, from
its launch to its end; of them those in native code, and the share; nanoseconds of an instruction,
which a wave does for all lanes; GFLOP/s of the kernel. The rest of a kernel's time is what launches
it and the model of memory and caches. All are of the processor, so that others' work hardly counts;
what it takes to read its clock is taken off.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu import Tensor
from gpu.sim.amd.chip.lanes import LaneExecutor
from gpu.sim.isa.grid import LaneGrid
from gpu.sim.machine import machines


@dataclass
class Watch:
    """Adds up the processor's seconds within some calls, those within each other once."""

    seconds: float = 0.0
    depth: int = 0
    calls: int = 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, watched."""

        def watched(*args: Any, **options: Any) -> Any:
            self.depth += 1
            begin = time.thread_time_ns()
            try:
                return call(*args, **options)
            finally:
                self.depth -= 1
                self.calls += 1
                if not self.depth:
                    self.seconds += (time.thread_time_ns() - begin) * 1e-9

        return watched


def clock_seconds() -> float:
    """What it takes to read the clock: the least of some means."""
    means = []
    for _ in range(20):
        begin = time.thread_time_ns()
        for _ in range(100):
            time.thread_time_ns()
        means.append((time.thread_time_ns() - begin) / 100)
    return min(means) * 1e-9


def watch_kernels() -> tuple[Watch, Watch]:
    """Watches of kernels on AMD's model, and of native code in them."""
    kernels, native = Watch(), Watch()
    launch, begin = LaneExecutor.launch, LaneGrid.__init__

    def launched(self: Any, *args: Any) -> Any:
        grid: Any = kernels.around(launch)(self, *args)
        for name in ("step", "why_stuck"):
            setattr(grid, name, kernels.around(getattr(grid, name)))
        return grid

    def begun(self: Any, *args: Any) -> None:
        begin(self, *args)
        self._run = native.around(self._run)

    LaneExecutor.launch = launched  # type: ignore[method-assign]
    LaneGrid.__init__ = begun  # type: ignore[method-assign]
    return kernels, native


def main() -> None:
    """Prints a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 256, 512])
    asked = parser.parse_args()
    kernels, native = watch_kernels()
    rng = np.random.default_rng(0)
    for size in asked.sizes:
        a, b = (Tensor(rng.random((size, size), np.float32)).realize() for _ in range(2))
        (a @ b).numpy()
        best = (float("inf"), 0.0, 0)
        for _ in range(asked.rounds):
            counts = machines()[-1].counts
            before, clock = counts.instructions, clock_seconds()
            for watch in (kernels, native):
                watch.seconds, watch.calls = 0.0, 0
            (a @ b).numpy()
            inside = native.seconds - clock * native.calls
            whole = kernels.seconds - clock * (kernels.calls + native.calls * 2)
            best = min(best, (whole, inside, counts.instructions - before))
        whole, inside, count = best
        print(
            f"{size:5}  kernel {whole * 1e3:8.2f} ms, native {inside * 1e3:8.2f} ms"
            f" ({inside / whole:4.0%}), {whole / count * 1e9:5.1f} ns an instruction,"
            f" {2 * size**3 / whole * 1e-9:5.2f} GFLOP/s"
        )


if __name__ == "__main__":
    main()
