"""Kernels that walk the same elements become one kernel with several outputs.

An optimiser's new moments and parameters, or the parts of a gradient, read the same memory and have
the same shape: computed together, what they share is read and computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpu.compiler.ir.graph import Node

# Outputs of one kernel, and operations in it, that still compile well.
MAX_OUTPUTS: Final = 6
MAX_COST: Final = 240


def merge_outputs(
    outputs: Sequence[Node],
    reads: Mapping[Node, Mapping[Node, bool]],
    cost: Mapping[Node, int],
    most_of: Callable[[str], int] = lambda device: 0,
) -> list[tuple[Node, ...]]:
    """Groups outputs into kernels, in an order that can run.

    Args:
        outputs: outputs of kernels of one output each, in an order that can run.
        reads: for those that may be merged, what their kernel reads from memory, and whether it
            reads just the element it computes.
        cost: operations of each output's kernel.
        most_of: buffers that a kernel of a device may have; 0 is any number.
    """
    groups: list[list[Node]] = []
    place: dict[Node, int] = {}
    for output in outputs:
        target = _group_for(output, groups, place, reads, cost, most_of)
        if target is None:
            target = len(groups)
            groups.append([])
        groups[target].append(output)
        place[output] = target
    return [tuple(group) for group in groups]


def _group_for(
    output: Node,
    groups: list[list[Node]],
    place: Mapping[Node, int],
    reads: Mapping[Node, Mapping[Node, bool]],
    cost: Mapping[Node, int],
    most_of: Callable[[str], int],
) -> int | None:
    """The latest group that `output` can join, or None.

    It must run no earlier than what it reads; of the group itself it may read just the element that
    it computes, which then does not come from memory at all.
    """
    if output not in reads:
        return None
    earliest = max((place[node] for node in reads[output] if node in place), default=0)
    for number in range(len(groups) - 1, earliest - 1, -1):
        group = groups[number]
        few = _few_buffers([*group, output], reads, most_of(output.device))
        if few and _fits(output, group, reads, cost):
            return number
    return None


def _few_buffers(group: list[Node], reads: Mapping[Node, Mapping[Node, bool]], most: int) -> bool:
    """Whether a kernel with these outputs has `most` buffers at most, where that is no 0."""
    buffers = set(group).union(*(reads.get(node, ()) for node in group))
    return not most or len(buffers) <= most


def _fits(
    output: Node,
    group: list[Node],
    reads: Mapping[Node, Mapping[Node, bool]],
    cost: Mapping[Node, int],
) -> bool:
    first = group[0]
    alike = output.shape == first.shape and output.device == first.device
    if not alike or first not in reads or len(group) == MAX_OUTPUTS:
        return False
    if sum(cost[node] for node in (*group, output)) > MAX_COST:
        return False
    wanted = reads[output]
    if any(node in wanted and not wanted[node] for node in group):
        return False
    together = {node for member in group for node in reads[member]} | set(group)
    return not together.isdisjoint(wanted)
