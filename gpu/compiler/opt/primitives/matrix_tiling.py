"""The transformation `MatrixTile`: a sum of products by the matrix instructions of warps.

The independent loops of a kernel are rows, which the first operand alone depends on, columns, which
the second one does, or a batch. Loops of a kind count as one, as do some of the sum; tiles of them
may reach beyond their end: elements that do not exist are zeros in team memory, where operands are
copied whatever they are computed from, and results that do not exist are not stored. A block
computes a tile of the output, each of its warps a part of that, of instructions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, at_least, at_most, expr
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    as_block,
    expressions,
    expressions_in,
    loads_of,
    values,
)
from gpu.compiler.ir.matrix import MATRICES, Layout, Matrix
from gpu.compiler.opt.analysis.loop_nest import at_iteration
from gpu.compiler.opt.analysis.product_nest import ProductNest, product_nest
from gpu.compiler.opt.primitives import matrix_fetch
from gpu.compiler.opt.primitives.matrix_fetch import Element, Fetch
from gpu.compiler.opt.primitives.narrow_operand import narrow
from gpu.compiler.opt.primitives.predication import holds, masked_loads, zero_outside
from gpu.core.errors import IllegalOpt


class MatrixTiling(NamedTuple):
    """How a sum of products is tiled.

    Attributes:
        name: the matrix instruction.
        batch, rows, columns: independent loops, outermost first; each is one of these.
        steps: loops of the sum that count as one; the others are around it.
        tiles: instructions of a warp along rows and columns.
        warps: warps of a block along the batch, rows and columns.
        depth: steps of the sum that are copied at once.
        slots: how many times there is room for what is copied at once.
        group: rows of blocks that follow each other before the next column does.
    """

    name: str
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    steps: tuple[str, ...]
    tiles: tuple[int, int]
    warps: tuple[int, int, int]
    depth: int
    slots: int = 1
    group: int = 1


def matrix_tile(body: K.Block, tiling: MatrixTiling) -> K.Stmt:
    """See `gpu.compiler.opt.opts.MatrixTile`. Raises IllegalOpt."""
    if tiling.name not in MATRICES or MATRICES[tiling.name].layout is None:
        raise IllegalOpt(f"{tiling.name} is no instruction of a warp")
    found = product_nest(body)
    _require_legal(found, tiling)
    return _Tiler(found, tiling).body()


def _require_legal(found: ProductNest, tiling: MatrixTiling) -> None:
    """Raises IllegalOpt for a schedule that this nest does not have."""
    how, nest = MATRICES[tiling.name], found.nest
    kinds = (*tiling.batch, *tiling.rows, *tiling.columns)
    if sorted(kinds) != sorted(var.name for var in nest.independent):
        known = [var.name for var in nest.independent]
        raise IllegalOpt(f"the batch, rows and columns are each of {known} once")
    if not tiling.steps or not {*tiling.steps} <= {var.name for var in nest.reduction}:
        known = [var.name for var in nest.reduction]
        raise IllegalOpt(f"steps are some of {known}")
    sizes = (*tiling.tiles, *tiling.warps, tiling.depth, tiling.slots, tiling.group)
    if min(sizes) < 1 or tiling.depth % how.k:
        raise IllegalOpt(f"sizes are positive, depths multiples of {how.k}")
    count = math.prod(v.extent for v in nest.reduction)
    steps = math.prod(v.extent for v in nest.reduction if v.name in tiling.steps)
    stages = count // steps * -(-steps // tiling.depth)
    if tiling.slots > stages:
        raise IllegalOpt(f"a sum of {stages} stages has no {tiling.slots} of them at once")
    if nest.update.buf.dtype is not how.sums:
        raise IllegalOpt(f"sums are of {nest.update.buf.dtype.name}")
    left, right = operands_of(found, tiling.rows)
    dtypes = tuple(narrow(value).dtype for value in (left, right))
    if dtypes != how.operands:
        names = [dtype.name for dtype in dtypes]
        raise IllegalOpt(f"operands are of {names}, not {how.operands}")
    if {var.name for var in found.mask.vars} & {*tiling.steps}:
        raise IllegalOpt("which products count depends on the steps")
    for value, others in ((left, tiling.columns), (right, tiling.rows)):
        if {var.name for var in value.vars} & {*others}:
            raise IllegalOpt("an operand depends on rows and columns")


def operands_of(found: ProductNest, rows: Sequence[str]) -> tuple[K.Value, K.Value]:
    """The factors, that which depends on the rows first."""
    first, second = found.factors
    across = {var.name for var in first.vars} & {*rows}
    return (first, second) if across else (second, first)


class _Axis:
    """Loops that count as one, in tiles of blocks.

    Attributes:
        vars: the loops, outermost first.
        extent: iterations of all.
        size: how many a block has.
        blocks: how many blocks that takes.
        first: where a block begins, once it is known which one it is.
    """

    def __init__(self, loops: Sequence[Var], size: int):
        self.vars, self.size = tuple(loops), size
        self.extent = math.prod(var.extent for var in loops)
        self.blocks = -(-self.extent // size)
        self.first = expr(0)

    def env(self, local: Expr, everywhere: Sequence[Expr]) -> dict[Var, Expr | int]:
        """What the loops' variables are where `local` counts iterations of a block."""
        return at_iteration(self.vars, self.first + local, everywhere) if self.vars else {}

    def repeated(self, local: Expr) -> Expr:
        """The same iteration, or one that exists instead of one that does not."""
        return (self.first + local) % self.extent - self.first

    def mask(self, local: Expr) -> Mask:
        """Which iterations of a block exist."""
        exact = self.extent % self.size == 0
        return ALWAYS if exact else at_most(self.first + local, self.extent - 1)


