"""Team memory and barriers for blocks of threads.

Transformations that let threads share memory leave both to `synchronize`: it moves what a block
shares out of the thread loops, and puts a barrier wherever two threads would otherwise race.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Mask, Var, at_most, expr
from gpu.compiler.ir.kernel.tree import as_block, reads, replace_loop, rewrite, walk, writes
from gpu.compiler.opt.analysis.dependence import separates, vars_inside
from gpu.core.errors import IllegalOpt


def synchronize(body: K.Block) -> K.Block:
    """`body` with team memory beside its thread loops, and with the barriers that are needed.

    Barriers that are there already go first. Raises IllegalOpt where a barrier would be needed
    under control flow that may differ between threads, or where threads would exchange something
    through a parameter, which barriers do not order.
    """
    plain = as_block(rewrite(body, lambda s: K.Block(()) if isinstance(s, K.Barrier) else None))
    hoisted = as_block(rewrite(plain, _hoist))
    threads = thread_loops(hoisted)
    if not threads:
        return hoisted
    innermost = threads[-1]
    written = {buf for buf, _, _ in writes(innermost)}
    inside = frozenset(vars_inside(threads[0]))
    placer = _Placer(tuple(loop.var for loop in threads), inside, written)
    ordered = K.Loop(innermost.var, innermost.kind, K.Block(placer.statements(innermost.body)))
    return _tidy(as_block(replace_loop(hoisted, innermost, ordered)))


def _tidy(body: K.Block) -> K.Block:
    """`body` without blocks that are empty."""

    def without_empty(stmt: K.Stmt) -> K.Stmt | None:
        if not isinstance(stmt, K.Block):
            return None
        return K.Block(tuple(s for s in stmt.body if s != K.Block(())))

    return as_block(rewrite(body, without_empty))


def thread_loops(body: K.Stmt) -> list[K.Loop]:
    """The thread loops of a kernel, outermost first."""
    return [s for s in walk(body) if isinstance(s, K.Loop) and s.kind == "thread"]


def _hoist(stmt: K.Stmt) -> K.Stmt | None:
    """A thread loop without the team memory declared in it, which comes before it."""
    if not isinstance(stmt, K.Loop) or stmt.kind != "thread":
        return None
    shared = [s for s in walk(stmt) if isinstance(s, K.Alloc) and s.buf.space == "team"]
    if not shared:
        return None
    lone = rewrite(stmt.body, lambda s: K.Block(()) if s in shared else None)
    return K.Block((*shared, K.Loop(stmt.var, stmt.kind, as_block(lone))))


# Iterations that are tried one by one to see which thread touches what.
TRIED: Final = 1 << 16


class _Access(NamedTuple):
    """A place in memory that threads may share, and whether it is written."""

    buf: K.Buf
    indices: tuple[Expr, ...]
    mask: Mask
    writes: bool


class _Placer:
    """Walks what a thread does, knowing what threads did since the last barrier."""

    def __init__(self, threads: tuple[Var, ...], inside: frozenset[Var], written: set[K.Buf]):
        self.threads, self.inside = threads, inside
        self.written = {buf for buf in written if buf.space != "private"}
        self.pending: list[_Access] = []

    def statements(self, block: K.Block) -> tuple[K.Stmt, ...]:
        """The statements of a block with barriers among them."""
        return tuple(s for stmt in block.body for s in self.statement(stmt))

    def statement(self, stmt: K.Stmt) -> Iterable[K.Stmt]:
        """A statement, with a barrier before it where it needs one, and with those inside it."""
        if isinstance(stmt, K.Block):
            return (K.Block(self.statements(stmt)),)
        own = self._accesses(stmt)
        if isinstance(stmt, K.Loop) and stmt.kind == "serial" and self._conflict(own, own):
            return (self._again_and_again(stmt, own),)
        if self._conflict(own, own):
            raise IllegalOpt(
                f"threads of a block would race inside a statement that they run"
                f" differently, over {_names(own)}"
            )
        if self._conflict(self.pending, own):
            self.pending = own
            return K.Barrier(), stmt
        self.pending = list(dict.fromkeys((*self.pending, *own)))
        return (stmt,)

    def _again_and_again(self, loop: K.Loop, own: list[_Access]) -> K.Stmt:
        """A loop with barriers inside, which what the iteration before did is pending for."""
        before = self.pending
        self.pending = list(dict.fromkeys((*before, *own)))
        body = K.Block(self.statements(loop.body))
        if loop.var.stop is not None:  # it may run no iteration, and no barrier
            self.pending = list(dict.fromkeys((*self.pending, *before)))
        return K.Loop(loop.var, loop.kind, body)

    def _accesses(self, stmt: K.Stmt) -> list[_Access]:
        own: dict[_Access, None] = {}
        for access in _all_accesses(stmt):
            if access.buf in self.written:
                own[access] = None
        return list(own)

    def _conflict(self, first: list[_Access], second: list[_Access]) -> bool:
        """Whether two threads may touch one element, one of them writing."""
        for a, b in itertools.product(first, second):
            if a == b and a.buf.space == "global":
                continue  # iterations that write one parameter were independent to begin with
            if a.buf is b.buf and (a.writes or b.writes) and not self._apart(a, b):
                if a.buf.space == "global":
                    raise IllegalOpt(f"threads of a block would exchange {a.buf.name}, a parameter")
                return True
        return False

    def _apart(self, a: _Access, b: _Access) -> bool:
        """Whether only one thread of a block can reach an element by both accesses."""
        if all(self._told_apart(a, b, thread) for thread in self.threads):
            return True
        return a == b and self._counted_apart(a)

    def _told_apart(self, a: _Access, b: _Access, thread: Var) -> bool:
        if thread.extent == 1 or all(is_first(thread, access.mask) for access in (a, b)):
            return True
        inside = (self.inside | set(self.threads)) - {thread}
        places = ([(a.indices[i], a.mask), (b.indices[i], b.mask)] for i in range(len(a.indices)))
        return any(separates(place, thread, inside) for place in places)

    def _counted_apart(self, access: _Access) -> bool:
        """The same found by trying all iterations, where an access is no sum over loops.

        A tile that threads fill together is one: element `e` of it lies at `e // n` and `e % n`.
        """
        used = dict.fromkeys((*self.threads, *(v for i in access.indices for v in i.vars)))
        if math.prod(var.extent for var in used) > TRIED:
            return False
        shape = tuple(var.extent for var in used)
        counters = np.indices(shape).reshape(len(shape), -1)
        at = {v: row + v.lo for v, row in zip(used, counters, strict=True)}
        place = np.zeros(counters.shape[1], np.int64)
        for index, size in zip(access.indices, access.buf.shape, strict=True):
            place = place * size + np.asarray(index.evaluate(at))
        thread = np.zeros_like(place)
        for var in self.threads:
            thread = thread * var.extent + at[var]
        known = [c for c in access.mask.constraints if c.vars <= used.keys()]
        for constraint in known:
            reached = np.asarray(constraint.evaluate(at)) >= 0
            place, thread = place[reached], thread[reached]
            at = {v: row[reached] for v, row in at.items()}
        order = np.argsort(place, kind="stable")
        same = np.diff(place[order]) == 0
        return not (same & (np.diff(thread[order]) != 0)).any()


def first_only(thread: Var) -> Mask:
    """That a thread is the first one of its loop."""
    return at_most(thread, 0)


def is_first(thread: Var, mask: Mask) -> bool:
    """Whether `mask` lets only the first thread of a loop through."""
    return -expr(thread) in mask.constraints


def _all_accesses(stmt: K.Stmt) -> Iterable[_Access]:
    for place in writes(stmt):
        yield _Access(*place, True)
    for place in reads(stmt):
        yield _Access(*place, False)


def _names(accesses: Iterable[_Access]) -> str:
    return ", ".join(sorted({access.buf.name for access in accesses}))
