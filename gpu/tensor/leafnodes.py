"""Nodes at which gradients end: values of leaves, and results of replays."""

from __future__ import annotations

import weakref
from collections.abc import Container
from typing import TYPE_CHECKING, Final
from weakref import ref

from gpu.compiler.ir.graph import Node

if TYPE_CHECKING:
    from gpu.tensor.handle import Handle

# Results of replays that depend on leaves, and the names of the jitted functions: a gradient that
# comes to one of them cannot go on.
ENDS: Final[weakref.WeakKeyDictionary[Node, str]] = weakref.WeakKeyDictionary()


class LeafNodes(Container[Node]):
    """The nodes that values of leaves are known as: each leaf says so, and this finds the leaf.

    Those of `ENDS` count too.
    """

    def __init__(self) -> None:
        self._leaf_of: dict[ref[Node], ref[Handle]] = {}
        self._forget = self._leaf_of.pop

    def note(self, node: Node, leaf: Handle) -> None:
        """The value of `leaf` is, or is about to be, known as `node`."""
        self._leaf_of[ref(node, self._forget)] = ref(leaf)

    def __contains__(self, node: object) -> bool:
        if not isinstance(node, Node):
            return False
        if node in ENDS:
            return True
        found = self._leaf_of.get(ref(node))
        leaf = None if found is None else found()
        return leaf is not None and bool(leaf._requires_grad) and node in leaf._nodes()

    def __bool__(self) -> bool:
        return bool(self._leaf_of or ENDS)


LEAF_NODES: Final = LeafNodes()
