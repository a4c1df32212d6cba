"""Products and convolutions of 16-bit floats, for which devices may have matrix instructions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu import Tensor, dtypes
from gpu.core.dtype import DType

Normal = Callable[..., np.ndarray]


@pytest.fixture
def normal() -> Normal:
    """`normal(3, 4)`: values of such a shape, the same in each run of a test."""
    rng = np.random.default_rng(5)
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)


def rounded(x: np.ndarray, dtype: DType) -> np.ndarray:
    return x.astype(dtype.np).astype(np.float32)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_a_layer_and_its_gradients(device: str, dtype: DType, normal: Normal) -> None:
    x, w, b, g = (
        rounded(v, dtype) for v in (normal(48, 64), normal(72, 64), normal(72), normal(48, 72))
    )
    tx, tw, tb = (Tensor(v).cast(dtype).realize() for v in (x, w, b))
    out = tx @ tw.T + tb
    grads = (out * Tensor(g).cast(dtype)).sum().gradient(tx, tw)
    one = 2.0**-7 if dtype is dtypes.bfloat16 else 2.0**-10
    for found, exact in zip((out, *grads), (x @ w.T + b, g @ w, g.T @ x), strict=True):
        error = np.abs(found.cast(dtypes.float32).numpy() - exact)
        assert (error <= 2 * one * (4 + np.abs(exact))).all()


def test_batches_that_are_cast_on_the_way(device: str, normal: Normal) -> None:
    a, b = normal(3, 40, 33), normal(3, 33, 64)
    found = (Tensor(a).half() @ Tensor(b).half()).float().numpy()
    want = rounded(a, dtypes.float16) @ rounded(b, dtypes.float16)
    assert (np.abs(found - want) <= 2.0**-9 * (1 + np.abs(want))).all()


def test_convolutions(device: str, normal: Normal) -> None:
    x, w = normal(2, 32, 3, 34), normal(32, 32, 3, 3) / 16
    found = Tensor(x).half().conv2d(Tensor(w).half(), padding=1).float().numpy()
    wide = np.pad(rounded(x, dtypes.float16), ((0, 0), (0, 0), (1, 1), (1, 1)))
    w = rounded(w, dtypes.float16)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    want = np.einsum("ncijkl,ockl->noij", windows, w)
    assert (np.abs(found - want) <= 2.0**-9 * (1 + np.abs(want))).all()
