"""The transformation `Tile`: a reduction in tiles that stay in registers, its operands near by.

One recursion over the loops of the schedule makes the kernel. Each loop has whole tiles, and what
is left over, as regions of their own; in each, copies of operands are made where the schedule has
them, and innermost a tile is written out. Its vectors are whole: what is beyond the end of the
lanes' loop is computed from zeros, and not stored. Where lanes are iterations of the reduction, a
tile has partial results of each lane, which are combined in the end. Where a loop of the reduction
is around tiles, these combine what blocks of it give in memory: in the output if that is all that
becomes of results, else in memory of their own from which the last block takes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import (
    ALWAYS,
    NEVER,
    Expr,
    Mask,
    Var,
    at_least,
    at_most,
    expr,
    iterations,
    loop_var,
)
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    as_block,
    find_loop,
    loads_of,
    replace_loop,
    rewrite,
    values_of,
    with_axes,
    writes,
)
from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.opt.analysis.loop_nest import last_index
from gpu.compiler.opt.analysis.reduction_nest import Nest, Operand, reduction_nest
from gpu.compiler.opt.primitives.operand_copy import Copier, Loops, OperandCopy, nested, rounded_up
from gpu.compiler.opt.primitives.predication import holds
from gpu.core.errors import IllegalOpt

# The part of a tile's rows that is done at a time of what is left over where that is not known.
FEW: Final = 3


class Copy(NamedTuple):
    """Operand number `operand` of the nest is copied inside the first `depth` loops."""

    operand: int
    depth: int


class Tiling(NamedTuple):
    """How a reduction is tiled.

    Attributes:
        lane: the loop whose iterations are lanes: an independent one, or one of the reduction.
        lanes: lanes of a vector.
        loops: loops around a tile, outermost first: the name of a loop, and how many of its
            iterations one has inside. The last size of a name is that of a tile, which has all
            iterations of loops that are not named.
        copies: operands that are copied to memory near by.
        steps: steps of the innermost loop of the reduction that are written out; vectors of them,
            each with partial results of its own, where lanes are along the reduction.
        parallel: the kind of the outermost loop where workers, or a grid, share it, else "".
    """

    lane: str
    lanes: int
    loops: tuple[tuple[str, int], ...]
    copies: tuple[Copy, ...] = ()
    steps: int = 1
    parallel: str = ""


def tile(body: K.Block, tiling: Tiling, inside: str = "") -> K.Stmt:
    """See `gpu.compiler.opt.opts.Tile`. Raises IllegalOpt."""
    loop = find_loop(body, inside) if inside else None
    nest = reduction_nest(K.Block((loop,)) if loop else body)
    if nest is None:
        what = f"loop {inside}" if loop else "the kernel"
        raise IllegalOpt(f"{what} is no reduction inside independent loops")
    if loop and tiling.parallel and loop not in body.body:
        raise IllegalOpt(f"workers share outer loops alone, and not loop {inside}")
    _require_legal(nest, tiling)
    tiled = _Tiler(nest, tiling, f"{inside}_" if loop else "").body()
    return replace_loop(body, loop, tiled) if loop else tiled


def _require_legal(nest: Nest, tiling: Tiling) -> None:
    """Raises IllegalOpt for a schedule that this nest does not have."""
    sizes = {var.name: var.extent for var in nest.independent}
    names = [var.name for var in (*nest.independent, *nest.reduction) if var.extent > 1]
    blocked = {var.name: var for var in nest.reduction if var.name in dict(tiling.loops)}
    if tiling.lane not in names or tiling.lanes < 2 or tiling.steps < 1:
        raise IllegalOpt(f"lanes are two or more iterations of one of {names}")
    if tiling.lane in sizes:
        sizes[tiling.lane] = rounded_up(sizes[tiling.lane], tiling.lanes)
    sizes |= {name: var.extent for name, var in blocked.items()}
    for number, (name, size) in enumerate(tiling.loops):
        if not 1 <= size <= sizes.get(name, 0):
            raise IllegalOpt(f"loop {number} has no {size} iterations of {name} inside")
        sizes[name] = size
    along = [size for name, size in tiling.loops if name == tiling.lane] + [tiling.lanes]
    if any(size % inside for size, inside in itertools.pairwise(along)):
        raise IllegalOpt(f"sizes along {tiling.lane} are no multiples of those inside")
    operands = [copy.operand for copy in tiling.copies]
    if len(set(operands)) != len(operands) or not {*operands} <= {*range(len(nest.operands))}:
        raise IllegalOpt(f"there are {len(nest.operands)} operands, each copied once")
    if any(not bool(tiling.parallel) <= copy.depth <= len(tiling.loops) for copy in tiling.copies):
        raise IllegalOpt("copies are inside the loop of a worker and around a tile")
    around = {name for name, _ in tiling.loops}
    if any(var.stop is not None and var.name not in around for var in nest.independent):
        raise IllegalOpt("loops that are counted at launch are around a tile")
    for copy in tiling.copies:
        inside = [name for name, _ in tiling.loops[: copy.depth]]
        if not is_known(nest.operands[copy.operand], tiling.lane, inside):
            raise IllegalOpt(f"how large {copy} is, is known at launch only")
    _require_legal_blocks(nest, tiling, blocked)


def _require_legal_blocks(nest: Nest, tiling: Tiling, blocked: Mapping[str, Var]) -> None:
    """Raises IllegalOpt where loops of the reduction that are around tiles may not be there."""
    if tiling.lane in blocked or any(var.stop is not None for var in blocked.values()):
        raise IllegalOpt("blocks are of loops that are no lanes, of known extents")
    first = next((n for n, (name, _) in enumerate(tiling.loops) if name in blocked), None)
    outside = {name for name, _ in tiling.loops[:first]}
    if tiling.parallel and not outside:
        raise IllegalOpt("there is no independent loop for workers to share")
    if not blocked:
        return
    if not _begins_with_identity(nest):
        raise IllegalOpt("results of blocks begin with something else than nothing")
    counted = any(v.stop is not None and v.name not in outside for v in nest.independent)
    if counted and store_of_blocks(nest, tiling.lane) is None:
        raise IllegalOpt("loops that are counted at launch are around blocks")


def is_known(operand: Operand, lane: str, around: Sequence[str]) -> bool:
    """Whether it is known before the launch how much of an operand the loops `around` have inside.

    Of loops that are counted at launch these leave tiles, though lanes may be beyond the last one.
    """
    counted = (var.name for var in operand.moves if var.stop is not None)
    return all(name in around and name != lane for name in counted)


def store_of_blocks(nest: Nest, lane: str) -> K.Update | None:
    """What stores results, if blocks of the reduction can combine theirs where it does.

    Nothing that the reduction reads is there: operands are in no memory that it writes.
    """
    plain = (K.load(nest.update.buf, ()), ALWAYS, None, "global")
    if [(s.value, s.mask, s.monoid, s.buf.space) for s in nest.after] != [plain]:
        return None
    return None if _is_scattered(nest, lane) else nest.after[0]


def _is_scattered(nest: Nest, lane: str) -> bool:
    """Whether results lie apart along the lanes, and are all that is written after a sum.

    They wait in memory then, from where each is stored alone: out of vectors that is more text.
    """
    along = next((var for var in nest.independent if var.name == lane), None)
    mine = set(nest.accumulators)
    loads = {v for s in nest.after for v in loads_of(s.value) if v.attr[0] in mine}
    apart = along and any(abs(last_index(s.indices).coeff(along)) != 1 for s in nest.after)
    alone = all(s.buf.space != "private" and s.monoid is None for s in nest.after)
    return bool(apart) and alone and all(v is K.load(v.attr[0], ()) for v in loads)


def _begins_with_identity(nest: Nest) -> bool:
    """Whether an accumulator is set to what changes nothing when it is combined."""
    buf, monoid = nest.update.buf, nest.update.monoid
    assert monoid is not None
    nothing = K.const(buf.dtype, MONOIDS[monoid].identity(buf.dtype))
    return [s.value for s in nest.before if s.buf is buf] == [nothing]


class _Place(NamedTuple):
    """Where a tile, or the loops around it, begins, and how much of each loop is inside.

    Attributes:
        start, size: by the variables of the nest.
        cut: whether as much as `size` says may be beyond what the loop of lanes has.
        held: inside blocks of the reduction, the element with what they have combined so far.
    """

    start: Mapping[Var, Expr]
    size: Mapping[Var, int]
    cut: bool = False
    held: K.Value | None = None


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
    copied: Mapping[int, OperandCopy]
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
                    and load.attr[0].space != "private"
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
        is_own = moved.buf.space == "private"
        return moved if is_own else moved._replace(mask=moved.mask & self.mask)


class _Tiler:
    """Builds a tiled nest, from the outermost loop inwards."""

    def __init__(self, nest: Nest, tiling: Tiling, label: str):
        """`label` begins what is new in names."""
        self.nest, self.tiling = nest, tiling
        self.vars = {var.name: var for var in (*nest.independent, *nest.reduction)}
        self.lane = self.vars[tiling.lane]
        self.blocked = {self.vars[name] for name, _ in tiling.loops} - {*nest.independent}
        size = dict(tiling.loops).get(tiling.lane, rounded_up(self.lane.extent, tiling.lanes))
        self.copier = Copier(self.lane, tiling.lanes, size)
        self.numbers = (f"{label}{number}" for number in itertools.count())

    def body(self) -> K.Block:
        """The whole kernel."""
        start = {var: expr(0) for var in self.vars.values()}
        size = {var: var.extent for var in self.vars.values()}
        return as_block(K.Block(tuple(self.inside(0, _Place(start, size), {}))))

    def inside(
        self, depth: int, place: _Place, copied: Mapping[int, OperandCopy]
    ) -> Iterator[K.Stmt]:
        """What is inside the first `depth` loops."""
        copied = dict(copied)
        yield from self.copies(depth, place, copied)
        if depth == len(self.tiling.loops):
            yield from self.written_out(place, copied)
            return
        name, step = self.tiling.loops[depth]
        var, number = self.vars[name], next(self.numbers)
        if var in self.blocked and place.held is None:
            held = self.held_by_blocks(place)
            place = place._replace(held=held)
            if held.attr[0].space == "team":
                yield K.Alloc(held.attr[0])
        outermost = all(other != name for other, _ in self.tiling.loops[:depth])
        total = iterations(var) if outermost else expr(place.size[var])
        whole, rest = total // step, total % step
        parallel = "" if depth else self.tiling.parallel

        def region(first: Expr, size: int, cut: bool = False) -> K.Block:
            start = {**place.start, var: place.start[var] + first}
            at = _Place(start, {**place.size, var: size}, place.cut or cut, place.held)
            return K.Block(tuple(self.inside(depth + 1, at, copied)))

        def repeated(count: Expr, size: int, first: Expr, cut: bool = False) -> K.Stmt:
            counter = loop_var(f"{name}_{number}", count)
            inside = region(first + counter * size, size, cut)
            if not parallel or counter.extent > 1:
                return nested([(counter, parallel or "serial")], inside)
            return K.Loop(
                Var(counter.name, 0, 0), parallel, as_block(nested([(counter, "serial")], inside))
            )

        if parallel and total.is_const and min(whole.value, rest.value):
            # One loop for both, so that workers have equal shares.
            counter = loop_var(f"{name}_{number}", whole + 1)
            tiles = K.If(at_most(counter, whole - 1), region(counter * step, step))
            last = K.If(at_least(counter, whole), region(whole * step, rest.value))
            yield K.Loop(counter, parallel, K.Block((tiles, last)))
            return
        if whole is not expr(0):
            yield repeated(whole, step, expr(0))
        if rest is expr(0):
            return
        if rest.is_const:
            yield repeated(expr(1), rest.value, whole * step)
        elif var is self.lane:
            lanes = self.tiling.lanes
            yield repeated((rest + lanes - 1) // lanes, lanes, whole * step, cut=True)
        else:
            # How many rows are left over is not known: some at a time, then one by one.
            first = whole * step
            for few in dict.fromkeys((-(-step // FEW), 1)):
                yield repeated(rest // few, few, first)
                first, rest = first + rest // few * few, rest % few

    def copies(self, depth: int, place: _Place, copied: dict[int, OperandCopy]) -> Iterator[K.Stmt]:
        """Makes the copies of operands inside the first `depth` loops, which `copied` has then."""
        for which in (copy.operand for copy in self.tiling.copies if copy.depth == depth):
            operand = self.nest.operands[which]
            memory = self.copier.memory(next(self.numbers), operand, place.start, place.size)
            if memory is not None:
                copied[which] = memory
                yield K.Alloc(memory.buf)
                yield from self.copier.filled(next(self.numbers), operand, memory)

    def written_out(self, place: _Place, copied: Mapping[int, OperandCopy]) -> Iterator[K.Stmt]:
        """A tile: its accumulators, the reduction, and what becomes of the results."""
        number = next(self.numbers)
        own = {
            b: K.Buf(f"{b.name}_{number}", b.dtype, b.shape, b.space)
            for b in self.nest.accumulators
        }
        rows = {
            var: Var(f"{var.name}u{number}", 0, count - 1)
            for var, count in place.size.items()
            if var in self.nest.independent and var is not self.lane and count > 1
        }
        env = {var: place.start[var] + rows.get(var, 0) for var in self.nest.independent}
        stmt = _Element(self.nest, env, own, copied, self.lane)
        if self.lane in self.nest.reduction:
            yield self.along_sum(stmt, place, [*rows.values()], number)
        else:
            yield from self.along_results(stmt, place, [*rows.values()], number)

    def along_results(
        self, stmt: _Element, place: _Place, rows: Sequence[Var], number: str
    ) -> Iterator[K.Stmt]:
        """A tile whose lanes are results."""
        lanes, size, own = self.tiling.lanes, place.size[self.lane], stmt.bufs
        vector = Var(f"{self.lane.name}v{number}", 0, -(-size // lanes) - 1)
        lane = Var(f"{self.lane.name}l{number}", 0, lanes - 1)
        along = vector * lanes + lane
        env = {**stmt.env, self.lane: place.start[self.lane] + along}
        stmt = stmt._replace(env=env, mask=self.elements(place, along, size))
        after: list[K.Stmt] = [*self.ends(stmt, place)]
        later: Iterator[K.Stmt] = iter(())
        if _is_scattered(self.nest, self.tiling.lane):
            waiting = {self.nest.update.buf: place.held} if place.held else {}
            if place.held is None:
                waiting = {b: self.held(b, place) for b in own}
                yield from (K.Alloc(held.attr[0]) for held in waiting.values())
                whole = stmt._replace(mask=ALWAYS)
                after = [
                    whole.moved(K.Update(held.attr[0], held.attr[1], None, K.load(b, ())))
                    for b, held in waiting.items()
                ]
            later = _where(self.is_last(place), [self.stored_alone(env, rows, waiting, place)])

        inner, all_loops = self.nest.reduction[-1], (*_unrolled([*rows, vector]), (lane, "vector"))
        steps, before = [self.nest.added], [*map(stmt.moved, self.nest.before)]
        if self.nest.taken is not None:
            taken = self.taken(stmt, self.nest.taken, [var for var, _ in all_loops], number)
            buf, at, _ = taken.attr
            yield K.Alloc(buf)
            before.append(K.Update(buf, at, None, K.const(buf.dtype, 0)))
            steps.append(K.Update(buf, at, "add", self.nest.taken))
            after.insert(0, K.Update(own[self.nest.update.buf], (), "add", K.alu("neg", taken)))

        def updates(around: Mapping[Var, Expr]) -> Iterator[K.Stmt]:
            for loops, step in _steps(
                f"{inner.name}_{number}", self.extent(inner, place), self.tiling.steps
            ):
                env = {**around, inner: place.start[inner] + step}
                yield nested(loops, K.Block(tuple(stmt.moved(s, env) for s in steps)))

        reduced = self.reduced(inner, place, updates, number)
        yield _of_all(all_loops, K.Block((*map(K.Alloc, own.values()), *before, reduced, *after)))
        yield from later

    def taken(self, stmt: _Element, value: K.Value, axes: Sequence[Var], number: str) -> K.Value:
        """Memory for what is taken off of results, one for all that have it in common, as a load.

        `axes` are the loops of a tile.
        """
        moved = frozenset[Var]().union(*(stmt.env[v].vars for v in value.vars if v in stmt.env))
        own = [var for var in axes if var in moved and var.extent > 1]
        shape = tuple(var.extent for var in own)
        return K.load(K.Buf(f"taken{number}", value.dtype, shape, "private"), tuple(map(expr, own)))

    def elements(self, place: _Place, along: Expr, size: int) -> Mask:
        """Where lanes of a tile are results: up to its size, and to the end of their loop."""
        if not place.cut:
            return at_most(along, size - 1)
        return at_most(place.start[self.lane] + along, iterations(self.lane) - 1)

    def along_sum(self, stmt: _Element, place: _Place, rows: Sequence[Var], number: str) -> K.Stmt:
        """A tile whose lanes are steps of the reduction: results of each lane, then of all."""
        lanes, update, own = self.tiling.lanes, self.nest.update, stmt.bufs[self.nest.update.buf]
        extent = iterations(self.lane)
        vectors, rest = extent // lanes, extent % lanes
        written = min(self.tiling.steps, max(self.lane.extent // lanes, 1))
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
                at = expr(loops[-1][0]) if loops[-1][1] == "unroll" else expr(0)
                yield nested(loops, combined(at, around, vector, ALWAYS))
            if rest is not expr(0):
                yield combined(expr(0), around, vectors, at_most(expr(lane), rest - 1))

        first = Var(f"{self.lane.name}b{number}", 0, written - 1)
        begun = K.Update(part, (expr(first), expr(lane)), None, identity)
        joined, apart = [], 1
        while apart < written:  # in pairs, so that rounding is small
            for n in range(0, written - apart, 2 * apart):
                value = K.load(part, (expr(n + apart), expr(lane)))
                joined.append(K.Update(part, (expr(n), expr(lane)), update.monoid, value))
            apart *= 2
        whole = K.Update(own, (), update.monoid, K.load(part, (expr(0), expr(lane))))
        stmts = (
            *map(K.Alloc, (*stmt.bufs.values(), part)),
            *map(stmt.moved, self.nest.before),
            nested(_unrolled([first]), begun),
            self.reduced(self.lane, place, updates, number),
            *joined,
            whole,
            *self.ends(stmt, place),
        )
        return _of_all(_unrolled(rows), K.Block(stmts), ((lane, "vector"),))

    def stored_alone(
        self,
        env: Mapping[Var, Expr],
        rows: Sequence[Var],
        waiting: Mapping[K.Buf, K.Value],
        place: _Place,
    ) -> K.Stmt:
        """Stores results that wait, lane by lane, of all rows of a tile."""
        size = place.size[self.lane]
        one = Var(f"{self.lane.name}w{next(self.numbers)}", 0, size - 1)
        env = {**env, self.lane: place.start[self.lane] + one}
        at = Substitution(env)
        known = {K.load(b, ()): at.value(held) for b, held in waiting.items()}
        mask = self.elements(place, expr(one), size)
        single = _Element(self.nest, env, {}, {}, self.lane, mask, known)
        stores = [nested(_unrolled(rows), single.moved(s)) for s in self.nest.after]
        return K.Loop(one, "serial", K.Block(tuple(stores)))

    def reduced(
        self,
        inner: Var,
        place: _Place,
        updates: Callable[[Mapping[Var, Expr]], Iterable[K.Stmt]],
        number: str,
    ) -> K.Stmt:
        """The loops of the reduction around `inner`, and the `updates` of its steps there."""
        outer = [var for var in self.nest.reduction if var is not inner]
        around = [loop_var(f"{var.name}_{number}", self.extent(var, place)) for var in outer]
        env = {var: place.start[var] + own for var, own in zip(outer, around, strict=True)}
        return nested([(var, "serial") for var in around], K.Block(tuple(updates(env))))

    def extent(self, var: Var, place: _Place) -> Expr:
        """How often a loop of the reduction runs in a tile."""
        return expr(place.size[var]) if var in self.blocked else iterations(var)

    # Results that wait in memory.

    def held(self, buf: K.Buf, place: _Place) -> K.Value:
        """Memory for what `buf` holds of elements inside some loops: the load of one, by the
        variables of the nest."""
        rows = [v for v in self.nest.independent if v is not self.lane and place.size[v] > 1]
        shape, at = [place.size[var] for var in rows], rows
        if self.lane in self.nest.independent:
            shape, at = (
                [*shape, rounded_up(place.size[self.lane], self.tiling.lanes)],
                [*rows, self.lane],
            )
        own = K.Buf(f"held{next(self.numbers)}", buf.dtype, tuple(shape), "team")
        return K.load(own, tuple(var - place.start[var] for var in at))

    def held_by_blocks(self, place: _Place) -> K.Value:
        """Where blocks of the reduction combine what they have: in the output if it is as good."""
        store = store_of_blocks(self.nest, self.tiling.lane)
        if store is not None:
            return K.load(store.buf, store.indices)
        return self.held(self.nest.update.buf, place)

    def ends(self, stmt: _Element, place: _Place) -> Iterator[K.Stmt]:
        """What becomes of the results of a tile."""
        if place.held is None:
            yield from map(stmt.moved, self.nest.after)
            return
        buf, at, _ = place.held.attr
        own = self.nest.update.buf
        before = sum((place.start[var] for var in self.blocked), expr(0))
        for mask, monoid in (
            (at_most(before, 0), None),
            (at_least(before, 1), self.nest.update.monoid),
        ):
            yield from _where(mask, [stmt.moved(K.Update(buf, at, monoid, K.load(own, ())))])
        if buf.space == "team" and not _is_scattered(self.nest, self.tiling.lane):
            whole = Substitution({}, values={K.load(own, ()): place.held})
            after = (whole.stmt(s) for s in self.nest.after)
            yield from _where(
                self.is_last(place), [stmt.moved(s) for s in after if isinstance(s, K.Update)]
            )

    def is_last(self, place: _Place) -> Mask:
        """Where no block of the reduction follows."""
        ends = (place.start[v] + place.size[v] - v.extent for v in self.blocked)
        return at_least(sum(ends, expr(0)), 0)


def _where(mask: Mask, stmts: Iterable[K.Stmt]) -> Iterator[K.Stmt]:
    """The statements, done where `mask` holds."""
    if mask is ALWAYS:
        yield from stmts
    elif mask is not NEVER:
        yield K.If(mask, K.Block(tuple(stmts)))


def _unrolled(axes: Iterable[Var]) -> Loops:
    return tuple((var, "unroll") for var in axes)


def _of_all(loops: Loops, block: K.Block, lanes: Loops = ()) -> K.Stmt:
    """What `block` does for one element, done for those of all `loops`, which are written out.

    Its private memory is there for each of them. Statements that use `lanes` are inside those too.
    What writes private memory from around the block is in the loops that it uses alone.
    """
    own = [s.buf for s in block.body if isinstance(s, K.Alloc)]
    shared = {buf for buf, _, _ in writes(block) if buf.space == "private"} - {*own}
    axes = [var for var, _ in loops if var.extent > 1]

    def everywhere(stmt: K.Stmt) -> K.Stmt | None:
        if not isinstance(stmt, K.Update):
            return None
        used = stmt.value.vars.union(*(index.vars for index in stmt.indices))
        around = [loop for loop in loops if stmt.buf not in shared or loop[0] in used]
        return nested([*around, *(loop for loop in lanes if loop[0] in used)], stmt)

    return rewrite(with_axes(block, own, axes, "private"), everywhere)


def _steps(name: str, extent: Expr, count: int) -> Iterator[tuple[Loops, Expr]]:
    """The loops over steps of which `count` are written out, and the steps."""
    whole, rest = extent // count, extent % count
    inner = Var(f"{name}i", 0, count - 1)
    if whole is not expr(0):
        outer = loop_var(f"{name}o", whole)
        yield ((outer, "serial"), (inner, "unroll")), outer * count + inner
    if rest is not expr(0):
        last = loop_var(f"{name}t", rest)
        yield ((last, "unroll" if rest.is_const else "serial"),), whole * count + last
