"""Looking through kernel trees and rebuilding them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, expr
from gpu.core.errors import IllegalOpt


def walk(stmt: K.Stmt) -> Iterator[K.Stmt]:
    """`stmt` and every statement inside it, in order."""
    yield stmt
    if isinstance(stmt, K.Block):
        for child in stmt.body:
            yield from walk(child)
    elif isinstance(stmt, (K.Loop, K.If)):
        yield from walk(stmt.body)


def in_order(block: K.Block) -> Iterator[K.Stmt]:
    """The statements of a block, and of blocks in it, that no loop of it is around."""
    for stmt in block.body:
        if isinstance(stmt, K.Block):
            yield from in_order(stmt)
        else:
            yield stmt


def loops(stmt: K.Stmt) -> dict[str, K.Loop]:
    """The loops inside, by the name of their variable."""
    return {s.var.name: s for s in walk(stmt) if isinstance(s, K.Loop)}


def allocated(stmt: K.Stmt) -> list[K.Buf]:
    """The buffers declared inside."""
    return [s.buf for s in walk(stmt) if isinstance(s, K.Alloc)]


def find_loop(body: K.Block, name: str) -> K.Loop:
    """The loop over `name`, the last one if there are several. Raises IllegalOpt.

    Several loops may have one variable: those that a transformation writes around one statement
    after the other. What is done to one is done to all, so they must hold the same.
    """
    found = [s for s in walk(body) if isinstance(s, K.Loop) and s.var.name == name]
    if not found:
        raise IllegalOpt(f"there is no loop {name!r}, only {sorted(loops(body))}")
    last = found[-1]
    if any(other.var is last.var and other != last for other in found[:-1]):
        raise IllegalOpt(f"several loops over one {name!r} hold different statements")
    return last


def loops_around(body: K.Stmt, loop: K.Loop) -> list[K.Loop]:
    """The loops inside `body` that hold `loop`, outermost first."""
    outer = [s for s in walk(body) if isinstance(s, K.Loop) and s.var is not loop.var]
    return [s for s in outer if any(isinstance(i, K.Loop) and i.var is loop.var for i in walk(s))]


def free_name(body: K.Stmt, name: str) -> str:
    """The first of `name`, `name` + "s", ... that no buffer declared inside has."""
    taken = {buf.name for buf in allocated(body)}
    while name in taken:
        name += "s"
    return name


def replace_loop(body: K.Block, loop: K.Loop, new: K.Stmt) -> K.Stmt:
    """`body` with `new` in the place of `loop`."""
    return rewrite(body, lambda s: new if isinstance(s, K.Loop) and s.var is loop.var else None)


def accesses(stmt: K.Stmt) -> Iterator[tuple[K.Buf, tuple[Expr, ...], Mask]]:
    """Every read and write inside: the buffer, where, and under which mask."""
    yield from writes(stmt)
    yield from reads(stmt)


def writes(stmt: K.Stmt) -> Iterator[tuple[K.Buf, tuple[Expr, ...], Mask]]:
    """Every write inside: the buffer, where it begins, and under which mask."""
    for s in walk(stmt):
        if isinstance(s, K.Update):
            yield s.buf, s.indices, s.mask
        elif isinstance(s, K.AsyncCopy):
            yield s.buf, s.indices, ALWAYS
        elif isinstance(s, K.Mma | K.LoadTile):
            yield s.buf, (*s.indices, expr(0), expr(0)), ALWAYS
        elif isinstance(s, K.StoreTile):
            yield s.buf, s.indices, ALWAYS


def reads(stmt: K.Stmt) -> Iterator[tuple[K.Buf, tuple[Expr, ...], Mask]]:
    """Every load inside: the buffer, where, and under which mask; equal loads once."""
    seen: set[K.Value] = set()
    for s in walk(stmt):
        if isinstance(s, K.Update):
            for value in values_of(s, seen):
                if value.kind == "load":
                    yield value.attr
        elif isinstance(s, K.AsyncCopy):
            yield s.source, s.places, s.mask
        elif isinstance(s, K.Fragment | K.LoadTile):
            yield s.source, s.places, ALWAYS


def values(value: K.Value, seen: set[K.Value]) -> Iterator[K.Value]:
    """`value` and every value inside it that is not in `seen`, to which they are added."""
    stack = [value]
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            yield value
            stack.extend(value.args)


def loads_of(value: K.Value) -> list[K.Value]:
    """The loads inside `value`, equal ones once."""
    return [part for part in values(value, set()) if part.kind == "load"]


def is_inside(buf: K.Buf, indices: Sequence[Expr]) -> bool:
    """Whether indices stay inside a buffer, whatever a mask says."""
    return all(i.lo >= 0 and i.hi < size for i, size in zip(indices, buf.shape, strict=True))


def only_buffer(operand: K.Value) -> str:
    """The name of the buffer that `operand` is made of; IllegalOpt where there are several."""
    names = {load.attr[0].name for load in loads_of(operand)}
    if len(names) != 1:
        raise IllegalOpt("an operand that is made of several buffers")
    return str(*names)


def values_of(update: K.Update, seen: set[K.Value]) -> Iterator[K.Value]:
    """Every value inside an Update, those of its lets first; see `values`."""
    for let in update.lets:
        yield from values(let.value, seen)
    yield from values(update.value, seen)


def expressions(stmt: K.Stmt) -> Iterator[Expr]:
    """Every index expression inside, those of masks included."""
    seen: set[K.Value] = set()
    for s in walk(stmt):
        if isinstance(s, K.If):
            yield from s.mask.constraints
        if isinstance(s, K.Prefetch):
            yield from s.indices
        if isinstance(s, K.Update):
            yield from s.indices
            yield from s.mask.constraints
            yield from expressions_in(values_of(s, seen))


def expressions_in(values: Iterable[K.Value]) -> Iterator[Expr]:
    """The index expressions of values, not of what is inside them."""
    for value in values:
        if value.kind == "index":
            yield value.attr[0]
        elif value.kind == "load":
            yield from value.attr[1]
            yield from value.attr[2].constraints


class Substitution:
    """Replaces index variables, buffers and whole values throughout a tree."""

    def __init__(
        self,
        env: Mapping[Var, Expr | int],
        bufs: Mapping[K.Buf, K.Buf] | None = None,
        values: Mapping[K.Value, K.Value] | None = None,
    ):
        self.env = dict(env)
        self.bufs = dict(bufs or {})
        self._done: dict[K.Value, K.Value] = dict(values or {})
        self._everywhere = bool(values)

    def value(self, root: K.Value) -> K.Value:
        """A value with the replacements made. Deep values are fine: no recursion."""
        stack = [root]
        while stack:
            value = stack[-1]
            missing = [a for a in value.args if a not in self._done]
            if value in self._done:
                stack.pop()
            elif not self._touches(value):
                self._done[stack.pop()] = value
            elif missing:
                stack.extend(missing)
            else:
                self._done[stack.pop()] = self._rebuild(value)
        return self._done[root]

    def _touches(self, value: K.Value) -> bool:
        return (
            self._everywhere
            or any(v in self.env for v in value.vars)
            or any(b in self.bufs for b in value.bufs)
        )

    def _rebuild(self, value: K.Value) -> K.Value:
        args = tuple(self._done[a] for a in value.args)
        match value.kind:
            case "index":
                return K.index(value.attr[0].subst(self.env))
            case "load":
                buf, indices, mask = value.attr
                moved = tuple(i.subst(self.env) for i in indices)
                return K.load(self.bufs.get(buf, buf), moved, mask.subst(self.env))
            case "cast":
                return K.cast(args[0], value.dtype)
            case "bitcast":
                return K.bitcast(args[0], value.dtype)
            case "shuffle_xor":
                return K.shuffle_xor(args[0], *value.attr)
            case "const":
                return value
        return K.alu(value.attr[0], *args)

    def stmt(self, stmt: K.Stmt) -> K.Stmt:
        """A statement with the replacements made."""
        match stmt:
            case K.Block():
                return self.block(stmt)
            case K.Loop():
                return K.Loop(stmt.var, stmt.kind, self.block(stmt.body))
            case K.If():
                return K.If(stmt.mask.subst(self.env), self.block(stmt.body))
            case K.Alloc():
                return K.Alloc(self.bufs.get(stmt.buf, stmt.buf))
            case K.Barrier() | K.Commit() | K.Wait():
                return stmt
            case K.Prefetch():
                return K.Prefetch(self.bufs.get(stmt.buf, stmt.buf), self._moved(stmt.indices))
            case K.AsyncCopy() | K.Fragment() | K.Mma() | K.LoadTile() | K.StoreTile():
                return self._of_matrices(stmt)
            case K.Update():
                return K.Update(
                    self.bufs.get(stmt.buf, stmt.buf),
                    self._moved(stmt.indices),
                    stmt.monoid,
                    self.value(stmt.value),
                    stmt.mask.subst(self.env),
                    tuple(K.Let(let.var, self.value(let.value)) for let in stmt.lets),
                    stmt.distinct,
                )

    def _moved(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(i.subst(self.env) for i in indices)

    def _of_matrices(
        self, stmt: K.AsyncCopy | K.Fragment | K.Mma | K.LoadTile | K.StoreTile
    ) -> K.Stmt:
        buf, indices = self.bufs.get(stmt.buf, stmt.buf), self._moved(stmt.indices)
        if isinstance(stmt, K.Mma):
            a, b = (self.bufs.get(operand, operand) for operand in (stmt.a, stmt.b))
            at_a, at_b = self._moved(stmt.a_indices), self._moved(stmt.b_indices)
            return K.Mma(stmt.name, buf, indices, a, at_a, b, at_b)
        source, places = self.bufs.get(stmt.source, stmt.source), self._moved(stmt.places)
        moved = stmt._replace(buf=buf, indices=indices, source=source, places=places)
        if isinstance(moved, K.AsyncCopy):
            return moved._replace(mask=moved.mask.subst(self.env))
        return moved

    def block(self, block: K.Block) -> K.Block:
        """A block with the replacements made."""
        return K.Block(tuple(self.stmt(s) for s in block.body))


def rewrite(stmt: K.Stmt, change: Callable[[K.Stmt], K.Stmt | None]) -> K.Stmt:
    """Rebuilds a tree from the leaves up; `change` gives a replacement, or None to keep."""
    if isinstance(stmt, K.Block):
        stmt = K.Block(tuple(rewrite(s, change) for s in stmt.body))
    elif isinstance(stmt, K.Loop):
        stmt = K.Loop(stmt.var, stmt.kind, as_block(rewrite(stmt.body, change)))
    elif isinstance(stmt, K.If):
        stmt = K.If(stmt.mask, as_block(rewrite(stmt.body, change)))
    replacement = change(stmt)
    return stmt if replacement is None else replacement


def as_block(stmt: K.Stmt) -> K.Block:
    """`stmt` as a block; nested blocks join unless one declares a buffer."""
    body = stmt.body if isinstance(stmt, K.Block) else (stmt,)
    flat: list[K.Stmt] = []
    for s in body:
        if isinstance(s, K.Block) and not any(isinstance(c, K.Alloc) for c in s.body):
            flat += as_block(s).body
        else:
            flat.append(s)
    return K.Block(tuple(flat))


def fresh_copy(stmt: K.Stmt, suffix: str) -> K.Stmt:
    """The same statement with loops and buffers of its own, their names extended by `suffix`."""
    bufs = {
        s.buf: K.Buf(s.buf.name + suffix, s.buf.dtype, s.buf.shape, s.buf.space)
        for s in walk(stmt)
        if isinstance(s, K.Alloc)
    }
    fresh = {
        s.var: Var(s.var.name + suffix, s.var.lo, s.var.hi, s.var.stop)
        for s in walk(stmt)
        if isinstance(s, K.Loop)
    }
    env: dict[Var, Expr | int] = {old: new + 0 for old, new in fresh.items()}
    renamed = Substitution(env, bufs).stmt(stmt)

    def rebind(s: K.Stmt) -> K.Stmt | None:
        return K.Loop(fresh[s.var], s.kind, s.body) if isinstance(s, K.Loop) else None

    return rewrite(renamed, rebind)


def with_axes(body: K.Block, bufs: Sequence[K.Buf], axes: Sequence[Var], space: str) -> K.Block:
    """`body` with `bufs` in `space`, one of each for every iteration of the loops over `axes`."""
    sizes, at = tuple(var.extent for var in axes), tuple(expr(var) for var in axes)
    moved = {buf: K.Buf(buf.name, buf.dtype, (*sizes, *buf.shape), space) for buf in bufs}
    if not moved:
        return body
    loads = {
        K.load(buf, indices, mask): K.load(moved[buf], (*at, *indices), mask)
        for buf, indices, mask in reads(body)
        if buf in moved
    }

    def change(s: K.Stmt) -> K.Stmt | None:
        if isinstance(s, K.Alloc) and s.buf in moved:
            return K.Alloc(moved[s.buf])
        if isinstance(s, K.Update) and s.buf in moved:
            return s._replace(buf=moved[s.buf], indices=(*at, *s.indices))
        return None

    return as_block(rewrite(Substitution({}, values=loads).block(body), change))


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
