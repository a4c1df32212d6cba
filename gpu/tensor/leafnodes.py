"""Nodes at which gradients end: values of leaves, and results of replays."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Final
from weakref import ref

from gpu.compiler.ir.graph import Node

if TYPE_CHECKING:
    from gpu.tensor.handle import Handle

# What a leaf's value can be: memory, or a node with an identity of its own that is put there.
_KINDS: Final = frozenset({"buffer", "multi", "contiguous"})


class LeafNodes(Container[Node]):
    """The nodes that values of leaves are known as: each leaf says so, and this finds the leaf.

    Results of replays that depend on leaves count too: a gradient that comes to one cannot go on.
    """

    def __init__(self) -> None:
        # As WeakKeyDictionaries, whose methods are Python code and would take most of the time.
        self._leaf_of: dict[ref[Node], ref[Handle]] = {}
        self._replayed: dict[ref[Node], str] = {}
        self._forget = self._leaf_of.pop
        self._forget_replayed = self._replayed.pop

    def note(self, node: Node, leaf: Handle) -> None:
        """The value of `leaf` is, or is about to be, known as `node`."""
        self._leaf_of[ref(node, self._forget)] = ref(leaf)

    def note_replayed(self, node: Node, function: str) -> None:
        """`node` is a result of a replay of the jitted `function`."""
        self._replayed[ref(node, self._forget_replayed)] = function

    def replayed(self) -> dict[Node, str]:
        """The results of replays, and the names of the jitted functions."""
        known = list(self._replayed.items())
        return {node: name for each, name in known if (node := each()) is not None}

    def __contains__(self, node: object) -> bool:
        if not isinstance(node, Node) or node.kind not in _KINDS:
            return False
        known = ref(node)
        if known in self._replayed:
            return True
        found = self._leaf_of.get(known)
        leaf = None if found is None else found()
        return leaf is not None and bool(leaf._requires_grad) and node in leaf._nodes()

    def __bool__(self) -> bool:
        return bool(self._leaf_of or self._replayed)


LEAF_NODES: Final = LeafNodes()
