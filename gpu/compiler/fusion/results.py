"""Results of calls that are asked for in memory of their own: they are in such memory already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gpu.compiler.ir.dims import same_memory
from gpu.compiler.ir.graph import Node, toposort


def without_copies(roots: Sequence[Node], is_leaf: Callable[[Node], bool]) -> list[Node]:
    """The roots, of which the copy of a result that nothing else reads is the result itself.

    It may have another shape. A copy that something reads stays one.
    """
    order = toposort(roots, is_leaf)
    readers = Counter(source for node in order if not is_leaf(node) for source in node.src)
    readers.update(roots)

    def result_of(root: Node) -> Node:
        node = root
        while not is_leaf(node) and readers[node] == 1 and _keeps_memory(node):
            node = node.src[0]
        is_result = node.kind == "result" and node.src[0].kind == "host"
        return node if is_result and readers[node] == 1 else root

    return [result_of(root) if root.kind == "contiguous" else root for root in roots]


def _keeps_memory(node: Node) -> bool:
    """Whether a node has the elements of its source in the same order."""
    if node.kind == "reshape":
        return same_memory(node.src[0].shape, node.shape)
    return node.kind in ("contiguous", "detach")
