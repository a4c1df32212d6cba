"""Reductions with few results and many elements, split so that all workers have a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpu.compiler.ir import graph_build as G
from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node, accumulate_as
from gpu.compiler.ir.rewrite import rewrite
from gpu.compiler.target import Target

# Elements combined into one result from which a second kernel is worth its launch.
LONG: Final = 1 << 17
# Results from which there is enough to do at once anyway.
MANY: Final = 16
PARTS: Final = (64, 32, 16, 8, 4, 2)


def split_reductions(
    roots: Sequence[Node],
    is_leaf: Callable[[Node], bool],
    target_of: Callable[[str], Target],
) -> list[Node]:
    """Long reductions to few results become partial results, one for each part, and their sum.

    `target_of` gives the machine of a device; one with a single worker gains nothing.
    """

    def change(node: Node) -> Node | None:
        return _split(node) if _is_long(node) and target_of(node.device).workers > 1 else None

    return rewrite(roots, is_leaf, change)


def _is_long(node: Node) -> bool:
    if node.kind != "reduce" or not 0 < node.size <= MANY:
        return False
    return node.src[0].size >= LONG * node.size


def _split(node: Node) -> Node | None:
    monoid, axes = node.attr
    source = node.src[0]
    counted = [a for a in axes if not has_symbols(source.shape[a])]
    if not counted:
        return None
    axis = max(counted, key=lambda a: source.shape[a])
    size = source.shape[axis]
    parts = next((p for p in PARTS if size % p == 0), None)
    if parts is None:
        return None
    wide = G.cast(source, accumulate_as(source.dtype))
    shape = (*source.shape[:axis], parts, size // parts, *source.shape[axis + 1 :])
    inner = [a + (a >= axis) for a in axes]  # the split axis by its second half
    # In memory of their own: two reductions by one monoid would become one again.
    partial = G.contiguous(G.reduce(monoid, G.reshape(wide, shape), inner))
    whole = G.reduce(monoid, partial, (axis,))
    return G.cast(G.reshape(whole, node.shape), node.dtype)
