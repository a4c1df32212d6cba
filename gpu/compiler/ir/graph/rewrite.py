"""Rebuilding graphs node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpu.compiler.ir.graph import Node, make, toposort
from gpu.compiler.ir.graph.fold import fold

Change = Callable[[Node], Node | None]


def rewrite(roots: Sequence[Node], is_leaf: Callable[[Node], bool], change: Change) -> list[Node]:
    """`roots` with every node that `change` gives a replacement for replaced.

    Nodes are visited once, sources first, and shown to `change` with their sources already
    replaced; what it returns is not visited again. None keeps a node. Nothing is rebuilt above
    nodes that stay.
    """
    new: dict[Node, Node] = {}
    for node in toposort(roots, is_leaf):
        if is_leaf(node):
            new[node] = node
            continue
        source = tuple(new[s] for s in node.src)
        moved = node
        if any(a is not b for a, b in zip(source, node.src, strict=True)):
            moved = make(node.kind, source, node.attr, node.shape, node.dtype, node.device)
        replacement = change(moved)
        new[node] = moved if replacement is None else replacement
    return [new[root] for root in roots]


def substitute(roots: Sequence[Node], new: Mapping[Node, Node]) -> list[Node]:
    """`roots` with other nodes in the place of those that `new` has."""
    done = dict(new)
    for node in toposort(roots, new.__contains__):
        if node not in done:
            source = tuple([done[s] for s in node.src])
            changed = any(a is not b for a, b in zip(source, node.src, strict=True))
            field = (node.attr, node.shape, node.dtype, node.device)
            done[node] = make(node.kind, source, *field) if changed else node
    return [done[root] for root in roots]


def without_custom_grads(roots: Sequence[Node], is_leaf: Callable[[Node], bool]) -> list[Node]:
    """`roots` as they are computed, which no rule of a gradient changes: without operands of any.

    What is computed from constants alone is one then. A `detach` is left of each, so that no root
    becomes a leaf, or another root; but not of a result, which is in memory of its own.
    """
    if all(is_leaf(node) or node.kind != "custom_grad" for node in toposort(roots, is_leaf)):
        return list(roots)

    def change(node: Node) -> Node | None:
        value = fold(node, [_constant(source) for source in node.src])
        if value is None:
            value = node.src[0] if node.kind == "custom_grad" else None
        if value is None or value is node or value.kind == "detach":
            return value
        if value.kind == "result" and not is_leaf(value):
            return value
        return _detached(value)

    made = rewrite(roots, is_leaf, change)
    seen = set(made).intersection(roots)
    for number, (root, before) in enumerate(zip(made, roots, strict=True)):
        if root is not before and root in seen:
            made[number] = _detached(root)
        seen.add(root)
    return made


def _detached(node: Node) -> Node:
    return make("detach", (node,), (), node.shape, node.dtype, node.device)


def _constant(node: Node) -> Node | None:
    while node.kind == "detach":
        node = node.src[0]
    return node if node.kind == "const" else None
