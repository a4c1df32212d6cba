"""Kernels that write in place, after every pass: what they write, and nothing beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu.compiler.fusion import inplace
from gpu.compiler.fusion.build import build_kernel
from gpu.compiler.fusion.inplace import find_stores
from gpu.compiler.fusion.placement import plan_fusion
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes
from gpu.tensor.views import Permute, Reshape, Slice, Step
from prop.judge import check, expect
from prop.test_kinds import indices
from prop.test_passes import STAGES, RunKernel
from prop.test_structures import Case

Array = np.ndarray[Any, Any]


def random_step(case: Case, shape: tuple[int, ...]) -> Step:
    """A movement that shows no element twice."""
    kind = int(case.rng.integers(3))
    if kind == 0:
        order = tuple(int(a) for a in case.rng.permutation(len(shape)))
        return Permute(order)
    if kind == 1:
        return Reshape((*shape[:-2], shape[-2] * shape[-1]) if len(shape) > 1 else (1, *shape))
    ranges = []
    for size in shape:
        start, step = int(case.rng.integers(size)), int(case.rng.choice([1, 2, -1, -2]))
        room = size - start if step > 0 else start + 1
        most = -(-room // abs(step))
        ranges.append((start, int(case.rng.integers(1, most + 1)), step))
    return Slice(tuple(ranges))


def written(case: Case, x: Node) -> Node:
    """`x` after a write through some views, of new values or of its own."""
    steps, sources = [], [x]
    for _ in range(int(case.rng.integers(4))):
        steps.append(random_step(case, sources[-1].shape))
        sources.append(steps[-1].apply(sources[-1]))
    value = write(case, sources[-1])
    for step, source in zip(reversed(steps), reversed(sources[:-1]), strict=True):
        value = step.write(source, value)
    return value


def write(case: Case, x: Node) -> Node:
    shape = x.shape
    if case.rng.random() < 0.4:
        axis = int(case.rng.integers(len(shape)))
        place = (*shape[:axis], case.size(5), *shape[axis + 1 :])
        monoid = str(case.rng.choice(["add", "max", "set"]))
        index = indices(case, place, shape[axis])
        return G.scatter(x, index, case.array(place, dtypes.float32), axis, monoid)
    sizes = [int(case.rng.integers(1, size + 1)) for size in shape]
    starts = [int(case.rng.integers(size - n + 1)) for size, n in zip(shape, sizes, strict=True)]
    value = case.array(tuple(sizes), dtypes.float32)
    if case.rng.random() < 0.5:  # from elsewhere in the same memory
        value = G.alu("add", value, G.slice_(x, [(0, n, 1) for n in sizes]))
    return G.write(x, value, [(start, 1) for start in starts])


def run_in_place(roots: list[Node], inputs: dict[Any, Array], run: RunKernel) -> list[Array]:
    """The values of `roots`; what is written in place is where its leaf was."""

    def is_leaf(node: Node) -> bool:
        return node.kind == "buffer"

    plan = plan_fusion(roots, is_leaf, find_stores(roots, is_leaf))
    memory: dict[Node, Array] = {}

    def value(node: Node) -> Array:
        if node not in memory and is_leaf(node):
            memory[node] = np.array(inputs[node.attr[0]]).reshape(-1)
        return memory[node]

    for number, made in enumerate(plan.kernels):
        for root in made:
            store = plan.stores.get(root)
            fresh = np.full(root.size, 99, root.dtype.np)
            memory[root] = value(store.leaf) if store else fresh
        built = build_kernel(f"k{number}", number, plan)
        run(built, [value(node) for node in built.params])
    return [value(root).reshape(root.shape) for root in roots]


@pytest.mark.parametrize("stage", STAGES)
def test_writes(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inplace, "MIN_BYTES", 0)
    monkeypatch.setattr(inplace, "MOST_WRITTEN", 9)
    stored = 0
    for seed in range(25):
        rng = np.random.default_rng([seed, len(stage)])
        case = Case(rng)
        x = case.array(tuple(case.size(6) for _ in range(2 + seed % 2)), dtypes.float32)
        root = x
        for _ in range(1 + seed % 3):
            root = written(case, root)
        before = G.reduce("add", G.alu("mul", x, x), (0,))
        after = G.alu("neg", root)
        roots = [r for r in dict.fromkeys([root, before, after]) if r.kind != "buffer"]
        stored += len(find_stores(roots, lambda node: node.kind == "buffer"))
        got = run_in_place(roots, case.inputs, STAGES[stage])
        check(got, expect(roots, case.inputs, rng), roots)
    assert stored > 25


@pytest.mark.parametrize("count", [1, 8, 9])
def test_how_many_writes(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inplace, "MIN_BYTES", 0)
    root = x = G.buffer("x", (32, 4), dtypes.float32, "CPU")
    for i in range(count):
        root = G.write(root, G.const(i, (1, 4), dtypes.float32, "CPU"), [(i, 1), (0, 1)])
    found = find_stores([root], lambda node: node is x)
    assert len(found) == (count if count <= inplace.MAX_WRITES else 0)


def half(x: Node) -> Node:
    return G.write(x, G.const(0, (17, 4), x.dtype, "CPU"), [(0, 1), (0, 1)])


def small(x: Node) -> Node:
    return G.write(x, G.const(0, (1, 4), x.dtype, "CPU"), [(0, 1), (0, 1)])


@pytest.mark.parametrize("make", [half, small])
def test_what_is_not_worth_it(make: Callable[[Node], Node]) -> None:
    x = G.buffer("x", (32, 4) if make is small else (32 << 10, 4), dtypes.float32, "CPU")
    assert len(find_stores([make(x)], lambda node: node is x)) == (make is half)
