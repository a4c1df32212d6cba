"""`SharedTranspose`: what is read across goes through a tile, in whole accesses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var, at_most, expr
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    as_block,
    find_loop,
    free_name,
    loops,
    reads,
    writes,
)
from gpu.compiler.opt.analysis.loop_nest import at_iteration, iteration, last_index
from gpu.compiler.opt.primitives.barriers import synchronize, thread_loops
from gpu.compiler.opt.primitives.cache_read import cached, require_inside
from gpu.compiler.opt.primitives.predication import masked_loads
from gpu.core.dtype import DType
from gpu.core.errors import IllegalOpt

BANK_BYTES: Final = 4


class _Side(NamedTuple):
    """One side of a tile: loops that count groups, outermost first, and one over a group.

    Where a group is one element there is no such loop.
    """

    groups: tuple[Var, ...]
    near: Var | None

    @property
    def many(self) -> int:
        """Groups."""
        return math.prod(var.extent for var in self.groups)

    @property
    def vars(self) -> tuple[Var, ...]:
        """All loops."""
        return self.groups if self.near is None else (*self.groups, self.near)

    @property
    def place(self) -> Expr:
        """The place in a group."""
        return expr(0) if self.near is None else expr(self.near)

    def at(self, group: Expr, near: Expr, where: Sequence[Expr]) -> dict[Var, Expr | int]:
        """The loops' variables at an element; `where` are the expressions that they are for."""
        env = at_iteration(self.groups, group, where)
        return env if self.near is None else env | {self.near: near}


class _Tile(NamedTuple):
    """Team memory of a tile: rows as they lie, groups of rows apart.

    A row is a multiple of 128 bytes, mostly, so that what threads write side by side is in
    different banks. They read an element each of groups of rows that follow each other, and these
    begin in banks that differ because a group is as much longer as its accesses are wide.
    """

    buf: K.Buf
    rows: _Side
    columns: _Side
    side: int
    group: int

    def place(self, group: Expr, row: Expr, column: Expr) -> tuple[Expr, ...]:
        """The index of an element."""
        return (group * self.group + row * (self.columns.many * self.side) + column,)


def shared_transpose(
    body: K.Block, axis: str, buf: str, rows: Sequence[str], columns: Sequence[str], side: int
) -> K.Stmt:
    """See `gpu.compiler.opt.opts.SharedTranspose`. Raises IllegalOpt."""
    loop, threads = find_loop(body, axis), thread_loops(body)
    moving = {n: s.var for n, s in loops(loop.body).items()} | {t.var.name: t.var for t in threads}
    if not threads or (axis != threads[-1].var.name and axis not in loops(threads[-1])):
        raise IllegalOpt(f"{axis} is not inside thread loops")
    if not rows or not columns or not {*rows, *columns} <= moving.keys():
        raise IllegalOpt(f"rows and columns are some of {sorted(moving)} each")
    across, along = (_side([moving[n] for n in names], side) for names in (rows, columns))
    load = _read_across(body, loop, buf, across, along)
    tile = _tile(free_name(body, f"{buf}s"), load.attr[0].dtype, across, along, side)
    fill = _fill(tile, load, [t.var for t in threads])
    column = iteration(along.groups) * side + along.place
    read = K.load(tile.buf, tile.place(iteration(across.groups), across.place, column))
    return synchronize(as_block(cached(body, loop, tile.buf, fill, {load: read})))


def _side(axes: Sequence[Var], side: int) -> _Side:
    if side == 1:
        return _Side(tuple(axes), None)
    if axes[-1].extent != side:
        raise IllegalOpt(f"loop {axes[-1].name} has {axes[-1].extent} iterations")
    if len(axes) < 2:
        raise IllegalOpt(f"{axes[-1].name} alone is no side of a tile: name a loop before")
    return _Side(tuple(axes[:-1]), axes[-1])


def _read_across(body: K.Block, loop: K.Loop, buf: str, rows: _Side, columns: _Side) -> K.Value:
    """What is loaded from `buf` along the columns, at one place."""
    if any(b.name == buf for b, _, _ in writes(body)):
        raise IllegalOpt(f"{buf} is written in the kernel")
    along = columns.vars[-1]
    found = [
        K.load(*read)
        for read in reads(loop)
        if read[0].name == buf and last_index(read[1]).coeff(along) == 1
    ]
    if len(found) != 1:
        raise IllegalOpt(f"{buf} is read in {len(found)} places along {along.name}, not 1")
    (load,) = found
    mine = set(rows.vars) | set(columns.vars)
    inside = {s.var for s in (*loops(loop.body).values(), *thread_loops(body))}
    if not mine <= load.vars or load.vars & (inside - mine):
        raise IllegalOpt(f"{buf} does not depend on just these loops")
    require_inside(loop.body, found)
    return load


def _tile(name: str, dtype: DType, rows: _Side, columns: _Side, side: int) -> _Tile:
    apart = max(side, BANK_BYTES // dtype.itemsize)
    group = side * columns.many * side + apart
    team = K.Buf(name, dtype, (rows.many * group,), "team")
    return _Tile(team, rows, columns, side, group)


def _fill(tile: _Tile, load: K.Value, threads: Sequence[Var]) -> K.Stmt:
    """Neighbouring threads copy neighbouring groups of a row."""
    together, across = math.prod(t.extent for t in threads), tile.columns.many
    count = tile.rows.many * tile.side * across
    rounds = Var(f"{tile.buf.name}c", 0, -(-count // together) - 1)
    near = Var(f"{tile.buf.name}v", 0, tile.side - 1)
    number = expr(rounds) * together + iteration(threads)
    row, column = number // across, number % across
    group, rest = row // tile.side, row % tile.side
    _, indices, mask = load.attr
    where = (*indices, *mask.constraints)
    env = tile.rows.at(group, rest, where) | tile.columns.at(column, expr(near), where)
    value = Substitution(env).value(load)
    exists = at_most(number, count - 1) if count % together else ALWAYS
    place = tile.place(group, rest, column * tile.side + near)
    fill = K.Update(tile.buf, place, None, masked_loads(value, exists), exists)
    return K.Loop(rounds, "unroll", as_block(K.Loop(near, "unroll", as_block(fill))))
