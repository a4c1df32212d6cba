"""Where each node of a graph is computed: the decisions, as data.

Every node that is not mentioned is computed inline, at each place that reads it. `Root` nodes are
kernel outputs in memory of their own. `At` nodes are computed inside a kernel, below the first
`depth` loops of its domain, into a buffer that covers just what is read there: a reduction's
accumulator, a row of softmax, a packed tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpu.compiler.ir.graph import Node


class Root(NamedTuple):
    """An output of kernel number `kernel`, in memory of its own."""

    kernel: int


class At(NamedTuple):
    """Computed in kernel `kernel` below the first `depth` loops over its output, into `space`."""

    kernel: int
    depth: int
    space: str


class Plan(NamedTuple):
    """Placement of a graph's nodes.

    Attributes:
        kernels: outputs of each kernel, all of one shape; kernels are in an order that can run.
        placement: for each node that is not inline, where it is computed.
    """

    kernels: tuple[tuple[Node, ...], ...]
    placement: Mapping[Node, Root | At]
