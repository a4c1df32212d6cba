"""Kernels that go through their output in blocks, on random chains of products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu import Tensor
from gpu.compiler.fusion import blocks, hoist, placement
from gpu.compiler.fusion.build import BuiltKernel
from gpu.compiler.fusion.hoist import hoist_factors
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph.rewrite import without_custom_grads
from gpu.compiler.ir.kernel.tree import loops
from prop.test_passes import STAGES, Array, run_plan

SMALL = {"LARGE": 1, "SPREAD": 0, "REREAD": 1 << 20, "FEWEST_ROWS": 2, "MOST_ROWS": 3}


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two or three rows, wherever there may be any."""
    for name, value in SMALL.items():
        monkeypatch.setattr(blocks, name, value)
    for module in (placement, hoist):
        monkeypatch.setattr(module, "LARGE", 1)


def random_chain(rng: np.random.Generator) -> tuple[list[Node], dict[Any, Array]]:
    """What is made of scores and of what they become, and the arrays behind its leaves."""
    inputs: dict[Any, Array] = {}

    def leaf(*shape: int) -> Tensor:
        array = rng.normal(size=shape).astype(np.float32)
        made = Tensor(array).realize()
        inputs[made._node.attr[0]] = array
        return made

    heads, rows, columns, width = (int(rng.integers(*bounds)) for bounds in ((1, 3), *[(2, 9)] * 3))
    scores = leaf(heads, rows, width) @ leaf(heads, width, columns)
    for _ in range(rng.integers(3)):
        match rng.integers(5):
            case 0:
                scores = scores.mul(0.5)
            case 1:
                scores = scores + leaf(rows, columns)
            case 2:
                seen = Tensor.arange(columns).unsqueeze(0) <= Tensor.arange(rows).unsqueeze(1)
                scores = seen.where(scores, -1e9)
            case 3:
                scores = scores.pad(((0, 0), (1, 0), (0, 2)))[:, :rows, 1 : columns + 1]
            case 4:
                scores = scores.flip(1)
    weights = scores.softmax(-1) if rng.random() < 0.7 else scores.tanh().exp()
    made = [
        lambda: weights @ leaf(heads, columns, width),
        lambda: weights.transpose(-2, -1) @ leaf(heads, rows, width),
        lambda: weights.max(-1),
        lambda: weights.mul(scores).sum(-2),
        lambda: (weights @ leaf(columns, width)).sum(0),
        lambda: weights.unsqueeze(-1).mul(leaf(columns, width)).max(2),
    ]
    chosen = rng.permutation(len(made))[: rng.integers(1, 5)]
    roots = [made[n]()._node for n in chosen]
    return without_custom_grads(roots, lambda node: node.kind == "buffer"), inputs


@pytest.mark.parametrize("batch", range(3))
@pytest.mark.parametrize("stage", ["built", "scheduled-wide", "linear-wide", "linear-workers"])
def test_blocks_keep_the_meaning(stage: str, batch: int) -> None:
    blocked = []

    def run(built: BuiltKernel, arrays: list[Array]) -> None:
        blocked.append(any(name.endswith("b") for name in loops(built.kernel.body)))
        STAGES[stage](built, arrays)

    for seed in range(batch * 8, batch * 8 + 8):
        roots, inputs = random_chain(np.random.default_rng(seed))
        wanted = run_plan(roots, inputs, STAGES["built"])
        hoisted = hoist_factors(roots, lambda node: node.kind == "buffer", lambda device: True)
        found = run_plan(hoisted, inputs, run, in_blocks=True)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, 2e-5, 1e-5, err_msg=f"seed {seed}")
    assert sum(blocked) > 4
