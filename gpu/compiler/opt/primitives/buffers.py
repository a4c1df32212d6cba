"""The transformations that give a kernel new buffers: partial results and staged operands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var, expr, iterations, loop_var
from gpu.compiler.ir.kernel.tree import (
    IllegalOpt,
    Substitution,
    as_block,
    find_loop,
    fresh_copy,
    loops,
    replace_loop,
    rewrite,
    values,
    values_of,
    walk,
)
from gpu.compiler.ir.optable import MONOIDS


def rfactor(body: K.Block, axis: str, factor: int) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Rfactor`. Raises IllegalOpt."""
    what = f"Rfactor({axis!r}, {factor})"
    loop = find_loop(body, axis, what)
    nest = _reduction_nest(body, loop, what)
    update = nest[-1].body.body[0]
    assert isinstance(update, K.Update) and update.monoid is not None
    extent = iterations(loop.var)
    whole, rest = extent // factor, extent % factor
    if not 2 <= factor <= extent.hi:
        raise IllegalOpt(f"{what}: the factor must be between 2 and the extent {extent}")
    partial = K.Buf(f"{update.buf.name}{axis}p", update.buf.dtype, (factor,), "private")
    zero, inner, final = (Var(f"{axis}{suffix}", 0, factor - 1) for suffix in "zif")
    outer = loop_var(f"{axis}o", whole)
    identity = K.const(partial.dtype, MONOIDS[update.monoid].identity(partial.dtype))
    into_partial = update._replace(buf=partial, indices=(expr(inner),))
    moved = Substitution({loop.var: outer * factor + inner}).stmt(into_partial)
    main = around(nest[:-1], around_vars((outer, inner), moved))
    collected = update._replace(value=K.load(partial, (expr(final),)), lets=())
    steps: list[K.Stmt] = [
        K.Alloc(partial),
        around_vars((zero,), K.Update(partial, (expr(zero),), None, identity)),
        main,
        around_vars((final,), collected),
    ]
    if rest is not expr(0):
        tail = loop_var(f"{axis}t", rest)
        left = Substitution({loop.var: tail + whole * factor}).stmt(update)
        steps.append(fresh_copy(around(nest[:-1], around_vars((tail,), left)), "t"))
    return replace_loop(body, nest[0], K.Block(tuple(steps)))


def _reduction_nest(body: K.Block, loop: K.Loop, what: str) -> list[K.Loop]:
    """The perfectly nested serial loops that reduce into one element, down to `loop`."""
    only = loop.body.body
    if len(only) != 1 or not isinstance(only[0], K.Update) or only[0].monoid is None:
        raise IllegalOpt(f"{what}: the loop must hold one Update with a monoid and nothing else")
    update = only[0]
    if update.buf.space != "private" or update.buf in update.value.bufs:
        raise IllegalOpt(f"{what}: {update.buf.name} is not an accumulator")
    nest = [loop]
    around_it = {inner.var: outer for outer, inner in _chains(body)}
    while (outer := around_it.get(nest[0].var)) is not None and outer.kind == "serial":
        if any(outer.var in i.vars for i in update.indices):
            break
        nest.insert(0, outer)
    if any(loop.var in i.vars for i in update.indices) or loop.kind != "serial":
        raise IllegalOpt(f"{what}: the loop does not reduce")
    return nest


def _chains(body: K.Block) -> Iterator[tuple[K.Loop, K.Loop]]:
    """Loops that hold one loop and nothing else, with that loop."""
    for s in walk(body):
        if isinstance(s, K.Loop) and len(s.body.body) == 1:
            (inner,) = s.body.body
            if isinstance(inner, K.Loop):
                yield s, inner


def around(nest: Iterable[K.Loop], body: K.Stmt) -> K.Stmt:
    """`body` inside loops like those of `nest`."""
    for loop in reversed(list(nest)):
        body = K.Loop(loop.var, loop.kind, as_block(body))
    return body


def around_vars(loop_vars: Iterable[Var], body: K.Stmt) -> K.Stmt:
    """`body` inside serial loops over `loop_vars`."""
    for var in reversed(list(loop_vars)):
        body = K.Loop(var, "serial", as_block(body))
    return body


