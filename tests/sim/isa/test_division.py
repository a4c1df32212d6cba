"""Divisions and roots as LLVM expands them, on all kinds of bit patterns, against the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sim.isa.amdgpu import Launcher, compile_ir
from sim.isa.kernels import elementwise

COUNT = 64 * 200


@pytest.mark.parametrize(("kind", "dtype"), [("float", np.float32), ("double", np.float64)])
def test_divisions_are_exact(kind: str, dtype: Any) -> None:
    launcher = Launcher(compile_ir(elementwise([kind, kind], kind, f"  %r = fdiv {kind} %x0, %x1")))
    for x, y in _operands(dtype):
        got = np.zeros(COUNT, dtype)
        launcher.run("k", (COUNT // 64, 1, 1), (64, 1, 1), x, y, got)
        with np.errstate(all="ignore"):
            want = x / y
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


def _operands(dtype: Any) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Any bits; quotients that are denormal; numerators that are."""
    rng = np.random.default_rng(4)
    word = np.dtype(f"u{np.dtype(dtype).itemsize}")
    x, y = (rng.integers(0, np.iinfo(word).max, COUNT, word).view(dtype) for _ in range(2))
    finite = np.where(np.isfinite(y), y, dtype(1))
    near = np.finfo(dtype).tiny * rng.uniform(1e-3, 100, COUNT)
    with np.errstate(all="ignore"):
        small = (finite.astype(np.longdouble) * near).astype(dtype)
        tiny = (near / 64).astype(dtype)
    return [(x, y), (small, finite), (tiny, rng.uniform(1e-3, 1e3, COUNT).astype(dtype))]
