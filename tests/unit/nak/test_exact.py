"""Division and square root, whose parts are estimates here that are wrong at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu.core.dtype import DType, dtypes
from unit.linear_kernels import Kernel, assert_same
from unit.nak.machine import Array, run_adreno, run_nir

SIZES = {dtypes.float32: 20_000, dtypes.float64: 1_000}


def operands(dtype: DType, kind: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """Pairs of floats: any bits, near 1, with subnormal quotients, with nearly exact ones."""
    size, real = SIZES[dtype], dtype.np.type
    bits = rng.integers(0, 256, (2, size * dtype.itemsize), dtype=np.uint8).view(real)
    near = rng.uniform(1, 2, (2, size)).astype(real)
    if kind == "any":
        return bits[0], bits[1]
    if kind == "near":
        return near[0], near[1]
    if kind == "subnormal":
        least, most = (100, 55) if dtype is dtypes.float32 else (900, 190)
        scale = np.exp2(rng.integers(20, most, size).astype(real))
        return near[0] * real(2.0**-least), near[1] * scale
    divisor = rng.integers(1, 1000, size).astype(real)
    divisor[::3] = np.nextafter(real(2), real(1))  # all ones
    exact = near[0] * divisor
    return np.where(rng.random(size) < 0.5, exact, np.nextafter(exact, real(0))), divisor


@pytest.mark.parametrize("kind", ["any", "near", "subnormal", "exact"])
@pytest.mark.parametrize(
    ("dtype", "run"),
    [(dtypes.float32, run_nir), (dtypes.float64, run_nir), (dtypes.float32, run_adreno)],
    ids=["float32", "float64", "adreno"],
)
def test_quotients_and_roots_are_rounded_once(
    dtype: DType, run: Callable[..., None], kind: str
) -> None:
    a, b = operands(dtype, kind, np.random.default_rng(0))
    n = len(a)
    k = Kernel(a=(dtype, n), b=(dtype, n), q=(dtype, n), r=(dtype, n))
    i = k.loop(n, kind="grid")
    x, y = k.load(k.a, i), k.load(k.b, i)
    k.store(k.q, i, k.alu("div", x, y))
    k.store(k.r, i, k.alu("sqrt", x))
    k.end(i)
    quotients, roots = np.empty_like(a), np.empty_like(a)
    run([k.program()], [[a.copy(), b.copy(), quotients, roots]])
    with np.errstate(all="ignore"):
        assert_same(quotients, a / b, f"div {dtype.name}")
        assert_same(roots, np.sqrt(a), f"sqrt {dtype.name}")