def stage(body: K.Block, axis: str, buf: str, order: Sequence[str], apart: int = 0) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Stage`. Raises IllegalOpt."""
    what = f"Stage({axis!r}, {buf!r}, {tuple(order)})"
    loop = find_loop(body, axis, what)
    inside = loops(loop.body)
    operand = operand_of(loop.body, buf, frozenset(order), inside.keys(), what)
    written = {s.buf for s in walk(body) if isinstance(s, K.Update)}
    if operand.bufs & written:
        raise IllegalOpt(f"{what}: {buf} is written in the kernel")
    axes = [inside[name].var for name in order]
    copies = [Var(f"{var.name}s", var.lo, var.hi, var.stop) for var in axes]
    *rows, row = (v.extent for v in axes)
    tile = K.Buf(f"{buf}s", operand.dtype, (*rows, row + apart), "team")
    env: dict[Var, Expr | int] = {a: expr(c) for a, c in zip(axes, copies, strict=True)}
    fill = K.Update(tile, tuple(map(expr, copies)), None, Substitution(env).value(operand))
    read = K.load(tile, tuple(map(expr, axes)))
    staged = Substitution({}, values={operand: read}).block(loop.body)
    new_body = K.Block((K.Alloc(tile), around_vars(copies, fill), *staged.body))
    return replace_loop(body, loop, K.Loop(loop.var, loop.kind, new_body))


def inline(body: K.Block, name: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Inline`. Raises IllegalOpt."""
    what = f"Inline({name!r})"
    allocs = [s for s in walk(body) if isinstance(s, K.Alloc) and s.buf.name == name]
    if not allocs:
        raise IllegalOpt(f"{what}: there is no such buffer in the kernel")
    buf = allocs[0].buf
    makers = [s for s in walk(body) if isinstance(s, K.Update) and s.buf is buf]
    nest = _whole_nest(body, makers[0]) if len(makers) == 1 else []
    axes = [i.terms[0][0] if i.is_affine and len(i.terms) == 1 else None for i in makers[0].indices]
    plain = makers[0].monoid is None and makers[0].mask is ALWAYS and not makers[0].lets
    alone = [expr(v) for v in axes if isinstance(v, Var)] == list(makers[0].indices)
    if not nest or not plain or not alone or {loop.var for loop in nest} != set(axes):
        raise IllegalOpt(f"{what}: {name} is not made element by element in one place")
    _require_unchanged(body, nest[0], makers[0].value, what)
    loads: dict[K.Value, K.Value] = {}
    seen: set[K.Value] = set()
    for stmt in walk(body):
        for value in values_of(stmt, seen) if isinstance(stmt, K.Update) else ():
            if value.kind == "load" and value.attr[0] is buf:
                _, indices, mask = value.attr
                if mask is not ALWAYS:
                    raise IllegalOpt(f"{what}: {name} is read under a mask")
                env = {v: i for v, i in zip(axes, indices, strict=True) if isinstance(v, Var)}
                loads[value] = Substitution(dict(env)).value(makers[0].value)

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


def _require_unchanged(body: K.Block, maker: K.Loop, value: K.Value, what: str) -> None:
    """What a value is made of must be the same wherever it is made again, after `maker`."""
    after = False
    for stmt in walk(body):
        after = after or stmt is maker
        if not isinstance(stmt, K.Update) or stmt.buf not in value.bufs:
            continue
        if after or stmt.buf.space != "private":
            raise IllegalOpt(f"{what}: {stmt.buf.name} may have changed when it is read again")


def operand_of(
    body: K.Block, buf: str, depends: frozenset[str], inside: Collection[str], what: str
) -> K.Value:
    """The largest value that is computed from `buf` alone and moves with just these loops."""
    found: set[K.Value] = set()
    seen: set[K.Value] = set()
    for stmt in walk(body):
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
        raise IllegalOpt(
            f"{what}: {len(largest)} operands from {buf} depend on just these loops, not one"
        )
    return largest[0]
