"""Torch's names of keywords mean what they mean in torch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor
from gpu.core.errors import InvalidType
from gpu.tensor.synonyms import ALIASES, NUMPY_SYNONYMS, SYNONYMS
from tensor.reference import assert_same, torch

PAIRS = [(method, name) for method, names in SYNONYMS.items() for name in names]
X = np.array([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]], np.float32)
CLASSES = np.array([0, 2])
PROBABILITIES = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], np.float32)
F = torch.nn.functional

# For each name of torch, what is passed: to both, as a tensor of each if it is an array.
VALUES: dict[str, Any] = {
    "dim": 1, "other": np.float32([[2.0, 1.0, 2.0]]), "exponent": 3, "min": 2.0, "max": 4.0,
    "negative_slope": 0.5, "split_size": 2, "dimension": 1, "target": CLASSES, "unbiased": False,
}  # fmt: skip
# Methods whose operands, other arguments or names in torch are unlike the others'.
INTEGERS = {"bitwise_and", "bitwise_or", "bitwise_xor", "lshift", "rshift"}
TORCH_NAMES = {
    "mod": "remainder", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "max": "amax", "min": "amin",
}  # fmt: skip
SPECIAL: dict[tuple[str, str], tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    ("flip", "dims"): (lambda x: x.flip(dims=(0, 1)), lambda t: t.flip(dims=(0, 1))),
    ("permute", "dims"): (lambda x: x.permute(dims=(1, 0)), lambda t: t.permute(dims=(1, 0))),
    ("matmul", "other"): (lambda x: x.matmul(other=x.T), lambda t: t.matmul(other=t.T)),
    ("dot", "tensor"): (lambda x: x[0].dot(tensor=x[1]), lambda t: t[0].dot(tensor=t[1])),
    ("where", "input"): (
        lambda x: (x > 2).where(input=x, y=0.0), lambda t: torch.where(t > 2, t, 0.0)),
    ("where", "other"): (
        lambda x: (x > 2).where(input=x, other=0.0), lambda t: torch.where(t > 2, t, 0.0)),
    ("leaky_relu", "negative_slope"): (
        lambda x: (x - 3).leaky_relu(negative_slope=0.5),
        lambda t: F.leaky_relu(t - 3, negative_slope=0.5)),
    ("topk", "sorted"): (lambda x: x.topk(2, sorted=True)[0], lambda t: t.topk(2, sorted=True)[0]),
    ("unique", "sorted"): (lambda x: x.unique(sorted=True), lambda t: t.unique(sorted=True)),
    ("split", "split_size"): (
        lambda x: x.split(split_size=2, dim=1), lambda t: t.split(split_size=2, dim=1)),
    ("unfold", "dimension"): (
        lambda x: x.unfold(dimension=1, size=2, step=1),
        lambda t: t.unfold(dimension=1, size=2, step=1)),
    ("scatter", "value"): (
        lambda x: x.scatter(dim=1, index=Tensor([[0], [2]]), value=9.0),
        lambda t: t.scatter(dim=1, index=torch.tensor([[0], [2]]), value=9.0)),
    ("std_mean", "unbiased"): (
        lambda x: x.std_mean(unbiased=False)[0], lambda t: torch.std_mean(t, unbiased=False)[0]),
    ("var_mean", "unbiased"): (
        lambda x: x.var_mean(unbiased=False)[0], lambda t: torch.var_mean(t, unbiased=False)[0]),
    ("logspace", "end"): (
        lambda x: Tensor.logspace(0, end=2, steps=5), lambda t: torch.logspace(0, end=2, steps=5)),
    ("pad", "pad"): (lambda x: x.pad(pad=(1, 2)), lambda t: F.pad(t, pad=(1, 2))),
    ("einsum", "equation"): (
        lambda x: Tensor.einsum("ij->ji", x), lambda t: torch.einsum("ij->ji", t)),
    ("arange", "end"): (lambda x: Tensor.arange(1, end=4), lambda t: torch.arange(1, end=4)),
    ("linspace", "end"): (
        lambda x: Tensor.linspace(start=0, end=1, steps=3),
        lambda t: torch.linspace(start=0, end=1, steps=3)),
    ("expand", "size"): (lambda x: x.expand(size=(2, 2, 3)), lambda t: t.expand(size=(2, 2, 3))),
    ("view", "size"): (lambda x: x.view(size=(3, 2)), lambda t: t.view(size=(3, 2))),
    ("full", "size"): (
        lambda x: Tensor.full(size=(2,), fill_value=3.0),
        lambda t: torch.full(size=(2,), fill_value=3.0)),
    ("layernorm", "dim"): (lambda x: x.layernorm(dim=1), lambda t: F.layer_norm(t, (3,))),
    ("softmin", "dim"): (lambda x: x.softmin(dim=0), lambda t: F.softmin(t, dim=0)),
    ("binary_crossentropy", "target"): (
        lambda x: (x / 8).binary_crossentropy(target=Tensor(PROBABILITIES)),
        lambda t: F.binary_cross_entropy(t / 8, target=torch.tensor(PROBABILITIES))),
    ("binary_crossentropy_logits", "target"): (
        lambda x: x.binary_crossentropy_logits(target=Tensor(PROBABILITIES)),
        lambda t: F.binary_cross_entropy_with_logits(t, target=torch.tensor(PROBABILITIES))),
    ("cross_entropy", "target"): (
        lambda x: x.cross_entropy(target=Tensor(CLASSES)),
        lambda t: F.cross_entropy(t, target=torch.tensor(CLASSES))),
    ("sparse_categorical_crossentropy", "target"): (
        lambda x: x.sparse_categorical_crossentropy(target=Tensor(CLASSES)),
        lambda t: F.cross_entropy(t, target=torch.tensor(CLASSES))),
    ("nll_loss", "target"): (
        lambda x: x.nll_loss(target=Tensor(CLASSES)),
        lambda t: F.nll_loss(t, target=torch.tensor(CLASSES))),
}  # fmt: skip


def general(method: str, name: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """One keyword passed to methods of one name, ours and torch's."""
    kind = np.int32 if method in INTEGERS else np.float32
    value = VALUES[name]

    def call(method: str, tensor: Callable[[Any], Any]) -> Any:
        given = tensor(value.astype(kind)) if isinstance(value, np.ndarray) else value
        return getattr(tensor(X.astype(kind)), method)(**{name: given})

    def theirs(t: Any) -> Any:
        if method in ("std_mean", "var_mean"):
            return getattr(torch, method)(t, dim=1)
        return call(TORCH_NAMES.get(method, method), torch.tensor)

    return lambda x: call(method, Tensor), theirs


