"""Whose memory a graph may write in place: that of values which nothing can reach afterwards.

Values are reached through references alone, so counting those tells. Every count errs towards
"somebody else has it", which costs a copy: an unknown list, a debugger or another thread that holds
a node only makes the count larger.

What a graph computes is in memory when it has run, so that whoever holds one of its roots does not
look behind it for values. For gradients he does: what lies behind a root that is still held counts,
except for what was only moved or written to on the way (`_MOVING`), which no gradient reads.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from gpu.compiler.ir.graph import Node, toposort


def _counts(objects: Sequence[Any]) -> list[int]:
    """References to each object besides the one that `objects` has."""
    return [count - _FROM_LIST for count in map(sys.getrefcount, objects)]


# References that counting itself makes, and the list; they differ between versions of Python.
_FROM_LIST: Final = next(map(sys.getrefcount, [object()]))
# Without a global lock other threads' references are counted apart, and counts mean nothing.
_IS_EXACT: Final = getattr(sys, "_is_gil_enabled", lambda: True)()
# A node has its attributes in a tuple of its own, which refers to a buffer once.
_FROM_NODE: Final = 1
# A node and what it is interned by have one tuple of its sources.
_OF_SOURCES: Final = 2

# Kinds that change or move their sources, and whose gradients do not read them.
_MOVING: Final = frozenset({"write", "reshape", "permute", "slice", "contiguous", "detach"})


def only_held_by_graph(
    roots: Sequence[Node],
    computed: Sequence[Node],
    leaves: Sequence[Node],
    is_leaf: Callable[[Node], bool],
    known: Sequence[Sequence[Node]],
) -> set[Node]:
    """Which of `leaves` nothing reaches any more once `roots` have their values.

    Those lie in the memory of `computed`, of which the roots are reshapes. `known` are lists that
    hold nodes and will be gone by then, each standing for one reference to each of its nodes.
    """
    if not _IS_EXACT:
        return set()
    order = toposort(roots, is_leaf)
    counts = _counts(order)
    inside: Counter[Node] = Counter(node for held in known for node in held)
    tuples: dict[int, tuple[Node, ...]] = {}
    users: Counter[int] = Counter()
    for node in order:
        if node.src and not is_leaf(node):
            tuples[id(node.src)] = node.src
            users[id(node.src)] += _OF_SOURCES
    # A tuple of sources belongs to one node, or to several that were made of each other.
    shared: set[Node] = set()
    sources = list(tuples.values())
    kept_twice = 1  # `tuples` has it as well
    for source, count in zip(sources, _counts(sources), strict=True):
        inside.update(source)
        if count - kept_twice > users[id(source)]:
            shared.update(source)
    del sources
    held = [
        node
        for node, count in zip(order, counts, strict=True)
        if count > inside[node] or node in shared
    ]
    return set(leaves) - _reached(held, frozenset(computed), is_leaf)


def _reached(
    held: Sequence[Node], computed: frozenset[Node], is_leaf: Callable[[Node], bool]
) -> set[Node]:
    """The leaves whose values something needs that is computed from `held`, or a gradient of it."""
    reached: set[Node] = set()
    seen: set[tuple[Node, bool]] = set()
    # With each node whether only what moves it or writes to it lies before one that is computed.
    stack = [(node, False) for node in held]
    while stack:
        node, moved = stack.pop()
        if (node, moved) in seen:
            continue
        seen.add((node, moved))
        if is_leaf(node):
            if not moved:
                reached.add(node)
            continue
        if moved and node.kind == "detach":
            continue  # nor does any gradient go on behind it
        kept = moved or node in computed
        for position, source in enumerate(node.src):
            stack.append((source, kept and not _gradient_reads(node, position)))
    return reached


def _gradient_reads(node: Node, position: int) -> bool:
    """Whether a gradient of `node` may need the value of the source at `position`."""
    if node.kind == "scatter":
        return position == 1 or node.attr[1] not in ("set", "add")
    return node.kind not in _MOVING


def is_only_reference(objects: Sequence[Any], others: int = 0) -> bool:
    """Whether the one object in `objects` is referred to `others` times besides."""
    return _IS_EXACT and _counts(objects)[0] == others


def is_only_buffer(buffers: Sequence[Any], others: int) -> bool:
    """The same for a buffer, to which one node refers."""
    return is_only_reference(buffers, others + _FROM_NODE)
