"""Products and convolutions of 16-bit floats, for which devices may have matrix instructions."""

from __future__ import annotations

import itertools
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


def within(found: Tensor, want: np.ndarray, scale: np.ndarray | float = 1.0) -> bool:
    """Whether a float16 result is the exact one, rounded a few times."""
    error = np.abs(found.float().numpy() - want)
    return bool((error <= 2.0**-9 * (scale + np.abs(want))).all())


@pytest.mark.parametrize("seed", range(6))
def test_drawn_products(device: str, seed: int) -> None:
    """Any extents, either side transposed or computed, among numbers that are not to be read."""
    rng = np.random.default_rng(seed)
    batch, m, n, k = (int(rng.integers(*ends)) for ends in ((1, 4), (3, 70), (3, 70), (5, 90)))
    padded = [(batch, m + 1, k + 3), (batch, k + 3, n + 1), (batch, m, k)]
    a, b, c = (rng.integers(-8, 9, shape).astype(np.float16) / 8 for shape in padded)
    a[:, m:], a[:, :, k:], b[:, k:], b[:, :, n:] = np.nan, np.inf, np.inf, np.nan
    left, right = a[:, :m, :k], b[:, :k, :n]
    views = Tensor(a).realize()[:, :m, :k], Tensor(b).realize()[:, :k, :n]
    turned = Tensor(np.ascontiguousarray(right.transpose(0, 2, 1))).realize()
    x, y = views
    assert within(x @ y, left.astype(np.float32) @ right.astype(np.float32))
    y = turned.permute(0, 2, 1)
    summed = (left + c).astype(np.float32)
    assert within((x + Tensor(c).realize()) @ y, summed @ right.astype(np.float32))
    # What computes an operand makes no zero of a zero beyond its end.
    want = (left.astype(np.float32) + 1) @ (right.astype(np.float32) + 2)
    assert within((x + 1) @ (y + 2), want)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_convolutions(device: str, seed: int) -> None:
    """Strides, dilation, groups and padding, against the sum of shifted products."""
    rng = np.random.default_rng(seed)
    groups, stride, dilation = (int(rng.integers(1, 3)) for _ in range(3))
    batch, channels, out = 2, groups * int(rng.integers(3, 20)), groups * int(rng.integers(4, 20))
    size, kernel, padding = int(rng.integers(6, 13)), int(rng.integers(1, 4)), 1
    x = rng.integers(-8, 9, (batch, channels, size, size)).astype(np.float16) / 8
    w = rng.integers(-8, 9, (out, channels // groups, kernel, kernel)).astype(np.float16) / 8
    how = {"stride": stride, "dilation": dilation, "groups": groups, "padding": padding}
    found = Tensor(x).realize().conv2d(Tensor(w).realize(), **how)
    wide = np.pad(x.astype(np.float32), ((0, 0), (0, 0), (1, 1), (1, 1)))
    span = (kernel - 1) * dilation + 1
    windows = np.lib.stride_tricks.sliding_window_view(wide, (span, span), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride, ::dilation, ::dilation]
    parts = [
        np.einsum("ncijkl,ockl->noij", xs, ws)
        for xs, ws in zip(np.split(windows, groups, 1), np.split(w, groups, 0), strict=True)
    ]
    assert within(found, np.concatenate(parts, 1))


def test_bytes(device: str) -> None:
    """Products of bytes, with a sign or without, are exact."""
    rng = np.random.default_rng(0)
    for left, right in itertools.product((np.int8, np.uint8), repeat=2):
        a, b = (
            rng.integers(np.iinfo(d).min, np.iinfo(d).max + 1, shape).astype(d)
            for d, shape in ((left, (33, 50)), (right, (50, 21)))
        )
        wide = Tensor(a).realize().cast("int32"), Tensor(b).realize().cast("int32")
        assert ((wide[0] @ wide[1]).numpy() == a.astype(np.int32) @ b.astype(np.int32)).all()


def test_gradients_are_rounded_once(device: str, normal: Normal) -> None:
    """Their sums, too, are formed in float32, of products that are not rounded."""
    a, b, g = (rounded(normal(*shape), dtypes.float16) for shape in ((40, 60), (60, 50), (40, 50)))
    x, w = (rounded(normal(*shape), dtypes.float16) for shape in ((2, 8, 7, 7), (8, 8, 3, 3)))
    half = [Tensor(v).half().realize() for v in (a, b, g, x, w)]
    product = (half[0] @ half[1] * half[2]).sum().gradient(half[0], half[1])
    (taps,) = half[3].conv2d(half[4], padding=1).sum().gradient(half[4])
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (7, 7), axis=(2, 3))
    of_taps = np.broadcast_to(windows.sum((0, 4, 5)), w.shape)
    for found, exact in ((product[0], g @ b.T), (product[1], a.T @ g), (taps, of_taps)):
        error = np.abs(found.float().numpy() - exact)
        assert (error <= 2.0**-10.9 * np.abs(exact) + 1e-4).all()


def test_infinite_weights_stay_where_they_are(device: str, normal: Normal) -> None:
    """No product is added to a pixel's gradient that has no part in it, not even zero times one."""
    w = rounded(normal(16, 8, 3, 3), dtypes.float16)
    w[3, 5, 0, 0], w[4, 6, 2, 1] = np.inf, np.nan
    x, g = (rounded(normal(2, c, 9, 9), dtypes.float16) for c in (8, 16))
    half = [Tensor(v).half().realize() for v in (x, w, g)]
    (found,) = (half[0].conv2d(half[1], padding=1) * half[2]).sum().gradient(half[0])
    want = np.zeros((2, 8, 11, 11), np.float32)
    for row, column in itertools.product(range(3), repeat=2):
        part = (g[:, :, None] * w[:, :, row, column, None, None]).sum(1)
        want[:, :, row : row + 9, column : column + 9] += part
    result = found.float().numpy()
    want = want[:, :, 1:-1, 1:-1]
    assert (np.isfinite(result) == np.isfinite(want)).all()
    assert (np.isnan(result) == np.isnan(want)).all()
    inside = np.isfinite(want)
    result, want = result[inside], want[inside]
    assert (np.abs(result - want) <= 2.0**-9 * (4 + np.abs(want))).all()
