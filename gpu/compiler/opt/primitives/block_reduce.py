"""Where the parts of a reduction meet that the threads of a block did.

Threads of a warp exchange theirs without memory (`shuffle_xor` of the kernel IR): in step k each
combines what it has with what the thread whose number differs in bit k has, so that after the last
step all of them have the same. Both of a pair combine the same two values, and all monoids
commute: the bits are the same too, but for the sign of a zero among maxima or minima.

Across warps the parts go through team memory, one of each warp, from where the threads of every
warp take them and exchange again. So a block needs one barrier for a reduction, and memory for one
element of each warp; rows within a warp need neither. Where a device has no exchange all parts go
through team memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var, at_most, expr
from gpu.compiler.ir.optable import MONOIDS
from gpu.core.bits import is_power_of_two

# Partial results that each thread adds up by itself; more are combined in two steps.
ONE_STEP: Final = 16


class Meeting:
    """How the threads that `thread` counts combine what each of them has.

    `teams` are the thread loops around that one, or inside it if it comes `first`. Values are
    exchanged among `warp` threads that follow each other, 0 for not at all.
    """

    def __init__(self, thread: Var, teams: Sequence[Var], first: bool, warp: int):
        self.thread, self.teams, self.first, self.warp = thread, tuple(teams), first, warp
        # How far apart in a block threads are whose `thread` differs by 1, and how many of those
        # that combine their parts are in one warp.
        self.stride = math.prod(var.extent for var in self.teams) if first else 1
        exchanges = is_power_of_two(self.stride)
        self.together = min(warp // self.stride, thread.extent) if exchanges else 0

    def combine(self, part: K.Buf, update: K.Update) -> Iterator[K.Stmt]:
        """Combines all threads' `part`, a register, into what `update` updates, on each thread."""
        if self.together < 2:
            yield from self._in_memory(part, update)
            return
        yield from self._exchanges(part, update, self.together)
        if self.together < self.thread.extent:
            yield from self._across_warps(part, update)
        yield _combined(update, K.load(part, ()))

    def _exchanges(self, part: K.Buf, update: K.Update, count: int) -> Iterator[K.Stmt]:
        """Steps after which `count` threads that follow each other have the same in `part`."""
        own = update._replace(buf=part, indices=())
        for step in range(count.bit_length() - 1):
            distance = self.stride << step
            yield _combined(own, K.shuffle_xor(K.load(part, ()), distance, self.warp))

    def _across_warps(self, part: K.Buf, update: K.Update) -> Iterator[K.Stmt]:
        """`part` becomes the parts of all warps combined; the first thread of each stores its."""
        warps = self.thread.extent // self.together
        count = min(warps, self.together)
        parts = self._slots(part, "r", warps)
        number, lane = expr(self.thread) // self.together, expr(self.thread) % self.together
        yield K.Alloc(parts)
        stored = K.Update(parts, self._at(number), None, K.load(part, ()))
        yield stored._replace(mask=at_most(lane, 0))
        taken = expr(self.thread) % count
        yield K.Update(part, (), None, K.load(parts, self._at(taken)))
        own = update._replace(buf=part, indices=())
        for more in range(count, warps, count):
            yield _combined(own, K.load(parts, self._at(taken + more)))
        yield from self._exchanges(part, update, count)

    def _in_memory(self, part: K.Buf, update: K.Update) -> Iterator[K.Stmt]:
        """The parts of all threads combined by every thread, through team memory.

        With many threads a few of them combine some parts each first, so that the way to the
        result is twice the root of their number, and not their number.
        """
        threads = self.thread.extent
        parts = self._slots(part, "r", threads)
        yield K.Alloc(parts)
        yield K.Update(parts, self._at(expr(self.thread)), None, K.load(part, ()))
        if threads > ONE_STEP:
            groups = 1 << (threads.bit_length() // 2)
            fewer = self._slots(part, "g", groups)
            yield K.Alloc(fewer)
            yield K.If(at_most(self.thread, groups - 1), self._group(part, parts, fewer, update))
            parts, threads = fewer, groups
        yield self._gathered(update, parts, Var(f"{part.name}j", 0, threads - 1), 1, expr(0))

    def _group(self, part: K.Buf, parts: K.Buf, fewer: K.Buf, update: K.Update) -> K.Block:
        """What each of the first threads does: every so many parts become one."""
        assert update.monoid is not None
        groups = fewer.shape[0 if self.first else -1]
        own = K.Buf(f"{part.name}m", part.dtype, (), "private")
        identity = K.const(own.dtype, MONOIDS[update.monoid].identity(own.dtype))
        var = Var(f"{part.name}i", 0, self.thread.extent // groups - 1)
        some = update._replace(buf=own, indices=())
        return K.Block(
            (
                K.Alloc(own),
                K.Update(own, (), None, identity),
                self._gathered(some, parts, var, groups, expr(self.thread)),
                K.Update(fewer, self._at(expr(self.thread)), None, K.load(own, ())),
            )
        )

    def _gathered(self, update: K.Update, parts: K.Buf, var: Var, step: int, base: Expr) -> K.Stmt:
        """The parts at `base`, `base + step` and so on combined as `update` says."""
        value = K.load(parts, self._at(expr(var) * step + base))
        return K.Loop(var, "unroll", K.Block((_combined(update, value),)))

    def _slots(self, part: K.Buf, suffix: str, count: int) -> K.Buf:
        """Team memory for `count` parts of each team."""
        sizes = tuple(var.extent for var in self.teams)
        shape = (count, *sizes) if self.first else (*sizes, count)
        return K.Buf(f"{part.name}{suffix}", part.dtype, shape, "team")

    def _at(self, place: Expr) -> tuple[Expr, ...]:
        teams = tuple(expr(var) for var in self.teams)
        return (place, *teams) if self.first else (*teams, place)


def _combined(update: K.Update, value: K.Value) -> K.Update:
    """`update` with another value, everywhere."""
    return update._replace(value=value, lets=(), mask=ALWAYS)
