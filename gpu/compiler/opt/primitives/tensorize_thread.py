"""The transformation `Tensorize`: instructions whose matrices one thread holds whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var, expr
from gpu.compiler.ir.kernel.tree import around, as_block, find_loop, loads_of, replace_loop
from gpu.compiler.ir.matrix import MATRICES, Matrix, names_for
from gpu.compiler.opt.analysis.loop_nest import perfect_nest
from gpu.compiler.opt.primitives.narrow_operand import narrow
from gpu.compiler.opt.primitives.pack import element_of
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import IllegalOpt


class _Nest(NamedTuple):
    """The loops of a product, and their only Update.

    Steps of the sum are `together * word + one` in the iterations of `outer`. Rows of A are those
    of tile `across`, columns of B those of tile `along`.
    """

    outer: tuple[K.Loop, ...]
    word: Var
    one: Var
    across: Var
    along: Var
    row: Var
    column: Var
    update: K.Update


class _Operand(NamedTuple):
    """Where a tile of an operand begins, and how far its rows are apart."""

    buf: K.Buf
    places: tuple[Expr, ...]
    row: int


def tensorize(body: K.Block, axes: Sequence[str], name: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Tensorize`. Raises IllegalOpt."""
    if name not in MATRICES or MATRICES[name].threads > 1:
        known = names_for(None)
        raise IllegalOpt(f"there is no such instruction of a thread, only {known}")
    outermost = find_loop(body, axes[0])
    return replace_loop(body, outermost, _tiles(body, axes, MATRICES[name]))


def _tiles(body: K.Block, axes: Sequence[str], how: Matrix) -> K.Stmt:
    """What replaces the outermost loop of a sum."""
    nest = _nest(body, axes, how)
    args = nest.update.value.args
    left, right = args if nest.row in args[0].vars else args[::-1]
    a, b = _left(nest, left, how), _right(nest, right, how)
    of_a, of_b, of_c = (part.held for part in how.parts)
    rows, columns = nest.across.extent, nest.along.extent
    sums = nest.update.buf
    tiles_a = K.Buf(f"{a.buf.name}f", how.operands[0], (rows, 1, of_a), "fragment")
    tiles_b = K.Buf(f"{b.buf.name}f", how.operands[1], (columns, 1, of_b), "fragment")
    tiles_c = K.Buf(f"{sums.name}f", sums.dtype, (rows, columns, 1, of_c), "fragment")
    at_a, at_b = (expr(nest.across),), (expr(nest.along),)
    both = (nest.across, nest.along)
    at = (*at_a, *at_b)
    step = K.Block(
        (
            K.Alloc(tiles_a),
            K.Alloc(tiles_b),
            _written_out((nest.across,), K.LoadTile(tiles_a, at_a, *a)),
            _written_out((nest.along,), K.LoadTile(tiles_b, at_b, *b)),
            _written_out(both, K.Mma(how.name, tiles_c, at, tiles_a, at_a, tiles_b, at_b)),
        )
    )
    corner = (*at, expr(0), expr(0))
    return K.Block(
        (
            K.Alloc(tiles_c),
            _written_out(both, K.LoadTile(tiles_c, at, sums, corner, how.n)),
            around(nest.outer, step),
            _written_out(both, K.StoreTile(sums, corner, tiles_c, at, how.n)),
        )
    )


def _written_out(counted: Sequence[Var], stmt: K.Stmt) -> K.Stmt:
    for var in reversed(counted):
        stmt = K.Loop(var, "unroll", as_block(stmt))
    return stmt


