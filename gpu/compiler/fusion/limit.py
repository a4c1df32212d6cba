"""Plans whose kernels bind no more buffers than their device allows.

Devices like those of WebGPU allow a kernel some ten buffers. Where a plan has one with more, parts
of what it computes inline are to be stored first, and the graph is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpu.compiler.fusion.plan import Plan
from gpu.compiler.ir.graph import MOVEMENT, NO_SOURCES, Node, toposort

# Kinds that there is nothing to gain from storing: those that only move elements, and constants.
NOT_STORED: Final = MOVEMENT | NO_SOURCES


def to_store(plan: Plan, most_of: Callable[[str], int]) -> set[Node]:
    """What to store first, a node of each kernel with too many buffers; nothing where all fit.

    `most_of` gives the buffers that a kernel of a device may have, its outputs among them; 0 is any
    number.
    """
    found = set()
    for roots in plan.kernels:
        most = most_of(roots[0].device)
        if most and (node := _part_of(plan, roots, most)) is not None:
            found.add(node)
    return found


def _part_of(plan: Plan, roots: Sequence[Node], most: int) -> Node | None:
    """The part of a kernel that reads most of its buffers, if it has more than `most` of them.

    None where the kernel has few enough, and where none of its parts would: then nothing helps.
    """

    def is_outside(node: Node) -> bool:
        return node not in roots and plan.is_read(node)

    reads: dict[Node, frozenset[Node]] = {}
    for node in toposort(roots, is_outside):
        inside = frozenset[Node]().union(*(reads[s] for s in node.src if s in reads))
        reads[node] = frozenset({node}) if is_outside(node) else inside
    if len(frozenset().union(*(reads[root] for root in roots))) + len(roots) <= most:
        return None
    parts = [
        node
        for node, buffers in reads.items()
        if node not in roots and node.kind not in NOT_STORED and 1 < len(buffers) < most
    ]
    return max(parts, key=lambda node: len(reads[node]), default=None)
