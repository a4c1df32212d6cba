"""Rows of which each thread uses just the elements it made: they need no team memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var
from gpu.compiler.opt.tree import Substitution, as_block, rewrite, values_of, walk

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
        elif isinstance(stmt, K.If) and buf in _touched(stmt):
            yield None


def _touched(stmt: K.Stmt) -> set[K.Buf]:
    touched: set[K.Buf] = set()
    for s in walk(stmt):
        if isinstance(s, K.Update):
            touched |= {s.buf} | s.value.bufs
    return touched


def _turns(body: K.Block, buf: K.Buf, thread: Var, kept: int) -> frozenset[Var] | None:
    """The loops over turns of the accesses to `buf`, or None where an element is shared."""
    threads, size = thread.extent, buf.shape[-1]
    if size % threads or size // threads > kept:
        return None
    counted = {s.var for s in walk(body) if isinstance(s, K.Loop) and s.var.stop is None}
    turns: set[Var] = set()
    for place in _places(body, buf):
        rest = None if place is None else place - thread
        if rest is None or not rest.is_affine or thread in rest.vars:
            return None
        if rest.const % threads or any(factor % threads for _, factor in rest.terms):
            return None
        turns |= rest.vars
    return frozenset(turns) if turns <= counted else None


def _kept(body: K.Block, buf: K.Buf, thread: Var, turns: frozenset[Var]) -> K.Block:
    own = K.Buf(buf.name, buf.dtype, (buf.shape[-1] // thread.extent,), "private")
    loads: dict[K.Value, K.Value] = {}
    seen: set[K.Value] = set()
    for stmt in walk(body):
        for value in values_of(stmt, seen) if isinstance(stmt, K.Update) else ():
            if value.kind == "load" and value.attr[0] is buf:
                loads[value] = K.load(own, ((value.attr[1][-1] - thread) // thread.extent,))

    def change(s: K.Stmt) -> K.Stmt | None:
        if isinstance(s, K.Alloc) and s.buf is buf:
            return K.Alloc(own)
        if isinstance(s, K.Update) and s.buf is buf:
            place = (s.indices[-1] - thread) // thread.extent
            return s._replace(buf=own, indices=(place,))
        if isinstance(s, K.Loop) and s.var in turns:
            return K.Loop(s.var, "unroll", s.body)
        return None

    return as_block(rewrite(Substitution({}, values=loads).block(body), change))
