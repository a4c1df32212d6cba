"""The transformation `Tile`: a reduction in tiles that stay in registers, its operands near by.

One recursion over the loops of the schedule makes the kernel. Each loop has whole tiles, and what
is left over, as regions of their own; in each, copies of operands are made where the schedule has
them, and innermost a tile is written out. Its vectors are whole: what is beyond the end of the
lanes' loop is computed from zeros, and not stored. Where lanes are iterations of the reduction, a
tile has partial results of each lane, which are combined in the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, at_least, at_most, expr
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    as_block,
    loads_of,
    rewrite,
    values_of,
    with_axes,
)
from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.opt.analysis.lanes import fitting
from gpu.compiler.opt.analysis.reduction_nest import Axis, Nest, Operand, reduction_nest
from gpu.compiler.opt.primitives.predication import holds, masked_loads
from gpu.core.errors import IllegalOpt

# Vectors of a row that a copy writes without a loop.
WRITTEN_OUT: Final = 8


class Copy(NamedTuple):
    """Operand number `operand` of the nest is copied inside the first `depth` loops."""

    operand: int
    depth: int


class Tiling(NamedTuple):
    """How a reduction is tiled.

    Attributes:
        lane: the loop whose iterations are lanes: an independent one, or one of the reduction.
        lanes: lanes of a vector.
        loops: loops around a tile, outermost first: the name of an independent loop, and how many
            of its iterations one has inside. The last size of a name is that of a tile, which has
            all iterations of independent loops that are not named.
        copies: operands that are copied to memory near by.
        steps: steps of the innermost loop of the reduction that are written out; vectors of them,
            each with partial results of its own, where lanes are along the reduction.
        parallel: whether the workers share the outermost loop.
    """

    lane: str
    lanes: int
    loops: tuple[tuple[str, int], ...]
    copies: tuple[Copy, ...] = ()
    steps: int = 1
    parallel: bool = False


def tile(body: K.Block, tiling: Tiling) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Tile`. Raises IllegalOpt."""
    nest = reduction_nest(body)
    if nest is None:
        raise IllegalOpt(f"{tiling}: the kernel is no reduction inside independent loops")
    _require_legal(nest, tiling)
    return _Tiler(nest, tiling).body()


def _require_legal(nest: Nest, tiling: Tiling) -> None:
    """Raises IllegalOpt for a schedule that this nest does not have."""
    sizes = {var.name: var.extent for var in nest.independent}
    names = [*sizes, *(var.name for var in nest.reduction)]
    if tiling.lane not in names or tiling.lanes < 2 or tiling.steps < 1:
        raise IllegalOpt(f"{tiling}: lanes are two or more iterations of one of {names}")
    if tiling.lane in sizes:
        sizes[tiling.lane] = _whole(sizes[tiling.lane], tiling.lanes)
    for number, (name, size) in enumerate(tiling.loops):
        if not 1 <= size <= sizes.get(name, 0):
            raise IllegalOpt(f"{tiling}: loop {number} has no {size} iterations of {name} inside")
        sizes[name] = size
    along = [size for name, size in tiling.loops if name == tiling.lane] + [tiling.lanes]
    if any(size % inside for size, inside in itertools.pairwise(along)):
        raise IllegalOpt(f"{tiling}: sizes along {tiling.lane} are no multiples of those inside")
    operands = [copy.operand for copy in tiling.copies]
    if len(set(operands)) != len(operands) or not {*operands} <= {*range(len(nest.operands))}:
        raise IllegalOpt(f"{tiling}: there are {len(nest.operands)} operands, each copied once")
    if any(not tiling.parallel <= copy.depth <= len(tiling.loops) for copy in tiling.copies):
        raise IllegalOpt(f"{tiling}: copies are inside the loop of a worker and around a tile")
    if tiling.parallel and not tiling.loops:
        raise IllegalOpt(f"{tiling}: there is no loop for workers to share")


