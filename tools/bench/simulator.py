#!/usr/bin/env python3
"""How fast the lane engine is, on matrix products of a simulated GPU.

    SIM=gfx1100 python tools/bench/simulator.py [--rounds 12] [--sizes 64 256 512]

Per product of N x N floats, of the round whose kernel took least: milliseconds of the kernel, from
its launch to its end; of them those in native code, and the share; nanoseconds of an instruction,
which a wave does for all lanes; GFLOP/s of the kernel. The rest of a kernel's time is what launches
it and the model of memory and caches.

A kernel that is shorter than a process's turn is timed by the clock on the wall, of which no round
that others have cut into is the best; a longer one by the processor's, so that others' work hardly
counts: reading that one is a system call, behind which Python is slow for some microseconds. What
watching costs is taken off.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpu import Tensor
from gpu.sim.amd.chip.lanes import LaneExecutor
from gpu.sim.isa.grid import LaneGrid
from gpu.sim.machine import machines

_SHORT: Final = 1e-3
"""Seconds that a process may well go on without another's turn."""


@dataclass
class Watch:
    """Adds up the processor's seconds within some calls, those within each other once."""

    clock: Callable[[], int] = time.perf_counter_ns
    seconds: float = 0.0
    depth: int = 0
    calls: int = 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, watched."""

        def watched(*args: Any, **options: Any) -> Any:
            self.depth += 1
            begin = self.clock()
            try:
                return call(*args, **options)
            finally:
                self.depth -= 1
                self.calls += 1
                if not self.depth:
                    self.seconds += (self.clock() - begin) * 1e-9

        return watched


def watching_seconds(clock: Callable[[], int]) -> tuple[float, float]:
    """What watching adds to a call that is watched, and to one that has such a call in it.

    Both are the least of some means.
    """
    outer, inner = Watch(clock), Watch(clock)
    call = outer.around(inner.around(int))
    means = []
    for _ in range(20):
        outer.seconds = inner.seconds = 0.0
        for _ in range(100):
            call()
        means.append((inner.seconds / 100, outer.seconds / 100))
    own = min(mean for mean, _ in means)
    return own, min(mean for _, mean in means) - own


_WATCHES: Final = (Watch(), Watch())
"""Of kernels on AMD's model, and of native code in them."""


def watch_kernels() -> None:
    """Has kernels, and native code in them, watched from now on."""
    kernels, native = _WATCHES
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


def timed(product: Callable[[], object], clock: Callable[[], int]) -> tuple[float, float, int]:
    """Seconds of a product's kernels, of those in native code, and their instructions."""
    own, nested = watching_seconds(clock)
    before = machines()[-1].counts.instructions
    for watch in _WATCHES:
        watch.clock, watch.seconds, watch.calls = clock, 0.0, 0
    product()
    kernels, native = _WATCHES
    whole = kernels.seconds - own * kernels.calls - nested * native.calls
    count = machines()[-1].counts.instructions - before
    return whole, native.seconds - own * native.calls, count


def main() -> None:
    """Prints a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 256, 512])
    asked = parser.parse_args()
    watch_kernels()
    rng = np.random.default_rng(0)
    for size in asked.sizes:
        a, b = (Tensor(rng.random((size, size), np.float32)).realize() for _ in range(2))

        def product(a: Tensor = a, b: Tensor = b) -> object:
            return (a @ b).numpy()

        product()
        is_short = min(timed(product, time.thread_time_ns) for _ in range(2))[0] < _SHORT
        clock = time.perf_counter_ns if is_short else time.thread_time_ns
        whole, inside, count = min(timed(product, clock) for _ in range(asked.rounds))
        print(
            f"{size:5}  kernel {whole * 1e3:8.3f} ms, native {inside * 1e3:8.3f} ms"
            f" ({inside / whole:4.0%}), {whole / count * 1e9:5.1f} ns an instruction,"
            f" {2 * size**3 / whole * 1e-9:5.2f} GFLOP/s"
        )


if __name__ == "__main__":
    main()
