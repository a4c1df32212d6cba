"""What is measured on both sides: names of rows, sizes, what is wanted, and how time is taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

OURS: Final = "seconds of ours"
THEIRS: Final = "seconds of the vendor's"
"""Facts of steps: a dictionary of rows."""

OPEN: Final = "open to the end of the first kernel"
LAUNCH: Final = "launch to completion, prepared"
LAUNCH_PYTHON: Final = "launch to completion, called from Python"
GRAPH: Final = "graph of 100 kernels"
COPY: Final = "copy within the device, by engine"
NEGATE: Final = "negation, f32, which moves what a copy does"
TO_DEVICE: Final = "copy from pinned memory"
TO_HOST: Final = "copy to pinned memory"
GEMM: Final = "matrix product, bf16"
GRAPH_LENGTH: Final = 100

GOALS: Final[dict[str, float]] = {
    OPEN: 1.0,
    LAUNCH: 1.0,
    LAUNCH_PYTHON: 1.0,
    GRAPH: 1.0,
    COPY: 0.95,
    NEGATE: 0.95,
    TO_DEVICE: 0.6,
    TO_HOST: 0.6,
    GEMM: 0.35,
}
"""The least speed that is wanted, the vendor's being 1; for rows that are not here it is 1."""

_CALLS: Final = 5  # that warm up
_BATCHES: Final = 5
_BATCH_SECONDS: Final = 0.1
_MOST_CALLS: Final = 1000


@dataclass(frozen=True)
class Sizes:
    """How large the rows' work is.

    Attributes:
        copied: bytes of copies within the device.
        pinned: bytes of copies from and to the host.
        matrix: rows and columns of a product's matrices.
        shapes: of what softmax and layernorm take.
        within: bytes of copies that are timed by engine and by kernel.
        launches, allocations: how many leave nothing behind.
    """

    copied: int = 1 << 30
    pinned: int = 64 << 20
    matrix: int = 8192
    shapes: tuple[tuple[int, int], ...] = ((8192, 8192), (16384, 1024))
    within: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
    launches: int = 100_000
    allocations: int = 10_000


SMALL: Final = Sizes(1 << 16, 1 << 16, 64, ((16, 64), (32, 16)), (1 << 10, 1 << 14), 300, 100)
"""For models."""


def row(operation: str, dtype: str, shape: tuple[int, int]) -> str:
    """The name of a row of softmax or layernorm."""
    return f"{operation}, {dtype}, {shape[0]} x {shape[1]}"


def time_calls(call: Callable[[], object], wait: Callable[[], object], most: int) -> float:
    """Seconds of a call: the median of batches of calls, each waited for at its end.

    Args:
        call: begins the work; it may return before its end.
        wait: returns when all work is done.
        most: calls of a batch, which otherwise has as many as fill a tenth of a second.
    """
    for _ in range(min(_CALLS, most)):
        call()
    wait()
    once = _time_batch(call, wait, 1)
    count = max(1, min(most, _MOST_CALLS, int(_BATCH_SECONDS / max(once, 1e-9))))
    return median(_time_batch(call, wait, count) for _ in range(_BATCHES)) if most > 1 else once


def _time_batch(call: Callable[[], object], wait: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - began) / count
