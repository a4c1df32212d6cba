"""The work of compiling a graph grows with the graph, not with its square."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bounded import bounded
from gpu import Tensor
from gpu.runtime.execute import is_computed
from gpu.runtime.pipeline import plan_graph
from gpu.runtime.prepared import Counters
from prop.test_passes import SCALAR
from unit.python_calls import python_calls

STEPS = 500


def chain(steps: int) -> Tensor:
    """The gradient through a long chain of steps that all read the same two tensors."""
    values = np.linspace(-1, 1, 8, dtype=np.float32)
    x, c = Tensor(values).requires_grad_(), Tensor(values[::-1].copy())
    y = x
    for _ in range(steps):
        y = (y * c).sin() + x
    y.sum().backward()
    assert x.grad is not None
    return x.grad


def stack(count: int) -> Tensor:
    """Many tensors as the rows of one."""
    return Tensor.stack(*[Tensor(np.full(3, i, np.float32)).realize() for i in range(count)])


def updates(count: int) -> Tensor:
    """Many values of one shape, each its own kernel."""
    x = Tensor(np.ones(9, np.float32)).realize()
    return sum(((x + i).contiguous() for i in range(count)), x)


@pytest.mark.parametrize("made", [chain, stack, updates], ids=lambda made: made.__name__)
def test_twice_the_graph_is_twice_the_planning(made: Callable[[int], Tensor]) -> None:
    def planning(steps: int) -> int:
        root = made(steps)._node
        return python_calls(lambda: plan_graph([root], is_computed, lambda device: SCALAR))

    once, twice = planning(STEPS), planning(2 * STEPS)
    assert twice < 2.2 * once


def test_tensors_that_are_stacked_share_kernels() -> None:
    before = Counters.kernels
    rows = [np.full(3, i, np.float32) for i in range(500)]
    got = Tensor.stack(*[Tensor(row).realize() for row in rows])
    np.testing.assert_array_equal(got.numpy(), np.stack(rows))
    assert Counters.kernels - before <= 6


@pytest.mark.slow
def test_a_chain_of_10000_steps_is_differentiated_and_compiled() -> None:
    # Seconds of the processor: this takes 10 with all checks, and its square took 75 without.
    with bounded(60):
        chain(10_000).realize()
