"""Every operation that has a gradient, transformed: examples one by one, and torch's derivatives.

The graph of a transform is what is tested: numpy computes it, and nothing is compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu import Tensor, func
from gpu.compiler.ir.graph import Node, interpret
from gpu.runtime.execute import storage
from tensor.differentiable import ALL
from tensor.reference import Array, rng_for, torch

EXAMPLES = 2
# Where torch.func.jvp of torch 2.13 gives zeros.
BY_REVERSE = frozenset({"scatter prod True", "scatter prod False"})
QUICK = {*[*ALL][::12]}


def stored(node: Node) -> Array:
    return storage(node).copy_out().reshape(node.shape)


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ALL],
)
@pytest.mark.sampled(25)
def test_an_operation_and_its_derivative_for_many_examples(name: str) -> None:
    case, rng = ALL[name], rng_for("vmap", name)
    count = len(case.shapes)
    given = [
        rng.uniform(*case.domain, (EXAMPLES, *shape)) for shape in (*case.shapes, *case.shapes)
    ]

    def both(*xs: Tensor) -> Any:
        return func.jvp(case.ours, xs[:count], xs[count:])

    # The derivative for many examples, and that of the function for many.
    inside, outside = (
        func.vmap(both)(*given),
        func.jvp(func.vmap(case.ours), given[:count], given[count:]),
    )
    values = interpret([tensor._node for tensor in (*inside, *outside)], stored)
    for number in range(EXAMPLES):
        xs = tuple(torch.tensor(x[number]) for x in given)
        jvp = torch.autograd.functional.jvp if name in BY_REVERSE else torch.func.jvp
        theirs = jvp(case.theirs, xs[:count], xs[count:])
        for ours, wanted in zip(values, (*theirs, *theirs), strict=True):
            np.testing.assert_allclose(ours[number], wanted.numpy(), 1e-8, 1e-8)
