"""Graphs of floats that are made of complex ones compute the same."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.ir.graph import Node, toposort, verify
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.complex import lower
from gpu.compiler.ir.graph.text import handles_of, parse_graph, print_graph
from gpu.core.errors import GpuError
from prop.judge import check, expect, floats, run
from prop.programs import mutated, random_graph


def _pairs(leaf: Node) -> Node:
    return G.buffer(("pairs", leaf.attr[0]), (*leaf.shape, 2), leaf.dtype.real, "CPU")


@pytest.mark.parametrize("batch", range(4))
def test_lowering_keeps_the_meaning(batch: int) -> None:
    seen = 0
    for seed in range(batch * 10, batch * 10 + 10):
        rng = np.random.default_rng([seed, 7])
        depth = int(rng.integers(3, 25))
        roots, inputs = random_graph(rng, depth=depth, max_size=400, has_complex=True)
        verify(roots)
        lowered = lower(roots, lambda node: node.kind == "buffer", _pairs)
        verify(lowered)
        assert not any(node.dtype.is_complex for node in toposort(lowered))
        given = {**inputs, **{("pairs", name): floats(value) for name, value in inputs.items()}}
        got = [
            np.ascontiguousarray(value).view(root.dtype.np)[..., 0]
            if root.dtype.is_complex
            else value
            for root, value in zip(roots, run(lowered, given), strict=True)
        ]
        check(got, expect(roots, inputs, rng), roots)
        seen += sum(root.dtype.is_complex for root in roots)
    assert seen > 5


def test_text_gives_the_same_nodes_back() -> None:
    noise = np.random.default_rng(0)
    for seed in range(20):
        roots, _ = random_graph(np.random.default_rng(seed), depth=12, has_complex=True)
        text = print_graph(roots)
        assert parse_graph(text, handles_of(roots)) == roots
        try:
            parse_graph(mutated(text, noise))
        except GpuError:
            continue
