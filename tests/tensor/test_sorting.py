"""Sort, argsort and topk against torch's stable sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, dtypes
from gpu.core.errors import GpuError, InvalidIndex, ShapeError
from tensor.reference import Array, assert_gradients, rng_for, torch, widest

# Around the lengths at which runs are merged and filled up.
SIZES = [0, 1, 2, 3, 31, 256, 257]
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    """Few different numbers and many equal ones, the extremes of the dtype among them."""
    kind = np.dtype(dtype)
    rng = rng_for(shape, dtype)
    if kind.kind == "f":
        limits = np.finfo(kind)
        special = [np.nan, np.inf, -np.inf, -0.0, 0.0, limits.max, limits.min, limits.tiny / 2]
    elif kind.kind == "b":
        special = [True, False]
    else:
        info = np.iinfo(kind)
        special = [info.max, info.min, info.max - 1, 1 << (info.bits - 2), 0, 1]
    pool = (
        np.array([*special, *range(20)]).astype(kind)
        if kind.kind == "b"
        else np.array([*special, *(np.arange(20) * (1.25 if kind.kind == "f" else 1))], dtype=kind)
    )
    if kind.kind in "fi":
        pool = np.concatenate([pool, -pool])
    return rng.choice(pool, shape)


def order_of(x: Array, axis: int, descending: bool) -> Array:
    """The stable order by torch, which sorts no wide unsigned integers: those by numpy."""
    if x.dtype.kind == "u" and x.dtype.itemsize > 1:
        return np.argsort(~x if descending else x, axis, kind="stable")
    found: Array = torch.sort(
        torch.tensor(x), dim=axis, descending=descending, stable=True
    ).indices.numpy()
    return found


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_lengths(size: int, descending: bool, device: str) -> None:
    x = numbers((3, size), "float32")
    values, places = Tensor(x, device=device).sort(-1, descending)
    order = order_of(x, -1, descending)
    assert places.dtype is dtypes.int64
    np.testing.assert_array_equal(places.numpy(), order)
    found, wanted = values.numpy(), np.take_along_axis(x, order, -1)
    np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))  # -0.0 too


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, descending: bool, device: str) -> None:
    if dtype == "float64" and widest(device) != dtype:
        pytest.skip(f"{device} has no float64")
    x = numbers((40, 3), dtype)
    values, places = Tensor(x, device=device).sort(0, descending)
    values.realize(places)  # together; each alone is what the test of lengths computes
    order = order_of(x, 0, descending)
    np.testing.assert_array_equal(places.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, 0))


@pytest.mark.parametrize("size", [1000, 1 << 16])
def test_long_line(size: int) -> None:
    x = rng_for("long").integers(0, 1000, size)
    for dtype in ("int32", "float64"):
        order = Tensor(x.astype(dtype)).argsort()
        np.testing.assert_array_equal(order.numpy(), np.argsort(x, kind="stable"))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradient(dim: int, device: str) -> None:
    x = np.round(rng_for(dim).normal(size=(5, 4, 3)), 1)
    assert_gradients(
        device,
        lambda t: t.sort(dim, descending=True)[0],
        lambda t: t.sort(dim=dim, descending=True, stable=True)[0],
        [x],
    )
    distinct = rng_for("topk", dim).permutation(60).reshape(5, 4, 3) / 4
    for largest in (True, False):
        assert_gradients(
            device,
            lambda t: t.topk(2, dim, largest)[0],  # noqa: B023
            lambda t: t.topk(2, dim, largest)[0],  # noqa: B023
            [distinct],
        )


def test_topk_takes_the_first_of_equal_ones(device: str) -> None:
    x = Tensor([[1.0, 3.0, 3.0, float("nan"), 3.0]], device=device)
    values, places = x.topk(3)
    assert places.tolist() == [[3, 1, 2]]
    assert x.topk(2, largest=False)[1].tolist() == [[0, 1]]
    assert values.shape == (1, 3) and x.topk(0)[0].shape == (1, 0)


def test_one_number(device: str) -> None:
    x = Tensor(2.5, device=device)
    assert [t.tolist() for t in x.sort()] == [2.5, 0]
    assert [t.tolist() for t in x.topk(1)] == [2.5, 0]
    assert x.argsort().shape == ()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: x.sort(2), InvalidIndex, "out of range"),
        (lambda x: x.argsort(-3), InvalidIndex, "out of range"),
        (lambda x: x.topk(4), ShapeError, "there are 3"),
        (lambda x: x.topk(-1), ShapeError, "-1"),
        (lambda x: x[0, 0].topk(2), ShapeError, "there are 1"),
    ],
)
def test_bad_input(call: Callable[[Tensor], Any], error: type[GpuError], says: str) -> None:
    with pytest.raises(error, match=says):
        call(Tensor.ones(2, 3))
