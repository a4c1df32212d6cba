"""Sort, argsort and topk against torch's stable sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, dtypes, jit
from gpu.core.errors import GpuError, InvalidIndex, ShapeError
from gpu.tensor import sorting
from tensor.reference import (
    Array,
    assert_gradients,
    rng_for,
    torch,
    widest,
    without_subnormals,
)

# Around the length up to which elements are counted.
SIZES = [0, 1, 2, 3, 31, 256, 257]
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
NARROW = {"bfloat16": torch.bfloat16, "fp8e4m3": torch.float8_e4m3fn, "fp8e5m2": torch.float8_e5m2}


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
        torch.tensor(x.copy()), dim=axis, descending=descending, stable=True
    ).indices.numpy()
    return found


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_lengths(size: int, descending: bool, device: str) -> None:
    x = without_subnormals(numbers((3, size), "float32"), device)
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
    x = without_subnormals(numbers((40, 3), dtype), device)
    values, places = Tensor(x, device=device).sort(0, descending)
    values.realize(places)  # together; each alone is what the test of lengths computes
    order = order_of(x, 0, descending)
    np.testing.assert_array_equal(places.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, 0))


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_floats(dtype: str, device: str) -> None:
    """All the numbers that 8 bits hold, or the first 8 of 16, NaN and infinities among them."""
    kind = NARROW[dtype]
    bits = rng_for(dtype).permutation(512) % 256
    held = np.array(bits << 8, np.uint16) if kind.itemsize == 2 else bits.astype(np.uint8)
    numbers = torch.tensor(held.view(f"int{8 * kind.itemsize}")).view(kind)
    x = Tensor(numbers.float().numpy(), device=device).cast(getattr(dtypes, dtype))
    for descending in (False, True):
        wanted = torch.sort(numbers.float(), descending=descending, stable=True).indices
        np.testing.assert_array_equal(x.argsort(0, descending).numpy(), wanted.numpy())


@pytest.mark.parametrize("kind", ["int16", "float32", "int64"])
def test_lines_in_several_pieces(kind: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "PIECE", 64)
    x = without_subnormals(numbers((2, 259), kind), device)
    for descending in (False, True):
        order = Tensor(x, device=device).argsort(1, descending)
        np.testing.assert_array_equal(order.numpy(), order_of(x, 1, descending))


@pytest.mark.parametrize("order", ["sorted", "reversed", "equal", "drawn"])
def test_orders_that_are_there(order: str) -> None:
    x = np.sort(rng_for(order).normal(size=5000)).astype(np.float32)
    x = {"sorted": x, "reversed": x[::-1], "equal": x * 0}.get(order, rng_for("mix").permutation(x))
    for descending in (False, True):
        values, places = Tensor(x).sort(0, descending)
        wanted = order_of(x, 0, descending)
        np.testing.assert_array_equal(places.numpy(), wanted)
        np.testing.assert_array_equal(values.numpy(), x[wanted])


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


@pytest.mark.parametrize(
    ("size", "count", "dtype", "largest"),
    [(270, 3, "float32", True), (509, 17, "int64", False), (600, 600, "uint8", True)],
)
def test_first_of_longer_lines(
    size: int, count: int, dtype: str, largest: bool, device: str
) -> None:
    x = without_subnormals(numbers((2, size), dtype), device)
    values, places = Tensor(x, device=device).topk(count, 1, largest)
    wanted = order_of(x, 1, largest)[:, :count]
    np.testing.assert_array_equal(places.numpy(), wanted)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, wanted, 1))


def test_more_pieces_are_chosen_than_can_be_counted() -> None:
    x = numbers((2, 6000), "float32")
    values, places = Tensor(x).topk(300)
    wanted = order_of(x, 1, descending=True)[:, :300]
    np.testing.assert_array_equal(places.numpy(), wanted)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, wanted, 1))


@pytest.mark.parametrize("seed", range(12))
def test_drawn_shapes(seed: int) -> None:
    """Any axis, length, dtype, number of elements wanted, and number of equal ones."""
    rng = rng_for("drawn", seed)
    shape = [int(n) for n in rng.integers(1, 6, int(rng.integers(1, 4)))]
    axis = int(rng.integers(len(shape)))
    shape[axis] = int(2 ** rng.uniform(0, 13))
    dtype = str(rng.choice(DTYPES))
    x = (rng.normal(size=shape) * 10 ** rng.uniform(-1, 5)).astype(dtype)
    count, descending = int(rng.integers(shape[axis] + 1)), bool(rng.integers(2))
    if rng.random() < 0.5:
        count = min(count, 5)
    order = order_of(x, axis, descending)
    np.testing.assert_array_equal(Tensor(x).argsort(axis, descending).numpy(), order)
    found = jit(lambda t: t.topk(count, axis, descending))(Tensor(x))
    first = np.take(order, range(count), axis)
    np.testing.assert_array_equal(found[1].numpy(), first)
    np.testing.assert_array_equal(found[0].numpy(), np.take_along_axis(x, first, axis))


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
