"""The transformation `Pack`: operands of matrix instructions as one thread loads whole tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var, expr
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    around_vars,
    find_loop,
    free_name,
    loops,
)
from gpu.compiler.ir.kernel.words import BITS, word_of
from gpu.compiler.opt.analysis.loop_nest import iteration
from gpu.compiler.opt.primitives.cache_read import cached, operand_of
from gpu.compiler.opt.primitives.narrow_operand import narrow
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import IllegalOpt


def pack(body: K.Block, axis: str, buf: str, order: Sequence[str], words: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Pack`. Raises IllegalOpt."""
    loop = find_loop(body, axis)
    inside = loops(loop.body)
    names = (*order, words) if words else tuple(order)
    if missing := sorted(set(names) - inside.keys()):
        raise IllegalOpt(f"there are no loops {missing} inside {axis}")
    depends = frozenset(name for name in names if inside[name].var.extent > 1)
    operand = operand_of(body, loop, buf, depends, inside.keys())
    value = narrow(operand)
    axes = [inside[name].var for name in order]
    copies = [Var(f"{var.name}{'w' if words else 's'}", var.lo, var.hi, var.stop) for var in axes]
    held = dtypes.uint32 if words else value.dtype
    tile = K.Buf(free_name(body, f"{buf}s"), held, (math.prod(var.extent for var in axes),), "team")
    env: dict[Var, Expr | int] = {a: expr(c) for a, c in zip(axes, copies, strict=True)}
    filled, read = Substitution(env).value(value), K.load(tile, (iteration(axes),))
    if words:
        one = inside[words].var
        if one.extent * value.dtype.bits != dtypes.uint32.bits:
            raise IllegalOpt(f"{one.extent} {value.dtype.name} are no integer of 4 bytes")
        read = element_of(read, one, value.dtype)
        filled = word_of([Substitution({one: n}).value(filled) for n in range(one.extent)])
    fill = K.Update(tile, (iteration(copies),), None, filled)
    known = {operand: K.cast(read, operand.dtype)}
    return cached(body, loop, tile, around_vars(copies, fill), known)


def element_of(word: K.Value, one: Var, dtype: DType) -> K.Value:
    """The element of iteration `one` in a word of them."""
    place = K.cast(K.index(expr(one) * dtype.bits), dtypes.uint32)
    return K.bitcast(K.cast(K.alu("shr", word, place), BITS[dtype.bits]), dtype)
