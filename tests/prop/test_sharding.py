"""Graphs over several devices mean what they mean on one, however their inputs are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu.compiler.ir.graph import Node, interpret, make, toposort, verify
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.grid import Axis, cut_shape
from gpu.compiler.ir.graph.text import handles_of, parse_graph, print_graph
from gpu.compiler.shard import values as graph_shards
from gpu.compiler.shard.rules import lower
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported
from prop.judge import check, expect
from prop.programs import random_graph
from prop.test_kinds import PROGRAMS
from prop.test_structures import Case

Inputs = dict[Any, np.ndarray[Any, Any]]


def is_buffer(node: Node) -> bool:
    return node.kind == "buffer"


def spread(
    roots: list[Node], inputs: Inputs, devices: tuple[str, ...], rng: np.random.Generator
) -> tuple[list[Node], Inputs]:
    """The same graph on several devices, its buffers cut along axes that divide, or whole."""
    made: dict[Node, Node] = {}
    parts_in: Inputs = {}
    for node in toposort(roots):
        if node.kind != "buffer":
            src = tuple(made[source] for source in node.src)
            made[node] = make(node.kind, src, node.attr, node.shape, node.dtype, devices)
            continue
        count = len(devices)
        is_table = node.attr[0] == "factors"  # a transform's own, which each device has whole
        axes = [a for a, n in enumerate(node.shape) if n and n % count == 0 and not is_table]
        axis = axes[int(rng.integers(len(axes)))] if axes and rng.random() < 0.8 else None
        shape = cut_shape(node.shape, (axis,), (Axis(count),))
        value = inputs[node.attr[0]].reshape(node.shape)
        pieces = [value] * count if axis is None else np.split(value, count, axis)
        parts = []
        for device, piece in zip(devices, pieces, strict=True):
            handle = (node.attr[0], device)
            parts_in[handle] = piece
            parts.append(G.buffer(handle, shape, node.dtype, device))
        made[node] = G.multi(parts, axis, node.shape)
    return [made[root] for root in roots], parts_in


def check_spread(
    roots: list[Node], inputs: Inputs, count: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Compares roots, each apart; how many there are, and how many have no rule."""
    devices = tuple(f"CPU:{i}" for i in range(1, count + 1))
    moved, parts_in = spread(roots, inputs, devices, rng)
    refused = 0
    for root, node in zip(roots, moved, strict=True):
        try:
            (sharded,) = lower([node], is_buffer, lambda leaf: leaf)
        except Unsupported:
            refused += 1
            continue
        verify(sharded.parts)
        assert sharded.devices == devices
        assert all(isinstance(each.device, str) for each in toposort(sharded.parts))
        values = interpret(sharded.parts, lambda leaf: parts_in[leaf.attr[0]])
        axis = sharded.axis
        for whole in [np.concatenate(values, axis)] if axis is not None else values:
            check([whole], expect([root], inputs, rng), [root])
    return len(roots), refused


@pytest.mark.parametrize("count", [2, 3, 4])
def test_random_graphs(count: int) -> None:
    total = refused = 0
    for seed in range(25):
        rng = np.random.default_rng([seed, count])
        roots, inputs = random_graph(rng, depth=int(rng.integers(3, 20)), max_size=300)
        seen, without = check_spread(roots, inputs, count, rng)
        total, refused = total + seen, refused + without
    assert refused < total / 2


@pytest.mark.parametrize("program", PROGRAMS)
def test_kinds(program: str) -> None:
    total = refused = 0
    for seed in range(16):
        rng = np.random.default_rng(seed)
        case = Case(rng)
        root = PROGRAMS[program](case)
        seen, without = check_spread([root], case.inputs, 2 + seed % 5 // 4, rng)
        total, refused = total + seen, refused + without
    assert refused <= total / 2


@pytest.mark.parametrize("monoid", ["add", "max"])
@pytest.mark.parametrize("count", [3, 4])
def test_around_the_ring(monoid: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_shards, "RING_SIZE", 0)
    rng = np.random.default_rng(count)
    parts, inputs = [], {}
    for i in range(count):
        inputs[i] = rng.normal(size=(5, 7)).astype(np.float32)
        parts.append(G.buffer(i, (5, 7), dtypes.float32, f"CPU:{i}"))
    values = interpret(graph_shards.all_reduced(parts, monoid), lambda n: inputs[n.attr[0]])
    whole = np.stack([*inputs.values()])
    expected = whole.sum(0) if monoid == "add" else whole.max(0)
    for value in values:
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(value, values[0])


def test_text() -> None:
    rng = np.random.default_rng(3)
    roots, inputs = random_graph(rng, depth=12, max_size=100)
    moved, _ = spread(roots, inputs, ("CPU", "CPU:1"), rng)
    gathered = [G.copy(moved[0], "CPU"), G.part(moved[0], 1, None)]
    text = print_graph([*moved, *gathered])
    again = parse_graph(text, handles_of([*moved, *gathered]))
    assert all(a is b for a, b in zip(again, [*moved, *gathered], strict=True))
