"""Where each node of a graph is computed: the decisions, as data.

Every node that is not mentioned is computed inline, at each place that reads it. `Root` nodes are
kernel outputs in memory of their own. `At` nodes are computed inside a kernel, below the first
`depth` loops of its domain, into a buffer that covers just what is read there: a reduction's
accumulator, a row of softmax, some rows of the scores of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpu.compiler.fusion.blocks import Block
from gpu.compiler.fusion.inplace import Store
from gpu.compiler.ir.graph import Node


class At(NamedTuple):
    """Computed in a kernel below the first `depth` loops over its output, into `space`."""

    depth: int
    space: str


class Root(NamedTuple):
    """An output of kernel number `kernel`, in memory of its own.

    With `at` it is no element of the kernel's domain: it is computed into a buffer there, like
    others, and stored too.
    """

    kernel: int
    at: At | None = None


class Plan(NamedTuple):
    """Placement of a graph's nodes.

    Attributes:
        kernels: outputs of each kernel, the first of which, and others of its shape, are computed
            element by element; kernels are in an order that can run.
        placement: for each node that is not inline, where it is computed: as an output, or inside
            kernels, by their numbers.
        is_leaf: which nodes are in memory before anything runs.
        stores: outputs that are made by changing memory that is there, and how.
        reuses: (output, leaf) where the output may be in the memory of the leaf, if that is not
            needed any more: the kernel of the output reads of the leaf just the element that it
            computes, and nothing else reads it later.
        blocks: for outputs that are computed block by block, in which ones.
    """

    kernels: tuple[tuple[Node, ...], ...]
    placement: Mapping[Node, Root | Mapping[int, At]]
    is_leaf: Callable[[Node], bool]
    stores: Mapping[Node, Store]
    reuses: tuple[tuple[Node, Node], ...] = ()
    blocks: Mapping[Node, Block] = MappingProxyType({})

    def inside(self, node: Node, kernel: int) -> At | None:
        """Where in this kernel `node` is computed into a buffer."""
        placed = self.placement.get(node)
        if isinstance(placed, Root):
            return placed.at if placed.kernel == kernel else None
        return placed.get(kernel) if placed else None

    def is_read(self, node: Node) -> bool:
        """Whether kernels find `node` in memory: it was there, or it is another one's output."""
        return self.is_leaf(node) or isinstance(self.placement.get(node), Root)
