"""Work that the threads of a block share: the transformation `DistributeThreads`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var, at_most, expr, iterations, loop_var
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    allocated,
    as_block,
    fresh_copy,
    in_order,
    loops,
    replace_loop,
    rewrite,
    walk,
    with_axes,
)
from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.opt.analysis.dependence import is_independent
from gpu.compiler.opt.analysis.loop_nest import leaves, nest_down_to, perfect_nest, scattered
from gpu.compiler.opt.primitives.barriers import first_only, synchronize
from gpu.compiler.opt.primitives.block_reduce import Meeting
from gpu.compiler.opt.primitives.cooperative_fetch import sunk
from gpu.compiler.opt.primitives.predication import holds, masked_loads
from gpu.compiler.opt.primitives.privatize import keep_own
from gpu.core.errors import IllegalOpt

PARALLEL: Final = ("grid", "thread", "serial")
# Independent parts that a thread keeps of a long reduction: it waits for memory less often.
PARTS: Final = 4


def distribute_threads(
    body: K.Block, axis: str, threads: int, first: bool, kept: int, warp: int
) -> K.Stmt:
    """See `gpu.compiler.opt.opts.DistributeThreads`. Raises IllegalOpt."""
    around, inside = nest_down_to(body, axis)
    if threads < 2 or threads & (threads - 1):
        raise IllegalOpt("the number of threads must be a power of two from 2")
    if f"{axis}th" in loops(body):
        raise IllegalOpt(f"there is a loop {axis}th already")
    shared = any(loop.kind in ("grid", "worker", "thread") for loop in loops(inside).values())
    shared = shared or any(isinstance(s, K.MatrixStmt) for s in walk(inside))
    if shared or any(loop.kind not in PARALLEL for loop in around):
        raise IllegalOpt("blocks and threads must be around, and neither these nor matrices inside")
    teams = [loop.var for loop in around if loop.kind == "thread"]
    thread = Var(f"{axis}th", 0, threads - 1)
    beside, inside = _written_out(inside)
    common = [b for b in allocated(inside) if _is_shared(inside, b)]
    if beside and common:
        raise IllegalOpt(f"neighbours do not share {common[0].name}")
    lanes = [s for s in walk(inside) if isinstance(s, K.Loop) and s.kind in ("vector", "unroll")]
    if any(buf.space == "team" for loop in lanes for buf in allocated(loop)):
        raise IllegalOpt("lanes have memory of their own that threads would share")
    lowered = with_axes(inside, common, teams, "team")
    rows = [b for b in allocated(lowered) if b.space == "team" and len(b.shape) == len(teams) + 1]
    done = keep_own(
        _Sharer(thread, Meeting(thread, teams, first, warp)).block(lowered), rows, thread, kept
    )
    work = K.Loop(thread, "thread", _with_neighbours(done, beside))
    if first and teams:
        outermost = next(loop for loop in around if loop.kind == "thread")
        inner = replace_loop(K.Block((outermost,)), around[-1], _with_body(around[-1], work.body))
        new = replace_loop(body, outermost, K.Loop(thread, "thread", as_block(inner)))
    elif around:
        new = replace_loop(body, around[-1], _with_body(around[-1], K.Block((work,))))
    else:
        new = work
    return synchronize(as_block(new))


def _written_out(body: K.Block) -> tuple[list[K.Loop], K.Block]:
    """The loops that are written out around all of a body, and what they hold."""
    nest: list[K.Loop] = []
    while (
        len(body.body) == 1 and isinstance(loop := body.body[0], K.Loop) and loop.kind == "unroll"
    ):
        nest.append(loop)
        body = loop.body
    return nest, body


def _with_neighbours(body: K.Block, beside: Sequence[K.Loop]) -> K.Block:
    """What a thread does for all the neighbours that it has, statement by statement."""
    axes = [loop.var for loop in beside]
    for space in ("private", "team") if beside else ():
        body = with_axes(body, [b for b in allocated(body) if b.space == space], axes, space)
    return as_block(sunk(body, beside))


def _with_body(loop: K.Loop, body: K.Block) -> K.Loop:
    return K.Loop(loop.var, loop.kind, body)


def _is_shared(body: K.Block, buf: K.Buf) -> bool:
    """Whether a buffer declared in `body` holds elements that different threads make."""
    if buf.space == "team":
        return True
    beside = {s.buf for s in in_order(body) if isinstance(s, K.Alloc)}
    return bool(buf.shape) and buf in beside


class Work(NamedTuple):
    """How many iterations of the longest loops threads can share, and cannot."""

    shared: int
    alone: int


def work_of(block: K.Block) -> Work:
    """What there is to share in the body of an outer loop."""
    shared, alone = 0, 0
    for stmt in block.body:
        if isinstance(stmt, K.Block):
            inside = work_of(stmt)
            shared, alone = max(shared, inside.shared), max(alone, inside.alone)
        elif isinstance(stmt, K.Loop):
            nest = perfect_nest(stmt)
            dealt = [one for one in nest if _can_be_dealt(one)]
            if _is_reduction(nest):
                dealt = nest
            if dealt:
                shared = max(shared, *(one.var.extent for one in dealt))
                continue
            inside = work_of(stmt.body)
            shared = max(shared, inside.shared)
            alone = max(alone, stmt.var.extent if not inside.shared else 0)
    return Work(shared, alone)


class _Sharer:
    """Rewrites the statements of a block for one of its threads.

    What every thread needs each computes for itself; independent iterations are dealt out; of a
    reduction each thread does a part; and what all threads would write the first one does.
    """

    def __init__(self, thread: Var, meeting: Meeting):
        self.thread, self.meeting = thread, meeting

    def block(self, block: K.Block) -> K.Block:
        """The statements of a block."""
        return K.Block(tuple(self.statement(s) for s in block.body))

    def statement(self, stmt: K.Stmt) -> K.Stmt:
        """What one thread does of a statement."""
        match stmt:
            case K.Block():
                return self.block(stmt)
            case K.Loop():
                return self.loop(stmt)
            case _:
                return self.alone(stmt)

    def alone(self, stmt: K.Stmt) -> K.Stmt:
        """Done by each thread, but what all would write is written by the first one."""
        own = set(allocated(stmt))
        mask = first_only(self.thread)

        def change(s: K.Stmt) -> K.Stmt | None:
            if isinstance(s, K.Update) and s.buf.space != "private" and s.buf not in own:
                return s._replace(mask=s.mask & mask)
            return None

        return rewrite(stmt, change)

    def loop(self, loop: K.Loop) -> K.Stmt:
        """A loop inside the block: dealt out, reduced together, or gone through by all."""
        nest = perfect_nest(loop)
        if _is_reduction(nest):
            return self.reduce(nest)
        if dealt := [one for one in nest if _can_be_dealt(one)]:
            return self.deal(nest, max(dealt, key=self._suits))
        return _with_body(loop, self.block(loop.body))

    def deal(self, nest: Sequence[K.Loop], dealt: K.Loop) -> K.Stmt:
        """Iterations of the loop `dealt` go to the threads in turn."""
        var, threads = dealt.var, self.thread.extent
        count = iterations(var)
        rounds = loop_var(f"{var.name}o", (count + threads - 1) // threads)
        place = expr(rounds) * threads + self.thread
        body = Substitution({var: place}).block(dealt.body)
        if count % threads is not expr(0):
            body = K.Block((K.If(at_most(place, count - 1), body),))
        new: K.Stmt = K.Loop(rounds, "serial", body)
        for outer in reversed(nest[: nest.index(dealt)]):
            new = _with_body(outer, K.Block((new,)))
        return new

    def reduce(self, nest: Sequence[K.Loop]) -> K.Stmt:
        """Each thread combines a part of the iterations, then all combine the results."""
        update = nest[-1].body.body[0]
        assert isinstance(update, K.Update)
        shared = max(nest, key=self._suits)
        assert update.monoid is not None
        threads, var = self.thread.extent, shared.var
        whole, rest = iterations(var) // threads, iterations(var) % threads
        buf = K.Buf(f"{update.buf.name}{var.name}p", update.buf.dtype, (), "private")
        identity = K.const(buf.dtype, MONOIDS[update.monoid].identity(buf.dtype))
        steps: list[K.Stmt] = [K.Alloc(buf), K.Update(buf, (), None, identity)]
        own = update._replace(buf=buf, indices=())
        if whole.is_const and whole.const >= 2 * PARTS and whole.const % PARTS == 0:
            steps += self.in_parts(nest, shared, own, identity, whole.const // PARTS)
        elif whole is not expr(0):
            rounds = loop_var(f"{var.name}o", whole)
            place = expr(rounds) * threads + self.thread
            steps.append(_renest(nest, shared, rounds, Substitution({var: place}).stmt(own)))
        if rest is not expr(0):
            tail = _last_round(own, var, whole * threads + self.thread, identity)
            others = [one for one in nest if one is not shared]
            steps.append(fresh_copy(_renest(others, None, var, tail), "t"))
        return K.Block((*steps, *self.meeting.combine(buf, update)))

    def in_parts(
        self,
        nest: Sequence[K.Loop],
        shared: K.Loop,
        update: K.Update,
        identity: K.Value,
        rounds: int,
    ) -> Iterator[K.Stmt]:
        """A thread's iterations as `rounds` of `PARTS`, each of which has an accumulator."""
        var, threads = shared.var, self.thread.extent
        parts = K.Buf(f"{update.buf.name}s", update.buf.dtype, (PARTS,), "private")
        zero, one, last = (Var(f"{var.name}{suffix}", 0, PARTS - 1) for suffix in "zif")
        around = loop_var(f"{var.name}o", rounds)
        place = (expr(around) * PARTS + one) * threads + self.thread
        own = Substitution({var: place}).stmt(update._replace(buf=parts, indices=(expr(one),)))
        written_out = K.Loop(one, "unroll", as_block(own))
        yield K.Alloc(parts)
        yield K.Loop(zero, "unroll", as_block(K.Update(parts, (expr(zero),), None, identity)))
        yield _renest(nest, shared, around, written_out)
        total = update._replace(value=K.load(parts, (expr(last),)), lets=(), mask=ALWAYS)
        yield K.Loop(last, "unroll", as_block(total))

    def _suits(self, loop: K.Loop) -> tuple[bool, bool, int, int]:
        """How well a loop can be dealt out: enough iterations first, then neighbours in memory.

        What is written out is a thread's own.
        """
        bad = sum(scattered(leaf.update, loop.var) for leaf in leaves(loop))
        enough = loop.var.extent * 4 >= self.thread.extent
        return loop.kind != "unroll", enough, -bad, loop.var.extent


