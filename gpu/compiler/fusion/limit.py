"""What one kernel may have: buffers, and operations that are done inline.

Devices like those of WebGPU allow a kernel some ten buffers. Where a plan has one with more, parts
of what it computes inline are to be stored first, and the graph is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from gpu.compiler.fusion.plan import Plan
from gpu.compiler.ir.graph import MOVEMENT, NO_SOURCES, Node, toposort
from gpu.compiler.ir.optable import COSTLY_OPS

# Kinds that there is nothing to gain from storing: those that only move elements, and constants.
NOT_STORED: Final = MOVEMENT | NO_SOURCES
RANDOM_COST: Final = 100


def own_cost(node: Node) -> int:
    """The operations of one element of `node` itself."""
    if node.kind == "random":
        return RANDOM_COST
    return COSTLY_OPS.get(node.attr[0], 1) if node.kind == "alu" else 1


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


def most_inline(order: Sequence[Node], most: int, own_kernel: Collection[str]) -> dict[Node, int]:
    """Of what is stored side by side, what may be done inline: `most` for each pair of values.

    They are made of the same numbers, so little of it is done twice. `order` has sources first;
    kinds of `own_kernel` begin anew.
    """
    found: dict[Node, int] = {}
    for node in reversed(order):
        if node.kind == "interleave":
            found[node] = most * len(node.src) // 2
        elif node not in found or node.kind in own_kernel:
            continue
        found.update((s, max(found[node], found.get(s, 0))) for s in node.src)
    return found