class _Operand(NamedTuple):
    """An operand: its narrow value, its lines beside those of the batch, its copy, and parts."""

    value: K.Value
    lines: _Axis
    fetch: Fetch
    buf: K.Buf
    parts: K.Buf


class _Tiler:
    """Builds the kernel, from the outermost loop inwards."""

    def __init__(self, found: ProductNest, tiling: MatrixTiling):
        self.found, self.nest, self.tiling = found, found.nest, tiling
        self.how: Matrix = MATRICES[tiling.name]
        layout = self.how.layout
        assert layout is not None
        self.layout: Layout = layout
        self.held = layout.operand(self.how.k)
        self.numbers = itertools.count()
        named = {var.name: var for var in (*self.nest.independent, *self.nest.reduction)}
        (m, n), (wb, wm, wn) = tiling.tiles, tiling.warps
        self.batch = _Axis([named[name] for name in tiling.batch], wb)
        self.rows = _Axis([named[name] for name in tiling.rows], wm * m * self.how.m)
        self.columns = _Axis([named[name] for name in tiling.columns], wn * n * self.how.n)
        self.steps = _Axis([named[name] for name in tiling.steps], tiling.depth)
        self.others = [var for var in self.nest.reduction if var.name not in tiling.steps]
        self.stage = self.var("k", self.steps.blocks * math.prod(v.extent for v in self.others))
        warps = [self.var("w", count) for count in tiling.warps]
        self.warps = [_place(var) for var in warps]
        self.lanes = [self.var("l", count) for count in self.layout.threads]
        self.threads = [*(var for var in warps if var.extent > 1), *self.lanes]
        self.grid = list(self.blocks())
        left, right = operands_of(found, tiling.rows)
        self.operands = (
            self.operand(narrow(left), self.rows, m, len(self.how.a)),
            self.operand(narrow(right), self.columns, n, len(self.how.b)),
        )
        shape = (m, n, len(self.how.c), self.layout.sums.size)
        self.own = {b: K.Buf(b.name, b.dtype, shape, "private") for b in self.nest.accumulators}
        self.sums = self.own[self.nest.update.buf]
        if found.mask is not ALWAYS:  # those of a stage are summed alone
            self.sums = K.Buf(f"c{next(self.numbers)}", self.how.sums, shape, "private")

    def var(self, name: str, count: int) -> Var:
        """A variable of so many iterations."""
        return Var(f"{name}{next(self.numbers)}", 0, count - 1)

    def blocks(self) -> Iterator[Var]:
        """The loops over blocks; says where a block begins."""
        if self.batch.size == 1:
            yield from self.batch.vars
        elif self.batch.vars:
            block = self.var("b", self.batch.blocks)
            self.batch.first = block * self.batch.size
            yield block
        group = self.tiling.group if self.rows.blocks % self.tiling.group == 0 else 1
        outer, inner = self.var("m", self.rows.blocks // group), self.var("m", group)
        column = self.var("n", self.columns.blocks)
        self.rows.first = (_place(outer) * group + _place(inner)) * self.rows.size
        self.columns.first = _place(column) * self.columns.size
        yield from (var for var in (outer, column, inner) if var.extent > 1)

    def body(self) -> K.Block:
        """The whole kernel."""
        before, after = (self.tiled(part) for part in (self.nest.before, self.nest.after))
        stmt: K.Stmt = K.Block((*map(K.Alloc, self.own.values()), *before, *self.reduced(), *after))
        for var in reversed(self.threads):
            stmt = K.Loop(var, "thread", as_block(stmt))
        block = K.Block((*(K.Alloc(one.buf) for one in self.operands), stmt))
        for var in reversed((*self.found.around, *self.grid)):
            block = K.Block((K.Loop(var, "grid", block),))
        return block

    # Operands.

    def operand(self, value: K.Value, lines: _Axis, tiles: int, parts: int) -> _Operand:
        """An operand, and how it gets to team memory."""
        near = _near(value, self.steps)
        total = self.batch.size * lines.size
        element = self.elements(value, lines, expr(self.stage), last=True)
        together = self.layout.together
        fetch = matrix_fetch.fetch_of(element, total, self.tiling.depth, near, together)
        buf = matrix_fetch.tile_of(f"s{next(self.numbers)}", fetch, value, self.tiling.slots)
        space = "fragment" if together else "private"
        shape = (tiles, parts, self.held.size)
        held = K.Buf(f"f{next(self.numbers)}", value.dtype, shape, space)
        return _Operand(value, lines, fetch, buf, held)

    def elements(self, value: K.Value, lines: _Axis, stage: Expr, last: bool) -> Element:
        """The elements of an operand in a stage of the sum.

        In the last one those are zero whose steps the sum does not have. Lines that do not exist
        repeat others: what comes of them is not stored.
        """
        everywhere = [*expressions_in(values(value, set()))]
        around = {}
        if self.others:
            around = at_iteration(self.others, stage // self.steps.blocks, everywhere)
        number = expr(self.steps.blocks - 1) if last else self.number(stage)
        first = number * self.steps.size

        def element(line: Expr, step: Expr) -> K.Value:
            at = first + step
            env = around | at_iteration(self.steps.vars, at, everywhere)
            if self.batch.size > 1:
                env |= self.batch.env(self.batch.repeated(line // lines.size), everywhere)
                line = line % lines.size
            own = lines.env(lines.repeated(line), everywhere)
            moved = Substitution(env | own).value(value)
            exists = at_most(at, self.steps.extent - 1)
            return zero_outside(moved, exists) if last and exists is not ALWAYS else moved

        return element

    def number(self, stage: Expr) -> Expr:
        """Which stage it is of an iteration of the other loops of the sum."""
        return stage % self.steps.blocks if self.others else stage

    def copied(self, stage: Expr) -> list[K.Stmt]:
        """Copies what a stage of the sum needs; only the last one asks which steps there are."""
        number, last = self.number(stage), self.steps.blocks - 1
        if self.steps.extent % self.steps.size == 0:
            return self.filled(stage, False)
        if number.lo == number.hi:
            return self.filled(stage, number.lo == last)
        whole, rest = (K.Block(tuple(self.filled(stage, which))) for which in (False, True))
        return [K.If(at_most(number, last - 1), whole), K.If(at_least(number, last), rest)]

    def filled(self, stage: Expr, last: bool) -> list[K.Stmt]:
        """Copies both operands."""
        slot, done = stage % self.tiling.slots, list[K.Stmt]()
        for one in self.operands:
            element = self.elements(one.value, one.lines, stage, last)
            suffix = str(next(self.numbers))
            done.append(
                matrix_fetch.filled(one.fetch, one.buf, slot, element, self.threads, suffix)
            )
        return done

    # The sum.

    def reduced(self) -> Iterator[K.Stmt]:
        """Copies and products of all stages; copies run ahead of products by some slots."""
        stages, slots = self.stage.extent, self.tiling.slots
        ahead = any(one.fetch.ahead for one in self.operands)
        commit: list[K.Stmt] = [K.Commit()] if ahead else []
        for number in range(slots - 1):
            yield from self.copied(expr(number))
            yield from commit
        further = expr(self.stage) + (slots - 1)
        fill = self.copied(further)
        if slots > 1:
            fill = [K.If(at_most(further, stages - 1), K.Block(tuple(fill)))]
            wait: list[K.Stmt] = [K.Wait(slots - 2)] if ahead else []
            inside = [*wait, K.Barrier(), *fill, *commit]
        else:
            landed: list[K.Stmt] = [K.Commit(), K.Wait(0)] if ahead else []
            inside = [K.Barrier(), *fill, *landed, K.Barrier()]
        yield K.Loop(self.stage, "serial", K.Block((*inside, *self.counted())))

    def counted(self) -> Iterator[K.Stmt]:
        """The products of a stage, added where they count."""
        total = self.own[self.nest.update.buf]
        if self.sums is total:
            yield from self.products()
            return
        zero = K.const(total.dtype, 0.0 if total.dtype.is_float else 0)
        number = self.stage // self.steps.blocks

        def added(row: Expr, column: Expr, at: tuple[Expr, ...]) -> K.Stmt:
            env = self.env(row, column, self.found.mask.constraints)
            env |= at_iteration(self.others, number, self.found.mask.constraints)
            counts = holds(self.found.mask.subst(env))
            value = K.alu("where", counts, K.load(self.sums, at), zero)
            return K.Update(total, at, "add", value)

        yield K.Alloc(self.sums)
        yield self.everywhere(lambda row, column, at: K.Update(self.sums, at, None, zero))
        yield from self.products()
        yield self.everywhere(added)

    def products(self) -> Iterator[K.Stmt]:
        """The instructions of a stage."""
        (a, b), (tiles_m, tiles_n) = self.operands, self.tiling.tiles
        yield from (K.Alloc(a.parts), K.Alloc(b.parts))
        for step in range(0, self.tiling.depth, self.how.k):
            yield self.loaded(a, self.warps[1], tiles_m, self.how.m, step)
            yield self.loaded(b, self.warps[2], tiles_n, self.how.n, step)
            m, n = self.var("m", tiles_m), self.var("n", tiles_n)
            at = (expr(m), expr(n))
            mma = K.Mma(self.how.name, self.sums, at, a.parts, at[:1], b.parts, at[1:])
            yield _unrolled((m, n), mma)

    def loaded(self, operand: _Operand, warp: Expr, tiles: int, side: int, step: int) -> K.Stmt:
        """The parts of an operand that a warp needs for one step of instructions."""
        fetch, slot = operand.fetch, expr(self.stage) % self.tiling.slots
        first = self.warps[0] * operand.lines.size + warp * (tiles * side)
        pitch = fetch.pitch(operand.value.dtype.itemsize)
        along_line, along_step = (1, pitch) if fetch.transposed else (pitch, 1)
        if not self.layout.together:
            tile, one = self.var("t", tiles), self.var("e", self.held.size)
            row, column = (self.places(held, expr(one)) for held in self.held[1:])
            index = (first + tile * side + row) * along_line + (column + step) * along_step
            value = K.load(operand.buf, (slot, index))
            load = K.Update(operand.parts, (expr(tile), expr(0), expr(one)), None, value)
            return _unrolled((tile,), K.Loop(one, "vector", K.Block((load,))))
        part = self.layout.side
        lines, steps = part * along_line, part * along_step
        # Parts of a tile follow each other along its lines first; four are loaded at once.
        together = 2 if side == part and tiles % 2 == 0 else 1
        distances = (lines, steps) if side > part else (steps, lines)[:together]
        counter = self.var("t", tiles // together)
        number = expr(counter) * together
        places = (slot, (first + number * side) * along_line + step * along_step)
        source = (operand.buf, places, pitch, distances, fetch.transposed)
        return _unrolled((counter,), K.Fragment(operand.parts, (number,), *source))

    def places(self, steps: tuple[int, int, int], number: Expr) -> Expr:
        """The row or column of an element of a part that this thread has."""
        i, j = self.lanes
        return i * steps[0] + j * steps[1] + number * steps[2]

    # Sums, and what becomes of them.

    def tiled(self, stmts: Sequence[K.Update]) -> Iterator[K.Stmt]:
        """Statements for each sum of a thread; those that write results where these exist."""
        for stmt in stmts:
            yield self.everywhere(partial(self.moved, stmt))

    def everywhere(self, make: Callable[[Expr, Expr, tuple[Expr, ...]], K.Stmt]) -> K.Stmt:
        """A statement for each sum of a thread, by its row and column in a block and its place."""
        tiles_m, tiles_n = self.tiling.tiles
        m, n = self.var("m", tiles_m), self.var("n", tiles_n)
        part, one = self.var("p", len(self.how.c)), self.var("e", self.layout.sums.size)
        row, column = (self.places(held, expr(one)) for held in self.layout.sums[1:])
        corners = self.corners()
        row = row + corners[0] * part + (self.warps[1] * tiles_m + m) * self.how.m
        column = column + corners[1] * part + (self.warps[2] * tiles_n + n) * self.how.n
        at = (expr(m), expr(n), expr(part), expr(one))
        return _unrolled((m, n, part, one), make(row, column, at))

    def corners(self) -> tuple[int, int]:
        """How far the second part of C is from the first."""
        parts = self.how.c
        (row, column), (next_row, next_column) = parts[0], parts[-1]
        steps = max(len(parts) - 1, 1)
        return (next_row - row) // steps, (next_column - column) // steps

    def env(self, row: Expr, column: Expr, everywhere: Sequence[Expr]) -> dict[Var, Expr | int]:
        """What the independent loops are at a row and a column of a block."""
        env = self.rows.env(row, everywhere) | self.columns.env(column, everywhere)
        if self.batch.size > 1:
            env |= self.batch.env(self.warps[0], everywhere)
        return env

    def moved(self, stmt: K.Update, row: Expr, column: Expr, at: tuple[Expr, ...]) -> K.Update:
        """A statement of the nest for the element at a row and a column of a block."""
        env = self.env(row, column, [*expressions(stmt)])
        mask = self.rows.mask(row) & self.columns.mask(column)
        if self.batch.size > 1:
            mask &= self.batch.mask(self.warps[0])
        moved = Substitution(env).stmt(stmt)
        assert isinstance(moved, K.Update)
        known = {K.load(b, ()): K.load(own, at) for b, own in self.own.items()}
        value = Substitution({}, values=known).value(masked_loads(moved.value, mask))
        if stmt.buf in self.own:
            return moved._replace(buf=self.own[stmt.buf], indices=at, value=value)
        return moved._replace(value=value, mask=moved.mask & mask)


def _place(var: Var) -> Expr:
    """The number of an iteration of a loop, which does not exist where it has only one."""
    return expr(var) if var.extent > 1 else expr(0)


def _near(value: K.Value, steps: _Axis) -> str:
    """In which direction elements of an operand are neighbours in memory."""
    beside = [load.attr[1][-1].coeff(steps.vars[-1]) for load in loads_of(value)]
    return "steps" if any(abs(step) == 1 for step in beside) else "lines"


def _unrolled(counted: Sequence[Var], stmt: K.Stmt) -> K.Stmt:
    """A statement inside loops that are written out, but for those of one iteration."""
    for var in reversed(counted):
        stmt = K.Loop(var, "unroll", as_block(stmt)) if var.extent > 1 else stmt
    return stmt
