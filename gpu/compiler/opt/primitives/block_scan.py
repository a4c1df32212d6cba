"""The transformation `BlockScan`: a scan that the threads of a block do together.

Each thread has a few elements that lie side by side, of which it makes running results by itself.
What all threads before it have comes from exchanges within its warp: in step k each has what the
2**k threads around it have combined, and adds what its partner's have where these come first.
Across warps it goes through team memory, and from round to round each thread keeps the result so
far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, at_least, at_most, expr
from gpu.compiler.ir.kernel.tree import Substitution, as_block, loops, replace_loop
from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.opt.analysis.loop_nest import nest_down_to
from gpu.compiler.opt.primitives.barriers import synchronize, thread_loops
from gpu.compiler.opt.primitives.predication import holds, masked_loads
from gpu.core.errors import IllegalOpt


class Scan(NamedTuple):
    """A loop that combines into one private element, and stores what that is each time.

    Attributes:
        loop: the loop.
        combine: what updates the running result.
        stores: what writes it, or something computed from it.
    """

    loop: K.Loop
    combine: K.Update
    stores: tuple[K.Update, ...]


def scan_in(body: K.Block) -> Scan | None:
    """The scan that is all that a body does, or None."""
    *before, loop = body.body
    if not isinstance(loop, K.Loop) or loop.var.stop is not None:
        return None
    if any(not isinstance(s, K.Alloc) and not _is_private(s) for s in before):
        return None
    return scan_of(loop)


def scan_of(loop: K.Loop) -> Scan | None:
    """The scan that a loop is, or None."""
    combine, *stores = loop.body.body
    if not isinstance(combine, K.Update) or not _is_private(combine) or combine.lets:
        return None
    writes = tuple(s for s in stores if isinstance(s, K.Update))
    if combine.monoid is None or combine.mask is not ALWAYS or not stores or loop.kind != "serial":
        return None
    known = {combine.buf, *(s.buf for s in writes)}
    stored = all(s.monoid is None and s.buf.space == "global" and not s.lets for s in writes)
    reads = {buf for s in writes for buf in s.value.bufs} - {combine.buf} | combine.value.bufs
    if len(writes) < len(stores) or not stored or reads & known:
        return None
    return Scan(loop, combine, writes)


def _is_private(stmt: K.Stmt) -> bool:
    return isinstance(stmt, K.Update) and stmt.buf.space == "private" and not stmt.buf.shape


def block_scan(body: K.Block, axis: str, threads: int, side: int, warp: int) -> K.Stmt:
    """See `gpu.compiler.opt.opts.BlockScan`. Raises IllegalOpt."""
    around, inside = nest_down_to(body, axis)
    scan = scan_in(inside)
    if f"{axis}th" in loops(body):
        raise IllegalOpt(f"there is a loop {axis}th already")
    if scan is None or thread_loops(inside):
        raise IllegalOpt("a scan is not all that is done there")
    if min(threads, warp) < 2 or threads & (threads - 1) or scan.loop.var.extent % side:
        raise IllegalOpt(
            f"that takes a power of two of threads, and whole groups of {side} among"
            f" {scan.loop.var.extent}"
        )
    teams = [loop.var for loop in around if loop.kind == "thread"]
    thread = Var(f"{axis}th", 0, threads - 1)
    together = _Sweeper(scan, thread, teams, side, min(warp, threads), warp).loop()
    done = replace_loop(inside, scan.loop, together)
    work = K.Loop(thread, "thread", as_block(done))
    if not around:
        return synchronize(as_block(work))
    outer = K.Loop(around[-1].var, around[-1].kind, as_block(work))
    return synchronize(as_block(replace_loop(body, around[-1], outer)))


class _Sweeper:
    """Writes a scan for one of its threads."""

    def __init__(
        self, scan: Scan, thread: Var, teams: Sequence[Var], side: int, together: int, warp: int
    ):
        self.scan, self.thread, self.teams, self.warp = scan, thread, tuple(teams), warp
        self.side, self.together = side, together
        buf, name = scan.combine.buf, scan.combine.buf.name
        assert scan.combine.monoid is not None
        self.monoid = MONOIDS[scan.combine.monoid]
        self.identity = K.const(buf.dtype, self.monoid.identity(buf.dtype))
        self.own, self.before, self.other = (self.scalar(f"{name}{suffix}") for suffix in "pbx")
        self.kept = K.Buf(f"{name}k", buf.dtype, (side,), "private")
        groups, var = scan.loop.var.extent // side, scan.loop.var
        self.rounds = Var(f"{var.name}o", 0, -(-groups // thread.extent) - 1)
        self.group = expr(self.rounds) * thread.extent + thread
        whole = groups % thread.extent == 0
        self.mask: Mask = ALWAYS if whole else at_most(self.group, groups - 1)

    def scalar(self, name: str) -> K.Buf:
        """A register."""
        return K.Buf(name, self.scan.combine.buf.dtype, (), "private")

    def loop(self) -> K.Stmt:
        """Rounds in which all threads have some elements each."""
        registers = (self.own, self.before, self.other, self.kept)
        running = self.scan.combine.buf
        steps = (
            *(K.Alloc(buf) for buf in registers),
            self.set(self.own, self.identity),
            self.set(self.before, self.identity),
            *self.alone(),
            *self.in_a_warp(),
            *(self.across_warps() if self.together < self.thread.extent else ()),
            self.combined(self.before, K.load(running, ())),
            self.stored(),
            self.combined(running, K.load(self.own, ())),
        )
        return K.Loop(self.rounds, "serial", K.Block(steps))

    def set(self, buf: K.Buf, value: K.Value) -> K.Update:
        """A register that gets a value."""
        return K.Update(buf, (), None, value)

    def combined(self, buf: K.Buf, value: K.Value, only: Mask = ALWAYS) -> K.Update:
        """A register with which a value is combined, where `only` holds."""
        if only is not ALWAYS:
            value = K.alu("where", holds(only), value, self.identity)
        return K.Update(buf, (), self.monoid.name, value)

    def place(self, near: Var | int) -> Expr:
        """Which element of the scan one of a thread's is."""
        return self.group * self.side + near

    def alone(self) -> Iterator[K.Stmt]:
        """Running results of what a thread has, one after another."""
        for near in range(self.side):
            moved = Substitution({self.scan.loop.var: self.place(near)})
            value = masked_loads(moved.value(self.scan.combine.value), self.mask)
            yield self.combined(self.own, value, self.mask)
            yield K.Update(self.kept, (expr(near),), None, K.load(self.own, ()))

    def in_a_warp(self) -> Iterator[K.Stmt]:
        """`own` becomes what all threads of a warp have, `before` what those before one have."""
        for step in range(self.together.bit_length() - 1):
            later = at_least(expr(self.thread) // (1 << step) % 2, 1)
            own, other = K.load(self.own, ()), K.load(self.other, ())
            yield self.set(self.other, K.shuffle_xor(own, 1 << step, self.warp))
            yield self.combined(self.before, other, later)
            yield self.combined(self.own, other)

    def across_warps(self) -> Iterator[K.Stmt]:
        """The same for all threads of a block, by an element of team memory for each warp."""
        warps = self.thread.extent // self.together
        sizes, at = tuple(v.extent for v in self.teams), tuple(map(expr, self.teams))
        slots = K.Buf(f"{self.own.name}r", self.own.dtype, (*sizes, warps), "team")
        number, lane = expr(self.thread) // self.together, expr(self.thread) % self.together
        yield K.Alloc(slots)
        mine = K.Update(slots, (*at, number), None, K.load(self.own, ()))
        yield mine._replace(mask=at_most(lane, 0))
        yield self.set(self.own, self.identity)
        warp = Var(f"{slots.name}w", 0, warps - 1)
        total = K.load(slots, (*at, expr(warp)))
        first = self.combined(self.before, total, at_least(number, expr(warp) + 1))
        yield K.Loop(warp, "unroll", K.Block((first, self.combined(self.own, total))))

    def stored(self) -> K.Stmt:
        """What is made of each running result."""
        near = Var(f"{self.scan.loop.var.name}f", 0, self.side - 1)
        running = K.load(self.scan.combine.buf, ())
        result = K.alu(self.monoid.combine, K.load(self.before, ()), K.load(self.kept, (near + 0,)))
        moved = Substitution({self.scan.loop.var: self.place(near)})
        stores = []
        for store in self.scan.stores:
            made = moved.stmt(store)
            assert isinstance(made, K.Update)
            value = masked_loads(made.value, self.mask)
            value = Substitution({}, values={running: result}).value(value)
            stores.append(made._replace(value=value, mask=made.mask & self.mask))
        return K.Loop(near, "unroll", K.Block(tuple(stores)))
