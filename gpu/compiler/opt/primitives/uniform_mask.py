"""Conditions on which all iterations of a loop agree, stated once for all of them."""

from __future__ import annotations

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Mask, at_least
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    as_block,
    find_loop,
    reads,
    replace_loop,
    rewrite,
)
from gpu.compiler.opt.analysis.access_width import all_alike
from gpu.core.errors import IllegalOpt


def uniform_mask(body: K.Block, axis: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.UniformMask`. Raises IllegalOpt."""
    loop = find_loop(body, axis)
    var = loop.var

    def common(mask: Mask) -> Mask:
        result = ALWAYS
        for constraint in mask.constraints:
            if var in constraint.vars and not all_alike(constraint, var, var.extent):
                raise IllegalOpt(f"not all iterations agree on {constraint} >= 0")
            result &= at_least(constraint.subst({var: 0}), 0)
        return result

    def change(stmt: K.Stmt) -> K.Stmt | None:
        return stmt._replace(mask=common(stmt.mask)) if isinstance(stmt, K.Update) else None

    loads = {K.load(*read): K.load(*read[:2], common(read[2])) for read in reads(loop)}
    inside = as_block(rewrite(Substitution({}, values=loads).block(loop.body), change))
    return replace_loop(body, loop, K.Loop(var, loop.kind, inside))