def _nest(body: K.Block, axes: Sequence[str], how: Matrix) -> _Nest:
    nest = perfect_nest(find_loop(body, axes[0]))
    names = tuple(loop.var.name for loop in nest)
    if len(axes) < 3 or names[: len(axes)] != tuple(axes) or len(nest) != len(axes) + 4:
        raise IllegalOpt(f"these loops and four others are not directly nested: {names}")
    summed, tile = nest[: len(axes)], nest[len(axes) :]
    if any(loop.kind != "serial" for loop in summed):
        raise IllegalOpt("the loops of the sum must be serial")
    word, one = summed[-2].var, summed[-1].var
    if (one.extent, word.extent * one.extent) != (how.together, how.k):
        raise IllegalOpt(f"the loops are no steps of {how.k} by {how.together}")
    across, along, row, column = (loop.var for loop in tile)
    written_out = all(loop.kind == "unroll" for loop in tile[:2])
    if (row.extent, column.extent) != (how.m, how.n) or not written_out:
        raise IllegalOpt(f"inside are not tiles of {how.m} x {how.n}, written out")
    (update, *more) = tile[-1].body.body
    if more or not isinstance(update, K.Update):
        raise IllegalOpt("inside is more than one Update")
    _require_sums(update, (across, along, row, column), "team", how.sums)
    if update.buf.shape != (across.extent, along.extent, how.m, how.n):
        raise IllegalOpt(f"{update.buf.name} holds more than its tiles")
    return _Nest(tuple(summed[:-2]), word, one, across, along, row, column, update)


def _left(nest: _Nest, arg: K.Value, how: Matrix) -> _Operand:
    """A, which lies as it is."""
    load = narrow(arg)
    if load.kind != "load" or load.dtype is not how.operands[0]:
        raise IllegalOpt(f"rows of A are no {how.operands[0].name} in memory")
    index = load.attr[1][-1]
    in_a = {nest.row: index.coeff(nest.row), nest.word: how.together, nest.one: 1}
    return _operand(nest, load, in_a, {nest.along, nest.column})


def _right(nest: _Nest, arg: K.Value, how: Matrix) -> _Operand:
    """B, in words."""
    loads = loads_of(arg)
    words = len(loads) == 1 and loads[0].dtype is dtypes.uint32
    dtype = how.operands[1]
    if not words or narrow(arg) is not element_of(loads[0], nest.one, dtype):
        raise IllegalOpt(f"columns of B are not packed in words of {dtype.name}")
    index = loads[0].attr[1][-1]
    in_b = {nest.word: index.coeff(nest.word), nest.column: 1}
    return _operand(nest, loads[0], in_b, {nest.one, nest.across, nest.row})


def _operand(nest: _Nest, load: K.Value, steps: dict[Var, int], others: set[Var]) -> _Operand:
    """An operand whose element lies by the first of `steps` further in each row of a tile."""
    buf, places, mask = load.attr
    if mask is not ALWAYS or any(p.vars & (steps.keys() | others) for p in places[:-1]):
        raise IllegalOpt(f"tiles of {buf.name} are not there as a whole")
    _require_lanes(places[-1], steps, others)
    corner: dict[Var, Expr | int] = dict.fromkeys((nest.row, nest.word, nest.one, nest.column), 0)
    return _Operand(buf, tuple(p.subst(corner) for p in places), next(iter(steps.values())))


def _require_sums(update: K.Update, own: Sequence[Var], space: str, dtype: DType) -> None:
    """Raises IllegalOpt unless products of `dtype` are added to elements that `own` count."""
    plain = update.mask is ALWAYS and not update.lets
    if update.monoid != "add" or update.buf.space != space or not plain:
        raise IllegalOpt(f"{update.buf.name} is no tile of sums")
    if update.indices != tuple(map(expr, own)):
        raise IllegalOpt(f"{update.buf.name} is no tile of sums")
    if update.value.kind != "alu" or update.value.attr != ("mul",):
        raise IllegalOpt("what is added is no product")
    if update.value.dtype is not dtype:
        found = update.value.dtype.name
        raise IllegalOpt(f"products of {found}; they must be of {dtype.name}")


def _require_lanes(index: Expr, wanted: dict[Var, int], others: set[Var]) -> None:
    """An index grows evenly along the loops of an instruction, and with no others of them."""
    rest = index - sum((expr(var) * step for var, step in wanted.items()), expr(0))
    if rest.vars & (wanted.keys() | others):
        raise IllegalOpt(f"elements at {index} do not lie as the instruction has them")
