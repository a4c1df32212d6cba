"""Rounding of long sums: at most (8 + log2 n) eps times the sum of absolute values, n being terms.

What sums should be is formed in float64, or in long double where that is what is tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu import Tensor, Var, dtypes
from tensor.reference import rng_for, widest

Array = npt.NDArray[Any]

# Elements of the longest sums, which simulated devices add in a second or two.
MOST = 1 << 20
SIZES = (31, 32, 33, 63, 64, 65, 127, 129, 1021, 1024, 1025, 4099, 8192, 30_011)
# Of matrix products: rows, terms, columns.
SHAPES = (
    (1, 1 << 18, 1), (5, 40_009, 3), (33, 2048, 70), (70, 777, 1), (1, 3001, 200),
)  # fmt: skip


def equal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """One number again and again: all roundings go the same way."""
    return np.full(shape, rng.uniform(0.1, 1.0))


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers of one sign."""
    return rng.random(shape)


def mixed(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers of both signs and of many magnitudes."""
    return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-6, 6, shape)


def one_large(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """One large number before many that are each lost when added to it.

    Products of such are not tried: more of them are added one after another.
    """
    small = np.full(shape, rng.uniform(0.3, 0.49) * np.finfo(np.float32).eps)
    small.flat[0] = 1.0
    return small


KINDS = (equal, positive, mixed)
# Of sums of products, of which many more are added one after another.
FACTORS = (positive, mixed)


def assert_bounded(
    found: Tensor, exact: Array, size: Array, terms: int, more: float = 0.0, dtype: str = ""
) -> None:
    """The bound, for sums of `terms` terms whose absolute values sum up to `size`.

    `more` eps are for what is done beside adding.
    """
    eps = np.finfo(dtype or found.dtype.name).eps
    error = np.abs(found.numpy().astype(exact.dtype) - exact)
    allowed = (8 + math.log2(terms) + more) * eps * size
    assert np.all(error <= allowed), f"{(error / (eps * size)).max():.1f} eps of {terms} terms"


def assert_sum(
    device: str,
    x: Array,
    axis: int | tuple[int, ...] | None,
    ours: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """A sum of float32 along an axis."""
    small = x.astype(np.float32)
    wide = small.astype(np.float64)
    found = ours(Tensor(small, device=device)) if ours else Tensor(small, device=device).sum(axis)
    exact, size = wide.sum(axis), np.abs(wide).sum(axis)
    assert_bounded(found, exact, size, wide.size // max(np.size(exact), 1))


def drawn(rng: np.random.Generator, kind: Any) -> int:
    """A size: a round one, a prime, or any; where one number is large sums are not short."""
    sizes = SIZES[-5:] if kind is one_large else SIZES
    return int(rng.choice([*sizes, int(rng.integers(1000, 20_000))]))


def test_sums_of_everything(device: str) -> None:
    rng = rng_for("everything", device)
    most = MOST // 16 if device.startswith("PYTHON") else MOST
    for size in (int(rng.choice([most, most - 3, most // 2 + 1])), drawn(rng, one_large)):
        for kind in (*KINDS, one_large):
            assert_sum(device, kind(rng, (size,)), None)


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (1, 2)])
def test_sums_along_axes(axis: Any, device: str) -> None:
    rng = rng_for("axes", axis, device)
    axes = axis if isinstance(axis, tuple) else (axis,)
    shape = tuple(int(rng.integers(1, 20)) for _ in range(3))
    shape = tuple(drawn(rng, one_large) if a == axes[-1] else n for a, n in enumerate(shape))
    for kind in (*KINDS, one_large):
        assert_sum(device, kind(rng, shape), axis)


@pytest.mark.parametrize(
    ("view", "axis"),
    [
        (lambda x: x[:, ::2], 1),
        (lambda x: x[::-3], 0),
        (lambda x: x.transpose(0, 1), 1),
        (lambda x: x[1:, 3:], (0, 1)),
    ],
    ids=["every other", "backwards", "transposed", "inside"],
)
def test_sums_of_views(view: Any, axis: Any, device: str) -> None:
    rng = rng_for(str(axis), device)
    shape = int(rng.integers(700, 1100)), int(rng.integers(90, 700))
    for kind in KINDS:
        viewed = view(Tensor(kind(rng, shape).astype(np.float32), device=device))
        assert_sum(device, viewed.numpy(), axis, lambda _, x=viewed: x.sum(axis))


@pytest.mark.parametrize("kind", FACTORS, ids=lambda kind: kind.__name__)
def test_sums_of_products(kind: Any, device: str) -> None:
    rng = rng_for(kind.__name__)
    n = drawn(rng, kind)
    a, b = (kind(rng, (3, n)).astype(np.float32) for _ in range(2))
    products = a.astype(np.float64) * b
    ours = Tensor(a, device=device), Tensor(b, device=device)
    exact, size = products.sum(1), np.abs(products).sum(1)
    assert_bounded((ours[0] * ours[1]).sum(1), exact, size, n, more=0.5)
    norm = np.sqrt((a.astype(np.float64) ** 2).sum(1))
    assert_bounded(ours[0].square().sum(1).sqrt(), norm, norm, n, more=1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matrix_products(shape: tuple[int, int, int], device: str) -> None:
    m, k, n = shape
    if device == "PYTHON":
        k = min(k, 1 << 15)  # an interpreter of each product
    for kind in FACTORS:
        rng = rng_for(kind.__name__, shape)
        a, b = kind(rng, (m, k)).astype(np.float32), kind(rng, (k, n)).astype(np.float32)
        wide, other = a.astype(np.float64), b.astype(np.float64)
        found = Tensor(a, device=device) @ Tensor(b, device=device)
        assert_bounded(found, wide @ other, np.abs(wide) @ np.abs(other), k, more=0.5)


def test_products_with_what_is_turned(device: str) -> None:
    m, k, n = SHAPES[2]
    for kind in FACTORS:
        rng = rng_for(kind.__name__, "turned")
        a, b = kind(rng, (m, k)).astype(np.float32), kind(rng, (n, k)).astype(np.float32)
        wide, other = a.astype(np.float64), b.astype(np.float64).T
        found = Tensor(a, device=device) @ Tensor(b, device=device).transpose(0, 1)
        assert_bounded(found, wide @ other, np.abs(wide) @ np.abs(other), k, more=0.5)


def test_statistics(device: str) -> None:
    rng = rng_for("statistics", device)
    x = (3.0 + rng.random((7, 3, 31, 67))).astype(np.float32)
    ours, wide = Tensor(x, device=device), x.astype(np.float64)
    terms, axes = 7 * 31 * 67, (0, 2, 3)
    mean = wide.mean(axes)
    assert_bounded(ours.mean(axes), mean, mean, terms, more=1)
    # The mean's own error moves each deviation, and cancels from their squares but for its square.
    var = wide.var(axes)
    assert_bounded(ours.var(axes, correction=0), var, var, terms, more=20)
    rows = wide.reshape(3, -1)
    total = np.exp(rows - rows.max(1, keepdims=True)).sum(1)
    likely = Tensor(x, device=device).reshape(3, -1).softmax(1).max(1)
    assert_bounded(likely, 1 / total, 1 / total, rows.shape[1], more=8)


def test_gradients_of_convolution_weights(device: str) -> None:
    rng = rng_for("convolution", device)
    x, w = rng.random((3, 2, 61, 67)).astype(np.float32), rng.random((4, 2, 3, 3))
    weights = Tensor(w.astype(np.float32), device=device)
    (found,) = Tensor(x, device=device).conv2d(weights).sum().gradient(weights)
    wide = x.astype(np.float64)
    windows = [
        wide[:, :, i : i + 59, j : j + 65].sum((0, 2, 3)) for i in range(3) for j in range(3)
    ]
    exact = np.broadcast_to(np.stack(windows, 1).reshape(2, 3, 3), (4, 2, 3, 3))
    assert_bounded(found, exact, exact, 3 * 59 * 65, more=0.5)


@pytest.mark.parametrize("axis", [0, 1])
def test_running_sums(axis: int, device: str) -> None:
    rng = rng_for(axis)
    n = drawn(rng, one_large)
    for kind in (*KINDS, one_large):
        x = kind(rng, (n, 3) if axis == 0 else (3, n)).astype(np.float32)
        wide = x.astype(np.float64)
        found = Tensor(x, device=device).cumsum(axis)
        assert_bounded(found, wide.cumsum(axis), np.abs(wide).cumsum(axis), n)


@pytest.mark.parametrize("kind", (*KINDS, one_large), ids=lambda kind: kind.__name__)
def test_wide_and_narrow_floats(kind: Any, device: str) -> None:
    rng = rng_for(kind.__name__)
    n = drawn(rng, kind)
    x = kind(rng, (3, n)).astype(np.float32).astype(widest(device))
    exact = x.astype(np.longdouble)
    found = Tensor(x, device=device).sum(1)
    assert found.dtype.name == widest(device)
    assert_bounded(found, exact.sum(1), np.abs(exact).sum(1), n)
    half = Tensor((rng.random((3, n)) - 0.25).astype(np.float32), device=device).cast("bfloat16")
    terms = half.cast("float32").numpy().astype(np.float64)
    total = half.sum(1, dtype=dtypes.float32)
    assert_bounded(total, terms.sum(1), np.abs(terms).sum(1), n)


@pytest.mark.parametrize("kind", [equal, one_large], ids=["equal", "one_large"])
def test_sizes_known_at_launch(kind: Any, device: str) -> None:
    rng = rng_for(kind.__name__)
    size = Var("n", 1, 20_000)
    for n in (1, 1021, 1024, 4099, 20_000) if kind is one_large else (63, 64, 65, 4099):
        x = kind(rng, (n,)).astype(np.float32)
        wide = x.astype(np.float64)
        padded = Tensor(np.concatenate([x, np.full(20_000 - n, 1e9, np.float32)]), device=device)
        found = padded[: size.bind(n)].sum()
        assert_bounded(found, wide.sum(), np.abs(wide).sum(), n)


def test_a_quarter_of_a_billion_terms() -> None:
    """Made while they are added, so that it takes no memory: 0.1 times 0, 1, ... 7, and again."""
    n = 1 << 28
    terms = Tensor.arange(n, device="CPU").bitwise_and(7).cast("float32") * 0.1
    each = np.float32(0.1) * np.arange(8, dtype=np.float32)
    exact = np.asarray(each.astype(np.float64).mean())
    assert_bounded(terms.mean(), exact, exact, n)
    tenth = np.asarray(float(np.float32(0.1)))
    assert_bounded(Tensor.full((n,), 0.1, device="CPU").mean(), tenth, tenth, n)
