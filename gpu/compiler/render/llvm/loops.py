"""Loops of the linear IR as LLVM blocks and phis."""

from __future__ import annotations

from typing import NamedTuple

from gpu.compiler.ir.linear import Inst, Limit
from gpu.compiler.render.llvm.text import INT64, Emitter, Value, integer
from gpu.core.errors import VerifyError


class _Loop(NamedTuple):
    """A loop that is being printed.

    Attributes:
        inst: its `loop`.
        before: label of the block it was entered from.
        label: of the first block of its body.
        phis_at: line at which its phis belong.
        counter: of the iteration.
        first: what the counter starts at.
        stop: what the counter stays below.
        carries: what the body sees of the carried values.
        initial: their values in the first iteration.
        guarded: whether it may run no iteration.
    """

    inst: Inst
    before: str
    label: str
    phis_at: int
    counter: Value
    first: Value
    stop: Value
    carries: tuple[Value, ...]
    initial: tuple[Value, ...]
    guarded: bool

    @property
    def after(self) -> str:
        """Label of the block behind it."""
        return f"{self.label}.after"


class LoopPrinter:
    """Prints nested loops: tested at the bottom, and at the top only if they may not run at all."""

    def __init__(self, emitter: Emitter):
        self._emitter = emitter
        self._open: list[_Loop] = []
        self._results: dict[Inst, tuple[Value, ...]] = {}

    @property
    def innermost(self) -> Inst | None:
        """The `loop` that is open."""
        return self._open[-1].inst if self._open else None

    def open(self, inst: Inst, initial: tuple[Value, ...], last: Value) -> Value:
        """Starts the body of a `loop` that stays below `last`; returns its counter, of its type."""
        emitter = self._emitter
        kind, start, stop, step = inst.attr
        first = integer(last.type, start)
        guarded = isinstance(stop, Limit) or stop <= start
        inside_worker = any(outer.inst.attr[0] == "worker" for outer in self._open)
        if kind == "worker" and not inside_worker:
            first, last = self._chunk(start, self._trips(start, stop, step, last), step)
            guarded = True
        label, before = emitter.fresh("loop"), emitter.block
        if guarded:
            runs = emitter.compare("icmp slt", first, last)
            emitter.branch_if(runs, label, f"{label}.after")
        else:
            emitter.branch(label)
        emitter.start_block(label)
        carries = tuple(Value(v.type, f"%{label}.c{i}") for i, v in enumerate(initial))
        counter = Value(last.type, f"%{label}.i")
        phis_at = len(emitter.lines)
        emitter.lines.append("")  # `close` puts the phis here
        self._open.append(
            _Loop(inst, before, label, phis_at, counter, first, last, carries, initial, guarded)
        )
        return counter

    def carry(self, loop_inst: Inst, position: int) -> Value:
        """What the body of an open loop sees of a carried value."""
        loop = next((loop for loop in self._open if loop.inst is loop_inst), None)
        if loop is None:
            raise VerifyError(f"a carry of {loop_inst} stands outside of that loop")
        return loop.carries[position]

    def close(self, inst: Inst, following: tuple[Value, ...]) -> None:
        """Ends the innermost loop, carrying `following` into the next iteration."""
        if self.innermost is not inst.attr[0]:
            raise VerifyError(f"{inst} of {inst.attr[0]} ends {self.innermost}")
        emitter, loop = self._emitter, self._open.pop()
        _, start, _, step = loop.inst.attr
        # A counter that starts below 0 passes through the largest unsigned number.
        flags = "nuw nsw" if start >= 0 else "nsw"
        forward = integer(loop.counter.type, step)
        next_counter = emitter.binary(f"add {flags}", loop.counter, forward)
        again = emitter.compare("icmp slt", next_counter, loop.stop)
        latch = emitter.block
        emitter.branch_if(again, loop.label, loop.after)
        phis = [_phi(loop.counter, loop.before, loop.first, latch, next_counter)]
        for carry, before, after in zip(loop.carries, loop.initial, following, strict=True):
            phis.append(_phi(carry, loop.before, before, latch, after))
        emitter.lines[loop.phis_at] = "\n".join(phis)
        emitter.start_block(loop.after)
        self._results[inst] = self._leave(loop, latch, following) if loop.guarded else following

    def result(self, end: Inst, position: int) -> Value:
        """A carried value after the loop that `end` closed."""
        return self._results[end][position]

    def _leave(self, loop: _Loop, latch: str, following: tuple[Value, ...]) -> tuple[Value, ...]:
        """The carried values behind a loop that may have been skipped."""
        results = tuple(Value(v.type, self._emitter.fresh("%r")) for v in following)
        for result, before, after in zip(results, loop.initial, following, strict=True):
            self._emitter.lines.append(_phi(result, loop.before, before, latch, after))
        return results

    def _trips(self, start: int, stop: int | Limit, step: int, last: Value) -> Value:
        """How many iterations a loop has in all."""
        if not isinstance(stop, Limit):
            return integer(INT64, max(0, -(-(stop - start) // step)))
        emitter = self._emitter
        length = emitter.binary("sub", last, integer(INT64, start - step + 1))
        trips = emitter.binary("sdiv", length, integer(INT64, step))
        some = emitter.compare("icmp sgt", trips, integer(INT64, 0))
        return emitter.select(some, trips, integer(INT64, 0))

    def _chunk(self, start: int, trips: Value, step: int) -> tuple[Value, Value]:
        """Where this worker's run of iterations starts and stops."""
        emitter = self._emitter
        worker, workers = Value(INT64, "%worker"), Value(INT64, "%workers")
        bounds = []
        for number in (worker, emitter.binary("add", worker, integer(INT64, 1))):
            share = emitter.binary("mul", number, trips)
            trip = emitter.binary("udiv", share, workers)
            offset = emitter.binary("mul", trip, integer(INT64, step))
            bounds.append(emitter.binary("add", offset, integer(INT64, start)))
        return bounds[0], bounds[1]


def _phi(result: Value, block_a: str, a: Value, block_b: str, b: Value) -> str:
    return f"  {result.name} = phi {result.type} [ {a.name}, %{block_a} ], [ {b.name}, %{block_b} ]"
