"""Loops that follow each other made one: the transformation `FuseSiblings`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var, expr
from gpu.compiler.ir.kernel.tree import Substitution, loops, rewrite
from gpu.compiler.opt.analysis.dependence import is_independent
from gpu.compiler.opt.analysis.loop_nest import perfect_nest
from gpu.core.errors import IllegalOpt


def fuse_siblings(body: K.Block, first: str, second: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.FuseSiblings`. Raises IllegalOpt."""
    done: list[K.Loop] = []

    def change(stmt: K.Stmt) -> K.Stmt | None:
        if not isinstance(stmt, K.Block):
            return None
        for at, (a, b) in enumerate(itertools.pairwise(stmt.body)):
            if isinstance(a, K.Loop) and isinstance(b, K.Loop):
                nests = perfect_nest(a), perfect_nest(b)
                if _has(nests[0], first) and _has(nests[1], second):
                    done.append(_jammed(*nests, first, second))
                    return K.Block((*stmt.body[:at], done[0], *stmt.body[at + 2 :]))
        return None

    new = rewrite(body, change)
    if len(done) != 1:
        raise IllegalOpt(f"{len(done)} pairs of nests that follow each other have these")
    (loop,) = done
    if first in loops(loop.body):
        raise IllegalOpt(f"a loop over {first} would be inside another")
    if loop.kind != "serial" or not is_independent(loop):
        raise IllegalOpt("iterations of the loop they become touch the same elements")
    return new


def _has(nest: Sequence[K.Loop], name: str) -> bool:
    return any(loop.var.name == name for loop in nest)


def _jammed(one: list[K.Loop], other: list[K.Loop], first: str, second: str) -> K.Loop:
    """Both nests inside one loop, the first of their loops named `first` and `second`."""
    (a,) = [loop for loop in one if loop.var.name == first]
    (b,) = [loop for loop in other if loop.var.name == second]
    if (a.var.lo, a.var.hi, a.var.stop) != (b.var.lo, b.var.hi, b.var.stop):
        raise IllegalOpt(f"{first} and {second} have different iterations")
    env: dict[Var, Expr | int] = {b.var: expr(a.var)}
    bodies = (_without(one, a), Substitution(env).stmt(_without(other, b)))
    return K.Loop(a.var, a.kind, K.Block(bodies))


def _without(nest: Sequence[K.Loop], dropped: K.Loop) -> K.Stmt:
    body = nest[-1].body
    for loop in reversed(nest):
        if loop is not dropped:
            body = K.Block((K.Loop(loop.var, loop.kind, body),))
    return body.body[0] if len(body.body) == 1 else body
