"""What the policies look at: the outer loops of a kernel, and how loops walk through memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var, expr
from gpu.compiler.ir.index.rows import flatten
from gpu.compiler.ir.kernel.tree import values_of
from gpu.compiler.opt.analysis.dependence import is_independent
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt

# Innermost iterations below which waking another worker costs more than it gains.
SHARED: Final = 1 << 17


def outer_nest(body: K.Block) -> list[K.Loop]:
    """The outermost loops that are directly nested and whose iterations are independent."""
    nest: list[K.Loop] = []
    stmts = body.body
    while len(stmts) == 1 and isinstance(stmts[0], K.Loop) and is_independent(stmts[0]):
        nest.append(stmts[0])
        stmts = stmts[0].body.body
    return nest


def nest_down_to(body: K.Block, axis: str) -> tuple[list[K.Loop], K.Block]:
    """The independent outer loops down to `axis`, none for an empty one, and what is in them.

    Raises IllegalOpt for another loop.
    """
    nest = outer_nest(body)
    names = [loop.var.name for loop in nest]
    if axis and axis not in names:
        raise IllegalOpt(f"{axis} is none of the independent outer loops {names}")
    around = nest[: names.index(axis) + 1] if axis else []
    return around, around[-1].body if around else body


def perfect_nest(loop: K.Loop) -> list[K.Loop]:
    """A loop, the loop that is all it holds, and so on."""
    nest = [loop]
    while len(nest[-1].body.body) == 1 and isinstance(inner := nest[-1].body.body[0], K.Loop):
        nest.append(inner)
    return nest


def iteration(axes: Sequence[Var]) -> Expr:
    """The number of an iteration of nested loops."""
    number = expr(0)
    for var in axes:
        number = number * var.extent + var
    return number


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


class Leaf(NamedTuple):
    """An Update and the loops around it, outermost first."""

    update: K.Update
    loops: tuple[K.Loop, ...]


def leaves(stmt: K.Stmt, around: tuple[K.Loop, ...] = ()) -> Iterator[Leaf]:
    """Every Update inside `stmt`."""
    if isinstance(stmt, K.Update):
        yield Leaf(stmt, around)
    elif isinstance(stmt, K.Block):
        for child in stmt.body:
            yield from leaves(child, around)
    elif isinstance(stmt, K.If):
        yield from leaves(stmt.body, around)
    elif isinstance(stmt, K.Loop):
        yield from leaves(stmt.body, (*around, stmt))


def is_shared(stmt: K.Stmt, target: Target) -> bool:
    """Whether there is so much to do that waking other workers gains more than it costs."""
    return target.workers > 1 and _innermost_iterations(stmt) >= SHARED


def _innermost_iterations(stmt: K.Stmt) -> int:
    if isinstance(stmt, K.Loop):
        return (stmt.var.hi + 1) * _innermost_iterations(stmt.body)
    if isinstance(stmt, (K.Block, K.If)):
        body = stmt.body if isinstance(stmt, K.Block) else stmt.body.body
        return sum(map(_innermost_iterations, body))
    return 1


def memory_accesses(update: K.Update) -> Iterator[tuple[K.Buf, Expr]]:
    """Accesses of an Update to global and team memory, by the element."""
    if update.buf.space != "private":
        yield update.buf, flatten(update.indices, update.buf.shape)
    for value in values_of(update, set()):
        if value.kind == "load" and value.attr[0].space != "private":
            buf, indices, _ = value.attr
            yield buf, flatten(indices, buf.shape)


def last_index(indices: Sequence[Expr]) -> Expr:
    """The index along the axis that lies together in memory; 0 where there are no axes."""
    return indices[-1] if indices else expr(0)


def scattered(update: K.Update, var: Var, near: int = 1) -> int:
    """How many accesses of an Update are not at consecutive or equal places for lanes over `var`.

    Loads may be `near` elements apart. Stores count more: they have no gather.
    """
    bad = 0
    for buf, index in memory_accesses(update):
        step = index.coeff(var)
        rest = index - var * step
        stores = buf is update.buf
        if var in rest.vars or not 0 <= step <= (1 if stores else near):
            bad += 1 + stores
    return bad


class Transposition(NamedTuple):
    """A kernel whose only Update reads along one independent loop and writes along another.

    Attributes:
        others: the loops beside the two, outermost first.
        read, write: the loops that walk along what is read and what is written.
        update: the Update.
    """

    others: tuple[Var, ...]
    read: Var
    write: Var
    update: K.Update


def transposition(kernel: K.Kernel, side: int) -> Transposition | None:
    """The kernel as a transposition of squares of `side` or more, or None."""
    nest, found = outer_nest(kernel.body), list(leaves(kernel.body))
    if len(found) != 1 or len(nest) < 2 or found[0].loops != tuple(nest):
        return None
    update, counted = found[0].update, [loop.var for loop in nest]
    writes = [var for var in counted if last_index(update.indices).coeff(var) == 1]
    if not writes or not _reads_apart(update, writes[0]) or update.lets:
        return None
    reads = [var for var in counted if var is not writes[0] and _reads_along(update, var)]
    if not reads or min(writes[0].extent, reads[0].extent) < side:
        return None
    if writes[0].stop is not None or reads[0].stop is not None:
        return None
    others = tuple(var for var in counted if var not in (writes[0], reads[0]))
    return Transposition(others, reads[0], writes[0], update)


def _reads_apart(update: K.Update, var: Var) -> int:
    """Reads whose lanes over `var` would lie apart."""
    return sum(
        buf is not update.buf and index.coeff(var) not in (0, 1)
        for buf, index in memory_accesses(update)
    )


def _reads_along(update: K.Update, var: Var) -> bool:
    """Whether some read walks memory along `var`."""
    return any(
        buf is not update.buf and index.coeff(var) == 1 for buf, index in memory_accesses(update)
    )
