"""Random graphs with other numbers: what takes them as arguments gives the same values."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from gpu.compiler.ir.graph import Node, bound_node, make, toposort, verify
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.interp import RUN
from gpu.runtime import execute
from gpu.runtime.dynamic import Family, general
from gpu.runtime.execute import realize, storage
from gpu.runtime.prepared import Counters
from gpu.runtime.recent import Recent
from gpu.runtime.recipe import graph_key
from prop.graphs import Array, computed, lacks_a_dtype, on
from prop.judge import Expected, check, compare, expect
from prop.programs import random_graph

BATCHES, EACH, EACH_ON_A_DEVICE = 6, 30, 8
Program = tuple[np.random.Generator, list[Node], list[Node], dict[Hashable, Array]]


def is_leaf(node: Node) -> bool:
    return node.kind == "buffer"


def with_other_numbers(roots: list[Node], rng: np.random.Generator) -> list[Node]:
    """The graph with other constants, and other starts where sizes leave a choice."""
    new: dict[Node, Node] = {}
    for node in toposort(roots):
        sources = tuple(new[source] for source in node.src)
        attr = _other(node, rng)
        new[node] = make(node.kind, sources, attr, node.shape, node.dtype, node.device)
    return [new[root] for root in roots]


def _other(node: Node, rng: np.random.Generator) -> tuple[Any, ...]:
    if node.kind == "const":
        value = float(rng.standard_normal() * np.exp(rng.uniform(-3, 3)))
        value = bool(value > 0) if node.dtype.kind == "bool" else value
        return G.const(value, (), node.dtype, node.device).attr
    if node.kind == "pad":
        moves = [int(rng.integers(-before, after + 1)) for before, after, _ in node.attr]
        each = zip(node.attr, moves, strict=True)
        return tuple((before + by, after - by, gap) for (before, after, gap), by in each)
    if node.kind not in ("slice", "write"):
        return node.attr
    starts = []
    sizes = (node if node.kind == "slice" else node.src[1]).shape
    for (_, step), size, whole in zip(node.attr, sizes, node.src[0].shape, strict=True):
        span = max(size - 1, 0) * abs(step)
        first = int(rng.integers(0, max(whole - span, 1)))
        starts.append((first if step > 0 else first + span, step))
    return tuple(starts)


def values(roots: list[Node], inputs: Mapping[Hashable, Array]) -> list[Array]:
    """As `interpret`, with the values that symbols are bound to."""
    found: dict[Node, Array] = {}
    with np.errstate(all="ignore"):
        for node in toposort(roots):
            if is_leaf(node):
                found[node] = inputs[node.attr[0]]
            else:
                found[node] = RUN[node.kind](bound_node(node), tuple(found[s] for s in node.src))
    return [found[root] for root in roots]


def programs(batch: int, each: int) -> Iterator[Program]:
    """Graphs, and their like with other numbers, that are of one form; `each` are drawn."""
    for seed in range(batch * each, (batch + 1) * each):
        rng = np.random.default_rng(seed)
        roots, inputs = random_graph(rng, depth=20, max_size=512)
        roots = computed(roots)
        others = with_other_numbers(roots, rng)
        if roots and graph_key(roots, is_leaf)[0][0] == graph_key(others, is_leaf)[0][0]:
            yield rng, roots, others, inputs


@pytest.mark.parametrize("batch", range(BATCHES))
def test_arguments_give_the_same_values(batch: int) -> None:
    passed = 0
    for _, roots, others, inputs in programs(batch, EACH):
        family = Family(graph_key(roots, is_leaf)[0][1])
        arguments = family.arguments(graph_key(others, is_leaf)[0][1], others, is_leaf)
        if arguments is None:
            continue
        passed += 1
        new = general(others, is_leaf, arguments, ())
        made = [new[root] for root in others]
        verify(made)
        pairs = zip(values(made, inputs), values(others, inputs), others, strict=True)
        for got, want, root in pairs:
            compare(got, want, root.dtype)
    assert passed > EACH // 3


def on_device(device: str, roots: list[Node], inputs: Mapping[Hashable, Array]) -> list[Array]:
    results = realize(on(device, roots, dict(inputs)))
    pairs = zip(results, roots, strict=True)
    return [storage(r).copy_out()[: root.size].reshape(root.shape) for r, root in pairs]


def is_right(got: list[Array], expected: list[Expected], roots: list[Node]) -> bool:
    try:
        check(got, expected, roots)
    except AssertionError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(2))
def test_devices_compute_with_arguments(
    device: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    for rng, roots, others, inputs in programs(batch, EACH_ON_A_DEVICE):
        if lacks_a_dtype(device, roots):
            continue
        expected = expect(others, inputs, rng)
        monkeypatch.setattr(execute, "_families", Recent(100))
        with_numbers = on_device(device, others, inputs)
        monkeypatch.setattr(execute, "_families", Recent(100))
        on_device(device, roots, inputs)
        before = Counters.compiled
        with_arguments = on_device(device, others, inputs)
        # Some devices promise no NaN: what one computes otherwise anyway is not compared.
        if Counters.compiled > before and is_right(with_numbers, expected, others):
            check(with_arguments, expected, others)
            compared += 1
    assert compared
