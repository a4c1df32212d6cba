"""Reductions, matrix products and losses against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, dtypes
from gpu.core.errors import GpuError, InvalidIndex, InvalidValue, ShapeError
from tensor.definitions import REDUCTIONS as DEFINED
from tensor.definitions import by_definition
from tensor.reference import (
    assert_forward,
    assert_gradients,
    assert_same,
    rng_for,
    torch,
    uniform,
    widest,
)

F = torch.nn.functional
Pair = tuple[Callable[..., Any], Callable[..., Any]]


def over(name: str, **kwargs: Any) -> Pair:
    """A method reduced over `axis`, and torch's over `dim`."""
    named = {"axis": "dim"}

    def theirs(t: Any) -> Any:
        return getattr(torch, name)(t, **{named.get(k, k): v for k, v in kwargs.items()})

    return lambda x: getattr(x, name)(**kwargs), theirs


def extreme(name: str, axis: int) -> Pair:
    return lambda x: getattr(x, name)(axis), lambda t: getattr(t, name)(axis).values


REDUCTIONS: dict[str, Pair] = {
    "sum": over("sum"),
    "sum 1": over("sum", axis=1),
    "sum 0,-1": over("sum", axis=(0, -1), keepdim=True),
    "prod 1": over("prod", axis=1),
    "max": over("max"),
    "max -1": extreme("max", -1),
    "min 0": extreme("min", 0),
    "mean 2": over("mean", axis=2, keepdim=True),
    "mean": over("mean"),
    "var": over("var"),
    "var 1": over("var", axis=1, correction=0),
    "std -1": over("std", axis=-1, keepdim=True),
    "logsumexp 1": over("logsumexp", axis=1),
    "softmax 1": over("softmax", axis=1),
    "log_softmax 0": over("log_softmax", axis=0),
    "layernorm": (lambda x: x.layernorm(), lambda t: F.layer_norm(t, t.shape[-1:])),
    "layernorm 2": (lambda x: x.layernorm((-2, -1)), lambda t: F.layer_norm(t, t.shape[-2:])),
    "normalize": (lambda x: x.normalize(), F.normalize),
    "normalize 1": (lambda x: x.normalize(1, dim=0), lambda t: F.normalize(t, 1, dim=0)),
    "normalize 3": (lambda x: x.normalize(3.0), lambda t: F.normalize(t, 3.0)),
}
PRODUCTS = [
    ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((3, 4), (4, 2)), ((2, 3, 4), (4, 2)),
    ((2, 1, 3, 4), (5, 4, 2)), ((4,), (2, 4, 3)), ((1, 1), (1, 1)), ((0, 4), (4, 2)),
]  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradient(name: str, device: str) -> None:
    ours, theirs = REDUCTIONS[name]
    x = rng_for(name).normal(size=(3, 4, 5)).astype("float64" if device != "PYTHON" else "float32")
    assert_gradients(device, ours, theirs, [x])


@pytest.mark.parametrize("name", REDUCTIONS)
def test_views(name: str, device: str) -> None:
    ours, theirs = REDUCTIONS[name]
    x = rng_for(name).normal(size=(4, 8, 3))
    assert_forward(
        device,
        lambda t: ours(t.permute(2, 0, 1)[:, :, ::-2]),
        lambda t: theirs(t.permute(2, 0, 1).flip(2)[:, :, ::2]),
        [x],
    )


@pytest.mark.parametrize("name", REDUCTIONS)
def test_special_values(name: str, device: str) -> None:
    lines = [[1.0, np.nan], [np.inf, 1.0], [-np.inf, -1.0], [np.inf, -np.inf], [-0.0, 1e-40]]
    x = np.array(lines, np.float32).reshape(5, 1, 2)
    found = REDUCTIONS[name][0](Tensor(x, device=device)).numpy()
    np.testing.assert_allclose(found, by_definition(DEFINED[name], x), 1e-5, 1e-6)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "any", "all", "logsumexp", "softmax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nothing_to_reduce(name: str, axis: int, device: str) -> None:
    assert_forward(device, *over(name, axis=axis), [np.zeros((0, 3), np.float32)])


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "logsumexp", "softmax", "argmax"])
def test_reduction_of_one_number(name: str, device: str) -> None:
    kwargs = {"axis": -1} if name in ("logsumexp", "softmax") else {}
    assert_forward(device, *over(name, **kwargs), [np.array(2.5)])


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64"])
def test_integers(name: str, dtype: str, device: str) -> None:
    x = rng_for(name, dtype).integers(0, 2 if dtype == "bool" else 60, (3, 4)).astype(dtype)
    found = getattr(Tensor(x, device=device), name)(1)
    wanted = getattr(np, name)(x.astype(bool) if name in ("any", "all") else x, axis=1)
    np.testing.assert_array_equal(found.numpy(), wanted.astype(found.dtype.np))
    if name in ("sum", "prod"):
        assert found.dtype is dtypes.int64
    assert Tensor(x).sum(dtype="float64").dtype is dtypes.float64


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_positions(name: str, axis: int | None, device: str) -> None:
    x = rng_for(name, axis).integers(0, 4, (4, 6)).astype(np.float32)
    x[1, 2], x[3, 3], x[3, 4] = np.nan, np.inf, -np.inf
    assert_forward(device, *over(name, axis=axis), [x])
    assert_forward(device, *over(name, axis=axis, keepdim=True), [x])
    assert getattr(Tensor(x), name)(axis).dtype is dtypes.int64


