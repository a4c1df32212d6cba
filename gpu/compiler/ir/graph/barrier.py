"""Barriers: a value under another node, which what reads it finds no sooner than others are there.

What is computed from a barrier is no common subexpression with what is computed from the value, and
is computed later: XLA's optimization barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu.compiler.ir.graph import MOVEMENT, NO_SOURCES, Node, make


def barrier(x: Node, others: Sequence[Node]) -> Node:
    """`x`, which what reads it finds no sooner than `others` are computed."""
    return make("barrier", (x, *others), (), x.shape, x.dtype, x.device)


def waited_for(node: Node, is_in_memory: Callable[[Node], bool]) -> list[Node]:
    """What is or has to be in memory before a node is computed, though it does not read it."""
    if node.kind != "barrier":
        return []
    bases = [_base(other, is_in_memory) for other in node.src[1:]]
    return [base for base in bases if base.kind not in NO_SOURCES]


def _base(node: Node, is_in_memory: Callable[[Node], bool]) -> Node:
    while node.kind in MOVEMENT and not is_in_memory(node):
        node = node.src[0]
    return node
