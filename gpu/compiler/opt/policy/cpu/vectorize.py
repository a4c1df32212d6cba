"""Lanes for kernels that are not contractions: elementwise, row and column reductions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Var, divides
from gpu.compiler.ir.index.rows import flatten
from gpu.compiler.ir.kernel.tree import reads, values_of, walk
from gpu.compiler.opt.analysis.dependence import is_independent
from gpu.compiler.opt.analysis.lanes import FEWEST, fitting, has_masks, lanes_of, widest
from gpu.compiler.opt.analysis.loop_nest import (
    Leaf,
    leaves,
    outer_nest,
    scattered,
    transposition,
)
from gpu.compiler.opt.opts import Bind, Fuse, Guard, Opt, Rfactor, Split
from gpu.compiler.opt.policy.cpu import transpose
from gpu.compiler.opt.primitives.guard import guards_of
from gpu.compiler.targets import Target

# Independent vectors a reduction keeps, to cover the latency of its operation.
PARTIALS: Final = 8
# Vectors an elementwise loop writes per round.
ROUND: Final = 2
# Vectors of a loop that are written out, so that what is the same for all rows is found once.
WHOLE: Final = 4
# Statements of a loop from which one vector of each is enough to do, and as much as registers hold.
FEW_STORES: Final = 4
# Vectors of a loop from which what is left over matters little, whatever it costs.
MOST_ROUNDS: Final = 8


def vectorize(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """Lanes over an outer loop where that walks memory well, else over each innermost loop."""
    found = [leaf for leaf in leaves(kernel.body) if leaf.loops]
    if not found:
        return
    lanes = lanes_of(target, widest(leaf.update for leaf in found))
    if lanes == 1:
        return
    turned = transposition(kernel, min(lanes, FEWEST))
    if turned is not None:
        yield from transpose.turn(kernel, turned, lanes, target)
        return
    if target.parallel == "worker" and (rows := list(_rows_together(kernel, found, lanes, target))):
        yield from rows
        return
    masks, near = has_masks(target), target.near_step
    outer = _best_outer(kernel, found, lanes, near)
    innermost = list(_innermost(found))
    inner = [(loop, leaf) for loop, leaf in innermost if loop.var.extent >= FEWEST]
    inner_cost = sum(scattered(leaf.update, loop.var, near) for loop, leaf in inner)
    if outer is not None and (not innermost or outer[1] <= inner_cost):
        yield from _split_lanes(outer[0], lanes, outer[2], target)
        return
    for loop, leaf in inner:
        if scattered(leaf.update, loop.var, near) > 1:
            continue
        if is_independent(loop):
            if target.parallel == "worker" and guards_of(loop):
                yield Guard(loop.var.name)
            yield from _split_lanes(loop, lanes, True, target)
        elif _is_reduction(loop, leaf):
            yield from _reduce_in_lanes(loop, lanes, masks and not leaf.update.lets, target)


def _rows_together(
    kernel: K.Kernel, found: list[Leaf], lanes: int, target: Target
) -> Iterator[Opt]:
    """Lanes over rows that would leave a quarter of a vector empty, as if they were one row.

    Only what is written has to lie together. Of what else there is in a vector each lane is known,
    where as many vectors are written out as end with a row.
    """
    nest = outer_nest(kernel.body)
    if any(leaf.loops != tuple(nest) or not _is_walk(leaf.update, nest[-1].var) for leaf in found):
        return
    row, period = nest[-1].var.extent, 1
    while len(nest) > 1 and 4 * row <= 3 * lanes and _is_one_walk(found, nest, row):
        yield Fuse(nest[-2].var.name, nest[-1].var.name)
        nest.pop()
        row, period = row * nest[-1].var.extent, row
    if period == 1:
        return
    name = nest[-1].var.name
    whole = math.lcm(period, lanes)
    if row >= whole:
        yield Split(name, whole, "peel")
        yield from _vectors(f"{name}i", lanes, whole // lanes)
        name, row = f"{name}t", row % whole
    if row >= lanes and len(nest) == 1:
        yield Split(name, row)  # a loop of one share, which a worker does
        name = f"{name}i"
    if row >= lanes:
        yield Split(name, lanes, "peel")
        yield Bind(f"{name}o", "unroll")
        yield Bind(f"{name}i", "vector")
        name, row = f"{name}t", row % lanes
    if has_masks(target) and row > 1:
        yield Split(name, lanes, "pad")
        yield Bind(f"{name}i", "vector")


def _is_walk(update: K.Update, var: Var) -> bool:
    """Whether an Update writes along a loop, and its value is made of memory alone."""
    values = list(values_of(update, set()))
    loads = [value.attr for value in values if value.kind == "load"]
    place = flatten(update.indices, update.buf.shape)
    is_plain = not update.lets and update.mask is ALWAYS and not update.buf.image
    is_read = all(mask is ALWAYS and not buf.image for buf, _, mask in loads)
    counts = any(value.kind == "index" for value in values)
    return is_plain and is_read and not counts and update.monoid is None and place.coeff(var) == 1


def _is_one_walk(found: Sequence[Leaf], nest: Sequence[K.Loop], row: int) -> bool:
    """Whether all that is written along the two innermost loops lies together."""
    around = nest[-2].var
    places = (flatten(leaf.update.indices, leaf.update.buf.shape) for leaf in found)
    return around.stop is None and all(place.coeff(around) == row for place in places)


def _best_outer(
    kernel: K.Kernel, found: list[Leaf], lanes: int, near: int
) -> tuple[K.Loop, int, bool] | None:
    """The independent outer loop that suits lanes best, its cost, and whether it is innermost."""
    nest = outer_nest(kernel.body)
    best: tuple[K.Loop, int, bool] | None = None
    for loop in reversed(nest):
        if loop.var.extent < fitting(lanes, loop.var.extent) or _holds_memory(loop):
            continue
        cost = sum(scattered(leaf.update, loop.var, near) for leaf in found)
        tight = len(found) <= FEW_STORES
        innermost = tight and all(leaf.loops[-1].var is loop.var for leaf in found)
        if best is None or cost < best[1]:
            best = (loop, cost, innermost)
    return best


def _holds_memory(loop: K.Loop) -> bool:
    """Whether the body declares memory, of which lanes would need one each.

    A number that is written under a condition is in memory too.
    """
    inside = list(walk(loop))
    asked = {s.buf for s in inside if isinstance(s, K.Update) and s.mask.constraints}
    return any(
        isinstance(s, K.Alloc) and (s.buf.space != "private" or s.buf.shape or s.buf in asked)
        for s in inside
    )


def _innermost(found: list[Leaf]) -> Iterator[tuple[K.Loop, Leaf]]:
    """Innermost loops that hold a single Update, with it."""
    for leaf in found:
        loop = leaf.loops[-1]
        if loop.body.body == (leaf.update,):
            yield loop, leaf


def _is_reduction(loop: K.Loop, leaf: Leaf) -> bool:
    update = leaf.update
    private = update.buf.space == "private" and update.buf not in update.value.bufs
    return private and update.monoid is not None and loop.kind == "serial"


def _split_lanes(loop: K.Loop, lanes: int, innermost: bool, target: Target) -> Iterator[Opt]:
    """Vectors along an independent loop; a tight one writes several per round.

    A grid is of one nest, which peeling would make two: all would be done by one invocation.
    """
    name, extent = loop.var.name, loop.var.extent
    masks = has_masks(target) and loop.var.stop is None and not _steps_over(loop)
    lanes = fitting(lanes, extent, masks)
    if innermost and extent >= lanes * ROUND and divides(lanes, loop.var):
        rounds = ROUND if divides(lanes * ROUND, loop.var) else 1
        if loop.var.stop is None and extent % lanes == 0 and extent <= lanes * WHOLE:
            rounds = extent // lanes
        yield Split(name, lanes * rounds)
        yield from _vectors(f"{name}i", lanes, rounds)
        return
    left = extent % lanes
    tail = "mask" if target.parallel == "grid" else "peel" if extent >= lanes else "pad"
    yield Split(name, lanes, tail)
    yield Bind(f"{name}i", "vector")
    if tail == "peel" and masks and left > 1:
        yield Split(f"{name}t", lanes, "pad")
        yield Bind(f"{name}ti", "vector")
    elif tail == "peel" and loop.var.stop is None and extent < lanes * MOST_ROUNDS:
        yield from _rest(f"{name}t", left, lanes)


def _steps_over(loop: K.Loop) -> bool:
    """Whether elements that are loaded lie apart: under a mask each would be loaded alone."""
    places = (flatten(indices, buf.shape) for buf, indices, _ in reads(loop.body))
    return any(abs(place.coeff(loop.var)) > 1 for place in places)


def _rest(name: str, extent: int, lanes: int) -> Iterator[Opt]:
    """What is left of a short loop, in a vector of half as many lanes, then of half of those."""
    fit = fitting(lanes, extent)
    if extent == fit:
        yield Bind(name, "vector")
    elif extent > fit:
        yield Split(name, fit, "peel")
        yield Bind(f"{name}i", "vector")
        yield from _rest(f"{name}t", extent - fit, fit)


def _reduce_in_lanes(loop: K.Loop, lanes: int, masks: bool, target: Target) -> Iterator[Opt]:
    """Partial results in several vectors, combined at the end; on a grid, which has others to do
    while an operation takes its time, in one.
    """
    name, extent = loop.var.name, loop.var.extent
    lanes = fitting(lanes, extent, masks and loop.var.stop is None)
    # Where the rest is not known, as many single steps may be left over as there are partials.
    rounds = PARTIALS if loop.var.stop is None else ROUND
    rounds = 1 if target.parallel == "grid" else rounds
    while rounds > 1 and extent < lanes * rounds * 2:
        rounds //= 2
    left = extent % (lanes * rounds) if loop.var.stop is None else lanes * rounds
    masks = masks and left > 1
    yield Rfactor(name, lanes * rounds, lanes * masks)
    for part in "zif" if extent >= lanes else "zf":
        yield from _vectors(f"{name}{part}", lanes, rounds)
    if masks:
        yield from _vectors(f"{name}t", lanes, -(-left // lanes))


def _vectors(name: str, lanes: int, rounds: int) -> Iterator[Opt]:
    """Loop `name` of `lanes * rounds` iterations as `rounds` vectors."""
    if rounds > 1:
        yield Split(name, lanes)
        yield Bind(f"{name}o", "unroll")
        yield Bind(f"{name}i", "vector")
    else:
        yield Bind(name, "vector")
