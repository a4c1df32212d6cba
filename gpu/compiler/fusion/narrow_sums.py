"""Sums of integers formed in as few bits as hold them.

Totals are int64, but where a bool or an integer of few bits is added up so rarely that int32 holds
whatever comes out, it is added up there: twice as many lanes, and no carries where a device has no
integers of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpu.compiler.ir.dims import upper
from gpu.compiler.ir.graph import MOVEMENT, Node, make
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.rewrite import rewrite
from gpu.core.dtype import dtypes

_WIDE: Final = (dtypes.int64, dtypes.uint64)


def narrow_sums(roots: Sequence[Node], is_leaf: Callable[[Node], bool]) -> list[Node]:
    """Sums and running sums of integers cast to 64 bits, if they fit int32, cast afterwards."""

    def change(node: Node) -> Node | None:
        if node.kind not in ("reduce", "scan") or node.dtype not in _WIDE:
            return None
        moves, narrow = [], node.src[0]
        while narrow.kind in MOVEMENT and not is_leaf(narrow):
            moves.append(narrow)
            narrow = narrow.src[0]
        if narrow.kind != "cast" or is_leaf(narrow) or not _fits(node, narrow.src[0]):
            return None
        source = G.cast(narrow.src[0], dtypes.int32)
        for moved in (*moves[::-1], node):
            source = make(
                moved.kind, (source,), moved.attr, moved.shape, dtypes.int32, moved.device
            )
        return G.cast(source, node.dtype)

    return rewrite(roots, is_leaf, change)


def _fits(node: Node, source: Node) -> bool:
    """Whether int32 holds every sum of as many elements of `source` as `node` adds up."""
    if node.attr[0] != "add" or source.dtype.is_float:
        return False
    count = 1
    for axis in node.attr[1] if node.kind == "reduce" else node.attr[1:]:
        count *= upper(node.src[0].shape[axis])
    return count * max(-source.dtype.min, source.dtype.max) <= dtypes.int32.max
