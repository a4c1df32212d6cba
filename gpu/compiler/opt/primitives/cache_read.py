"""An operand of the loops inside another is read once, into memory near the core."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var, expr
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    around_vars,
    find_loop,
    free_name,
    is_inside,
    loads_of,
    loops,
    reads,
    replace_loop,
    values,
    walk,
    writes,
)
from gpu.core.errors import IllegalOpt


def stage(body: K.Block, axis: str, buf: str, order: Sequence[str], apart: int = 0) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Stage`. Raises IllegalOpt."""
    loop = find_loop(body, axis)
    inside = loops(loop.body)
    operand = operand_of(body, loop, buf, frozenset(order), inside.keys())
    axes = [inside[name].var for name in order]
    copies = [Var(f"{var.name}s", var.lo, var.hi, var.stop) for var in axes]
    *rows, row = (v.extent for v in axes)
    tile = K.Buf(free_name(body, f"{buf}s"), operand.dtype, (*rows, row + apart), "team")
    env: dict[Var, Expr | int] = {a: expr(c) for a, c in zip(axes, copies, strict=True)}
    fill = K.Update(tile, tuple(map(expr, copies)), None, Substitution(env).value(operand))
    read = K.load(tile, tuple(map(expr, axes)))
    return cached(body, loop, tile, around_vars(copies, fill), {operand: read})


def cached(
    body: K.Block, loop: K.Loop, tile: K.Buf, fill: K.Stmt, known: Mapping[K.Value, K.Value]
) -> K.Stmt:
    """`body` where `loop` fills `tile` first, and reads what is `known` from there."""
    inside = Substitution({}, values=known).block(loop.body)
    new = K.Block((K.Alloc(tile), fill, *inside.body))
    return replace_loop(body, loop, K.Loop(loop.var, loop.kind, new))


def operand_of(
    body: K.Block, loop: K.Loop, buf: str, depends: frozenset[str], inside: Collection[str]
) -> K.Value:
    """The largest value in a loop of `body` computed from `buf` alone that just these loops move.

    Raises IllegalOpt where there is none, or where it is written.
    """
    if any(written.name == buf for written, _, _ in writes(body)):
        raise IllegalOpt(f"{buf} is written in the kernel")
    found: set[K.Value] = set()
    seen: set[K.Value] = set()
    for stmt in walk(loop.body):
        if isinstance(stmt, K.Update) and not stmt.lets:
            if {b.name for b in stmt.value.bufs} == {buf}:
                found.add(stmt.value)
            for value in values(stmt.value, seen):
                found.update(a for a in value.args if {b.name for b in a.bufs} == {buf})
    moving = {v: {var.name for var in v.vars} & set(inside) for v in found}
    exact = [v for v in found if moving[v] == depends]
    contained = {part for v in exact for arg in v.args for part in values(arg, set())}
    largest = [v for v in exact if v not in contained]
    if len(largest) != 1:
        raise IllegalOpt(f"{len(largest)} operands from {buf} depend on just these loops, not one")
    require_inside(loop.body, loads_of(largest[0]))
    return largest[0]


def require_inside(body: K.Stmt, loads: Sequence[K.Value]) -> None:
    """Raises IllegalOpt where a condition inside `body` may keep `loads` inside their buffers.

    What is read in advance is read whether that holds or not.
    """
    beyond = {load for load in loads if not is_inside(*load.attr[:2])}
    under = (s for s in walk(body) if isinstance(s, K.If)) if beyond else ()
    for condition in under:
        for buf, indices, mask in reads(condition):
            if K.load(buf, indices, mask) in beyond:
                raise IllegalOpt(f"{buf.name} may be read under a condition alone")
