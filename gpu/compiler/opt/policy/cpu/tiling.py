"""Which tiling a reduction gets: of a bounded number of them the one that costs least.

Tiles come first: which loop is lanes, how many vectors and rows stay in registers. The best few of
these get orders of loops, and copies of operands where these are read often, or lie badly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var, divides
from gpu.compiler.opt.analysis.lanes import FEWEST, fitting
from gpu.compiler.opt.analysis.reduction_nest import Nest, Operand, reduction_nest
from gpu.compiler.opt.opts import Opt, Tile, apply
from gpu.compiler.opt.policy.cpu import column_reduce
from gpu.compiler.opt.policy.cpu.dots import dots
from gpu.compiler.opt.policy.cpu.tile_cost import Costs
from gpu.compiler.opt.primitives.operand_copy import rounded_up
from gpu.compiler.opt.primitives.tiling import Copy, Tiling, is_known, store_of_blocks
from gpu.compiler.targets import Target

# Vectors of a tile that are tried, and how many tiles the outer one of two levels has.
VECTORS: Final = (1, 2, 3, 4, 6)
GROUPS: Final = (4, 8)
# Vectors of a tile whose operands are read once.
STRETCHES: Final = (1, 2, 4, 8, 16, 24)
# Tiles for which orders of loops are tried, of those whose lanes are along the reduction, and of
# others if what they load in vectors is copied.
BEST_TILES: Final = 6
BEST_ALONG_SUM: Final = 2
BEST_COPIED: Final = 2
# Loops of fewer iterations share the rows of a tile with another one.
SHORT: Final = 8
# Where lanes are along the reduction: rows of the narrower side of a tile at most, and vectors of
# partial results that hide the latency of combining them.
NARROW: Final = 4
PARTIALS: Final = 8
# How often elements are used at least, so that tiles are worth it, and so that copies are.
AGAIN: Final = 1.5
OFTEN: Final = 3
# How many times as often inside one more loop, so that a copy is made there.
DEEPER: Final = 1.2
# Steps of the reduction that are written out: all of a short loop, else some where sums take few of
# the registers.
MOST_STEPS: Final = 8
STEPS: Final = 4
FEW_SUMS: Final = 7 / 16
# Steps of a block of the reduction, and how many there are at most: sums of floats round once each.
BLOCKS: Final = (256, 512)
MOST_BLOCKS: Final = 32
# The part of the time without blocks that they take at most.
GAIN: Final = 0.98
# Operations of a tile, so that sines and the like do not take compilers seconds.
WRITTEN: Final = 768
# Steps of all results together below which tiling gains nothing.
SMALL: Final = 1 << 10


class _Tile(NamedTuple):
    """Lanes, how many iterations of each independent loop a tile has, and steps written out."""

    lane: Var
    lanes: int
    sizes: Mapping[Var, int]
    steps: int


def cheapest(kernel: K.Kernel, target: Target, nest: str = "") -> list[Opt]:
    """The tiling that costs least, and what makes words first; none if it would gain nothing.

    With `nest` the kernel is what that loop of another one holds.
    """
    return min(schedules(kernel, target, nest), key=itemgetter(0), default=(0.0, []))[1]


def schedules(kernel: K.Kernel, target: Target, nest: str = "") -> list[tuple[float, list[Opt]]]:
    """The tilings of a kernel as it is, and with words of neighbours, each with what it costs."""
    found: list[tuple[float, list[Opt]]] = []
    for words in ([], *([dot] for dot in dots(kernel, target, nest))):
        made = apply(kernel, [dot._replace(nest="") for dot in words])
        found += [(cost, [*words, Tile(tiled, nest)]) for cost, tiled in tilings(made, target)]
    return found


def choose(kernel: K.Kernel, target: Target) -> Tiling | None:
    """The tiling that costs least of a kernel as it is, or None; see `cheapest`."""
    return min(tilings(kernel, target), key=itemgetter(0), default=(0.0, None))[1]


def tilings(kernel: K.Kernel, target: Target) -> list[tuple[float, Tiling]]:
    """The tilings that a kernel may have, each with what it costs, in cycles.

    Those with blocks of the reduction cost a little more here: they have to gain something.
    """
    nest = reduction_nest(kernel.body)
    if nest is None or nest.all_steps < SMALL:
        return []
    costs = Costs(nest, target)
    if costs.lanes < 2:
        return []
    (whole,) = costs.insides(())
    again = [nest.all_steps >= AGAIN * elements for elements in whole.elements]
    by_time = partial(_time_of_tiles, costs)
    tiles: list[_Tile] = []
    is_grid = target.parallel == "grid"
    if not is_grid and all(again) and len(again) > 1:
        ranked = sorted(_tiles(nest, costs), key=by_time)
        copied = partial(_time_of_tiles, costs, along=True)
        # Copies that are not needed pay for some tiles, where rows lie badly.
        tiles += ranked[:BEST_TILES]
        others = (tile for tile in ranked[BEST_TILES:] if _loads_as_it_lies(costs, tile))
        tiles += sorted(others, key=copied)[:BEST_COPIED]
    elif not is_grid and column_reduce.match(kernel, target) is None:
        tiles += sorted(_stretches(nest, costs), key=by_time)[:BEST_TILES]
    # What is left over of rows is added for each of several reductions: sums would round too often.
    if any(again) or (not is_grid and len(nest.reduction) == 1):
        tiles += sorted(_tiles_along_sum(nest, costs), key=by_time)[:BEST_ALONG_SUM]
    whole_sums = (t for tile in tiles for t in _tilings(costs, tile, _orders(nest, tile)))
    found = [costs.launched(tiling) for tiling in whole_sums]
    best = min(found, key=itemgetter(0), default=(0.0, None))[1]
    if best is None or is_grid or (costs.is_near(best) and not _lacks_copy(costs, best)):
        return found
    blocked = (t for tile in tiles for t in _tilings(costs, tile, _blocked(costs, tile)))
    return found + [(time / GAIN, tiling) for time, tiling in map(costs.launched, blocked)]


# Tiles.


def _tiles_along_sum(nest: Nest, costs: Costs) -> Iterator[_Tile]:
    """Tiles whose lanes are steps of the reduction, of operands that lie along it."""
    lane, registers = nest.reduction[-1], costs.target.registers
    along = [operand for operand in nest.operands if lane in operand.moves]
    if lane.extent < min(FEWEST, costs.lanes) or not along:
        return
    if any(operand.steps[lane] not in (1, -1) for operand in along):
        return
    lanes = fitting(costs.lanes, lane.extent)
    rows = [v for v in nest.independent if any(v not in operand.moves for operand in along)]
    pairs = [p for p in itertools.permutations(rows, 2) if p[0].extent <= p[1].extent]
    # Where nothing is used again, several rows at once only make up for short ones.
    alone = PARTIALS if rows or lane.extent < 2 * PARTIALS * lanes else 1
    for outer, inner in [*pairs, *((None, var) for var in rows or nest.independent)]:
        for few in _counts(outer, NARROW) if outer else (1,):
            most = max((registers - few - 1) // few, 1) if outer else alone
            for size in _counts(inner, most):
                sizes = dict.fromkeys(nest.independent, 1) | {inner: size}
                sizes |= {outer: few} if outer else {}
                for steps in {1, max(1, PARTIALS // (few * size))}:
                    if few * size * steps * nest.operations <= WRITTEN:
                        yield _Tile(lane, lanes, sizes, steps)


def _stretches(nest: Nest, costs: Costs) -> Iterator[_Tile]:
    """Tiles of neighbours alone, for operands of which some are read once, as they lie."""
    for lane in nest.independent:
        along = [operand for operand in nest.operands if lane in operand.moves]
        near = all(_is_near(costs, operand, lane) and not operand.masked for operand in along)
        lanes = fitting(costs.lanes, lane.extent)
        if not along or not near or lane.extent < lanes:
            continue
        for vectors in STRETCHES:
            if vectors > min(-(-lane.extent // lanes), costs.target.registers - 2):
                break
            if vectors * nest.operations <= WRITTEN:
                sizes = dict.fromkeys(nest.independent, 1) | {lane: vectors * lanes}
                yield _Tile(lane, lanes, sizes, 1)


def _tiles(nest: Nest, costs: Costs) -> Iterator[_Tile]:
    """Tiles whose lanes are results, and that registers hold."""
    for lane in nest.independent:
        along = [operand for operand in nest.operands if lane in operand.moves]
        if lane.extent < min(FEWEST, costs.lanes) or not along:
            continue
        lanes = min(costs.lanes, lane.extent) if lane.extent in (4, 8) else costs.lanes
        for vectors in VECTORS:
            if vectors > -(-lane.extent // lanes):
                break
            most = max((costs.target.registers - 1 - vectors) // vectors, 1)
            pairs = _pairs([var for var in nest.independent if var is not lane], along)
            for rows in dict.fromkeys(rows for pair in pairs for rows in _rows(pair, most)):
                sizes = dict.fromkeys(nest.independent, 1) | dict(rows) | {lane: vectors * lanes}
                sums = vectors * math.prod(size for _, size in rows)
                if most_steps := WRITTEN // (sums * nest.operations):
                    steps = _steps(nest.reduction[-1], sums, costs.target.registers)
                    yield _Tile(lane, lanes, sizes, steps if steps <= most_steps else 1)


def _pairs(others: Sequence[Var], along: Sequence[Operand]) -> list[tuple[Var, ...]]:
    """Loops that may be rows of a tile: those in which what is loaded in vectors is used again."""
    rows = [var for var in others if any(var not in operand.moves for operand in along)] or others
    pairs = [p for p in itertools.permutations(rows, 2) if p[0].extent < SHORT]
    return [*((var,) for var in rows), *pairs] or [()]


Rows = tuple[tuple[Var, int], ...]


def _rows(rows: Sequence[Var], most: int) -> Iterator[Rows]:
    """Iterations of loops that are rows of a tile, `most` together."""
    if not rows:
        yield ()
        return
    for size in _counts(rows[0], most):
        yield from (((rows[0], size), *others) for others in _rows(rows[1:], most // size))


def _counts(var: Var, most: int) -> list[int]:
    """Sizes of tiles of a loop: the largest divisors, the largest of all, and an even cut."""
    most = min(most, var.extent)
    largest = next(n for n in range(most, 0, -1) if divides(n, var))
    half = next((n for n in range(largest // 2, 2, -1) if divides(n, var)), largest)
    return sorted({largest, half, most, -(-var.extent // -(-var.extent // most))}, reverse=True)


def _steps(inner: Var, sums: int, registers: int) -> int:
    """Steps of the reduction that are written out."""
    if inner.extent <= MOST_STEPS:
        return inner.extent
    return STEPS if sums <= FEW_SUMS * registers else 1


def _time_of_tiles(costs: Costs, tile: _Tile, along: bool = False) -> float:
    """Cycles of all tiles, and of copies that they need, wherever these are made.

    What is loaded in vectors is copied if `along`.
    """
    near = frozenset(
        n
        for n, operand in enumerate(costs.operands)
        if _needs_copy(costs, operand, tile) or (along and tile.lane in operand.moves)
    )
    sizes = {**tile.sizes, **{var: var.extent for var in costs.nest.reduction}}
    time = costs.tile_time(sizes, tile.lane, tile.lanes, near, tile.steps)
    time *= math.prod(-(-var.extent // size) for var, size in tile.sizes.items())
    (whole,) = costs.insides(())
    return time + sum(costs.copy_time(number, tile.lane, whole) for number in near)


def _needs_copy(costs: Costs, operand: Operand, tile: _Tile) -> bool:
    """Whether an operand as it lies is loaded lane by lane, or under masks."""
    apart = tile.lane in operand.moves and not _is_near(costs, operand, tile.lane)
    return apart or bool(operand.masked)


def _lacks_copy(costs: Costs, tiling: Tiling) -> bool:
    """Whether lanes are loaded one by one, since a copy would take more than the cache has."""
    lane, copied = costs.loops[tiling.lane], {copy.operand for copy in tiling.copies}
    apart = (
        n for n, o in enumerate(costs.operands) if lane in o.moves and not _is_near(costs, o, lane)
    )
    return any(number not in copied for number in apart)


def _loads_as_it_lies(costs: Costs, tile: _Tile) -> bool:
    """Whether an operand that is loaded in vectors need not be copied."""
    along = (operand for operand in costs.operands if tile.lane in operand.moves)
    return any(not _needs_copy(costs, operand, tile) for operand in along)


def _is_near(costs: Costs, operand: Operand, lane: Var) -> bool:
    """Whether vectors are loaded as they lie in memory, or as they lie few steps apart."""
    step = operand.steps[lane] or 0
    return step == -1 or 1 <= step <= costs.target.near_step


# Loops around tiles.


Order = tuple[tuple[str, int], ...]


def _tilings(costs: Costs, tile: _Tile, orders: Iterator[Order]) -> Iterator[Tiling]:
    """Tilings with these loops around a tile, with copies of operands or with few."""
    for loops in dict.fromkeys(orders):
        # Where blocks are one thread, memory of its own is as far from it as any.
        near = costs.target.parallel == "worker"
        copies = tuple(_copies(costs, tile, loops)) if near else ()
        needed = tuple(c for c in copies if _needs_copy(costs, costs.operands[c.operand], tile))
        for copied in dict.fromkeys((copies, needed)):
            yield Tiling(tile.lane.name, tile.lanes, loops, copied, tile.steps)


def _orders(nest: Nest, tile: _Tile) -> Iterator[Order]:
    """The loop of lanes first, last, behind those that are no rows, or in two levels."""
    lane = tile.lane
    rows = [var for var in nest.independent if tile.sizes[var] > 1 and var is not lane]
    others = [var for var in nest.independent if tile.sizes[var] == 1 and var is not lane]
    if lane in nest.reduction:
        for part in range(len(others) + 1):
            for order in dict.fromkeys([(*rows,), (*reversed(rows),)]):
                loops = (*others[:part], *order, *others[part:])
                yield _counted([(var, tile.sizes[var]) for var in loops], loops[0])
        return
    width = tile.sizes[lane]
    for order in (
        (lane, *others, *rows),
        (*others, lane, *rows),
        (*others, *rows, lane),
        (*rows[:1], *others, *rows[1:], lane),
        (*others[:1], lane, *others[1:], *rows),
    ):
        yield _counted([(var, tile.sizes[var]) for var in order], lane)
    for group in GROUPS:
        if width * group < lane.extent:
            around = [(var, tile.sizes[var]) for var in (*others, *rows)]
            yield _counted([(lane, width * group), *around, (lane, width)], lane)


def _blocked(costs: Costs, tile: _Tile) -> Iterator[Order]:
    """Orders with a loop over blocks of the reduction.

    Inside is as much of the lanes, or of the rows, as lets what a block reads stay in the second
    level of a cache; that is read again for each tile of the others, which stays in the first.
    Loops that are no rows are around all of this, or inside a block, which they then read again.
    """
    nest, lane, outer = costs.nest, tile.lane, costs.nest.reduction[0]
    rows = [var for var in nest.independent if tile.sizes[var] > 1 and var is not lane]
    if lane in nest.reduction or outer.stop is not None or not rows:
        return
    if any(v.stop is not None for v in (*rows, lane)) and store_of_blocks(nest, lane.name) is None:
        return
    others = [(v, 1) for v in nest.independent if tile.sizes[v] == 1 and v is not lane]
    tiles = [(var, tile.sizes[var]) for var in (*rows, lane)]
    itemsize = max(operand.value.dtype.itemsize for operand in nest.operands)
    for steps in BLOCKS:
        parts = min(round(nest.steps / steps), MOST_BLOCKS, outer.extent)
        if parts < 2:
            continue
        block = (outer, -(-outer.extent // parts))
        most = costs.core.far // 2 // (itemsize * block[1] * (nest.steps // outer.extent))
        for var, size in (tiles[-1], tiles[0]):
            around = [(other, own) for other, own in tiles if other is not var]
            whole = rounded_up(var.extent, tile.lanes) if var is lane else var.extent
            groups = {most // size * size, most // size // 2 * size} - {0}
            if most >= size:  # as many for each worker
                count = costs.target.workers * -(-whole // (most * costs.target.workers))
                groups.add(rounded_up(-(-whole // count), size))
            for outside, inside in ((others, []), ([], others))[: 1 + bool(others)]:
                again = math.prod(other.extent / own for other, own in (*inside, *around))
                for fits in {min(group, whole) for group in groups} if again >= OFTEN else ():
                    if var is not lane or fits % size == 0:
                        loops = [*outside, (var, fits), block, *inside, *around, (var, size)]
                        yield _counted(loops, var)


def _counted(loops: Sequence[tuple[Var, int]], least: Var) -> Order:
    """The loops that have more than one iteration, and that of `least`."""
    return tuple(
        (var.name, size)
        for var, size in loops
        if size < var.extent or var is least or var.stop is not None
    )


def _copies(costs: Costs, tile: _Tile, loops: Order) -> Iterator[Copy]:
    """Operands that must be copied, and those of which elements are read often.

    A copy is made where most is read from it, outside of as many loops as that allows.
    """
    inside, names = costs.insides(loops), [name for name, _ in loops]
    for number, operand in enumerate(costs.operands):
        reads = math.prod(inside[-1].extents[var] for var in operand.moves)
        often, chosen, room = 0.0, 0, costs.core.far // 2 // operand.value.dtype.itemsize
        for depth, part in enumerate(inside[1:], start=1):
            elements = costs.copied(number, tile.lane, part.extents)
            again = reads * inside[-1].trips / part.trips / elements
            known = is_known(operand, tile.lane.name, names[:depth])
            if known and 1 < elements <= room and again > DEEPER * often:
                often, chosen = again, depth
        if chosen and (often >= OFTEN or _needs_copy(costs, operand, tile)):
            yield Copy(number, chosen)
