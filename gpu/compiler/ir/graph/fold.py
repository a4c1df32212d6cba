"""Nodes that are constants by what they are computed from, though their constructors saw none.

A constant that is the source of a `custom_grad` hides from those that read it, so that a gradient
finds its way; to what computes values it is a constant like others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph import build as G

_SAME_EVERYWHERE: Final = frozenset(
    {"reshape", "expand", "permute", "slice", "skew", "detach", "custom_grad"}
)


def constant_of(root: Node, is_leaf: Callable[[Node], bool]) -> Node | None:
    """The constant that a node is by what it is computed from; None where it is none."""
    first = root  # the first sources lead to memory in most graphs: no others need a look then
    while first.src and not is_leaf(first):
        first = first.src[0]
    if first.kind != "const":
        return None
    known: dict[Node, Node | None] = {}
    for node in toposort([root], is_leaf):
        known[node] = None if is_leaf(node) else fold(node, [known[x] for x in node.src])
    return known[root]


def fold(node: Node, sources: Sequence[Node | None]) -> Node | None:
    """The constant that `node` is of these constants, None being a source that is none."""
    if node.kind == "const":
        return node
    if node.kind == "custom_grad":  # others are for its gradient
        sources = sources[:1]
    constants = [x for x in sources if x is not None]
    if not constants or len(constants) != len(sources):
        return None
    if node.kind in _SAME_EVERYWHERE:
        return G.const(constants[0].attr[0], node.shape, node.dtype, node.device)
    made = None
    if node.kind == "alu":
        made = G.alu(node.attr[0], *constants)
    elif node.kind == "cast":
        made = G.cast(constants[0], node.dtype)
    elif node.kind == "reduce":
        made = G.reduce(node.attr[0], constants[0], node.attr[1])
    return made if made is not None and made.kind == "const" else None
