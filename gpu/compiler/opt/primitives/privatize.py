"""Rows of which each thread uses just the elements it made: they need no team memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var, expr
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    accesses,
    as_block,
    reads,
    rewrite,
    values_of,
    walk,
)

# Elements of a row that a thread keeps, in registers.
KEPT: Final = 16


def keep_own(body: K.Block, bufs: Sequence[K.Buf], thread: Var, kept: int = KEPT) -> K.Block:
    """`body` with those of `bufs` in private memory whose elements stay with one thread.

    That is where a thread has `kept` of them at most.

    They are rows that the iterations of `thread` go through in turns. The loops over turns are
    written out, so that the elements can be registers.
    """
    for buf in bufs:
        turns = _turns(body, buf, thread, kept)
        if turns is not None:
            body = _kept(body, buf, thread, turns)
    return body


def _places(body: K.Block, buf: K.Buf) -> Iterator[Expr | None]:
    """The last index of every access to `buf`; None for one under a mask."""
    seen: set[K.Value] = set()
    for stmt in walk(body):
        if isinstance(stmt, K.Update):
            if stmt.buf is buf:
                yield stmt.indices[-1] if stmt.mask is ALWAYS and stmt.monoid is None else None
            for value in values_of(stmt, seen):
                if value.kind == "load" and value.attr[0] is buf:
                    yield value.attr[1][-1] if value.attr[2] is ALWAYS else None
        elif isinstance(stmt, K.If) and any(buf is touched for touched, _, _ in accesses(stmt)):
            yield None


def _turns(body: K.Block, buf: K.Buf, thread: Var, kept: int) -> frozenset[Var] | None:
    """The loops over turns of the accesses to `buf`, or None where an element is shared."""
    threads, size, side = thread.extent, buf.shape[-1], _side_by_side(body, buf, thread)
    if not side or size % (threads * side) or size // threads > kept:
        return None
    counted = {s.var for s in walk(body) if isinstance(s, K.Loop) and s.var.stop is None}
    turns: set[Var] = set()
    for place in _places(body, buf):
        rest = None if place is None else place - expr(thread) * side
        if rest is None or not rest.is_affine or thread in rest.vars:
            return None
        near, far = _apart(rest, threads * side)
        if near.lo < 0 or near.hi >= side or any(f % (threads * side) for _, f in far.terms):
            return None
        turns |= rest.vars
    return frozenset(turns) if turns <= counted else None


def _side_by_side(body: K.Block, buf: K.Buf, thread: Var) -> int:
    """How many neighbours a thread has before those of the next one; 0 if that differs."""
    steps = {place.coeff(thread) for place in _places(body, buf) if place is not None}
    return max(steps) if len(steps) == 1 and min(steps) > 0 else 0


def _apart(rest: Expr, round_: int) -> tuple[Expr, Expr]:
    """An affine place as one within a thread's neighbours, and whole rounds of all threads."""
    near = expr(rest.const % round_)
    for var, factor in rest.terms:
        near = near + expr(var) * factor if abs(factor) < round_ else near
    return near, rest - near


def _own_place(place: Expr, thread: Var) -> Expr:
    """Where in its own memory a thread has the element at a place of the row."""
    side = place.coeff(thread)
    near, far = _apart(place - expr(thread) * side, thread.extent * side)
    return near + far // thread.extent


def _kept(body: K.Block, buf: K.Buf, thread: Var, turns: frozenset[Var]) -> K.Block:
    own = K.Buf(buf.name, buf.dtype, (buf.shape[-1] // thread.extent,), "private")
    loads = {
        K.load(*read): K.load(own, (_own_place(read[1][-1], thread),))
        for read in reads(body)
        if read[0] is buf
    }

    def change(s: K.Stmt) -> K.Stmt | None:
        if isinstance(s, K.Alloc) and s.buf is buf:
            return K.Alloc(own)
        if isinstance(s, K.Update) and s.buf is buf:
            return s._replace(buf=own, indices=(_own_place(s.indices[-1], thread),))
        if isinstance(s, K.Loop) and s.var in turns:
            return K.Loop(s.var, "unroll", s.body)
        return None

    return as_block(rewrite(Substitution({}, values=loads).block(body), change))
