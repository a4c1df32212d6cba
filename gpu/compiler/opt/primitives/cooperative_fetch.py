"""Tiles that the threads of a block fill together: `Distribute` and `Stage` by threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, at_most, expr
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    as_block,
    find_loop,
    free_name,
    loads_of,
    loops,
    replace_loop,
    walk,
    with_axes,
)
from gpu.compiler.opt.analysis.dependence import is_independent
from gpu.compiler.opt.analysis.loop_nest import iteration
from gpu.compiler.opt.primitives.barriers import synchronize, thread_loops
from gpu.compiler.opt.primitives.cache_read import cached, operand_of
from gpu.compiler.opt.primitives.predication import masked_loads
from gpu.core.errors import IllegalOpt

# Rounds of a copy that are written out.
WRITTEN_OUT: Final = 32
# Bytes by which rows of a tile are kept apart where they are written across: they then start in
# different banks of memory, and vectors still start where vectors may.
APART: Final = 16


def distribute(body: K.Block, axes: Sequence[str]) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Distribute`. Raises IllegalOpt."""
    nest = [find_loop(body, name) for name in axes]
    for outer, inner in itertools.pairwise(nest):
        if outer.body.body != (inner,):
            raise IllegalOpt(f"{inner.var.name} is not directly inside {outer.var.name}")
    counted = [loop for loop in nest if loop.kind not in ("unroll", "vector")]
    if any(loop.kind != "serial" or not is_independent(loop) for loop in counted):
        raise IllegalOpt("only lanes and independent loops go inwards")
    inside = nest[-1].body
    own = {s.buf: s.buf.space for s in walk(inside) if isinstance(s, K.Alloc)}
    if any(space != "private" for space in own.values()):
        raise IllegalOpt("the loops hold memory that is not private")
    space = "team" if counted else "private"
    widened = with_axes(inside, tuple(own), [loop.var for loop in nest], space)
    return replace_loop(body, nest[0], sunk(widened, nest))


def sunk(stmt: K.Stmt, nest: Sequence[K.Loop]) -> K.Stmt:
    """`stmt` with the loops `nest` around each statement that does something."""
    match stmt:
        case K.Block():
            return K.Block(tuple(sunk(s, nest) for s in stmt.body))
        case K.Loop(var, "serial", inside):
            return K.Loop(var, "serial", as_block(sunk(inside, nest)))
        case K.Alloc():
            return stmt
    for loop in reversed(nest):
        stmt = K.Loop(loop.var, loop.kind, as_block(stmt))
    return stmt


class _Tile(NamedTuple):
    """A tile in team memory: for each loop it depends on, how far apart neighbours are."""

    buf: K.Buf
    strides: Mapping[Var, int]

    def place(self, at: Mapping[Var, Expr]) -> tuple[Expr, ...]:
        """The index of an element."""
        return (sum((at[v] * step for v, step in self.strides.items()), expr(0)),)


def stage_together(body: K.Block, axis: str, buf: str, order: Sequence[str]) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Stage`. Raises IllegalOpt."""
    loop, threads = find_loop(body, axis), thread_loops(body)
    inside = loops(threads[-1]) if threads else {}
    if axis not in inside or not order:
        raise IllegalOpt(f"{axis} is not inside thread loops, or nothing moves")
    if any(s.kind in ("unroll", "vector") and axis in loops(s) for s in inside.values()):
        raise IllegalOpt(f"{axis} is inside lanes or a loop that is written out")
    moving = loops(loop.body) | {t.var.name: t for t in threads}
    operand = operand_of(body, loop, buf, frozenset(order), moving.keys())
    axes = [moving[name].var for name in order]
    rows = [moving[name].kind == "serial" for name in order]
    lying = _as_it_lies(operand, axes)
    tile = _layout(free_name(body, f"{buf}s"), operand, axes, rows, lying[-1])
    fill = _fill(tile, operand, lying, [t.var for t in threads])
    read = K.load(tile.buf, tile.place({v: expr(v) for v in axes}))
    return synchronize(as_block(cached(body, loop, tile.buf, fill, {operand: read})))


def _as_it_lies(operand: K.Value, axes: Sequence[Var]) -> list[Var]:
    """The axes of an operand by how far they step in its memory, the nearest last."""
    load = loads_of(operand)[0]
    index = load.attr[1][-1]
    return sorted(axes, key=lambda v: -abs(index.coeff(v)) if index.coeff(v) else -math.inf)


def _layout(
    name: str, operand: K.Value, axes: Sequence[Var], rows: Sequence[bool], nearest: Var
) -> _Tile:
    """Elements in the order of `axes`, those that are written together kept apart.

    Threads that copy side by side differ in `nearest`. Where that is not the last of `axes` they
    write to places a row apart, which must not all be in one bank of memory.
    """
    step, strides = 1, {}
    for var, is_row in zip(reversed(axes), reversed(rows), strict=True):
        if var is nearest and step > 1:
            step += APART // operand.dtype.itemsize if is_row else 1
        strides[var] = step
        step *= var.extent
    return _Tile(K.Buf(name, operand.dtype, (step,), "team"), strides)


def _fill(tile: _Tile, operand: K.Value, lying: Sequence[Var], threads: Sequence[Var]) -> K.Stmt:
    """Neighbouring threads copy what lies together in memory."""
    together = math.prod(t.extent for t in threads)
    elements = math.prod(v.extent for v in lying)
    rounds = Var(f"{tile.buf.name}c", 0, -(-elements // together) - 1)
    place = expr(rounds) * together + iteration(threads)
    at: dict[Var, Expr] = {}
    rest = place
    for var in reversed(lying[1:]):
        at[var], rest = rest % var.extent, rest // var.extent
    at[lying[0]] = rest
    mask: Mask = ALWAYS if elements % together == 0 else at_most(place, elements - 1)
    value = masked_loads(Substitution(dict(at)).value(operand), mask)
    fill = K.Update(tile.buf, tile.place(at), None, value, mask)
    kind = "unroll" if rounds.extent <= WRITTEN_OUT else "serial"
    return K.Loop(rounds, kind, K.Block((fill,)))
