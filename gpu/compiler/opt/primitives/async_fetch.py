"""The transformation `AsyncFetch`: operands of matrix instructions in team memory, as they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Mask, Var, at_most, expr
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    as_block,
    find_loop,
    loops,
    replace_loop,
    values,
    writes,
)
from gpu.compiler.ir.matrix import COPY_BYTES
from gpu.compiler.opt.analysis.access_width import all_alike
from gpu.compiler.opt.analysis.loop_nest import iteration
from gpu.compiler.opt.primitives.barriers import synchronize, thread_loops
from gpu.compiler.opt.primitives.cache_read import operand_of
from gpu.compiler.opt.primitives.predication import masked_loads
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import IllegalOpt

APART: Final = 8
"""Elements between the rows of a tile. Rows have a multiple of 16, so that they then begin an odd
number of 16 bytes apart: eight of them, which are read at once, lie in different banks."""
NARROW: Final = {
    dtypes.float32: (dtypes.float16, dtypes.bfloat16),
    dtypes.int32: (dtypes.int8, dtypes.uint8),
}
"""What operands of matrix instructions are cast to, and what they are before."""


def narrow(operand: K.Value) -> K.Value:
    """What an operand is a cast of: of 16 bits where it is float32, of 8 where it is int32.

    Raises IllegalOpt where there is no such.
    """
    if operand.kind == "cast" and operand.args[0].dtype in NARROW.get(operand.dtype, ()):
        return operand.args[0]
    is_where = operand.kind == "alu" and operand.attr[0] == "where"
    if is_where and operand.args[2] is _zero(operand.dtype):
        inside = narrow(operand.args[1])
        return K.alu("where", operand.args[0], inside, _zero(inside.dtype))
    raise IllegalOpt(
        "an operand of a product is not of 16 bits, or 8 of an integer; float32 is never rounded"
        " to less"
    )


def _zero(dtype: DType) -> K.Value:
    return K.const(dtype, 0.0 if dtype.is_float else 0)


class _Tile(NamedTuple):
    """Team memory of `rows` rows and `columns` columns, each counted by loops, outermost first."""

    buf: K.Buf
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]

    @property
    def width(self) -> int:
        """Elements of a row."""
        return math.prod(var.extent for var in self.columns)

    @property
    def height(self) -> int:
        """Rows."""
        return math.prod(var.extent for var in self.rows)

    def place(self, row: Expr, column: Expr) -> tuple[Expr, ...]:
        """The index of an element."""
        return (row * (self.width + APART) + column,)


def at_iteration(
    axes: Sequence[Var], number: Expr, everywhere: Sequence[Expr]
) -> dict[Var, Expr | int]:
    """The loops' variables at iteration `number`.

    Where all expressions are sums in which the loops count as one, so they are put in: the last
    one at all of `number` and the others at 0.
    """
    last = axes[-1]
    strides = [math.prod(var.extent for var in axes[i + 1 :]) for i in range(len(axes))]
    for e in everywhere:
        step = e.coeff(last)
        rest = e - sum(
            (expr(var) * (step * s) for var, s in zip(axes, strides, strict=True)), expr(0)
        )
        if rest.vars & set(axes):
            break
    else:
        return {**dict.fromkeys(axes, 0), last: number}
    at: dict[Var, Expr | int] = {}
    for var, stride in zip(axes, strides, strict=True):
        at[var] = number // stride % var.extent
    return at


def _expressions(value: K.Value) -> list[Expr]:
    """All index arithmetic of a value."""
    found: list[Expr] = []
    for part in values(value, set()):
        if part.kind == "index":
            found.append(part.attr[0])
        elif part.kind == "load":
            found += [*part.attr[1], *part.attr[2].constraints]
    return found


def async_fetch(
    body: K.Block, axis: str, buf: str, rows: Sequence[str], columns: Sequence[str], size: int
) -> K.Stmt:
    """See `gpu.compiler.opt.opts.AsyncFetch`. Raises IllegalOpt."""
    what = f"AsyncFetch({axis!r}, {buf!r}, {tuple(rows)}, {tuple(columns)}, {size})"
    loop, threads = find_loop(body, axis, what), thread_loops(body)
    moving = loops(loop.body) | {t.var.name: t for t in threads}
    if not threads or axis not in loops(threads[-1]):
        raise IllegalOpt(f"{what}: {axis} is not inside thread loops")
    depends = frozenset(n for n in (*rows, *columns) if moving[n].var.extent > 1)
    operand = operand_of(loop.body, buf, depends, moving.keys(), what)
    if operand.bufs & {written for written, _, _ in writes(body)}:
        raise IllegalOpt(f"{what}: {buf} is written in the kernel")
    value = narrow(operand)
    axes = tuple(moving[n].var for n in rows), tuple(moving[n].var for n in columns)
    taken = {b.name for b, _, _ in writes(body)}
    name = next(n for n in (f"{buf}{'s' * times}" for times in range(1, 9)) if n not in taken)
    height, width = (math.prod(v.extent for v in part) for part in axes)
    tile = _Tile(K.Buf(name, value.dtype, (height * (width + APART),), "team"), *axes)
    own = [t.var for t in threads]
    fill = _copies(tile, value, own, size, what) if size > 1 else (_stores(tile, value, own),)
    read = K.cast(
        K.load(tile.buf, tile.place(iteration(axes[0]), iteration(axes[1]))), operand.dtype
    )
    staged = Substitution({}, values={operand: read}).block(loop.body)
    new = K.Loop(loop.var, loop.kind, K.Block((K.Alloc(tile.buf), *fill, *staged.body)))
    return synchronize(as_block(replace_loop(body, loop, new)), what)


def _rounds(tile: _Tile, threads: Sequence[Var], size: int) -> tuple[Var, Expr, Mask | None]:
    """Rounds in which threads each write `size` elements: a loop, which one it is, which exist."""
    together = math.prod(t.extent for t in threads)
    count = tile.height * tile.width // size
    rounds = Var(f"{tile.buf.name}c", 0, -(-count // together) - 1)
    number = expr(rounds) * together + iteration(threads)
    return rounds, number, at_most(number, count - 1) if count % together else None


def _moved(tile: _Tile, value: K.Value, number: Expr, size: int) -> tuple[K.Value, Expr, Expr]:
    """`value` where the `number`-th run of `size` elements begins, with its row and column."""
    across = tile.width // size
    row, column = number // across, number % across * size
    everywhere = _expressions(value)
    env = at_iteration(tile.rows, row, everywhere) | at_iteration(tile.columns, column, everywhere)
    return Substitution(env).value(value), row, column


def _stores(tile: _Tile, value: K.Value, threads: Sequence[Var]) -> K.Stmt:
    """Neighbouring threads write neighbouring elements, whatever they are computed from."""
    rounds, number, exists = _rounds(tile, threads, 1)
    moved, row, column = _moved(tile, value, number, 1)
    fill = K.Update(tile.buf, tile.place(row, column), None, moved)
    if exists is not None:
        fill = fill._replace(value=masked_loads(moved, exists), mask=exists)
    return K.Loop(rounds, "unroll", as_block(fill))


def copy_size(value: K.Value, columns: Sequence[Var]) -> int:
    """The most elements that one copy can have, where runs of them lie along `columns`; or 1."""
    width = math.prod(var.extent for var in columns)
    if value.kind != "load" or value.attr[0].space != "global" or len(value.attr[1]) != 1:
        return 1
    _, (place,), mask = value.attr
    number = Var("run", 0, width - 1)
    env = at_iteration(columns, expr(number), [place, *mask.constraints])
    moved = place.subst(env)
    rest = moved - number
    if number in rest.vars:
        return 1
    for nbytes in sorted(COPY_BYTES, reverse=True):
        size = nbytes // value.dtype.itemsize
        whole = all(all_alike(c.subst(env), number, size) for c in mask.constraints)
        if size > 1 and width % size == 0 and rest.gcd() % size == 0 and whole:
            return size
    return 1


def _copies(
    tile: _Tile, value: K.Value, threads: Sequence[Var], size: int, what: str
) -> tuple[K.Stmt, ...]:
    """Asynchronous copies, and the wait for them."""
    if copy_size(value, tile.columns) % size:
        raise IllegalOpt(f"{what}: {size} elements do not follow each other in memory")
    rounds, number, exists = _rounds(tile, threads, size)
    moved, row, column = _moved(tile, value, number, size)
    source, places, mask = moved.attr
    copy: K.Stmt = K.AsyncCopy(tile.buf, tile.place(row, column), source, places, size, mask)
    if exists is not None:
        copy = K.If(exists, as_block(copy))
    return K.Loop(rounds, "unroll", as_block(copy)), K.Commit(), K.Wait(0)
