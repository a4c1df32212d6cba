from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu.compiler.ir import graph, optable
from gpu.compiler.ir.graph import Node, build, make
from gpu.compiler.ir.graph.text import handles_of, parse_graph, print_graph
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import GpuError
from prop.judge import check, compare, expect, run
from prop.programs import mutated, random_graph

BATCHES, EACH = 8, 12


class Unsimplified:
    """The constructors of `graph_build`, each making exactly the node that was asked for."""

    buffer = staticmethod(build.buffer)
    const = staticmethod(build.const)
    iota = staticmethod(build.iota)

    @staticmethod
    def alu(name: str, *src: Node) -> Node:
        dtype = optable.result_dtype(name, tuple(s.dtype for s in src))
        return make("alu", src, (name,), src[0].shape, dtype, src[0].device)

    @staticmethod
    def cast(x: Node, dtype: DType) -> Node:
        return make("cast", (x,), (), x.shape, dtype, x.device)

    @staticmethod
    def bitcast(x: Node, dtype: DType) -> Node:
        return make("bitcast", (x,), (), x.shape, dtype, x.device)

    @staticmethod
    def reduce(monoid: str, x: Node, axes: list[int]) -> Node:
        shape = tuple(1 if a in axes else d for a, d in enumerate(x.shape))
        return make("reduce", (x,), (monoid, tuple(axes)), shape, x.dtype, x.device)

    @staticmethod
    def reshape(x: Node, shape: tuple[int, ...]) -> Node:
        return make("reshape", (x,), (), shape, x.dtype, x.device)

    @staticmethod
    def expand(x: Node, shape: tuple[int, ...]) -> Node:
        return make("expand", (x,), (), shape, x.dtype, x.device)

    @staticmethod
    def permute(x: Node, order: tuple[int, ...]) -> Node:
        shape = tuple(x.shape[a] for a in order)
        return make("permute", (x,), (order,), shape, x.dtype, x.device)

    @staticmethod
    def slice_(x: Node, ranges: list[tuple[int, int, int]]) -> Node:
        attr = tuple((start, step) for start, _, step in ranges)
        return make("slice", (x,), attr, tuple(r[1] for r in ranges), x.dtype, x.device)

    @staticmethod
    def pad(x: Node, padding: list[tuple[int, int, int]]) -> Node:
        shape = tuple(
            before + size + max(size - 1, 0) * gap + after
            for (before, after, gap), size in zip(padding, x.shape, strict=True)
        )
        return make("pad", (x,), tuple(padding), shape, x.dtype, x.device)

    @staticmethod
    def contiguous(x: Node, identity: int) -> Node:
        return make("contiguous", (x,), (identity,), x.shape, x.dtype, x.device)

    @staticmethod
    def detach(x: Node) -> Node:
        return make("detach", (x,), (), x.shape, x.dtype, x.device)


def seeds(batch: int) -> range:
    return range(batch * EACH, (batch + 1) * EACH)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_text_gives_the_same_nodes_back(batch: int) -> None:
    for seed in seeds(batch):
        roots, _ = random_graph(np.random.default_rng(seed))
        graph.verify(roots)
        text = print_graph(roots)
        assert parse_graph(text, handles_of(roots)) == roots
        assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize("batch", range(BATCHES))
def test_simplified_and_unsimplified_graphs_agree(batch: int) -> None:
    for seed in seeds(batch):
        raw, inputs = random_graph(np.random.default_rng(seed), build=Unsimplified)
        simple, same_inputs = random_graph(np.random.default_rng(seed))
        assert list(inputs) == list(same_inputs)
        expected = expect(raw, inputs, np.random.default_rng(seed))
        check(run(simple, inputs), expected, simple)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_broken_text_raises_only_our_errors(batch: int) -> None:
    rng = np.random.default_rng(batch)
    for seed in seeds(batch)[:5]:
        roots, _ = random_graph(np.random.default_rng(seed), depth=10)
        text = print_graph(roots)
        for _ in range(30):
            try:
                parse_graph(mutated(text, rng))
            except GpuError:
                continue


def test_most_elements_are_settled_and_most_graphs_are_deep() -> None:
    settled = total = nodes = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        roots, inputs = random_graph(rng)
        nodes += len(graph.toposort(roots))
        for want in expect(roots, inputs, rng):
            settled, total = settled + int(want.settled.sum()), total + want.settled.size
    assert settled > 0.95 * total
    assert nodes > 60 * 12


def test_compare_sees_one_wrong_element() -> None:
    want = np.array([1.0, np.nan, -0.0, np.inf], np.float32)
    compare(np.array([1.0000001, np.nan, 0.0, np.inf], np.float32), want, dtypes.float32)
    for wrong in ([1.001, np.nan, 0, np.inf], [1, 0, 0, np.inf], [1, np.nan, 0, -np.inf]):
        with pytest.raises(AssertionError, match="of 4 elements"):
            compare(np.array(wrong, np.float32), want, dtypes.float32)
    with pytest.raises(AssertionError, match=r"first \[1\]"):
        compare(np.array([1, 2]), np.array([1, 3]), dtypes.int64)


def test_slack_grows_where_a_sum_cancels() -> None:
    big = build.buffer("x", (4,), dtypes.float32, "CPU")
    values: dict[Any, Any] = {"x": np.array([1e8, 1.0, -1e8, 1.0], np.float32)}
    roots = [build.reduce("add", big, (0,)), build.reduce("max", big, (0,))]
    total, largest = expect(roots, values, np.random.default_rng(0))
    assert total.slack[0] > 1.0
    assert largest.slack[0] == 0.0


def test_plain_arithmetic_has_slack_only_where_devices_may_round_otherwise() -> None:
    x = build.buffer("x", (3,), dtypes.float32, "CPU")
    values: dict[Any, Any] = {"x": np.array([0.1, 3.0, 7e5], np.float32)}
    roots = [build.alu("mul", x, x), build.alu("exp2", x)]
    product, power = expect(roots, values, np.random.default_rng(0))
    assert not product.slack.any()
    assert (power.slack[:2] > 0).all()
    loose, _ = expect(roots, values, np.random.default_rng(0), exact=False)
    assert (loose.slack > 0).all()


def test_a_wrong_operation_is_noticed() -> None:
    swaps = {"add": "sub", "max": "min", "lt": "le", "and": "or", "exp2": "log2", "floor": "rint"}
    changed = noticed = 0
    for seed in range(200):
        roots, inputs = random_graph(np.random.default_rng(seed), depth=10)
        text = print_graph(roots)
        for right, wrong in swaps.items():
            if f"= {right} %" not in text:
                continue
            other = parse_graph(text.replace(f"= {right} %", f"= {wrong} %"), handles_of(roots))
            want = expect(roots, inputs, np.random.default_rng(0))
            changed += 1
            try:
                check(run(other, inputs), want, roots)
            except AssertionError:
                noticed += 1
    assert changed > 50
    assert noticed > 0.4 * changed