def _whole(extent: int, lanes: int) -> int:
    """As many iterations as whole vectors have."""
    return -(-extent // lanes) * lanes


class _Place(NamedTuple):
    """Where a tile, or the loops around it, begins, and how much of each loop is inside."""

    start: Mapping[Var, Expr]
    size: Mapping[Var, int]


class _Copied(NamedTuple):
    """Memory with a copy of an operand.

    Attributes:
        buf: what it is in; its axes are numbers of tiles along the lanes, if there are any, and
            then those of the operand.
        axes: axes of the operand.
        start: where the loops began where it was made.
        tile: lanes of a tile, where numbers of tiles are an axis; else 0.
    """

    buf: K.Buf
    axes: Sequence[Axis]
    start: Mapping[Var, Expr]
    tile: int

    def load(self, at: Mapping[Var, Expr]) -> K.Value:
        """The element where the variables have the values `at`."""
        local = {var: value - self.start.get(var, 0) for var, value in at.items()}
        return K.load(self.buf, self.indices([axis.place(local) for axis in self.axes]))

    def indices(self, places: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where in memory the element at places of the axes is."""
        if not self.tile:
            return tuple(places)
        *rows, last = places
        return (last // self.tile, *rows, last % self.tile)


Loops = tuple[tuple[Var, str], ...]


class _Run(NamedTuple):
    """Part of an axis of a copy.

    Attributes:
        place: where on the axis an element is.
        loops: variables in it, with the kinds of their loops.
        lane: its loop of lanes, if it has one.
        mask: where the axis has an element.
    """

    place: Expr
    loops: Loops = ()
    lane: Loops = ()
    mask: Mask = ALWAYS


class _Element(NamedTuple):
    """What becomes of the statements of the nest in a tile: they compute one element of it.

    Attributes:
        nest: the nest.
        env: what its independent loops are.
        bufs: what its private memory is.
        copied: copies of operands, by number.
        lane: the loop that is lanes.
        mask: where lanes are elements.
        known: what values are, by what they are in the nest.
    """

    nest: Nest
    env: Mapping[Var, Expr]
    bufs: Mapping[K.Buf, K.Buf]
    copied: Mapping[int, _Copied]
    lane: Var
    mask: Mask = ALWAYS
    known: Mapping[K.Value, K.Value] = MappingProxyType({})

    def moved(self, stmt: K.Update, step: Mapping[Var, Expr] | None = None) -> K.Update:
        """A statement for the element, at a step of the reduction."""
        env = {**self.env, **(step or {})}
        known = dict(self.known)
        if self.mask is not ALWAYS:
            for load in values_of(stmt, set()):
                if (
                    load.kind == "load"
                    and load.attr[0].space == "global"
                    and self.lane in load.vars
                ):
                    buf, indices, mask = load.attr
                    places = tuple(i.subst(env) for i in indices)
                    known[load] = K.load(buf, places, mask.subst(env) & self.mask)
        if step is not None:
            for number, copied in self.copied.items():
                known[self.nest.operands[number].value] = copied.load(env)
        moved = Substitution(env, self.bufs, known).stmt(stmt)
        assert isinstance(moved, K.Update)
        return moved._replace(mask=moved.mask & self.mask) if moved.buf.space == "global" else moved


class _Tiler:
    """Builds a tiled nest, from the outermost loop inwards."""

    def __init__(self, nest: Nest, tiling: Tiling):
        self.nest, self.tiling = nest, tiling
        self.vars = {var.name: var for var in nest.independent}
        self.lane = next(v for v in (*nest.independent, *nest.reduction) if v.name == tiling.lane)
        self.tile = dict(tiling.loops).get(tiling.lane, _whole(self.lane.extent, tiling.lanes))
        self.numbers = itertools.count()

    def body(self) -> K.Block:
        """The whole kernel."""
        start = {var: expr(0) for var in self.nest.independent}
        size = {var: var.extent for var in self.nest.independent}
        return as_block(K.Block(tuple(self.inside(0, _Place(start, size), {}))))

    def inside(self, depth: int, place: _Place, copied: Mapping[int, _Copied]) -> Iterator[K.Stmt]:
        """What is inside the first `depth` loops."""
        copied = dict(copied)
        for number in (copy.operand for copy in self.tiling.copies if copy.depth == depth):
            axes = self.nest.operands[number].axes(self.extents(place), self.lane)
            if axes:  # of a single element, as what is left over may have, there is no copy
                copied[number] = self.memory(number, place, axes)
                yield K.Alloc(copied[number].buf)
                yield from self.filled(number, copied[number], place)
        if depth == len(self.tiling.loops):
            yield from self.written_out(place, copied)
            return
        name, step = self.tiling.loops[depth]
        var, number = self.vars[name], next(self.numbers)
        whole, rest = divmod(place.size[var], step)
        counter = Var(f"{name}_{number}", 0, whole - 1 + (rest > 0))
        parallel = self.tiling.parallel and not depth

        def region(first: Expr, size: int) -> K.Block:
            at = _Place({**place.start, var: place.start[var] + first}, {**place.size, var: size})
            return K.Block(tuple(self.inside(depth + 1, at, copied)))

        if whole and rest and parallel:
            # One loop for both, so that workers have equal shares.
            tiles = K.If(at_most(counter, whole - 1), region(counter * step, step))
            last = K.If(at_least(counter, whole), region(expr(whole * step), rest))
            yield K.Loop(counter, "worker", K.Block((tiles, last)))
            return
        if whole:
            counter = Var(counter.name, 0, whole - 1)
            tiles_of = region(counter * step, step)
            kind = "worker" if parallel else "serial"
            yield K.Loop(counter, kind, tiles_of) if whole > 1 or parallel else tiles_of
        if rest:
            left = region(expr(whole * step), rest)
            yield K.Loop(counter, "worker", left) if parallel else left

    # Copies of operands.

    def memory(self, number: int, place: _Place, axes: Sequence[Axis]) -> _Copied:
        """Memory for what is used of an operand inside the loops that begin at `place`."""
        operand, lanes = self.nest.operands[number], self.tiling.lanes
        shape, tile = [axis.size for axis in axes], 0
        if self.lane in operand.moves:
            size = self.extents(place)[self.lane]
            shape[-1] += _whole(size, lanes) - size
            if len(axes[-1].steps) == 1 and shape[-1] > self.tile:
                tile = self.tile
                shape = [-(-shape[-1] // tile), *shape[:-1], tile]
        buf = K.Buf(f"near{next(self.numbers)}", operand.value.dtype, tuple(shape), "team")
        return _Copied(buf, axes, place.start, tile)

    def extents(self, place: _Place) -> dict[Var, int]:
        """How many values each variable has inside the loops that begin at `place`."""
        return {**place.size, **{var: var.extent for var in self.nest.reduction}}

    def filled(self, number: int, copied: _Copied, place: _Place) -> Iterator[K.Stmt]:
        """The loops that copy an operand: along its last axis in vectors."""
        operand, suffix = self.nest.operands[number], f"_{next(self.numbers)}"
        *rows, row = copied.axes
        for run in self.runs(row, copied.tile, suffix):
            square = self.square(operand, rows, row, run)
            for part in _squares(square, run, suffix) if square else [_Run(expr(0))]:
                counters = [Var(f"c{n}{suffix}", 0, axis.size - 1) for n, axis in enumerate(rows)]
                at = dict(zip(rows, map(expr, counters), strict=True)) | {row: run.place}
                if square:
                    at[square] = part.place
                outer = [(c, "serial") for c, a in zip(counters, rows, strict=True) if a != square]
                inner = [(var, "serial" if square else kind) for var, kind in run.loops]
                loops = [*outer, *part.loops[:-1], *inner, *part.loops[-1:], *run.lane]
                yield _nested(loops, self.element(operand, copied, place, at, run.mask))

    def runs(self, row: Axis, tile: int, suffix: str) -> Iterator[_Run]:
        """The vectors along the last axis of a copy: of whole tiles, then of what is left."""
        padded = row.steps[0][0] is self.lane and len(row.steps) == 1
        lanes = self.tiling.lanes if padded else fitting(self.tiling.lanes, row.size)
        if not padded and row.size < lanes:
            one = Var(f"e{suffix}", 0, row.size - 1)
            yield _Run(expr(one), ((one, "unroll"),))
            return
        lane = Var(f"l{suffix}", 0, lanes - 1)
        tiles, left = divmod(row.size, tile) if tile else (0, row.size)
        if tiles:
            number = Var(f"t{suffix}", 0, tiles - 1)
            vectors = _vectors(f"v{suffix}", tile // lanes)
            place = number * tile + vectors[0] * lanes + lane
            yield _Run(place, ((number, "serial"), vectors), ((lane, "vector"),))
        first, (whole, rest) = expr(tiles * tile), divmod(left, lanes)
        if whole:
            vectors = _vectors(f"w{suffix}", whole)
            place = first + vectors[0] * lanes + lane
            yield _Run(place, (vectors,), ((lane, "vector"),))
        if rest and padded:
            place = first + whole * lanes + lane
            yield _Run(place, (), ((lane, "vector"),), at_most(place, row.size - 1))
        elif rest:
            # The last vector begins where it ends with the axis.
            yield _Run(first + left - lanes + lane, (), ((lane, "vector"),))

    def square(self, operand: Operand, rows: Sequence[Axis], row: Axis, run: _Run) -> Axis | None:
        """The axis along which memory is loaded, and then transposed, where lanes lie apart."""
        if not run.lane or run.mask is not ALWAYS or operand.masked:
            return None
        if operand.steps[row.steps[0][0]] in (0, 1, -1):
            return None
        lanes = run.lane[0][0].extent
        beside = (a for a in rows if operand.steps[a.steps[0][0]] == a.steps[0][1])
        return next((axis for axis in beside if axis.size >= lanes), None)

    def element(
        self,
        operand: Operand,
        copied: _Copied,
        place: _Place,
        at: Mapping[Axis, Expr],
        mask: Mask,
    ) -> K.Update:
        """Copies the element at places of the axes."""
        env: dict[Var, Expr | int] = dict.fromkeys(self.nest.reduction, 0) | dict(place.start)
        for axis, where in at.items():
            for var, local in axis.reach(where).items():
                env[var] = place.start.get(var, expr(0)) + local
        indices = copied.indices([at[axis] for axis in copied.axes])
        value = masked_loads(Substitution(env).value(operand.value), mask)
        return K.Update(copied.buf, indices, None, value)

    # Tiles.

    def written_out(self, place: _Place, copied: Mapping[int, _Copied]) -> Iterator[K.Stmt]:
        """A tile: its accumulators, the reduction, and what becomes of the results."""
        number = next(self.numbers)
        own = {
            b: K.Buf(f"{b.name}_{number}", b.dtype, b.shape, b.space)
            for b in self.nest.accumulators
        }
        rows = {
            var: Var(f"{var.name}u{number}", 0, count - 1)
            for var, count in place.size.items()
            if var is not self.lane and count > 1
        }
        env = {var: start + rows.get(var, 0) for var, start in place.start.items()}
        stmt = _Element(self.nest, env, own, copied, self.lane)
        if self.lane in self.nest.reduction:
            yield self.along_sum(stmt, [*rows.values()], number)
        else:
            yield from self.along_results(stmt, place, [*rows.values()], number)

    def along_results(
        self, stmt: _Element, place: _Place, rows: Sequence[Var], number: int
    ) -> Iterator[K.Stmt]:
        """A tile whose lanes are results."""
        lanes, size, own = self.tiling.lanes, place.size[self.lane], stmt.bufs
        vector = Var(f"{self.lane.name}v{number}", 0, -(-size // lanes) - 1)
        lane = Var(f"{self.lane.name}l{number}", 0, lanes - 1)
        along = vector * lanes + lane
        env = {**stmt.env, self.lane: place.start[self.lane] + along}
        stmt = stmt._replace(env=env, mask=at_most(along, size - 1))
        after, later = [stmt.moved(s) for s in self.nest.after], None
        if self.is_scattered():
            waiting = {b: self.waiting(b, rows, vector) for b in own}
            yield from map(K.Alloc, waiting.values())
            at = (*map(expr, rows), along)
            after = [K.Update(waiting[b], at, None, K.load(own[b], ())) for b in own]
            later = self.stored_alone(env, _unrolled(rows), waiting, place)

        inner = self.nest.reduction[-1]

        def updates(around: Mapping[Var, Expr]) -> Iterator[K.Stmt]:
            for loops, step in _steps(f"{inner.name}_{number}", inner.extent, self.tiling.steps):
                yield _nested(loops, stmt.moved(self.nest.update, {**around, inner: step}))

        reduced = self.reduced(inner, updates, number)
        yield _of_all(
            (*_unrolled([*rows, vector]), (lane, "vector")),
            K.Block(
                (*map(K.Alloc, own.values()), *map(stmt.moved, self.nest.before), reduced, *after)
            ),
        )
        if later is not None:
            yield later

    def along_sum(self, stmt: _Element, rows: Sequence[Var], number: int) -> K.Stmt:
        """A tile whose lanes are steps of the reduction: results of each lane, then of all."""
        lanes, update, own = self.tiling.lanes, self.nest.update, stmt.bufs[self.nest.update.buf]
        vectors, rest = divmod(self.lane.extent, lanes)
        written = min(self.tiling.steps, max(vectors, 1))
        lane = Var(f"{self.lane.name}l{number}", 0, lanes - 1)
        part = K.Buf(f"{own.name}p", own.dtype, (written, lanes), "private")
        assert update.monoid is not None
        identity = K.const(part.dtype, MONOIDS[update.monoid].identity(part.dtype))

        def combined(at: Expr, around: Mapping[Var, Expr], vector: Expr, mask: Mask) -> K.Update:
            env = {**around, self.lane: vector * lanes + lane}
            value = stmt._replace(mask=mask).moved(update, env).value
            value = value if mask is ALWAYS else K.alu("where", holds(mask), value, identity)
            return K.Update(part, (at, expr(lane)), update.monoid, value)

        def updates(around: Mapping[Var, Expr]) -> Iterator[K.Stmt]:
            for loops, vector in _steps(f"{self.lane.name}_{number}", vectors, written):
                yield _nested(loops, combined(expr(loops[-1][0]), around, vector, ALWAYS))
            if rest:
                yield combined(expr(0), around, expr(vectors), at_most(expr(lane), rest - 1))

        first = Var(f"{self.lane.name}b{number}", 0, written - 1)
        begun = K.Update(part, (expr(first), expr(lane)), None, identity)
        others = [K.load(part, (expr(n), expr(lane))) for n in range(1, written)]
        joined = [K.Update(part, (expr(0), expr(lane)), update.monoid, value) for value in others]
        whole = K.Update(own, (), update.monoid, K.load(part, (expr(0), expr(lane))))
        stmts = (
            *map(K.Alloc, (*stmt.bufs.values(), part)),
            *map(stmt.moved, self.nest.before),
            _nested(_unrolled([first]), begun),
            self.reduced(self.lane, updates, number),
            *joined,
            whole,
            *map(stmt.moved, self.nest.after),
        )
        return _of_all(_unrolled(rows), K.Block(stmts), ((lane, "vector"),))

    def is_scattered(self) -> bool:
        """Whether results lie apart along the lanes, and are all that is written after a sum.

        They wait in memory then, from where each is stored alone: out of vectors that is more text.
        """
        mine = set(self.nest.accumulators)
        loads = {v for s in self.nest.after for v in loads_of(s.value) if v.attr[0] in mine}
        apart = any(abs(s.indices[-1].coeff(self.lane)) != 1 for s in self.nest.after)
        alone = all(s.buf.space == "global" and s.monoid is None for s in self.nest.after)
        return apart and alone and all(v is K.load(v.attr[0], ()) for v in loads)

    def waiting(self, buf: K.Buf, rows: Iterable[Var], vector: Var) -> K.Buf:
        """Memory for what the accumulators of a tile hold in the end."""
        shape = (*(row.extent for row in rows), vector.extent * self.tiling.lanes)
        return K.Buf(f"wait{next(self.numbers)}", buf.dtype, shape, "team")

    def stored_alone(
        self,
        env: Mapping[Var, Expr],
        rows: Sequence[tuple[Var, str]],
        waiting: Mapping[K.Buf, K.Buf],
        place: _Place,
    ) -> K.Stmt:
        """Stores results that wait, lane by lane, of all rows of a tile."""
        one = Var(f"{self.lane.name}w{next(self.numbers)}", 0, place.size[self.lane] - 1)
        env = {**env, self.lane: place.start[self.lane] + one}
        at = (*(expr(row) for row, _ in rows), expr(one))
        known = {K.load(b, ()): K.load(held, at) for b, held in waiting.items()}
        single = _Element(self.nest, env, {}, {}, self.lane, known=known)
        stores = [_nested(rows, single.moved(s)) for s in self.nest.after]
        return K.Loop(one, "serial", K.Block(tuple(stores)))

    def reduced(
        self,
        inner: Var,
        updates: Callable[[Mapping[Var, Expr]], Iterable[K.Stmt]],
        number: int,
    ) -> K.Stmt:
        """The loops of the reduction around `inner`, and the `updates` of its steps there."""
        outer = [var for var in self.nest.reduction if var is not inner]
        around = [Var(f"{var.name}_{number}", 0, var.extent - 1) for var in outer]
        env = dict(zip(outer, map(expr, around), strict=True))
        return _nested([(var, "serial") for var in around], K.Block(tuple(updates(env))))


def _nested(loops: Iterable[tuple[Var, str]], body: K.Stmt) -> K.Stmt:
    """`body` inside loops of these kinds, but for those of one iteration."""
    for var, kind in reversed(list(loops)):
        body = K.Loop(var, kind, as_block(body)) if var.extent > 1 else body
    return body


def _unrolled(axes: Iterable[Var]) -> Loops:
    return tuple((var, "unroll") for var in axes)


def _of_all(loops: Loops, block: K.Block, lanes: Loops = ()) -> K.Stmt:
    """What `block` does for one element, done for those of all `loops`, which are written out.

    Its private memory is there for each of them. Statements that use `lanes` are inside those too.
    """
    own = [s.buf for s in block.body if isinstance(s, K.Alloc)]
    axes = [var for var, _ in loops if var.extent > 1]

    def everywhere(stmt: K.Stmt) -> K.Stmt | None:
        if not isinstance(stmt, K.Update):
            return None
        used = stmt.value.vars.union(*(index.vars for index in stmt.indices))
        return _nested([*loops, *(loop for loop in lanes if loop[0] in used)], stmt)

    return rewrite(with_axes(block, own, axes, "private"), everywhere)


def _vectors(name: str, count: int) -> tuple[Var, str]:
    """A loop over vectors, written out where it is short."""
    return Var(name, 0, count - 1), "unroll" if count <= WRITTEN_OUT else "serial"


def _squares(axis: Axis, run: _Run, suffix: str) -> Iterator[_Run]:
    """The parts of an axis that make squares with the lanes of a run; the last one may overlap."""
    side = run.lane[0][0].extent
    inner = Var(f"q{suffix}", 0, side - 1)
    whole, rest = divmod(axis.size, side)
    counter = Var(f"p{suffix}", 0, whole - 1)
    yield _Run(counter * side + inner, ((counter, "serial"), (inner, "unroll")))
    if rest:
        yield _Run(expr(axis.size - side) + inner, ((inner, "unroll"),))


def _steps(name: str, extent: int, count: int) -> Iterator[tuple[Loops, Expr]]:
    """The loops over steps of which `count` are written out, and the steps."""
    whole, rest = divmod(extent, count)
    inner = Var(f"{name}i", 0, count - 1)
    if whole:
        outer = Var(f"{name}o", 0, whole - 1)
        yield ((outer, "serial"), (inner, "unroll")), outer * count + inner
    if rest:
        last = Var(f"{name}t", 0, rest - 1)
        yield ((last, "unroll"),), expr(last) + whole * count
