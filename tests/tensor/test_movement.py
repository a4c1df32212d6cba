"""Views, joins, indexing and creation against torch and numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import Tensor, dtypes
from gpu.core.errors import (
    DeviceMismatch,
    DTypeError,
    GpuError,
    InvalidIndex,
    InvalidType,
    InvalidValue,
    ParseError,
    ShapeError,
)
from tensor.reference import assert_forward, assert_gradients, rng_for, torch

F = torch.nn.functional
Pair = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def same(call: Callable[[Any], Any]) -> Pair:
    """One expression that means the same to both."""
    return call, call


# Of a (2, 3, 4) tensor.
MOVES: dict[str, Pair] = {
    "reshape": same(lambda x: x.reshape(4, -1)),
    "view": same(lambda x: x.view((6, 4))),
    "flatten": same(lambda x: x.flatten()),
    "flatten 1": same(lambda x: x.flatten(1)),
    "unflatten": same(lambda x: x.unflatten(2, (2, -1))),
    "unsqueeze": same(lambda x: x.unsqueeze(-2)),
    "squeeze": same(lambda x: x[:, :1].squeeze()),
    "squeeze 1": same(lambda x: x[:1, :1].squeeze(1)),
    "squeeze wide": same(lambda x: x.squeeze((0, 1))),
    "permute": same(lambda x: x.permute(2, 0, -2)),
    "transpose": same(lambda x: x.transpose(0, -1)),
    "transpose 0-d": same(lambda x: x[1, 2, 3].transpose(0, -1)),
    "T": (lambda x: x.T, lambda t: t.permute(2, 1, 0)),
    "expand": same(lambda x: x[:, :1].expand(5, 2, 3, -1)),
    "repeat": (lambda x: x.repeat(2, 1, 3), lambda t: t.repeat(2, 1, 3)),
    "repeat front": (lambda x: x.repeat((2, 1, 2, 1)), lambda t: t.repeat(2, 1, 2, 1)),
    "repeat_interleave": same(lambda x: x.repeat_interleave(3)),
    "repeat_interleave 1": same(lambda x: x.repeat_interleave(2, 1)),
    "flip": (lambda x: x.flip(0, -1), lambda t: t.flip(0, -1)),
    "shrink": (lambda x: x.shrink(((0, 1), None, (1, 3))), lambda t: t[:1, :, 1:3]),
    "shrink_to": (lambda x: x.shrink_to(1, None, 3), lambda t: t[:1, :, :3]),
    "pad flat": (lambda x: x.pad((1, 2)), lambda t: F.pad(t, (1, 2))),
    "pad flat 2": (lambda x: x.pad((1, 2, -1, 3)), lambda t: F.pad(t, (1, 2, -1, 3))),
    "pad pairs": (lambda x: x.pad(((1, 0), None, (0, 2))), lambda t: F.pad(t, (0, 2, 0, 0, 1, 0))),
    "pad value": (lambda x: x.pad((1, 1), value=7), lambda t: F.pad(t, (1, 1), value=7)),
    "pad reflect": (lambda x: x.pad((2, 1), "reflect"), lambda t: F.pad(t, (2, 1), "reflect")),
    "pad edge": (lambda x: x.pad((2, 1), "replicate"), lambda t: F.pad(t, (2, 1), "replicate")),
    "pad ring": (lambda x: x.pad((2, 1), "circular"), lambda t: F.pad(t, (2, 1), "circular")),
    "pad_to": (lambda x: x.pad_to(None, 5, 4), lambda t: F.pad(t, (0, 0, 0, 2))),
    "split": same(lambda x: x.split(2, 1)[1]),
    "split sizes": same(lambda x: x.split([1, 3], 2)[1]),
    "chunk": same(lambda x: x.chunk(3, 2)[1]),
    "roll": same(lambda x: x.roll(5)),
    "roll 2": same(lambda x: x.roll((1, -2), (0, 2))),
    "diagonal": same(lambda x: x.diagonal(1, 1, 2)),
    "diagonal -1": same(lambda x: x.diagonal(-1, 0, 2)),
    "diagonal out": same(lambda x: x.diagonal(9)),
    "diag": same(lambda x: x[0, 0].diag()),
    "diag 2": same(lambda x: x[0].diag()),
    "tril": same(lambda x: x.tril()),
    "triu": same(lambda x: x.triu(1)),
    "unfold": same(lambda x: x.unfold(2, 2, 1)),
    "unfold 1": same(lambda x: x.unfold(1, 1, 2)),
    "unfold 0-d": same(lambda x: x[0, 0, 0].unfold(-1, 1, 2)),
    "unfold 0-d to none": same(lambda x: x[0, 0, 0].unfold(0, 0, 1)),
    "unfold whole": same(lambda x: x.unfold(2, 4, 3)),
    "cat": (lambda x: x.cat(x[:, :1], dim=1), lambda t: torch.cat([t, t[:, :1]], 1)),
    "cat 3": (lambda x: x.cat(x, x[:1]), lambda t: torch.cat([t, t, t[:1]])),
    "stack": (lambda x: x.stack(x * 2, dim=-1), lambda t: torch.stack([t, t * 2], -1)),
    "meshgrid": (
        lambda x: x[0, 0].meshgrid(x[0, :, 0])[1],
        lambda t: torch.meshgrid(t[0, 0], t[0, :, 0], indexing="ij")[1],
    ),
    "meshgrid xy": (
        lambda x: x[0, 0].meshgrid(x[0, :, 0], indexing="xy")[0],
        lambda t: torch.meshgrid(t[0, 0], t[0, :, 0], indexing="xy")[0],
    ),
    "index": same(lambda x: x[1, ..., 2]),
    "index none": same(lambda x: x[:, None, -1, 1:3]),
    "index step": (lambda x: x[::-1, 2::-2], lambda t: t.flip(0)[:, [2, 0]]),
    "rearrange": (
        lambda x: x.rearrange("b (h w) c -> (c b) w 1 h", h=1),
        lambda t: t.reshape(2, 1, 3, 4).permute(3, 0, 2, 1).reshape(8, 3, 1, 1),
    ),
    "rearrange ...": (
        lambda x: x.rearrange("b ... (p q) -> p b q (...)", q=2),
        lambda t: t.reshape(2, 3, 2, 2).permute(2, 0, 3, 1),
    ),
}
EINSUMS = {
    "ij,jk->ik": ((3, 4), (4, 2)),
    "ij,jk": ((3, 4), (4, 2)),
    "bij,bkj->bik": ((2, 3, 4), (2, 5, 4)),
    "...ij,...jk->...ik": ((2, 3, 4), (4, 2)),
    "ii->i": ((3, 3),),
    "ii": ((3, 3),),
    "ij->ji": ((2, 3),),
    "i,j->ij": ((2,), (3,)),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)),
    "ij->": ((2, 3),),
    "i,i,i->": ((3,), (3,), (3,)),
    "ij,kj->k": ((2, 3), (4, 3)),
}


@pytest.mark.parametrize("name", MOVES)
def test_forward_and_gradient(name: str, device: str) -> None:
    assert_gradients(device, *MOVES[name], [rng_for(name).normal(size=(2, 3, 4))])


@pytest.mark.parametrize("name", MOVES)
def test_keeps_every_value(name: str, device: str) -> None:
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40, 1.5], np.float32)
    assert_forward(device, *MOVES[name], [np.resize(special, (2, 3, 4))])


@pytest.mark.parametrize("name", [name for name in MOVES if name not in ("stack", "pad value")])
def test_bools(name: str, device: str) -> None:
    x = rng_for(name).integers(0, 2, (2, 3, 4)).astype(bool)
    if name in ("pad reflect", "pad edge"):  # torch has none for bools
        ours, theirs = MOVES[name]
        assert_forward(device, ours, lambda t: theirs(t.float()).bool(), [x])
    else:
        assert_forward(device, *MOVES[name], [x])


@pytest.mark.parametrize("formula", EINSUMS)
def test_einsum(formula: str, device: str) -> None:
    rng = rng_for(formula)
    inputs = [rng.normal(size=shape) for shape in EINSUMS[formula]]
    assert_gradients(
        device,
        lambda *xs: Tensor.einsum(formula, *xs),
        lambda *ts: torch.einsum(formula, *ts),
        inputs,
    )


def test_einsum_dtype_and_list() -> None:
    x = Tensor.ones(2, 3, dtype="float16")
    found = Tensor.einsum("ij,kj->ik", [x, x], dtype="float32")
    assert found.dtype is dtypes.float32 and found.tolist() == [[3, 3], [3, 3]]


INDEX = st.one_of(
    st.integers(-3, 2),
    st.slices(4),
    st.just(None),
    st.just(Ellipsis),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(INDEX, max_size=4))
def test_basic_indexing_is_numpys(items: list[Any]) -> None:
    x = np.arange(60).reshape(3, 4, 5)
    index = tuple(items)
    try:
        wanted = x[index]
    except IndexError:
        with pytest.raises(InvalidIndex):
            Tensor(x, device="PYTHON")[index]
        return
    np.testing.assert_array_equal(Tensor(x, device="PYTHON")[index].numpy(), wanted)


def test_iteration() -> None:
    assert [row.tolist() for row in Tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]


def test_cat_promotes_and_skips_what_is_empty() -> None:
    joined = Tensor([1, 2]).cat(Tensor([0.5]), Tensor([]))
    assert joined.dtype is dtypes.float32 and joined.tolist() == [1, 2, 0.5]
    assert Tensor([]).cat(Tensor([])).shape == (0,)


CREATED: dict[str, Pair] = {
    "zeros": same(lambda m: m.zeros(2, 3)),
    "ones": same(lambda m: m.ones((2, 3))),
    "full": same(lambda m: m.full((2,), 7.5)),
    "arange": same(lambda m: m.arange(5)),
    "arange 2": same(lambda m: m.arange(2, 10, 3)),
    "arange down": same(lambda m: m.arange(5, 0, -2)),
    "arange float": same(lambda m: m.arange(0.5, 3, 0.25)),
    "arange none": same(lambda m: m.arange(3, 3)),
    "linspace": same(lambda m: m.linspace(-1, 1, 7)),
    "linspace 1": same(lambda m: m.linspace(2, 5, 1)),
    "linspace 0": same(lambda m: m.linspace(2, 5, 0)),
    "eye": same(lambda m: m.eye(3)),
    "eye wide": same(lambda m: m.eye(2, 4)),
}


@pytest.mark.parametrize("name", CREATED)
def test_creation(name: str) -> None:
    ours, theirs = CREATED[name]
    found, wanted = ours(Tensor), theirs(torch).numpy()
    assert found.dtype is (dtypes.int32 if wanted.dtype.kind == "i" else dtypes.float32)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-7)


def test_creation_like_another() -> None:
    x = Tensor([[1, 2]], device="PYTHON", dtype="int8")
    for made, value in (
        (x.zeros_like(), 0), (x.ones_like(), 1), (x.full_like(3), 3), (x.empty_like(), 0),
    ):  # fmt: skip
        assert (made.tolist(), made.dtype, made.device) == ([[value] * 2], dtypes.int8, "PYTHON")
    assert x.ones_like(dtype="float64").dtype is dtypes.float64
    assert x.clone("CPU").device == "CPU" and x.clone().tolist() == [[1, 2]]
    assert Tensor.zeros(2, requires_grad=True).requires_grad
    assert Tensor.arange(3, 2**31 + 8, 2**31).dtype is dtypes.int64


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: x + Tensor.ones(4), ShapeError, r"\[2, 3\] and \[4\] do not broadcast"),
        (lambda x: x + Tensor.ones(3, device="PYTHON"), DeviceMismatch, "on CPU.*on PYTHON"),
        (lambda x: (x > 0).where(1, x.to("PYTHON")), DeviceMismatch, "PYTHON"),
        (lambda x: x + "one", InvalidType, "str 'one'"),
        (lambda x: x & 1, DTypeError, "float32"),
        (lambda x: (x > 0) - True, DTypeError, "sub is not defined for bool"),
        (lambda x: x.div(2, rounding_mode="up"), InvalidValue, "'up'"),
        (lambda x: x.clamp(), InvalidValue, "min_"),
        (lambda x: x.gelu("erf"), InvalidValue, "'erf'"),
        (bool, ShapeError, "ambiguous"),
        (lambda x: [1][x[0, 0]], InvalidType, "float32"),
        (lambda x: x.reshape(4, -1), ShapeError, r"\[4, -1\]"),
        (lambda x: x.reshape(7), ShapeError, "6 elements"),
        (lambda x: x.reshape(-1, -1), ShapeError, "only one size"),
        (lambda x: x.reshape(2.5), InvalidType, "float 2.5"),
        (lambda x: x.expand(2, 4), ShapeError, "only axes of size 1"),
        (lambda x: x.expand(3), ShapeError, "does not expand"),
        (lambda x: x.permute(0, 0), ShapeError, "each of 2 axes once"),
        (lambda x: x.permute(0, 2), InvalidIndex, "2 is out of range"),
        (lambda x: x.transpose(0, 5), InvalidIndex, "dim1 5"),
        (lambda x: x.unsqueeze(4), InvalidIndex, "dim 4"),
        (lambda x: x.flatten(1, 0), InvalidIndex, "behind"),
        (lambda x: x.repeat(2), ShapeError, "each of 2 axes"),
        (lambda x: x.shrink(((0, 3), None)), InvalidIndex, "0..3 of axis 0"),
        (lambda x: x.pad((1,)), ShapeError, "flat padding"),
        (lambda x: x.pad(((1, 2),)), ShapeError, "each of 2 axes"),
        (lambda x: x.pad((3, 0), "reflect"), ShapeError, "does not fit axis 1"),
        (lambda x: x.pad((1, 1), "mirror"), InvalidValue, "'mirror'"),
        (lambda x: x.int().pad((1, 1), value=0.5), InvalidValue, "0.5"),
        (lambda x: x.pad_to(1, 3), ShapeError, "smaller"),
        (lambda x: x.cat(x[0]), ShapeError, r"\[2, 3\] and \[3\]"),
        (lambda x: x.cat(x, dim=2), InvalidIndex, "dim 2"),
        (lambda x: x.stack(x[:1]), ShapeError, "one shape"),
        (lambda x: x.split([1, 2]), ShapeError, "add up to 2"),
        (lambda x: x.split(0), InvalidValue, "at least 1"),
        (lambda x: x.chunk(0), InvalidValue, "at least 1"),
        (lambda x: x.roll((1, 2), 0), InvalidValue, "one shift"),
        (lambda x: x.diagonal(0, 1, 1), InvalidValue, "two axes"),
        (lambda x: x.unfold(1, 4, 1), InvalidValue, "size 4"),
        (lambda x: x[0, 0].unfold(0, 2, 1), InvalidValue, "size 2"),
        (lambda x: x[0, 0].unfold(1, 1, 1), InvalidIndex, "dim 1"),
        (lambda x: x[0].tril(), ShapeError, "two axes"),
        (lambda x: x.meshgrid(x), ShapeError, "1-d"),
        (lambda x: x[2], InvalidIndex, r"index 2 .*axis 0 of size 2"),
        (lambda x: x[0, 0, 0], InvalidIndex, "3 indices"),
        (lambda x: x[..., ...], InvalidIndex, "one ellipsis"),
        (lambda x: x[::0], InvalidValue, "step"),
        (lambda x: x["a"], InvalidType, "'a'"),
        (lambda x: x[1.0], InvalidType, "1.0"),
        (lambda x: x[0.5:], InvalidType, "ints"),
        (lambda x: list(x[0, 0]), InvalidType, "0-d"),
        (lambda x: x.rearrange("a b"), ParseError, "->"),
        (lambda x: x.rearrange("a b -> a"), ParseError, "each axis"),
        (lambda x: x.rearrange("a (b c) -> a b c"), ParseError, "one of b, c"),
        (lambda x: x.rearrange("a (b c) -> a b c", b=2), ShapeError, "size 3"),
        (lambda x: x.rearrange("a (b -> a b"), ParseError, "parentheses"),
        (lambda x: x.rearrange("a b c -> a b c"), ShapeError, "does not fit"),
        (lambda x: Tensor.einsum("ij,jk", x), ParseError, "2 operands"),
        (lambda x: Tensor.einsum("ijk->i", x), ShapeError, "does not fit 2"),
        (lambda x: Tensor.einsum("ij->k", x), ParseError, "result"),
        (lambda x: Tensor.einsum("i1->i", x), ParseError, "letters"),
        (lambda x: Tensor.einsum("ii->i", x), ShapeError, "differ"),
        (lambda x: Tensor.einsum("ij,ij->", x, x.T), ShapeError, "do not broadcast"),
        (lambda x: Tensor.zeros(-1), ShapeError, "negative"),
        (lambda x: Tensor.arange(0, 5, 0), InvalidValue, "step"),
        (lambda x: Tensor.linspace(0, 1, -1), InvalidValue, "steps"),
        (lambda x: Tensor.full((2,), "a"), InvalidType, "'a'"),
        (lambda x: Tensor.zeros(2, dtype="float31"), DTypeError, "float31"),
        (lambda x: x.to("CUPS"), InvalidValue, "CUPS"),
    ],
)  # fmt: skip
def test_bad_input(call: Callable[[Tensor], Any], error: type[GpuError], says: str) -> None:
    with pytest.raises(error, match=says):
        call(Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
