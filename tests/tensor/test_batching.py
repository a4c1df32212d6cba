"""The rules of `vmap`: every kind of node for a batch is the same node for each example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor
from gpu.compiler.ir import graph
from gpu.compiler.ir.graph import NO_SOURCES, Node, interpret, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.barrier import barrier
from gpu.compiler.ir.graph.body import Value
from gpu.compiler.ir.graph.fft import factors_of
from gpu.compiler.ir.graph.hostcall import HostCall
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported
from gpu.tensor import customgrad
from gpu.tensor.customgrad import deviations, first_max
from gpu.tensor.func.batching import RULES, Batch
from gpu.tensor.loops import Bound, given, make_loop
from prop.programs import random_graph

Array = np.ndarray[Any, Any]
F32, I32 = dtypes.float32, dtypes.int32


class Drawn:
    """Inputs of a graph, some of which differ between examples.

    Attributes:
        size: how many examples there are.
        values: of each buffer; of those that differ with the examples along a first axis.
    """

    def __init__(self, rng: np.random.Generator, size: int):
        self.rng, self.size = rng, size
        self.values: dict[Any, Array] = {}
        self.mapped: dict[Node, Node] = {}

    def any(self, shape: tuple[int, ...], dtype: DType = F32, high: int = 0) -> Node:
        """A buffer of drawn values, indices below `high` where that is given; the first differs."""
        differs = not self.mapped or self.rng.random() < 0.5
        whole = (self.size, *shape) if differs else shape
        if high:
            value = self.rng.integers(-1, high + 1, whole)
        elif dtype.is_complex:
            value = self.rng.normal(size=whole) + 1j * self.rng.normal(size=whole)
        else:
            value = self.rng.normal(0, 2, whole)
        return self.buffer(value.astype(dtype.np), dtype, differs)

    def buffer(self, value: Array, dtype: DType, differs: bool) -> Node:
        """A buffer of these values."""
        name = f"in{len(self.values)}"
        self.values[name] = value
        node = G.buffer(name, value.shape[1:] if differs else value.shape, dtype, "CPU")
        if differs:
            self.mapped[node] = G.buffer(f"all {name}", value.shape, dtype, "CPU")
            self.values[f"all {name}"] = value
        return node


def check(drawn: Drawn, roots: list[Node], rtol: float = 0.0) -> None:
    """The batch of `roots` against each example by itself."""
    batch = Batch(drawn.size, drawn.mapped)
    batch.compute(roots)
    whole = interpret([batch.of(root) for root in roots], lambda n: drawn.values[n.attr[0]])
    assert not {*drawn.mapped} & {*toposort([batch.of(root) for root in roots])}
    for root, values in zip(roots, whole, strict=True):
        assert values.shape == (drawn.size, *root.shape)
    for number in range(drawn.size):

        def value(node: Node, number: int = number) -> Array:
            every = drawn.values[node.attr[0]]
            return every[number] if node in drawn.mapped else every

        alone = interpret(roots, value)
        for all_values, one in zip(whole, alone, strict=True):
            np.testing.assert_allclose(all_values[number], one, rtol, rtol, equal_nan=True)


def _loop(d: Drawn, reverse: bool) -> list[Node]:
    constant, carry, piece = given(d.any((3,))), given(d.any((3,))), given(d.any((3,)))
    new = G.alu("add", G.alu("mul", carry, constant), piece)
    beside = G.reduce("add", G.alu("mul", piece, constant), (0,))
    bound = [
        [Bound(constant, d.any((3,)))], [Bound(carry, d.any((3,)))], [Bound(piece, d.any((4, 3)))]
    ]  # fmt: skip
    loop = make_loop(*bound, [new, beside], 4, reverse)
    return [G.result(loop, number) for number in range(3)]


@gpu.kernel(outputs=lambda a, b: {"product": (a.shape, a.dtype), "half": (a.shape, a.dtype)})
def _product(k: Any, product: Any, half: Any, a: Any, b: Any) -> None:
    with k.loop(a.size) as i:
        product[i] = a[i] * b[i]
        half[i] = a[i] * 0.5


def _kernel(d: Drawn) -> list[Node]:
    return [made._node for made in _product(Tensor._wrap(d.any((3,))), Tensor._wrap(d.any((3,))))]


def _fourier(d: Drawn, size: int, radices: tuple[int, ...]) -> Node:
    pairs, factors = d.any((3, size, 2)), None
    if len(radices) > 1:
        factors = d.buffer(factors_of(radices).astype(np.float32), F32, False)
    return G.fft(pairs, 1, radices, factors, inverse=True, scale=0.5)


def _host(d: Drawn) -> list[Node]:
    form = Value((3, 3), F32)
    call = HostCall("eigh", (form,), (Value((3,), F32), form))
    made = G.host(call, None, [d.any((3, 3))])
    return [G.result(made, number) for number in range(2)]


def _custom(d: Drawn) -> list[Node]:
    x = d.any((4, 3))
    order = G.buffer("order", (4, 3), I32, "CPU")
    d.values["order"] = np.arange(12, dtype=np.int32).reshape(4, 3)
    centred = G.alu("sub", x, d.any((4, 3)))
    return [first_max(x, order, (0,)), deviations(x, centred, (1,))]


def _permutation(d: Drawn) -> Node:
    places = np.argsort(d.rng.random((d.size, 4, 5)), -1).astype(np.int32)
    return d.buffer(places, I32, True)


KINDS: dict[str, Callable[[Drawn], list[Node]]] = {
    "alu": lambda d: [G.alu("where", d.any((3,), dtypes.bool), d.any((3,)), d.any((3,)))],
    "cast": lambda d: [G.cast(d.any((3, 2)), I32)],
    "bitcast": lambda d: [G.bitcast(d.any((3, 2)), I32)],
    "reduce": lambda d: [G.reduce(m, d.any((3, 4, 2)), (0, 2)) for m in ("add", "mul", "max")],
    "reshape": lambda d: [G.reshape(d.any((3, 4)), (2, 6))],
    "expand": lambda d: [G.expand(d.any((3, 1)), (3, 4))],
    "permute": lambda d: [G.permute(d.any((3, 4, 2)), (2, 0, 1))],
    "slice": lambda d: [G.slice_(d.any((7, 5)), [(6, 3, -2), (1, 2, 3)])],
    "pad": lambda d: [G.pad(d.any((3, 2)), [(1, 2, 1), (0, 1, 0)])],
    "skew": lambda d: [G.skew(d.any((9, 3)), 0, 1, 2, 1, 4)],
    "unskew": lambda d: [G.unskew(d.any((4, 3)), 0, 1, 2, 1, 9)],
    "gather": lambda d: [G.gather(d.any((4, 5)), d.any((4, 2), I32, 5), 1)],
    "scatter": lambda d: [
        G.scatter(d.any((4, 5)), d.any((6, 5), I32, 4), d.any((6, 5)), 0, monoid)
        for monoid in ("add", "set", "max")
    ],
    "scan": lambda d: [G.scan(m, d.any((3, 4)), 1) for m in ("add", "mul", "max")],
    "cumcount": lambda d: [G.cumcount(d.any((7, 3), I32, 4), 4, 0)],
    "reorder": lambda d: [G.reorder(d.any((4, 5)), _permutation(d), 1)],
    "write": lambda d: [G.write(d.any((5, 4)), d.any((2, 3)), [(1, 2), (0, 1)])],
    "as_real": lambda d: [G.as_real(d.any((3,), dtypes.complex64))],
    "as_complex": lambda d: [G.as_complex(d.any((3, 2)))],
    "interleave": lambda d: [
        G.interleave(d.any((3,)), d.any((3,))),
        G.interleave_all([d.any((3, 2)) for _ in range(6)], {0: 2, 2: 3}),
    ],
    "fft": lambda d: [_fourier(d, 4, (4,)), _fourier(d, 12, (4, 3))],
    "contiguous": lambda d: [G.contiguous(G.permute(d.any((3, 2)), (1, 0)), 7)],
    "detach": lambda d: [G.detach(d.any((3,)))],
    "barrier": lambda d: [barrier(d.any((3,)), [d.any((2, 4))])],
    "custom_grad": _custom,
    "copy": lambda d: [G.copy(G.copy(d.any((3,)), "CPU:1"), "CPU")],
    "multi": lambda d: [
        G.copy(G.multi([d.any((2, 3)), G.copy(d.any((2, 3)), "CPU:1")], 1, (2, 6)), "CPU")
    ],
    "part": lambda d: [G.part(G.copy(d.any((2, 4)), ("CPU", "CPU:1")), 0, 1)],
    "loop": lambda d: [*_loop(d, False), *_loop(d, True)],
    "kernel": _kernel,
    "host": _host,
    "result": _kernel,
}


def test_every_kind_has_a_rule_and_a_case() -> None:
    assert {*RULES, "buffer", *NO_SOURCES} == {*graph.RULES}
    assert {*KINDS, "random"} == {*RULES}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_each_example(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for size in (1, 3, 2, 3):
        drawn = Drawn(rng, size)
        roots = KINDS[kind](drawn)
        assert kind in {node.kind for node in toposort(roots)}
        check(drawn, roots, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_examples_is_empty(kind: str) -> None:
    drawn = Drawn(np.random.default_rng(1), 0)
    roots = KINDS[kind](drawn)
    batch = Batch(0, drawn.mapped)
    batch.compute(roots)
    for root in roots:
        found = batch.of(root)
        assert (found.shape, found.dtype) == ((0, *root.shape), root.dtype)


def test_drawn_graphs() -> None:
    """Whatever a graph is of: its operands differ between examples, or not."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        roots, inputs = random_graph(rng, 20, 200, has_complex=seed % 4 == 0)
        drawn = Drawn(rng, int(rng.integers(1, 4)))
        drawn.values.update(inputs)
        for node in toposort(roots):
            if node.kind == "buffer" and node.size and rng.random() < 0.6:
                value = inputs[node.attr[0]]
                others = [
                    rng.permuted(value.reshape(-1)).reshape(value.shape) for _ in range(drawn.size)
                ]
                drawn.values[node.attr[0]] = np.stack(others)
                drawn.values["all", node.attr[0]] = drawn.values[node.attr[0]]
                whole = (drawn.size, *node.shape)
                drawn.mapped[node] = G.buffer(("all", node.attr[0]), whole, node.dtype, node.device)
        with np.errstate(all="ignore"):
            check(drawn, roots, rtol=1e-5)


def test_a_kind_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, "scan")
    with pytest.raises(Unsupported, match="vmap has no rule for scan"):
        gpu.func.vmap(lambda x: x.cumsum(0))(Tensor([[1.0, 2.0]]))
    with pytest.raises(Unsupported, match="vmap has no rule for an image"):
        gpu.func.vmap(lambda x: x.cast(dtypes.imagef((1, 1))))(Tensor([[1.0, 2.0, 3.0, 4.0]]))
    x = G.buffer("x", (3,), F32, "CPU")
    kept = customgrad.given(lambda node, grad: (None, grad), x, (x,))
    with pytest.raises(Unsupported, match="call it outside of vmap"):
        Batch(2, {x: G.buffer("all", (2, 3), F32, "CPU")}).compute([kept])
