"""A loop that is left out where a condition around it says that it writes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, at_least
from gpu.compiler.ir.kernel.tree import as_block, find_loop, replace_loop, rewrite, walk
from gpu.core.errors import IllegalOpt


def guard(body: K.Block, axis: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Guard`. Raises IllegalOpt."""
    loop = find_loop(body, axis)
    common = guards_of(loop)
    if not common:
        raise IllegalOpt("its writes have no condition in common that is the same in all of it")

    def change(stmt: K.Stmt) -> K.Stmt | None:
        if not isinstance(stmt, K.Update):
            return None
        return stmt._replace(mask=_all(c for c in stmt.mask.constraints if c not in common))

    inside = K.Loop(loop.var, loop.kind, as_block(rewrite(loop.body, change)))
    return replace_loop(body, loop, K.If(_all(common), K.Block((inside,))))


def guards_of(loop: K.Loop) -> list[Expr]:
    """The conditions that all writes of a loop have, and that are the same in its iterations."""
    stmts = list(walk(loop))
    if not all(isinstance(s, K.Update | K.Loop | K.Block | K.Alloc) for s in stmts):
        return []
    updates = [s for s in stmts if isinstance(s, K.Update)]
    inner = {s.var for s in stmts if isinstance(s, K.Loop)}
    inner |= {let.var for update in updates for let in update.lets}
    first, *others = (update.mask.constraints for update in updates) if updates else ((),)
    return [c for c in first if not c.vars & inner and all(c in other for other in others)]


def _all(constraints: Iterable[Expr]) -> Mask:
    mask = ALWAYS
    for constraint in constraints:
        mask &= at_least(constraint, 0)
    return mask
