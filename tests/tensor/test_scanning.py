"""Running sums, products, extremes and logarithms of sums against torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, dtypes
from gpu.core.errors import InvalidIndex
from tensor.definitions import SCANS, by_definition
from tensor.reference import (
    Array,
    Tolerance,
    assert_forward,
    assert_gradients,
    assert_same,
    fitted,
    rng_for,
    torch,
    without_subnormals,
)

Pair = tuple[Callable[..., Any], Callable[..., Any]]


def scan(name: str, axis: int) -> Pair:
    return lambda x: getattr(x, name)(axis), lambda t: getattr(torch, name)(t, axis)


def value(name: str, axis: int) -> Pair:
    ours, theirs = scan(name, axis)
    if name in ("cummax", "cummin"):
        return lambda x: ours(x)[0], lambda t: theirs(t)[0]
    return ours, theirs


NAMES = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]
SHAPES = [((5,), 0), ((3, 4, 5), 1), ((4, 9), -1), ((2, 1), 1), ((0, 3), 1), ((3, 0), 1), ((), 0)]


def numbers(name: object, shape: tuple[int, ...]) -> Array:
    return np.round(rng_for(name, shape).normal(size=shape), 1)  # so that elements are equal


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_gradient(name: str, shape: tuple[int, ...], axis: int, device: str) -> None:
    assert_gradients(device, *value(name, axis), [numbers(name, shape)])


@pytest.mark.parametrize("name", NAMES)
def test_second_order(name: str, device: str) -> None:
    ours, theirs = value(name, -1)
    x = numbers(name, (2, 4))
    weight = fitted(device, numbers("weight", (2, 4)))

    def our_gradient(t: Any) -> Any:
        return ours(t * t).mul(Tensor(weight, device=device)).sum().gradient(t)[0]

    def their_gradient(t: Any) -> Any:
        total = (theirs(t * t) * torch.tensor(weight)).sum()
        return torch.autograd.grad(total, t, create_graph=True)[0]

    assert_gradients(device, our_gradient, their_gradient, [x])


@pytest.mark.parametrize("zeros", [(0,), (3,), (1, 3), (1, 2, 4)])
def test_products_with_zeros(zeros: tuple[int, ...], device: str) -> None:
    x = rng_for(zeros).normal(size=6)
    x[list(zeros)] = 0
    assert_gradients(device, *value("cumprod", 0), [x])
    assert_gradients(
        device,
        lambda t: t.cumprod(0).sum().gradient(t)[0],
        lambda t: torch.autograd.grad(t.cumprod(0).sum(), t, create_graph=True)[0],
        [x],
    )


@pytest.mark.parametrize("name", NAMES)
def test_special_values(name: str, device: str) -> None:
    lines = [
        [1, np.nan, 2, 3], [np.inf, 1, -np.inf, 2], [-np.inf, -np.inf, 1, -1],
        [-0.0, 0.0, 1e-40, 0], [1000, -1000, 1000.5, 0], [np.nan, 1, np.nan, 2],
    ]  # fmt: skip
    ours, theirs = scan(name, 1)
    x = without_subnormals(np.array(lines, np.float32), device)
    running = value(name, 1)[0](Tensor(x, device=device)).numpy()
    exact = by_definition(partial(SCANS[name], axis=1), x)
    np.testing.assert_allclose(running, exact, 1e-6, 1e-6)
    if name in ("cummax", "cummin"):
        found = ours(Tensor(x, device=device))
        assert found[1].dtype is dtypes.int64
        wanted = theirs(torch.tensor(x))[1]
        np.testing.assert_array_equal(found[1].numpy(), wanted.numpy())


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float16"])
def test_dtypes(name: str, dtype: str, device: str) -> None:
    x = rng_for(name, dtype).integers(0, 2 if dtype == "bool" else 4, (3, 5)).astype(dtype)
    found = value(name, 1)[0](Tensor(x, device=device))
    if name in ("cumsum", "cumprod"):
        assert found.dtype.name == (dtype if dtype == "float16" else "int64")
    wanted = value(name, 1)[1](torch.tensor(x))
    np.testing.assert_array_equal(found.numpy(), wanted.numpy().astype(found.dtype.np))


@pytest.mark.slow
def test_long_lines_keep_their_accuracy(device: str) -> None:
    x = fitted(device, rng_for("long").normal(size=(3, 300 if device == "PYTHON" else 3000)) * 30)
    close, less = (1e-12, 1e-9) if x.dtype == np.float64 else (1e-4, 1e-3)
    assert_forward(device, *scan("logcumsumexp", 1), [x], Tolerance(close, close))
    assert_gradients(device, *scan("cumprod", 1), [1 + x / 1e5], Tolerance(less, less))
    assert_same(Tensor(x).cummax(1)[0], torch.tensor(x).cummax(1)[0])


@pytest.mark.parametrize("rows", [33, 71, 188, 300])
def test_wide_rows_whose_number_leaves_a_rest(rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 36864), np.float32)
    wanted = np.cumsum(x[:, ::97], 0, dtype=np.float64)
    np.testing.assert_allclose(Tensor(x).cumsum(0).numpy()[:, ::97], wanted, 0, 1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_bad_axis(name: str) -> None:
    with pytest.raises(InvalidIndex, match="axis 2 is out of range"):
        getattr(Tensor.ones(2, 3), name)(2)
