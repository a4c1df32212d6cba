"""Draws in the shape of a tensor: their distribution by its quantiles, dtypes, refusals, places."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, jit
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, ShapeError

COUNT = 20_000
# Each with the distribution function that it should have.
DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "exponential": (lambda x: x.exponential_(2.5), lambda v: 1 - np.exp(-2.5 * v)),
    "cauchy": (lambda x: x.cauchy_(1, 2), lambda v: 0.5 + np.arctan((v - 1) / 2) / math.pi),
    "uniform": (lambda x: x.uniform_(-1, 3), lambda v: (v + 1) / 4),
    "normal": (
        lambda x: x.normal_(2, 0.5),
        np.vectorize(lambda v: 0.5 * (1 + math.erf((v - 2) / 0.5 / math.sqrt(2)))),
    ),
    "log_normal": (
        lambda x: x.log_normal_(0.5, 0.3),
        np.vectorize(lambda v: 0.5 * (1 + math.erf((math.log(v) - 0.5) / 0.3 / math.sqrt(2)))),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", DRAWS)
def test_floats_have_their_distribution(name: str, dtype: str) -> None:
    """By Kolmogorov and Smirnov: one draw in 1,500 exceeds 2 / sqrt(n), and seeds are fixed."""
    draw, share_below = DRAWS[name]
    x = Tensor.zeros(COUNT, dtype=dtype)
    result = draw(x)
    assert result is x and x.dtype.name == dtype
    found = np.sort(x.numpy().astype(np.float64))
    expected = np.arange(COUNT) / COUNT
    assert np.abs(share_below(found) - expected).max() < 2 / math.sqrt(COUNT)
    if name == "exponential":
        assert found[0] > 0


@pytest.mark.parametrize("dtype", ["int32", "float32", "uint8"])
def test_geometric(dtype: str) -> None:
    x = Tensor.zeros(COUNT, dtype=dtype).geometric_(0.3).numpy().astype(int)
    for value in range(1, 6):
        assert abs((x == value).mean() - 0.3 * 0.7 ** (value - 1)) < 2 / math.sqrt(COUNT)
    assert x.min() == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_bernoulli_of_each_elements_probability(dtype: str) -> None:
    chance = Tensor(np.repeat([0.0, 0.25, 0.9, 1.0], COUNT), dtype=dtype)
    drawn = chance.bernoulli()
    assert drawn.dtype.name == dtype
    shares = drawn.cast("float32").numpy().reshape(4, COUNT).mean(1)
    assert shares[0] == 0 and shares[3] == 1
    assert np.abs(shares - [0, 0.25, 0.9, 1]).max() < 2 / math.sqrt(COUNT)


def test_bernoulli_in_place_and_of_other_probabilities() -> None:
    x = Tensor.ones(2, COUNT, dtype="int8")
    assert x.bernoulli_() is x and abs(x.cast("float32").mean().item() - 0.5) < 0.02
    rows = x.bernoulli(Tensor([[0.0], [1.0]])).numpy()
    assert rows.dtype == np.int8 and rows.sum(1).tolist() == [0, COUNT]
    w = Tensor([0.5, 0.5], requires_grad=True)
    (slope,) = (w * w.bernoulli() * 0 + w.bernoulli()).sum().gradient(w)
    assert slope.tolist() == [0, 0]


def test_integers_of_bounds_and_of_all_that_a_dtype_holds() -> None:
    x = Tensor.zeros(COUNT, dtype="float32")
    drawn = x.randint_like(3, 7)
    assert drawn.dtype.name == "float32" and sorted(set(drawn.tolist())) == [3, 4, 5, 6]
    assert set(x.randint_like(2, dtype="int16").tolist()) == {0, 1}
    assert set(Tensor.zeros(COUNT, dtype="uint8").random_().tolist()) == set(range(256))
    assert set(x.random_(5).tolist()) == set(range(5))
    whole = x.random_().numpy()
    assert (whole == np.floor(whole)).all() and 2**23 < whole.max() <= 2**24 and whole.min() >= 0
    wide = Tensor.zeros(COUNT, dtype="int64").random_().numpy()
    assert wide.min() >= 0 and wide.max() > 2**62


def test_each_replay_draws_anew() -> None:
    @jit
    def draw(x: Tensor) -> Tensor:
        return x.bernoulli(0.5) + x.exponential_()

    x = Tensor.zeros(64)
    seen = [tuple(draw(x).tolist()) for _ in range(4)]
    assert len(set(seen)) == 4


@pytest.mark.parametrize(
    ("call", "error", "about"),
    [
        (lambda: Tensor([1, 0]).bernoulli(), DTypeError, "int32; give p="),
        (lambda: Tensor([0.5]).bernoulli(1.5), InvalidValue, "0..1, got 1.5"),
        (lambda: Tensor([0.5]).bernoulli(np.float32(2)), InvalidValue, "0..1, got"),
        (lambda: Tensor([0.5]).bernoulli("half"), InvalidType, "p must be a number"),
        (lambda: Tensor([0.5]).bernoulli_(Tensor([0.1, 0.9])), ShapeError, r"\[2\]"),
        (lambda: Tensor(np.zeros(2, np.complex64)).random_(), DTypeError, "complex64"),
        (lambda: Tensor([1, 2]).exponential_(), DTypeError, "exponential_ writes floats"),
        (lambda: Tensor([1.0]).exponential_(0), InvalidValue, "above 0, got 0"),
        (lambda: Tensor([1.0]).geometric_(1.0), InvalidValue, "below 1, got 1.0"),
        (lambda: Tensor([1.0]).cauchy_(0, -1), InvalidValue, "sigma must be above 0"),
        (lambda: Tensor([1.0]).randint_like(4, 4), InvalidValue, "low=4 and high=4"),
        (lambda: Tensor([1.0], requires_grad=True).exponential_(), InvalidValue, "no_grad"),
    ],
)
def test_refused(call: Callable[[], object], error: type[Exception], about: str) -> None:
    with pytest.raises(error, match=about):
        call()
