"""Kernels that walk the same elements become one kernel with several outputs.

An optimiser's new moments and parameters, or the parts of a gradient, read the same memory and have
the same shape: computed together, what they share is read and computed once.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpu.compiler.ir.graph import Node

# Outputs of one kernel, and operations in it, that still compile well.
MAX_OUTPUTS: Final = 6
MAX_COST: Final = 240
# Of the groups that touch one value, how many an output looks at: all the kernels of a long chain
# may read what it began with.
MAX_LOOKED_AT: Final = 64


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
    # The groups that read each value or compute it, in order.
    touching: dict[Node, list[int]] = {}
    for output in outputs:
        target = None
        for number in _candidates(output, place, touching, reads):
            group = groups[number]
            few = _few_buffers([*group, output], reads, most_of(output.device))
            if few and _fits(output, group, reads, cost):
                target = number
                break
        if target is None:
            target = len(groups)
            groups.append([])
        groups[target].append(output)
        place[output] = target
        for node in (output, *reads.get(output, ())):
            known = touching.setdefault(node, [])
            if target not in known[-MAX_LOOKED_AT:]:
                insort(known, target)
    return [tuple(group) for group in groups]


def _candidates(
    output: Node,
    place: Mapping[Node, int],
    touching: Mapping[Node, list[int]],
    reads: Mapping[Node, Mapping[Node, bool]],
) -> list[int]:
    """The groups that `output` might join, the latest one first.

    It must run no earlier than what it reads, and shares something with the group.
    """
    wanted = reads.get(output, ())
    earliest = max((place[node] for node in wanted if node in place), default=0)
    near = {number for node in wanted for number in touching.get(node, ())[-MAX_LOOKED_AT:]}
    return sorted((number for number in near if number >= earliest), reverse=True)


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
    """Whether `output` can join a group that shares something with it.

    Of the group itself it may read just the element that it computes, which then does not come from
    memory at all.
    """
    first = group[0]
    alike = output.shape == first.shape and output.device == first.device
    if not alike or first not in reads or len(group) == MAX_OUTPUTS:
        return False
    if sum(cost[node] for node in (*group, output)) > MAX_COST:
        return False
    wanted = reads[output]
    return not any(node in wanted and not wanted[node] for node in group)
