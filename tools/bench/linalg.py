"""Factorisations, systems of equations and complex arithmetic, beside torch's.

    python -m tools.bench.linalg [--rounds 20] [--only 64 | --complex]

A line is the milliseconds of a call of either, of processor time where `CPU_THREADS=1` (which other
programs disturb less) and on the clock otherwise, and ours over torch's. They take turns, each
after a rest, and the least counts. Matrices are float32, drawn, and well conditioned; the last two
lines are of complex64: `a * b + c` of 4M elements, and a product of 512 x 512, both compiled.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

import gpu
from gpu import Tensor, linalg

REST: Final = 0.03  # seconds before each turn, in which the other side's threads go to sleep
# Of how many matrices of what size.
SIZES: Final = ((100_000, 4), (1_000, 64), (1, 1024))
NAMES: Final = ("cholesky", "solve", "lu_factor", "qr")


def drawn(count: int, n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Symmetric positive-definite matrices, and as many right-hand sides of a column each."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((count, n, n), dtype=np.float32)
    square = a @ a.transpose(0, 2, 1) / n + np.eye(n, dtype=np.float32)
    return square, rng.standard_normal((count, n, 1), dtype=np.float32)


def calls(name: str, count: int, n: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Ours, compiled, and torch's."""
    arrays = drawn(count, n) if name == "solve" else drawn(count, n)[:1]
    ours, theirs = [Tensor(x).realize() for x in arrays], [torch.from_numpy(x) for x in arrays]

    def computed(*given: Tensor) -> tuple[Tensor, ...]:
        found = getattr(linalg, name)(*given)
        return found if isinstance(found, tuple) else (found,)

    compiled = gpu.jit(computed)

    def own() -> None:
        found = compiled(*ours)
        found[0].realize(*found[1:])

    return own, lambda: getattr(torch.linalg, name)(*theirs)


def complex_calls() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """By name ours, compiled, and torch's."""
    return {
        "complex64 a * b + c of 4M": _both(lambda a, b, c: a * b + c, 3, 1 << 22),
        "complex64 product of 512": _both(lambda a, b: a @ b, 2, 512, 512),
    }


def _both(
    function: Callable[..., Any], count: int, *shape: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    rng = np.random.default_rng(0)
    pairs = [rng.standard_normal((*shape, 2), dtype=np.float32) for _ in range(count)]
    arrays = [pair.view(np.complex64)[..., 0] for pair in pairs]
    ours, theirs = [Tensor(x).realize() for x in arrays], [torch.from_numpy(x) for x in arrays]
    compiled = gpu.jit(function)
    return lambda: compiled(*ours).realize(), lambda: function(*theirs)


def least(both: tuple[Callable[[], object], ...], rounds: int) -> list[float]:
    """The least milliseconds of each."""
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for call in both * 2:
        call()
    found = [math.inf] * len(both)
    for _ in range(rounds):
        for number, call in enumerate(both):
            time.sleep(REST)
            for _ in range(2):
                began = now()
                call()
                found[number] = min(found[number], 1e3 * (now() - began))
    return found


def main() -> None:
    """Prints a line for each operation and size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", type=int, metavar="N", help="matrices of this size alone")
    parser.add_argument("--complex", action="store_true", help="complex arithmetic alone")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("CPU_THREADS", os.cpu_count() or 1)))
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    print(f"torch {torch.__version__}, {threads} threads, load {load:.1f}")
    for count, n in SIZES:
        if options.complex or options.only not in (None, n):
            continue
        for name in NAMES:
            show(f"{name:10} {count:6} of {n:4}", calls(name, count, n), options.rounds)
    if options.only is None:
        for what, both in complex_calls().items():
            show(what, both, options.rounds)


def show(what: str, both: tuple[Callable[[], object], ...], rounds: int) -> None:
    """Prints the line of an operation."""
    ours, theirs = least(both, rounds)
    print(
        f"{what:25}  ours {ours:8.2f} ms  torch {theirs:8.2f} ms  {ours / theirs:5.2f}", flush=True
    )


if __name__ == "__main__":
    main()
