"""Reductions with several partial results."""

from __future__ import annotations

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Var, at_most, expr, iterations, loop_var
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    around,
    around_vars,
    find_loop,
    fresh_copy,
    loops_around,
    replace_loop,
)
from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.opt.primitives.predication import holds, masked_loads
from gpu.core.errors import IllegalOpt


def rfactor(body: K.Block, axis: str, factor: int, lanes: int) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Rfactor`. Raises IllegalOpt."""
    loop = find_loop(body, axis)
    nest = _reduction_nest(body, loop)
    update = nest[-1].body.body[0]
    assert isinstance(update, K.Update) and update.monoid is not None
    extent = iterations(loop.var)
    whole, rest = extent // factor, extent % factor
    if not 2 <= factor <= max(extent.hi, lanes):
        raise IllegalOpt(f"the factor must be between 2 and the extent {extent}")
    if lanes and (factor % lanes or update.lets):
        raise IllegalOpt("lanes divide the factor, and no value is named")
    partial = K.Buf(f"{update.buf.name}{axis}p", update.buf.dtype, (factor,), "private")
    zero, inner, final = (Var(f"{axis}{suffix}", 0, factor - 1) for suffix in "zif")
    outer = loop_var(f"{axis}o", whole)
    identity = K.const(partial.dtype, MONOIDS[update.monoid].identity(partial.dtype))
    into_partial = update._replace(buf=partial, indices=(expr(inner),))
    moved = Substitution({loop.var: outer * factor + inner}).stmt(into_partial)
    main = around(nest[:-1], around_vars((outer, inner), moved))
    # A partial result to which a mask let nothing come is the identity, which changes nothing.
    collected = update._replace(value=K.load(partial, (expr(final),)), mask=ALWAYS, lets=())
    steps: list[K.Stmt] = [
        K.Alloc(partial),
        around_vars((zero,), K.Update(partial, (expr(zero),), None, identity)),
        *([] if whole is expr(0) else [main]),
        around_vars((final,), collected),
    ]
    if rest is not expr(0):
        count = rest if not lanes else -(-rest.value // lanes) * lanes if rest.is_const else factor
        tail = loop_var(axis, count)  # fresh_copy names it {axis}t
        left = Substitution({loop.var: tail + whole * factor}).stmt(update)
        if lanes:
            assert isinstance(left, K.Update)
            mask = at_most(expr(tail), rest - 1)
            value = masked_loads(left.value, mask, discarded=True)
            value = value if mask is ALWAYS else K.alu("where", holds(mask), value, identity)
            left = left._replace(buf=partial, indices=(expr(tail),), value=value)
        copied = fresh_copy(around(nest[:-1], around_vars((tail,), left)), "t")
        steps.insert(len(steps) - bool(lanes), copied)
    return replace_loop(body, nest[0], K.Block(tuple(steps)))


def _reduction_nest(body: K.Block, loop: K.Loop) -> list[K.Loop]:
    """The perfectly nested serial loops that reduce into one element, down to `loop`."""
    only = loop.body.body
    if len(only) != 1 or not isinstance(only[0], K.Update) or only[0].monoid is None:
        raise IllegalOpt("the loop must hold one Update with a monoid and nothing else")
    update = only[0]
    if update.buf.space != "private" or update.buf in update.value.bufs:
        raise IllegalOpt(f"{update.buf.name} is not an accumulator")
    nest = [loop]
    for outer in reversed(loops_around(body, loop)):
        chosen = any(outer.var in i.vars for i in update.indices)
        if outer.body.body != (nest[0],) or outer.kind != "serial" or chosen:
            break
        nest.insert(0, outer)
    if any(loop.var in i.vars for i in update.indices) or loop.kind != "serial":
        raise IllegalOpt("the loop does not reduce")
    return nest