def test_means_and_deviations_together(device: str) -> None:
    x = rng_for("together").normal(size=(4, 6))
    for name in ("var_mean", "std_mean"):
        assert_forward(device, *over(name, axis=1), [x])
    assert math.isnan(Tensor([1.0]).var().item())


@pytest.mark.parametrize(("a", "b"), PRODUCTS)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], device: str) -> None:
    rng = rng_for(a, b)
    x, y = (uniform(rng, shape, (-2, 2), "float64") for shape in (a, b))
    assert_gradients(device, lambda p, q: p @ q, lambda p, q: p @ q, [x, y])


def test_matmul_over_nothing_is_zero(device: str) -> None:
    product = Tensor.ones(3, 0, device=device) @ Tensor.ones(0, 2, device=device)
    assert product.tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "int8"])
def test_matmul_dtypes(dtype: str, device: str) -> None:
    rng = rng_for(dtype)
    x, y = (rng.integers(-9, 9, shape).astype(dtype) for shape in ((3, 7), (7, 2)))
    assert_forward(device, lambda p, q: p.dot(q), lambda p, q: p @ q, [x, y])
    wide = Tensor(x, device=device).matmul(Tensor(y, device=device), dtype="float32")
    assert wide.dtype is dtypes.float32
    np.testing.assert_array_equal(wide.numpy(), x.astype(np.float32) @ y.astype(np.float32))


def test_half_products_are_summed_in_float32() -> None:
    x = Tensor.full((1, 4096), 1.0, dtype="float16") @ Tensor.full((4096, 1), 1.0, dtype="float16")
    assert x.item() == 4096


def test_linear(device: str) -> None:
    rng = rng_for("linear")
    x, w, b = (rng.normal(size=shape) for shape in ((3, 4), (4, 2), (2,)))
    assert_gradients(
        device, lambda x, w, b: x.linear(w, b), lambda x, w, b: F.linear(x, w.T, b), [x, w, b]
    )
    assert Tensor([1.0, 2.0]).linear(Tensor([3.0, 4.0]), dtype=widest(device)).tolist() == [3, 8]


LOSSES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[float, float]]] = {
    "bce": (lambda x, y: x.binary_crossentropy(y), F.binary_cross_entropy, (0.05, 0.95)),
    "bce logits": (
        lambda x, y: x.binary_crossentropy_logits(y, "sum", pos_weight=Tensor([1, 2, 3], x.device)),
        lambda x, y: F.binary_cross_entropy_with_logits(
            x, y, reduction="sum", pos_weight=torch.tensor([1, 2, 3])
        ),
        (-4, 4),
    ),
    "cross entropy": (
        lambda x, y: x.cross_entropy(y, label_smoothing=0.1),
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        (-4, 4),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, device: str) -> None:
    ours, theirs, domain = LOSSES[name]
    rng = rng_for(name)
    x = uniform(rng, (4, 3), domain, widest(device))
    y = uniform(rng, (4, 3), (0, 1), widest(device))
    assert_gradients(
        device,
        lambda t: ours(t, Tensor(y, device=device)),
        lambda t: theirs(t, torch.tensor(y)),
        [x],
    )
    tall = np.array([[0.0, 1.0, 0.0]], widest(device))
    if name == "bce":
        assert_same(ours(Tensor(tall), Tensor(1 - tall)), torch.tensor(100.0))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_probabilities_of_zero_and_one(reduction: str, device: str) -> None:
    x = np.array([0, 0, 0, 1, 1, 1, 1e-13, 0.5], np.float32)
    y = np.array([0, 1, 0.3, 0, 1, 0.3, 1, 1], np.float32)
    assert_gradients(
        device,
        lambda t: t.binary_crossentropy(Tensor(y, device=device), reduction),
        lambda t: F.binary_cross_entropy(t, torch.tensor(y), reduction=reduction),
        [x],
    )


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: x.sum(2), InvalidIndex, "axis 2 is out of range"),
        (lambda x: x.sum((0, -2)), InvalidValue, "twice"),
        (lambda x: x[0, 0].sum((0, -1)), InvalidValue, "twice"),
        (lambda x: x[:0].max(), ShapeError, "has no element"),
        (lambda x: x[:0].argmin(0), ShapeError, "has no element"),
        (lambda x: x.softmax(5), InvalidIndex, "axis 5"),
        (lambda x: x @ x, ShapeError, r"\[2, 3\] and \[2, 3\]"),
        (lambda x: x @ x[0, 0], ShapeError, "0-d"),
        (lambda x: x.normalize(0), InvalidValue, "p must be positive"),
        (lambda x: x.binary_crossentropy(x[0]), ShapeError, "targets have shape"),
        (lambda x: x.binary_crossentropy(x, "average"), InvalidValue, "'average'"),
        (lambda x: x.cross_entropy(x, label_smoothing=2), InvalidValue, "label_smoothing"),
    ],
)
def test_bad_input(call: Callable[[Tensor], Any], error: type[GpuError], says: str) -> None:
    with pytest.raises(error, match=says):
        call(Tensor.ones(2, 3))


def test_the_gradient_of_no_deviation_is_zero(device: str) -> None:
    x = np.array([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]], np.float32)
    assert_gradients(device, lambda t: t.std(1), lambda t: t.std(1), [x])


def test_one_value_that_is_read_along_an_axis() -> None:
    x = uniform(rng_for("one value"), (31,), (-2, 2), "float32")
    value = Tensor(x).logsumexp(0, keepdim=True)
    wanted = torch.tensor(x).logsumexp(0).item()
    np.testing.assert_allclose(value.cat(value).numpy(), [wanted] * 2, rtol=1e-5)
