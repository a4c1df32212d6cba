"""Gradients of gradients in float64 against torch, for every operation that has a gradient.

Of a function and random inputs: the gradient g of a random linear functional of its value, and the
gradient of a random linear functional of g, with respect to the inputs and to the first functional.
Where torch has no second derivative, the differences of g between neighbouring inputs stand in.

The graph of the gradients is what is tested: numpy computes it, and nothing is compiled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from gpu import Tensor
from gpu.compiler.ir.derivative import RULES
from gpu.compiler.ir.graph import Node, interpret, toposort
from gpu.runtime.execute import storage
from gpu.tensor import autodiff
from tensor.differentiable import ALL, OPERATIONS, Case
from tensor.reference import Array, Tolerance, rng_for, torch

CLOSE = Tolerance(1e-9, 1e-9)
BY_DIFFERENCES = Tolerance(1e-5, 1e-6)
STEP = 1e-5  # of central differences in float64: about the third root of its precision


class Derivatives(NamedTuple):
    """What is compared: the gradient of <seed, f>, and that of its inner product with `along`."""

    first: tuple[Array, ...]
    second: tuple[Array, ...]


def ours_of(case: Case, inputs: list[Array], seed: Array, along: list[Array]) -> Derivatives:
    xs, c = [Tensor(x) for x in inputs], Tensor(seed)
    first = case.ours(*xs).gradient(*xs, gradient=c, materialize_grads=True)
    total = sum((g * Tensor(d)).sum() for g, d in zip(first, along, strict=True))
    second = total.gradient(*xs, c, materialize_grads=True)
    values = interpret([g._node for g in (*first, *second)], stored)
    return Derivatives(tuple(values[: len(xs)]), tuple(values[len(xs) :]))


def stored(node: Node) -> Array:
    return storage(node).copy_out().reshape(node.shape)


def theirs_of(case: Case, inputs: list[Array], seed: Array, along: list[Array]) -> Derivatives:
    """Of torch; `second` is empty where it has none."""
    ts = [torch.tensor(x, requires_grad=True) for x in inputs]
    c = torch.tensor(seed, requires_grad=True)
    grad = torch.autograd.grad
    value = case.theirs(*ts)
    first = grad(value, ts, c, create_graph=True, materialize_grads=True)
    total = sum((g * torch.tensor(d)).sum() for g, d in zip(first, along, strict=True))
    try:
        second = grad(total, [*ts, c], materialize_grads=True)
    except RuntimeError as error:
        assert "not implemented" in str(error) or "does not require grad" in str(error)
        second = ()
    return Derivatives(*(tuple(t.numpy(force=True) for t in ts) for ts in (first, second)))


def by_differences(case: Case, inputs: list[Array], seed: Array, along: list[Array]) -> list[Array]:
    """The second derivatives, from first ones at inputs a step to either side of each element."""

    def functional(points: list[Array]) -> float:
        first = ours_of(case, points[:-1], points[-1], along).first
        return float(sum((g * d).sum() for g, d in zip(first, along, strict=True)))

    points = [*inputs, seed]
    found = [np.zeros_like(p) for p in points]
    for which, point in enumerate(points):
        for place in np.ndindex(point.shape):
            sides = []
            for step in (STEP, -STEP):
                moved = [p.copy() for p in points]
                moved[which][place] += step
                sides.append(functional(moved))
            found[which][place] = (sides[0] - sides[1]) / (2 * STEP)
    return found


@pytest.mark.parametrize("name", ALL)
def test_first_and_second_order(name: str) -> None:
    case, rng = ALL[name], rng_for(name, "second")
    inputs = [rng.uniform(*case.domain, shape) for shape in case.shapes]
    seed = rng.normal(size=tuple(case.theirs(*(torch.tensor(x) for x in inputs)).shape))
    along = [rng.normal(size=x.shape) for x in inputs]
    found, wanted = (of(case, inputs, seed, along) for of in (ours_of, theirs_of))
    for ours, theirs in zip(found.first, wanted.first, strict=True):
        np.testing.assert_allclose(ours, theirs, *CLOSE, strict=True)
    tolerance = CLOSE if wanted.second else BY_DIFFERENCES
    second = wanted.second or by_differences(case, inputs, seed, along)
    for ours, theirs in zip(found.second, second, strict=True):
        np.testing.assert_allclose(ours, theirs, *tolerance, strict=True)


def test_every_operation_and_kind_with_a_rule_is_among_them() -> None:
    assert set(OPERATIONS) == set(RULES)
    rules = autodiff._RULES.items()
    kinds = {kind for kind, rule in rules if rule is not autodiff._nothing or kind == "detach"}
    for name, case in ALL.items():
        inputs = [Tensor(rng_for(name).uniform(*case.domain, shape)) for shape in case.shapes]
        grads = case.ours(*inputs).sum().gradient(*inputs, materialize_grads=True)
        kinds -= {node.kind for node in toposort([g._node for g in grads])}
    assert not kinds, f"no case uses {kinds}"


def test_third_order_and_targets_a_value_does_not_depend_on() -> None:
    x, other = Tensor([0.5, 1.5], dtype="float64"), Tensor([1.0, 2.0])
    grad = x.exp()
    for _ in range(3):
        grad = grad.sum().gradient(x)[0] * x
    cubic = [np.exp(v) * (v**3 + 3 * v**2 + v) for v in (0.5, 1.5)]
    np.testing.assert_allclose(grad.numpy(), cubic, 1e-12)
    found = x.sum().gradient(x, other, materialize_grads=True)
    assert [g.tolist() for g in found] == [[1, 1], [0, 0]]
    with pytest.raises(ValueError, match="materialize_grads"):
        x.sum().gradient(x, other)