def _is_reduction(nest: Sequence[K.Loop]) -> bool:
    """Whether all that a nest of loops does is combine into one private element."""
    stmt = nest[-1].body.body[0]
    if len(nest[-1].body.body) != 1 or not isinstance(stmt, K.Update) or stmt.monoid is None:
        return False
    accumulates = stmt.buf.space == "private" and not stmt.buf.shape
    return accumulates and stmt.buf not in stmt.value.bufs


def _can_be_dealt(loop: K.Loop) -> bool:
    """Whether iterations may go to different threads, which share no private memory."""
    own = set(allocated(loop))
    written = {s.buf for s in walk(loop) if isinstance(s, K.Update)} - own
    private = all(buf.space != "private" for buf in written)
    return private and all(buf.space == "private" for buf in own) and is_independent(loop)


def _renest(nest: Sequence[K.Loop], old: K.Loop | None, new: Var, body: K.Stmt) -> K.Stmt:
    """`body` in loops like those of `nest`, with one over `new` in the place of `old`."""
    for loop in reversed(nest):
        kind = "serial" if loop is old else loop.kind
        body = K.Loop(new if loop is old else loop.var, kind, as_block(body))
    return body


def _last_round(update: K.Update, var: Var, place: Expr, identity: K.Value) -> K.Update:
    """`update` at `place` of `var`, or nothing combined where that is beyond the iterations."""
    mask = at_most(place, iterations(var) - 1)
    moved = Substitution({var: place})
    lets = tuple(K.Let(let.var, masked_loads(moved.value(let.value), mask)) for let in update.lets)
    value = K.alu("where", holds(mask), masked_loads(moved.value(update.value), mask), identity)
    return update._replace(value=value, lets=lets, mask=update.mask.subst({var: place}))