@pytest.mark.parametrize(("method", "name"), PAIRS)
def test_keyword(method: str, name: str) -> None:
    if SYNONYMS[method][name] == "*shape":
        assert getattr(Tensor, method)(size=(2, 3)).shape == (2, 3)
        return
    ours, theirs = SPECIAL.get((method, name)) or general(method, name)
    found, wanted = ours(Tensor(X)), theirs(torch.tensor(X))
    if isinstance(found, Tensor) and found.dtype.is_int:
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    elif method in ("cummax", "cummin"):
        assert_same(found[0], wanted[0])
    else:
        assert_same(found, wanted)


@pytest.mark.parametrize("method", SYNONYMS)
def test_names_here_are_parameters_and_torchs_are_not(method: str) -> None:
    parameters = inspect.signature(getattr(Tensor, method)).parameters
    for theirs, ours in SYNONYMS[method].items():
        assert ours.removeprefix("*") in parameters
        assert theirs not in parameters
    assert getattr(Tensor, method).__doc__


def test_both_names() -> None:
    with pytest.raises(InvalidType, match="sum got dim and axis"):
        Tensor(X).sum(dim=1, axis=0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="dims"):
        Tensor(X).sum(dims=1)  # type: ignore[call-arg]


def test_inherited_by_a_class_made_later() -> None:
    class Special(Tensor):
        __slots__ = ()

    assert math.isclose(Special(X).sum(dim=1).tolist()[0], 6)  # type: ignore[call-arg]
    assert isinstance(Special.zeros(size=(2,)), Special)


# What else the methods need that take a name of numpy's, and the value for it.
NEEDS = {
    "chunk": (2,), "split": (2,), "repeat_interleave": (2,), "take_along_dim": (CLASSES[None],),
}  # fmt: skip
NUMPY_VALUES = {"keepdims": True, "ddof": 0, "axis": 1}


@pytest.mark.parametrize(
    ("method", "name"), [(m, name) for m, names in NUMPY_SYNONYMS.items() for name in names]
)
def test_names_of_numpy(method: str, name: str) -> None:
    found, wanted = (
        getattr(Tensor(X), method)(*NEEDS.get(method, ()), **{key: NUMPY_VALUES[name]})
        for key in (name, NUMPY_SYNONYMS[method][name])
    )
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for one, other in pairs:
        assert one.shape == other.shape and one.tolist() == other.tolist()
    others = ("median",) if name == "ddof" else ("median", "std", "var")  # of other defaults
    if hasattr(np, method) and name != "axis" and method not in others:
        expected = getattr(np, method)(X, **{name: NUMPY_VALUES[name]})
        np.testing.assert_allclose(found.numpy(), expected, 1e-6)


# What takes other arguments than elements is compared by test_torch_names.py.
OTHERS = {"concat", "concatenate", "narrow_copy", "row_stack", "split_with_sizes", "trapz"}


@pytest.mark.parametrize("alias", [alias for alias in ALIASES if alias not in OTHERS])
def test_further_names_of_methods(alias: str) -> None:
    kind = np.int32 if alias.startswith("bitwise") else np.float32
    x = (X / (10 if kind is np.float32 else 1) + (1 if alias == "arccosh" else 0)).astype(kind)
    arguments = () if "(self)" in str(inspect.signature(getattr(Tensor, alias))) else (x * 0 + 2,)
    found = getattr(Tensor(x), alias)(*map(Tensor, arguments))
    assert_same(found, getattr(torch.tensor(x), alias)(*map(torch.tensor, arguments)))
