"""The transformations `Tensorize` and `Pipeline`: matrix instructions, and copies ahead of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var, expr
from gpu.compiler.ir.kernel.tree import Substitution, as_block, find_loop, replace_loop
from gpu.compiler.ir.matrix import HELD, MATRICES, SIDE, WARP, Matrix
from gpu.compiler.opt.analysis.loop_nest import perfect_nest
from gpu.compiler.opt.primitives.async_fetch import narrow
from gpu.compiler.opt.primitives.barriers import thread_loops
from gpu.compiler.opt.primitives.mma_checks import require_lanes, require_sums
from gpu.compiler.opt.primitives.tensorize_thread import tensorize_tiles
from gpu.core.errors import IllegalOpt


class _Operand(NamedTuple):
    """An operand in team memory, by how far apart neighbours are.

    Attributes:
        load: an element of it.
        lines: along rows of A or columns of B.
        steps: along the sum.
    """

    load: K.Value
    lines: int
    steps: int

    @property
    def transposed(self) -> bool:
        """Whether lines are neighbours in memory, and not the steps of the sum."""
        return self.lines == 1

    @property
    def row(self) -> int:
        """How far apart rows of parts are."""
        return self.steps if self.transposed else self.lines


class _Nest(NamedTuple):
    """The loops of a product of warps, and their only Update.

    Lines of A are `SIDE * half + row` within tile `across`, those of B, and columns of the output,
    `HELD * pair + one` within tile `along`; `row` and `pair` are threads of a warp.
    """

    row: Var
    pair: Var
    across: Var
    along: Var
    half: Var
    one: Var
    update: K.Update


def tensorize(body: K.Block, axes: Sequence[str], name: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Tensorize`. Raises IllegalOpt."""
    what = f"Tensorize({tuple(axes)}, {name!r})"
    if name not in MATRICES:
        raise IllegalOpt(f"{what}: there is no such instruction, only {list(MATRICES)}")
    how = MATRICES[name]
    if how.threads == 1:
        outermost = find_loop(body, axes[0], what)
        return replace_loop(body, outermost, tensorize_tiles(body, axes, how, what))
    outer, inner = (find_loop(body, axis, what) for axis in axes)
    if outer.body.body != (inner,) or inner.var.extent != how.k or inner.kind != "serial":
        raise IllegalOpt(f"{what}: the loops are no steps of {how.k}")
    nest = _nest(body, inner, how, what)
    left, right = _operands(nest, inner.var, how, what)
    a = K.Buf(f"{left.load.attr[0].name}f", how.operand, (nest.across.extent, 4, HELD), "fragment")
    b = K.Buf(f"{right.load.attr[0].name}f", how.operand, (nest.along.extent, 2, HELD), "fragment")
    steps: list[K.Stmt] = [K.Alloc(a), K.Alloc(b)]
    for step in range(outer.var.extent):
        steps += (
            Substitution({outer.var: step})
            .block(K.Block(tuple(_step(nest, inner.var, left, right, a, b, name))))
            .body
        )
    return replace_loop(body, outer, K.Block(tuple(steps)))


def _nest(body: K.Block, inner: K.Loop, how: Matrix, what: str) -> _Nest:
    threads = [loop.var for loop in thread_loops(body)]
    if len(threads) < 2 or (threads[-2].extent, threads[-1].extent) != (SIDE, WARP // SIDE):
        raise IllegalOpt(f"{what}: the innermost threads are not {SIDE} by {WARP // SIDE}")
    nest = perfect_nest(inner)[1:]
    update = nest[-1].body.body[0] if nest else None
    shapes = [loop.var.extent for loop in nest[2:]]
    written_out = all(loop.kind == "unroll" for loop in nest)
    if len(nest) != 4 or shapes != [how.m // SIDE, HELD] or not written_out:
        raise IllegalOpt(f"{what}: inside are not tiles of {how.m} x {how.n}, written out")
    if len(nest[-1].body.body) != 1 or not isinstance(update, K.Update):
        raise IllegalOpt(f"{what}: inside is more than one Update")
    across, along, half, one = (loop.var for loop in nest)
    found = _Nest(threads[-2], threads[-1], across, along, half, one, update)
    require_sums(update, (across, along, half, one), "private", how.sums, what)
    return found


def _operands(nest: _Nest, step: Var, how: Matrix, what: str) -> tuple[_Operand, _Operand]:
    """A and B, in this order, however the product names them."""
    found = [_in_team_memory(arg, how, what) for arg in nest.update.value.args]
    left, right = found if nest.row in found[0].vars else found[::-1]
    index, other = left.attr[1][0], right.attr[1][0]
    a = _Operand(left, index.coeff(nest.row), index.coeff(step))
    b = _Operand(right, other.coeff(nest.one), other.coeff(step))
    in_a = {nest.row: a.lines, nest.half: SIDE * a.lines, step: a.steps}
    in_b = {nest.one: b.lines, nest.pair: HELD * b.lines, step: b.steps}
    require_lanes(index, in_a, {nest.pair, nest.one, nest.along}, what)
    require_lanes(other, in_b, {nest.row, nest.half, nest.across}, what)
    for operand in (a, b):
        if 1 not in (operand.lines, operand.steps):
            raise IllegalOpt(f"{what}: {operand.load.attr[0].name} has no neighbours in memory")
    return a, b


def _in_team_memory(arg: K.Value, how: Matrix, what: str) -> K.Value:
    value = narrow(arg)
    if value.kind != "load" or value.attr[0].space != "team" or value.attr[2] is not ALWAYS:
        raise IllegalOpt(f"{what}: an operand is not in team memory")
    if value.dtype is not how.operand:
        raise IllegalOpt(f"{what}: an operand is of {value.dtype.name}, not {how.operand.name}")
    return value


def _step(
    nest: _Nest, step: Var, left: _Operand, right: _Operand, a: K.Buf, b: K.Buf, name: str
) -> Iterator[K.Stmt]:
    """The parts of both operands for one step of the sum, and the products of all tiles."""
    corner: dict[Var, Expr | int] = dict.fromkeys(
        (nest.row, nest.pair, nest.half, nest.one, step), 0
    )
    source, index = left.load.attr[0], left.load.attr[1][0].subst(corner)
    at_a, halves = (expr(nest.across),), (SIDE * left.lines, SIDE * left.steps)
    load = K.Fragment(a, at_a, source, (index,), left.row, halves, left.transposed)
    yield K.Loop(nest.across, "unroll", as_block(load))
    source, index = right.load.attr[0], right.load.attr[1][0].subst(corner)
    count = 2 if nest.along.extent % 2 == 0 else 1
    pair = Var(f"{nest.along.name}p", 0, nest.along.extent // count - 1)
    steps = (SIDE * right.steps, index.coeff(nest.along))[:count]
    places = (index.subst({nest.along: expr(pair) * count}),)
    load = K.Fragment(b, (expr(pair) * count,), source, places, right.row, steps, right.transposed)
    yield K.Loop(pair, "unroll", as_block(load))
    at = (expr(nest.across), expr(nest.along))
    mma: K.Stmt = K.Mma(name, nest.update.buf, at, a, at_a, b, at[1:])
    for var in (nest.along, nest.across):
        mma = K.Loop(var, "unroll", as_block(mma))
    yield mma
