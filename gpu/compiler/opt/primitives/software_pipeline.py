"""Copies of the next steps of a loop started while one is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var, at_most, expr, iterations
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    find_loop,
    loops,
    replace_loop,
    rewrite,
    walk,
)
from gpu.core.errors import IllegalOpt


def pipeline(body: K.Block, axis: str, slots: int) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Pipeline`. Raises IllegalOpt."""
    what = f"Pipeline({axis!r}, {slots})"
    loop = find_loop(body, axis, what)
    count = iterations(loop.var)
    if loop.kind != "serial" or not count.is_const or not 2 <= slots <= count.const:
        raise IllegalOpt(f"{what}: the loop must have at least {slots} iterations")
    copies, rest = _parted(loop, what)
    bufs = {s.buf for stmt in copies for s in walk(stmt) if isinstance(s, K.AsyncCopy)}
    wide = {b: K.Buf(b.name, b.dtype, (slots, *b.shape), b.space) for b in bufs}
    ahead = [_in_slot(stmt, wide, loop.var, slots) for stmt in copies]

    def at(place: Expr | int) -> Iterable[K.Stmt]:
        return (Substitution({loop.var: place}).stmt(stmt) for stmt in ahead)

    next_one = expr(loop.var) + (slots - 1)
    exists = at_most(next_one, count.const - 1)
    inside: list[K.Stmt] = [K.Wait(slots - 2), K.Barrier()]
    inside += [K.If(exists, K.Block(tuple(at(next_one)))), K.Commit()]
    inside += [_in_slot(stmt, wide, loop.var, slots) for stmt in rest]
    before: list[K.Stmt] = [K.Barrier()] if _is_repeated(body, axis) else []
    for number in range(slots - 1):
        before += [*at(number), K.Commit()]
    new = K.Block((*before, K.Loop(loop.var, loop.kind, K.Block(tuple(inside)))))

    def widen(stmt: K.Stmt) -> K.Stmt | None:
        if isinstance(stmt, K.Alloc) and stmt.buf in wide:
            return K.Alloc(wide[stmt.buf])
        return None

    return rewrite(replace_loop(body, loop, new), widen)


def _parted(loop: K.Loop, what: str) -> tuple[list[K.Stmt], list[K.Stmt]]:
    """What starts copies in a loop, and what uses them; waits and barriers are left out."""
    copies: list[K.Stmt] = []
    rest: list[K.Stmt] = []
    for stmt in _flattened(loop.body):
        inside = list(walk(stmt))
        if any(isinstance(s, K.AsyncCopy) for s in inside):
            if rest:
                raise IllegalOpt(f"{what}: copies start after something else")
            copies.append(stmt)
        elif not isinstance(stmt, (K.Barrier, K.Commit, K.Wait)):
            rest.append(stmt)
    inside = [s for stmt in rest for s in walk(stmt)]
    if not copies or any(isinstance(s, (K.Barrier, K.Update)) for s in inside):
        raise IllegalOpt(f"{what}: there must be asynchronous copies, and else products alone")
    return copies, rest


def _flattened(block: K.Block) -> Iterator[K.Stmt]:
    for stmt in block.body:
        if isinstance(stmt, K.Block):
            yield from _flattened(stmt)
        else:
            yield stmt


def _in_slot(stmt: K.Stmt, wide: dict[K.Buf, K.Buf], counter: Var, slots: int) -> K.Stmt:
    """A statement with the tiles of iteration `counter` in their slot."""
    slot = expr(counter) % slots

    def change(s: K.Stmt) -> K.Stmt | None:
        if isinstance(s, K.AsyncCopy) and s.buf in wide:
            return s._replace(buf=wide[s.buf], indices=(slot, *s.indices))
        if isinstance(s, K.Fragment) and s.source in wide:
            return s._replace(source=wide[s.source], places=(slot, *s.places))
        return None

    return rewrite(stmt, change)


def _is_repeated(body: K.Block, axis: str) -> bool:
    """Whether a loop is inside another serial one."""
    around = (s for s in walk(body) if isinstance(s, K.Loop) and s.kind == "serial")
    return any(axis in loops(loop.body) for loop in around)
