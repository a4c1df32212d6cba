"""Executed instructions of products of 16-bit floats, for each 1000 operations of floats.

Work counts extents rounded up to 16. The bounds are a third above what was counted: a test that
fails here tells of a kernel that got worse, not of a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from gpu import Tensor
from gpu.sim.machine import machines

SIDE: Final = 16
SEED: Final = 20
DRAWN: Final = 5


def memory(*shape: int) -> Tensor:
    """Halves in a device's memory."""
    return Tensor(np.zeros(shape, np.float16)).realize()


def counted(make: Callable[[], Tensor]) -> int:
    """Instructions that waves execute for a result."""

    def executed() -> int:
        return sum(machine.counts.instructions for machine in machines())

    result = make()
    before = executed()
    result.realize()
    result.numpy()
    return executed() - before


def product(m: int, k: int, n: int, left: bool = False, right: bool = False) -> float:
    """Of a product of matrices, either of which may be the transpose of what is in memory."""
    a, b = memory(*((k, m) if left else (m, k))), memory(*((n, k) if right else (k, n)))
    work = 2 * math.prod(-(-size // SIDE) * SIDE for size in (m, k, n))
    return 1000 * counted(lambda: (a.T if left else a) @ (b.T if right else b)) / work


def computed() -> float:
    """Of `(a + c) @ b`."""
    a, b, c = memory(192, 192), memory(192, 192), memory(192, 192)
    return 1000 * counted(lambda: (a + c) @ b) / (2 * 192**3)


def convolution() -> float:
    """Of a convolution of 28 x 28 pixels."""
    x, w = memory(1, 32, 28, 28), memory(32, 32, 3, 3)
    return 1000 * counted(lambda: x.conv2d(w, padding=1)) / (2 * 32 * 32 * 9 * 28 * 28)


def batch() -> float:
    """Of many small products."""
    a, b = memory(64, 8, 8), memory(64, 8, 8)
    return 1000 * counted(lambda: a @ b) / (2 * 64 * SIDE**3)


def gradient() -> float:
    """Of a layer's gradient."""
    x, w, g = memory(96, 80), memory(80, 64), memory(96, 64)
    executed = counted(lambda: ((x @ w) * g).sum().gradient(x)[0])
    return 1000 * executed / (2 * 96 * 80 * 64)


CASES: Final[dict[str, tuple[Callable[[], float], dict[str, float]]]] = {
    "31 x 512 by 512 x 512": (lambda: product(31, 512, 512), {"NV": 3.2, "AMD": 4.5}),
    "(a + c) @ b": (computed, {"NV": 4.9, "AMD": 8.6}),
    "convolution": (convolution, {"NV": 11.4, "AMD": 13.5}),
    "64 products of 8 x 8": (batch, {"NV": 14.3, "AMD": 30.6}),
    "gradient": (gradient, {"NV": 12.6, "AMD": 11.8}),
}

on_both = pytest.mark.parametrize("device", ["NV", "AMD"], indirect=True)


@on_both
@pytest.mark.parametrize("name", CASES)
def test_no_case_takes_more_than_it_did(device: str, name: str) -> None:
    count, bounds = CASES[name]
    found = count()
    assert found <= bounds[device], f"{name}: {found:.2f} on {device}"


@on_both
def test_odd_sizes_take_little_more_than_aligned_ones(device: str) -> None:
    rng = np.random.default_rng(SEED)
    ratios = []
    for _ in range(DRAWN):
        sizes = [int(size) for size in rng.integers(16, 300, 3)]
        left, right = (bool(x) for x in rng.integers(0, 2, 2))
        near = [max(round(size / SIDE), 1) * SIDE for size in sizes]
        ratios.append(product(*sizes, left, right) / product(*near, left, right))
    assert np.median(ratios) <= 2 and max(ratios) <= 3.5, ratios
