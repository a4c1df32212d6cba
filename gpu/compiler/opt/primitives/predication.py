"""The last round of a loop that is split by a number that does not divide its iterations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Mask, Var, at_most, expr, iterations
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    accesses,
    allocated,
    as_block,
    is_inside,
    reads,
    rewrite,
    values,
    walk,
)
from gpu.compiler.ir.optable import scalar, to_python
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import IllegalOpt


def holds(mask: Mask) -> K.Value:
    """A mask as a value."""
    limit = K.const(dtypes.int64, -1)
    result = K.const(dtypes.bool, True)
    for number, constraint in enumerate(mask.constraints):
        part = K.alu("lt", limit, K.index(constraint))
        result = K.alu("and", result, part) if number else part
    return result


def masked_loads(value: K.Value, mask: Mask, discarded: bool = False) -> K.Value:
    """`value` with the loads that depend on the variables of `mask` done only where it holds.

    Where it is `discarded` elsewhere, elements of team memory that are there are loaded anyway.
    """
    loads: dict[K.Value, K.Value] = {}
    for part in values(value, set()):
        if part.kind == "load" and part.vars & mask.vars:
            buf, indices, old = part.attr
            if not (discarded and buf.space == "team" and is_inside(buf, indices)):
                loads[part] = K.load(buf, indices, old & mask)
    return Substitution({}, values=loads).value(value) if loads else value


def zero_outside(value: K.Value, mask: Mask) -> K.Value:
    """`value` where `mask` holds, else zero; nothing is read there."""
    masked = masked_loads(value, mask)
    inner = masked.args[0] if masked.kind == "cast" else masked
    if inner.kind == "load" and mask.vars <= inner.attr[2].vars:
        return masked  # a load gives zero by itself
    return K.alu("where", holds(mask), masked, zero(value.dtype))


def zero(dtype: DType) -> K.Value:
    """The constant 0."""
    return K.const(dtype, to_python(scalar(dtype)(0), dtype))


def room_for(loop: K.Loop, extent: int) -> dict[K.Buf, K.Buf]:
    """Larger ones in the place of team memory that `loop`, if it ran up to `extent`, left.

    They are those in which all that the iterations that adds touch is behind the end.
    """
    last = Var(f"{loop.var.name}w", loop.var.extent, extent - 1)
    found: dict[K.Buf, list[Expr]] = {}
    for buf, indices, _ in accesses(loop.body):
        if buf.space == "team" and buf.shape and buf not in allocated(loop):
            found.setdefault(buf, []).append(indices[-1].subst({loop.var: last}))
    return {
        buf: K.Buf(buf.name, buf.dtype, (*buf.shape[:-1], max(i.hi for i in places) + 1), "team")
        for buf, places in found.items()
        if all(place.lo >= buf.shape[-1] for place in places)
    }


def guarded(loop: K.Loop, extent: int, room: Mapping[K.Buf, K.Buf] | None = None) -> K.Loop:
    """The loop run up to `extent`, nothing outside of it touched in the iterations that adds.

    But with `room`, what replaces team memory: these have places of their own in it, and may read
    what else is there.
    """
    discarded, room = room is not None, room or {}
    wide = Var(f"{loop.var.name}w", 0, extent - 1)
    mask = at_most(expr(wide), iterations(loop.var) - 1)
    own = {*allocated(loop), *room.values()}
    if any(isinstance(s, K.Barrier | K.MatrixStmt) for s in walk(loop.body)):
        raise IllegalOpt(f"{loop.var.name} holds what threads do together, which has no mask")
    body = Substitution({loop.var: expr(wide)}, room).block(loop.body)
    outside = (K.load(*read) for read in reads(body) if read[0] not in own)
    loads = {load: masked_loads(load, mask, discarded) for load in outside if wide in load.vars}

    def guard(stmt: K.Stmt) -> K.Stmt | None:
        if isinstance(stmt, K.Update) and stmt.buf not in own:
            return stmt._replace(mask=stmt.mask & mask)
        return None

    masked = Substitution({}, values=loads).block(body) if loads else body
    return K.Loop(wide, loop.kind, as_block(rewrite(masked, guard)))


def skipped(loop: K.Loop, extent: int) -> K.Loop:
    """The loop run up to `extent`, doing nothing in the iterations that adds."""
    wide = Var(f"{loop.var.name}w", 0, extent - 1)
    mask = at_most(expr(wide), iterations(loop.var) - 1)

    def under(block: K.Block) -> K.Block:
        inner = block.body[0]
        if len(block.body) == 1 and isinstance(inner, K.Loop) and inner.kind != "serial":
            return K.Block((K.Loop(inner.var, inner.kind, under(inner.body)),))
        return K.Block((K.If(mask, block),))

    body = Substitution({loop.var: expr(wide)}).block(loop.body)
    return K.Loop(wide, loop.kind, under(body))


def zeroed(loop: K.Loop, extent: int) -> K.Loop:
    """A sum of products run up to `extent`, both factors zero in the iterations that adds."""
    update = _sum_of_products(loop)
    wide = Var(f"{loop.var.name}w", 0, extent - 1)
    mask = at_most(expr(wide), iterations(loop.var) - 1)
    moved = Substitution({loop.var: expr(wide)})
    factors = [zero_outside(moved.value(factor), mask) for factor in update.value.args]
    product = K.alu("mul", *factors)

    def change(stmt: K.Stmt) -> K.Stmt | None:
        return stmt._replace(value=product) if isinstance(stmt, K.Update) else None

    return K.Loop(wide, loop.kind, as_block(rewrite(moved.block(loop.body), change)))


def _sum_of_products(loop: K.Loop) -> K.Update:
    """The Update that is all a loop holds, if it adds products to what it does not read."""
    found = [s for s in walk(loop.body) if not isinstance(s, K.Block | K.Loop)]
    update = found[0]
    if len(found) == 1 and isinstance(update, K.Update) and not update.lets:
        value = update.value
        product = value.kind == "alu" and value.attr == ("mul",)
        if product and update.monoid == "add" and update.buf not in value.bufs:
            return update
    raise IllegalOpt(f"only sums of products can add zeros; {loop.var.name} holds something else")


ROUNDED: Final[dict[str, Callable[[K.Loop, int], K.Loop]]] = {
    "mask": guarded,
    "skip": skipped,
    "zero": zeroed,
}
