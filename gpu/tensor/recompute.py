"""Values that are computed again in backward, instead of being kept until then.

Nodes are interned, so a value that is computed twice needs two nodes: backward finds a function's
graph once more on barriers over what the function began with. The barriers wait for the gradients
of its results, so nothing is computed again before these are known, and what the gradient goes on
with waits for the gradients of everything else, so that what was computed again is let go of first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from gpu.compiler.ir.derivative import has_gradient
from gpu.compiler.ir.graph import NO_SOURCES, Node, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.barrier import barrier
from gpu.compiler.ir.graph.rewrite import substitute
from gpu.runtime.execute import is_computed
from gpu.tensor.leafnodes import LEAF_NODES

PulledBack = Callable[[Mapping[Node, Node], Sequence[Node]], list[Node | None]]

RECOMPUTED: Final = "recomputed"
"""The rule of a `custom_grad` node that is a result: its operands are what it begins with."""

_numbers = itertools.count(1)


def recomputed(results: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """`results` of one function, computed again from `inputs`, leaves and memory in backward."""
    own = [n for n in dict.fromkeys(results) if has_gradient(n.dtype) and n.kind not in NO_SOURCES]
    known = set(inputs)

    def begins(node: Node) -> bool:
        is_argument = node.kind == "custom_grad" and node.attr[0] == "argument"
        return node in known or is_argument or is_computed(node) or node in LEAF_NODES

    sources = [n for n in toposort(own, begins) if begins(n) and n.kind not in NO_SOURCES]
    number = next(_numbers)
    new = {node: G.custom_grad(RECOMPUTED, node, sources, number) for node in own}
    return [new.get(node, node) for node in results]


def is_recomputed(node: Node) -> bool:
    """Whether `node` is a result of `recomputed`."""
    return node.kind == "custom_grad" and bool(node.attr[0] == RECOMPUTED)


def results_together(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """The results of each function in a graph that is recomputed, by the first of them in order.

    When a walk from the end comes to that one, the gradients of all of them are known.
    """
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in order:
        if is_recomputed(node):
            groups.setdefault((node.attr, node.src[1:]), []).append(node)
    return {group[0]: group for group in groups.values()}


def recomputed_gradients(
    seeds: Mapping[Node, Node],
    wanted: Container[Node],
    carries: Container[Node],
    pulled_back: PulledBack,
) -> dict[Node, Node]:
    """The gradients of what a function began with, from those of its results.

    Args:
        seeds: the gradients of its results.
        wanted: nodes that are differentiated by; the function begins with those in it too.
        carries: nodes through which a gradient can flow to something wanted.
        pulled_back: differentiates a graph.
    """
    values = [node.src[0] for node in seeds]
    sources = dict.fromkeys(next(iter(seeds)).src[1:])
    inside = toposort(values, sources.__contains__)
    sources.update(dict.fromkeys(node for node in inside if node in wanted))
    waited = list(seeds.values())
    apart = {node: barrier(node, waited) for node in sources}
    again = dict(zip(substitute(values, apart), waited, strict=True))
    needed = [node for node in sources if node in carries]
    grads = pulled_back(again, [apart[node] for node in needed])
    found = {node: grad for node, grad in zip(needed, grads, strict=True) if grad is not None}
    ends = {node: grad for node, grad in found.items() if node in wanted}
    return {
        node: grad if node in wanted or not ends else barrier(grad, list(ends.values()))
        for node, grad in found.items()
    }
