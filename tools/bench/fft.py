#!/usr/bin/env python3
"""Fourier transforms beside numpy's and torch's.

    python tools/bench/fft.py [--rounds 40]

Each library in turn, everything in memory and compiled. Figures are milliseconds of the best round,
on the clock and of the process's processor time, and the largest error in parts of the largest
value, of float64 numpy. `DEV` and `CPU_THREADS` choose the device as ever.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from gpu import Tensor, fft

WORKLOADS: Final = (
    ("fft", (256, 4096)),
    ("fft", (1 << 20,)),
    ("rfft", (256, 4096)),
    ("fft", (1024, 1000)),
    ("fft2", (1024, 1024)),
    ("fft", (64, 4099)),
)


class Times(NamedTuple):
    """Milliseconds of a call on the clock, and of processor time."""

    wall: float
    cpu: float


def timed(call: Callable[[], object]) -> Times:
    """One call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Times(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))


def calls(name: str, x: Any) -> dict[str, Callable[[], Any]]:
    """What each library that is here is asked for."""
    ours = Tensor(x).realize()
    found: dict[str, Callable[[], Any]] = {
        "gpu": lambda: getattr(fft, name)(ours).realize(),
        "numpy": lambda: getattr(np.fft, name)(x),
    }
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(int(os.environ.get("CPU_THREADS", os.cpu_count() or 1)))
    theirs = torch.from_numpy(x)
    return found | {"torch": lambda: getattr(torch.fft, name)(theirs)}


def error(name: str, x: Any) -> float:
    """The largest error of ours, in parts of the largest value."""
    exact = getattr(np.fft, name)(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64))
    got = getattr(fft, name)(Tensor(x)).numpy()
    return float(np.abs(got - exact).max() / np.abs(exact).max())


def main() -> None:
    """Prints a row for each transform and library."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(0)
    print("| transform | library | ms | of processors | error |\n|---|---|---|---|---|")
    for name, shape in WORKLOADS:
        real = rng.standard_normal(shape).astype(np.float32)
        x = real if name[0] == "r" else (real + 1j * rng.standard_normal(shape)).astype("c8")
        each = calls(name, x)
        for call in each.values():
            call()
        found = [{library: timed(call) for library, call in each.items()} for _ in range(rounds)]
        for library in each:
            wall, cpu = (min(turn[library][i] for turn in found) for i in (0, 1))
            parts = f"{error(name, x):.1e}" if library == "gpu" else ""
            size = " x ".join(map(str, shape))
            print(f"| `{name}` {size} | {library} | {wall:.2f} | {cpu:.2f} | {parts} |", flush=True)


if __name__ == "__main__":
    main()
