"""A buffer whose values are computed where they are read."""

from __future__ import annotations

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Var, expr
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    as_block,
    reads,
    rewrite,
    walk,
)
from gpu.core.errors import IllegalOpt


def inline(body: K.Block, name: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Inline`. Raises IllegalOpt."""
    allocs = [s for s in walk(body) if isinstance(s, K.Alloc) and s.buf.name == name]
    if not allocs:
        raise IllegalOpt("there is no such buffer in the kernel")
    buf = allocs[0].buf
    if any(isinstance(s, K.MatrixStmt) for s in walk(body)):
        raise IllegalOpt(f"matrix instructions may read {name}")
    makers = [s for s in walk(body) if isinstance(s, K.Update) and s.buf is buf]
    if len(makers) != 1:
        raise IllegalOpt(f"{name} is not made element by element in one place")
    nest = _whole_nest(body, makers[0])
    axes = [i.terms[0][0] if i.is_affine and len(i.terms) == 1 else None for i in makers[0].indices]
    plain = makers[0].monoid is None and makers[0].mask is ALWAYS and not makers[0].lets
    alone = [expr(v) for v in axes if isinstance(v, Var)] == list(makers[0].indices)
    if not nest or not plain or not alone or {loop.var for loop in nest} != set(axes):
        raise IllegalOpt(f"{name} is not made element by element in one place")
    _require_unchanged(body, nest[0], makers[0].value)
    loads: dict[K.Value, K.Value] = {}
    for read, indices, mask in reads(body):
        if read is buf and mask is not ALWAYS:
            raise IllegalOpt(f"{name} is read under a mask")
        if read is buf:
            env = {v: i for v, i in zip(axes, indices, strict=True) if isinstance(v, Var)}
            loads[K.load(buf, indices)] = Substitution(dict(env)).value(makers[0].value)

    def drop(s: K.Stmt) -> K.Stmt | None:
        gone = s is allocs[0] or (isinstance(s, K.Loop) and s.var is nest[0].var)
        return K.Block(()) if gone else None

    return Substitution({}, values=loads).block(as_block(rewrite(body, drop)))


def _whole_nest(body: K.Block, update: K.Update) -> list[K.Loop]:
    """The outermost loops that hold nothing but each other and `update`."""
    nest: list[K.Loop] = []
    only: K.Stmt = update
    for loop in reversed([s for s in walk(body) if isinstance(s, K.Loop)]):
        if loop.body.body == (only,):
            nest.insert(0, loop)
            only = loop
    return nest


def _require_unchanged(body: K.Block, maker: K.Loop, value: K.Value) -> None:
    """What a value is made of must be the same wherever it is made again, after `maker`."""
    after = False
    for stmt in walk(body):
        after = after or stmt is maker
        if not isinstance(stmt, K.Update) or stmt.buf not in value.bufs:
            continue
        if after or stmt.buf.space != "private":
            raise IllegalOpt(f"{stmt.buf.name} may have changed when it is read again")
