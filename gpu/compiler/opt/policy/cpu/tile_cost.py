"""What a tiling of a reduction costs, in cycles, from numbers alone.

Nothing is built: tiles of each size are counted, and what a step of them takes of the units of a
core. The unit with most to do gives its time. Copies are added, and lines that come from farther
caches. That ranks tilings of one kernel; it is no prediction of its time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from gpu.compiler.ir.index import Var
from gpu.compiler.ir.kernel.tree import values, values_of
from gpu.compiler.ir.optable import DOTS
from gpu.compiler.opt.analysis.lanes import lanes_of, widest
from gpu.compiler.opt.analysis.loop_nest import last_index
from gpu.compiler.opt.analysis.reduction_nest import Nest, Operand, work_of
from gpu.compiler.opt.primitives.tiling import Tiling
from gpu.compiler.targets import Target


class Core(NamedTuple):
    """A core, as far as costs go.

    Attributes:
        arithmetic, loads, issue: operations on vectors, loads, and instructions of a cycle.
        latency: cycles until a sum can be added to again.
        near, far: bytes of the first and the second level of its cache.
        ways: lines of the first level that can have the same place.
        masked: cycles that a mask adds to an access, for each lane if `by_lane`.
        ahead: registers that take what steps that are written out load early.
        crossing: cycles that a vector takes besides which may lie across lines.
        slow: how many operations some are, of those that sums of products are made of: `mul` of
            integers, and dots.
        page: cycles to look for a page that a core has not at hand.
    """

    arithmetic: float = 2
    loads: float = 2
    issue: float = 6
    latency: float = 4
    near: int = 32 << 10
    far: int = 512 << 10
    ways: int = 8
    masked: float = 2
    by_lane: bool = False
    ahead: int = 2
    crossing: float = 0.0
    slow: Mapping[str, float] = MappingProxyType({})
    page: float = 1.0


# By the bytes of a vector: those of 16 have no masks, those of 64 have registers for them.
CORES: Final = {
    16: Core(near=64 << 10, far=1 << 20, ways=4, by_lane=True),
    32: Core(),
    64: Core(far=1 << 20, masked=0.5, ahead=0),
}
# Of CPUs that have a feature which one line of them has. AMX: Golden Cove and what followed (sizes
# from Intel's "64 and IA-32 Architectures Optimization Reference Manual", 2.3; `crossing` and
# `page` measured on a product whose rows lie a page apart).
CORES_BY_FEATURE: Final = {
    "+amx-tile": Core(
        near=48 << 10,
        far=2 << 20,
        ways=12,
        masked=0.5,
        ahead=0,
        crossing=1.0,
        slow=MappingProxyType({"mul": 4.0, "dot_bf16": 4.0}),
        page=2.5,
    ),
}
LINE: Final = 64
# Cycles for each element of a copy: in vectors, in transposed squares, lane by lane; under a mask
# more.
COPY: Final = 0.25
COPY_SQUARE: Final = 0.6
COPY_APART: Final = 1.5
COPY_MASKED: Final = 0.7
# Cycles of a lane that is loaded, or stored, on its own; and of a vector's results.
GATHER: Final = 1.5
SCATTER: Final = 1.5
STORE: Final = 2.0
# How many loads a shuffle is, of which one joins each two vectors that are stepped through.
SHUFFLE: Final = 2.0
# Registers of what is computed between operands and sums; and loads and stores of each that does
# not fit.
TEMPORARY: Final = 3
SPILL: Final = 16
# How many loads one is that may lie across lines.
SPLIT: Final = 1.5
# Cycles to begin the innermost loop, of which each sum takes some, and of each iteration.
ENTRY: Final = 6.0
ENTRY_SUM: Final = 0.25
ITERATION: Final = 1.0
# Cycles to add up the lanes of a vector.
FOLD: Final = 12.0
# Cycles of a row of which several share too few places of the cache.
CONFLICT: Final = 2.0
# Bytes of a page, and of how many a core has the places at hand.
PAGE: Final = 4096
PAGES: Final = 64
# Cycles of a line from the second level, and from behind it; so many times more far apart.
FROM_FAR: Final = 0.7
FROM_MEMORY: Final = 3.0
JUMP: Final = 4.0
# Lines that are brought in the time that it takes to get to another page.
PIECE: Final = 4.0
# The part of a cache that operands may take.
SHARE: Final = 0.7
# The part of the smaller one of computing and waiting for memory that the larger does not hide.
EXPOSED: Final = 0.4
# Cycles of a launch on one core, and of one that wakes the others.
SERIAL: Final = 2000.0
PARALLEL: Final = 12000.0
# Cycles of a line that two cores write and that goes from one to the other while they compute on.
CONTESTED: Final = 70.0


def core_of(target: Target) -> Core:
    """What is known of the cores of a target."""
    features = target.features.split(",")
    rows = (core for feature, core in CORES_BY_FEATURE.items() if feature in features)
    return next(rows, CORES.get(target.vector_bytes, Core()))


class Inside(NamedTuple):
    """What is inside some of the loops of a tiling.

    Attributes:
        extents: how many values each variable has.
        trips: how often it is run.
        elements: distinct elements of each operand.
        results: how many results there are.
    """

    extents: Mapping[Var, int]
    trips: float
    elements: tuple[int, ...]
    results: int


class Costs:
    """Costs of tilings of one nest on a target.

    Attributes:
        lanes: lanes of a whole vector.
    """

    def __init__(self, nest: Nest, target: Target):
        self.nest, self.target = nest, target
        self.core = core_of(target)
        self.lanes = lanes_of(target, widest([*nest.stores, nest.update]))
        self.operands = nest.operands
        self.work_of = [work_of(values(operand.value, set())) for operand in nest.operands]
        self.masked = [any(map(o.is_masked_inside, o.masked)) for o in nest.operands]
        self.inner = nest.reduction[-1]
        parts = (set(values(operand.value, set())) for operand in nest.operands)
        apart = set(values_of(nest.update, set())).difference(*parts)
        done = [v for v in apart if v.kind == "alu" and (v.dtype.is_int or v.attr[0] in DOTS)]
        slow = sum(self.core.slow.get(v.attr[0], 1.0) - 1 for v in done)
        self.operations = nest.operations + slow
        self.loops = {var.name: var for var in (*nest.independent, *nest.reduction)}
        self._elements: dict[tuple[int, ...], int] = {}
        self._copied: dict[tuple[object, ...], int] = {}
        self._tiles: dict[tuple[object, ...], float] = {}
        self._insides: dict[tuple[tuple[str, int], ...], list[Inside]] = {}

    # A tile.

    def tile_time(
        self, tile: Mapping[Var, int], lane: Var, lanes: int, copied: frozenset[int], written: int
    ) -> float:
        """Cycles of a tile of these sizes that writes out some steps; operands `copied` are near.

        Only what differs between tiles is known here: nothing of where else operands are.
        """
        key = (*tile.values(), lane, lanes, copied, written)
        if key not in self._tiles:
            self._tiles[key] = self._tile_time(tile, lane, lanes, copied, written)
        return self._tiles[key]

    def _tile_time(
        self, tile: Mapping[Var, int], lane: Var, lanes: int, copied: frozenset[int], written: int
    ) -> float:
        core, nest = self.core, self.nest
        along_sum = lane in nest.reduction
        vectors = 1 if along_sum else -(-tile[lane] // lanes)
        partial = not along_sum and tile[lane] % lanes > 0
        rows = {v: tile[v] for v in nest.independent if tile[v] > 1 and v is not lane}
        sums = vectors * math.prod(rows.values())
        work, loads, live, conflicts = sums * self.operations, 0.0, 1, 0.0
        if nest.taken is not None:
            taken = math.prod(size for var, size in rows.items() if var in nest.taken.vars)
            taken = sums if along_sum else taken * (vectors if lane in nest.taken.vars else 1)
            work, live = work + taken, live + taken
        waits = 0.0
        live += core.ahead * (written > 1) + TEMPORARY * (nest.operations > 1)
        kept = []
        for number, operand in enumerate(self.operands):
            near = number in copied
            times = math.prod(size for var, size in rows.items() if var in operand.moves)
            if lane in operand.moves:
                times *= vectors
                loads += times * self._vector_loads(operand, lane, lanes, near, partial)
                if not near and self._split(operand, lane) > 1:
                    waits += times * core.crossing
                if not near and abs(operand.steps[lane] or 0) > self.target.near_step:
                    conflicts += self._conflicts(operand, rows | {lane: vectors * lanes})
                kept.append(times if along_sum else vectors)
            elif not along_sum or self.inner in operand.moves:
                shared = self._shared(number, rows, written)
                loads += shared / written if shared else times
                live += shared
                conflicts += 0.0 if near else self._conflicts(operand, rows)
            work += 0 if near else times * self.work_of[number]
            apart = abs(operand.steps.get(self.inner) or 0) * operand.value.dtype.itemsize
            if not near and apart * tile[self.inner] > PAGES * PAGE:
                waits += core.page * min(1.0, apart / PAGE)
        live += min(kept) if along_sum else sum(kept)
        results = sums * written if along_sum else sums
        loads += SPILL * max(0, results + live - self.target.registers)
        step = max(
            work / core.arithmetic,
            loads / core.loads,
            (work + loads) / core.issue,
            core.latency * max(1, nest.operations) * sums / results,
            conflicts,
        )
        step += waits
        inner, length = (lane, lanes) if along_sum else (self.inner, 1)
        steps = math.prod(tile[var] for var in nest.reduction)
        entries = steps / tile[inner]
        rounds = entries * -(-tile[inner] // length)
        if written * length >= tile[inner] and len(nest.reduction) > 1:
            entries /= tile[nest.reduction[-2]]
        time = rounds * (step + ITERATION / written)
        time += (entries + 1) * ENTRY + entries * results * ENTRY_SUM
        if along_sum:
            return time + sums * FOLD
        return time + sums * self._store_time(lane, lanes, partial)

    def _shared(self, number: int, rows: Mapping[Var, int], written: int) -> int:
        """Elements that several of the written-out steps use, so that registers keep them; or 0."""
        operand = self.operands[number]
        if written == 1 or self.inner not in operand.moves:
            return 0
        moved = {var: size for var, size in rows.items() if var in operand.moves}
        extents = dict.fromkeys(operand.moves, 1) | moved | {self.inner: written}
        distinct = self.elements(number, extents)
        return distinct if distinct < written * math.prod(moved.values()) else 0

    def _vector_loads(
        self, operand: Operand, lane: Var, lanes: int, near: bool, partial: bool
    ) -> float:
        """How many loads a vector of an operand is."""
        if near:
            extents = {var: var.extent for var in operand.moves}
            return SPLIT if len(operand.axes(extents, lane)[-1].steps) > 1 else 1.0
        masked, step = partial or lane in operand.masked, operand.steps[lane] or 0
        if 1 < step <= self.target.near_step and not masked:
            return step * SPLIT + (step - 1) * SHUFFLE
        if step not in (1, -1):
            return lanes * GATHER
        return self._split(operand, lane) + masked * self._mask_time(lanes)

    def _split(self, operand: Operand, along: Var) -> float:
        """How many loads a vector along `along` is, which begins anywhere if rows do."""
        steps = (step for var, step in operand.steps.items() if var is not along)
        itemsize = operand.value.dtype.itemsize
        return SPLIT if any((step or 0) * itemsize % LINE for step in steps) else 1.0

    def _mask_time(self, lanes: int) -> float:
        """What a mask adds to an access."""
        return self.core.masked * (lanes if self.core.by_lane else 1)

    def _conflicts(self, operand: Operand, rows: Mapping[Var, int]) -> float:
        """Cycles of the rows of an operand that compete for the same places of the cache."""
        places = self.core.near // LINE // self.core.ways
        count, sets = 1, 1
        for var, size in rows.items():
            if var in operand.moves:
                step = abs(operand.steps[var] or 0) * operand.value.dtype.itemsize
                lines, rest = divmod(step, LINE)
                apart = places if rest or not lines else places // math.gcd(lines, places)
                count, sets = count * size, min(sets * min(size, apart), places)
        return count * CONFLICT if count > self.core.ways * sets else 0.0

    def _store_time(self, lane: Var, lanes: int, partial: bool) -> float:
        """Cycles to store a vector of results."""
        time = STORE
        for store in self.nest.stores:
            index, itemsize = last_index(store.indices), store.buf.dtype.itemsize
            together = abs(index.coeff(lane)) == 1
            time += partial * self._mask_time(lanes) if together else lanes * SCATTER
            if any(index.coeff(v) * itemsize % LINE for v in self.nest.independent if v != lane):
                time += self.core.crossing
        return time

    # A kernel.

    def launched(self, tiling: Tiling) -> tuple[float, Tiling]:
        """Cycles of a kernel, and its tiling on one core or on all, whichever ends first.

        A grid is always shared.
        """
        work, (name, size) = self.work(tiling), tiling.loops[0]
        busiest = self._busiest(self.loops[name].extent, size)
        waiting = CONTESTED * self._contested(self.loops[name], size)
        shared, kind = max(work * busiest, waiting) + PARALLEL, self.target.parallel
        if shared < work + SERIAL or kind == "grid":
            return shared, tiling._replace(parallel=kind)
        return work + SERIAL, tiling

    def _busiest(self, extent: int, size: int) -> float:
        """The part of the tiles of a loop that the busiest worker has."""
        count = -(-extent // size)
        return -(-count // self.target.workers) / count

    def _contested(self, shared: Var, size: int) -> float:
        """Lines of results that two workers write, which have parts of `size` of a loop."""
        count = 0.0
        for store in self.nest.stores:
            index, itemsize = last_index(store.indices), store.buf.dtype.itemsize
            near = abs(index.coeff(shared)) * itemsize
            rows = {v: abs(index.coeff(v)) * itemsize for v in self.nest.independent}
            around = [v for v, step in rows.items() if step > near]
            if around and (near * size % LINE or any(rows[v] % LINE for v in around)):
                ends = min(self.target.workers, -(-shared.extent // size))
                count += ends * math.prod(v.extent for v in around)
        return count / self.target.workers

    def work(self, tiling: Tiling) -> float:
        """Cycles of all cores together."""
        lane, inside = self.loops[tiling.lane], self.insides(tiling.loops)
        copied = frozenset(copy.operand for copy in tiling.copies)
        sizes = dict(tiling.loops)
        tiles = [
            [*_tiles(var.extent, sizes.get(var.name, var.extent))] for var in self.loops.values()
        ]
        time = 0.0
        for kind in itertools.product(*tiles):
            tile = {var: size for var, (size, _) in zip(self.loops.values(), kind, strict=True)}
            count = math.prod(count for _, count in kind)
            time += count * self.tile_time(tile, lane, tiling.lanes, copied, tiling.steps)
        for copy in tiling.copies:
            time += self.copy_time(copy.operand, lane, inside[copy.depth])
        summed = [self.loops[name] in self.nest.reduction for name, _ in tiling.loops]
        blocks = summed.index(True) if any(summed) else None
        return _both(time, self.memory_time(inside, copied, blocks))

    def insides(self, loops: tuple[tuple[str, int], ...]) -> list[Inside]:
        """What is inside each number of the first loops, from none of them on."""
        if loops not in self._insides:
            self._insides[loops] = [*self._inside_each(loops)]
        return self._insides[loops]

    def _inside_each(self, loops: Sequence[tuple[str, int]]) -> Iterator[Inside]:
        extents = {var: var.extent for var in self.loops.values()}
        trips = 1.0
        for name, size in (("", 1), *loops):
            if name:
                var = self.loops[name]
                trips *= max(extents[var] / size, 1.0)
                extents[var] = min(size, extents[var])
            elements = tuple(self.elements(n, extents) for n in range(len(self.operands)))
            results = math.prod(extents[var] for var in self.nest.independent)
            yield Inside(dict(extents), trips, elements, results)

    def elements(self, number: int, extents: Mapping[Var, int]) -> int:
        """Distinct elements of an operand."""
        operand = self.operands[number]
        key = (number, *map(extents.__getitem__, operand.moves))
        if key not in self._elements:
            self._elements[key] = math.prod(axis.size for axis in operand.axes(extents))
        return self._elements[key]

    def copied(self, number: int, lane: Var, extents: Mapping[Var, int]) -> int:
        """Elements of a copy of an operand; some are there twice if lanes are an axis alone."""
        operand = self.operands[number]
        key = (number, lane, *map(extents.__getitem__, operand.moves))
        if key not in self._copied:
            self._copied[key] = math.prod(axis.size for axis in operand.axes(extents, lane))
        return self._copied[key]

    def copy_time(self, number: int, lane: Var, inside: Inside) -> float:
        """Cycles to copy what is inside some loops of an operand, each time that they are run."""
        operand = self.operands[number]
        near, masked = _nearest(operand), self.masked[number]
        step = operand.steps.get(lane, near)
        if step in (0, 1, -1):
            each = COPY
        else:
            each = COPY_SQUARE if near == 1 and not masked else COPY_APART
        each += COPY_MASKED * masked + COPY * self.work_of[number]
        return self.copied(number, lane, inside.extents) * inside.trips * each

    def memory_time(
        self, inside: Sequence[Inside], copied: frozenset[int], blocks: int | None
    ) -> float:
        """Cycles to bring lines near from farther away.

        Results are read and written again in each block of the reduction, which are inside the
        first `blocks` loops if there are any.
        """
        time = 0.0
        held = self.nest.update.buf.dtype.itemsize
        for capacity, cost in ((self.core.near, FROM_FAR), (self.core.far, FROM_MEMORY)):
            depth, fits = self._fits(inside, copied, capacity)
            for number in range(len(self.operands)) if depth else ():
                lines = self._pieces(number, inside[depth], copied, capacity)
                same = inside[depth - 1].elements[number] == inside[depth].elements[number]
                # What a loop does not move stays, but for what streams by in the first level.
                stays = fits and same and capacity > self.core.near
                time += lines * inside[depth - stays].trips * cost
            if blocks is not None and inside[blocks].results * held > SHARE * capacity:
                time += 2 * inside[-1].results * inside[-1].trips * held / LINE * cost
        return time

    def is_near(self, tiling: Tiling) -> bool:
        """Whether half of the second level of a cache holds what all tiles of a loop read."""
        around, part = self.insides(tiling.loops)[-2:]
        copied = {copy.operand for copy in tiling.copies}
        panels = (n for n, size in enumerate(part.elements) if size == around.elements[n])
        lines = sum(self._lines(n, part, copied, self.core.far) for n in panels)
        return lines * LINE < self.core.far // 2

    def _fits(
        self, inside: Sequence[Inside], copied: frozenset[int], capacity: int
    ) -> tuple[int, bool]:
        """Inside how many loops operands fit into a cache, of all loops if they never do."""
        for depth, part in enumerate(inside):
            numbers = range(len(self.operands))
            lines = sum(self._lines(number, part, copied, capacity) for number in numbers)
            if lines * LINE <= SHARE * capacity:
                return depth, True
        return len(inside) - 1, False

    def _rows(self, number: int, part: Inside) -> tuple[int, int]:
        """Bytes of what lies together of an operand, and from one such row to the next, or 0."""
        operand = self.operands[number]
        row = itemsize = operand.value.dtype.itemsize
        steps = [(abs(step or 0) * itemsize, part.extents[v]) for v, step in operand.steps.items()]
        for step, extent in sorted(steps):
            if step > max(row, LINE) and extent > 1:
                return row, step
            row += step * (extent - 1)
        return row, 0

    def _lines(self, number: int, part: Inside, copied: Collection[int], capacity: int) -> float:
        """Lines that an operand takes of a cache: more where its rows share few places there."""
        itemsize = self.operands[number].value.dtype.itemsize
        lines = part.elements[number] * itemsize / LINE
        row, step = self._rows(number, part)
        if number in copied or not step:
            return lines
        sets = capacity // LINE // self.core.ways
        places = 1 if step % LINE else math.gcd(step // LINE, sets)
        return lines * max(1.0, places * LINE / row)

    def _pieces(self, number: int, part: Inside, copied: Collection[int], capacity: int) -> float:
        """Lines of an operand that are brought near, or that take as long as what is."""
        operand = self.operands[number]
        lines = part.elements[number] * operand.value.dtype.itemsize / LINE
        if number in copied:
            return lines
        if _nearest(operand) > 1:
            return lines * JUMP
        row, step = self._rows(number, part)
        if not step:
            return lines
        further = PIECE if capacity == self.core.far and step >= PAGE else 0.0
        return lines * (max(1.0, LINE / row) + further * LINE / max(row, LINE))


def _both(time: float, memory: float) -> float:
    """Computing and waiting for memory, at once as far as that goes."""
    return max(time, memory) + EXPOSED * min(time, memory)


def _nearest(operand: Operand) -> int:
    """The least distance of neighbours in memory, in elements."""
    return min((abs(step) for step in operand.steps.values() if step), default=1)


def _tiles(extent: int, size: int) -> Iterator[tuple[int, int]]:
    """Sizes of the tiles of a loop, and how many there are of each."""
    whole, rest = divmod(extent, size)
    if whole:
        yield size, whole
    if rest:
        yield rest, 1
