"""Small expressions that were computed before: the same answers and errors by a short way."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from gpu import Context, Tensor, dtypes
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import OutOfMemory
from gpu.runtime import execute
from gpu.runtime.prepared import Counters
from gpu.runtime.recipe import short_key

Array = npt.NDArray[np.float32]
Operation = Callable[..., Tensor]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the nodes that are computed the short way."""
    kinds: list[str] = []
    again = execute.again

    def noting(root: Node) -> Node | None:
        value = again(root)
        if value is not None:
            kinds.append(root.kind)
        return value

    monkeypatch.setattr("gpu.tensor.handle.again", noting)
    return kinds


def drawn(rng: np.random.Generator, *shape: int) -> tuple[Tensor, Array]:
    array = rng.standard_normal(shape).astype(np.float32)
    return Tensor(array).realize(), array


def random_expression(rng: np.random.Generator, rows: int, columns: int) -> Operation:
    """A few operations on two matrices and a row, which numpy has too."""
    steps = []
    for _ in range(int(rng.integers(1, 4))):
        function = (operator.add, operator.sub, operator.mul)[rng.integers(3)]
        steps.append((function, int(rng.integers(5)), float(rng.integers(-3, 4))))
    reduces = int(rng.integers(3))

    def compute(a: Tensor, b: Tensor, row: Tensor) -> Tensor:
        value = a
        for function, which, number in steps:
            others = (a, b, row, number, value)
            value = function(value, others[which])
        return value if reduces == 2 else value.sum(reduces)

    return compute


def test_random_expressions(taken: list[str]) -> None:
    rng = np.random.default_rng(8)
    for _ in range(25):
        rows, columns = (int(n) for n in rng.integers(1, 9, 2))
        compute = random_expression(rng, rows, columns)
        for _ in range(3):
            (a, p), (b, q) = drawn(rng, rows, columns), drawn(rng, rows, columns)
            row, r = drawn(rng, columns)
            result = compute(a, b, row).realize()
            np.testing.assert_allclose(result.numpy(), compute(p, q, r), rtol=2e-5, atol=2e-5)
    assert len(taken) >= 40  # the second and third of most


def test_each_form_has_a_key_of_its_own() -> None:
    x, y = (Tensor(np.ones((2, 3), np.float32)).realize()._node for _ in range(2))
    z = Tensor(np.ones((2, 3), np.int32)).realize()._node

    def times(a: Node, number: float) -> Node:
        return G.alu("mul", a, G.const(number, a.shape, a.dtype, "CPU"))

    forms = [
        *(G.alu("add", x, y), G.alu("add", x, x), G.alu("sub", x, y), G.alu("add", z, z)),
        *(times(x, 2.0), times(x, 3.0), times(x, 0.0), times(x, -0.0), times(x, float("nan"))),
        *(times(z, 2), G.alu("mul", G.alu("add", x, y), x), G.alu("mul", G.alu("add", x, y), y)),
        *(G.reduce("add", x, (0,)), G.reduce("add", x, (1,)), G.reduce("max", x, (1,))),
        *(G.cast(x, dtypes.int32), G.bitcast(x, dtypes.int32), G.permute(x, (1, 0))),
        *(G.expand(G.reshape(x, (2, 1, 3)), (2, 4, 3)), G.alu("exp2", x)),
    ]
    found = [short_key(form) for form in forms]
    assert all(found) and len({each[0] for each in found if each}) == len(forms)
    other = short_key(G.alu("add", y, x))
    assert other is not None and found[0] is not None
    assert other[0] == found[0][0] and other[1] == found[0][1][::-1]


def test_what_is_large_or_not_of_memory_alone_has_none() -> None:
    x = Tensor(np.ones(3, np.float32)).realize()
    assert short_key(G.contiguous(x._node, 1)) is None
    assert short_key(G.copy(x._node, "CPU:1")) is None
    value = x
    for number in range(20):
        value = value * float(number + 2)
    assert short_key(value._node) is None
    assert value.realize().tolist() == pytest.approx([float(np.prod(np.arange(2.0, 22)))] * 3)


def test_its_memory_is_its_own(taken: list[str]) -> None:
    rng = np.random.default_rng(3)
    (a, p), (b, q) = drawn(rng, 4, 4), drawn(rng, 4, 4)
    results = [(a + b).realize() for _ in range(3)]  # equal while they live: one value
    results += [(a - b).realize(), (b - a).realize(), (results[0] - b).realize()]
    assert taken
    results[3] += 1  # written in place: nothing else changes
    expected = [p + q] * 3 + [p - q + 1, q - p, (p + q) - q]
    for result, values in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.numpy(), values)
    for one, other in pairwise(results[2:]):
        assert execute.storage(one._node) is not execute.storage(other._node)


def test_a_gradient_goes_through_it(taken: list[str]) -> None:
    rng = np.random.default_rng(4)
    for step in range(3):
        (x, p), (y, q) = drawn(rng, 5), drawn(rng, 5)
        x.requires_grad_()
        product = (x * y).realize()
        (product * product).realize().sum().backward()
        assert x.grad is not None and (not step or taken)
        np.testing.assert_allclose(x.grad.numpy(), 2 * p * q * q, rtol=1e-5)


def test_settings_are_asked_each_time(taken: list[str]) -> None:
    rng = np.random.default_rng(5)
    (a, p), (b, q) = drawn(rng, 6, 2), drawn(rng, 6, 2)

    def product() -> None:
        np.testing.assert_array_equal((a * b).realize().numpy(), p * q)

    product()
    taken.clear()
    product()
    assert len(taken) == 1
    with Context(NOOPT=1):
        product()
    with Context(CHECK="nan"):
        product()
    with Context(GPU_PROFILE=1):
        product()
    execute.forget_compiled()
    product()
    assert len(taken) == 1
    product()
    assert len(taken) == 2


def test_launches_are_counted_and_an_error_names_the_line(taken: list[str]) -> None:
    rng = np.random.default_rng(6)
    (a, _), (b, _) = drawn(rng, 300, 100), drawn(rng, 300, 100)
    first = (a + b).realize()
    del first
    launches = Counters.launches
    kept = (a + b).realize()
    assert Counters.launches == launches + 1 and len(taken) == 1
    third = b + a
    with Context(MEMORY_LIMIT=1), pytest.raises(OutOfMemory) as error:
        third.realize()
    assert "third = b + a" in "".join(error.value.__notes__)
    assert len(taken) == 1
    np.testing.assert_array_equal(third.numpy(), kept.numpy())
