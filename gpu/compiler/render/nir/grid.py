"""Which iteration of the loops that a launch spreads is a thread's, in NIR."""

from __future__ import annotations

from collections.abc import Container

from gpu.compiler.ir.linear import Inst
from gpu.compiler.render.launch.grid import Grid, trips
from gpu.compiler.render.nir import ops
from gpu.compiler.render.nir.emit import Emitter, Value
from gpu.core.dtype import dtypes


class ThreadPlace:
    """Where a thread is in its launch; all numbers have 32 bits.

    Attributes:
        thread: its number among all of the launch.
        lane: its number among those of its outer iteration.
        counters: of each loop that is spread; of 64 bits for loops that are not narrow.
    """

    def __init__(self, emitter: Emitter, grid: Grid, narrow: Container[Inst]):
        """Emits what computes all of it; counters of loops in `narrow` have 32 bits."""
        self._emitter, self._narrow = emitter, narrow
        self.counters: dict[Inst, Value] = {}
        block = emitter.value("workgroup_id", 32)
        within = emitter.value("local_invocation_id", 32)
        size = emitter.integer(32, grid.block)
        self.thread = emitter.alu("iadd", emitter.alu("imul", block, size), within)
        outer, part = self._divide(block, grid.lane_groups)
        self.lane = emitter.alu("iadd", emitter.alu("imul", part, size), within)
        self._count(grid.outer, outer)
        self._count(grid.inner, self.lane)

    def _count(self, loops: tuple[Inst, ...], index: Value) -> None:
        """The counters of nested loops from the number of the iteration."""
        for loop in reversed(loops[1:]):
            index, trip = self._divide(index, trips(loop))
            self.counters[loop] = self._counter(loop, trip)
        for loop in loops[:1]:
            self.counters[loop] = self._counter(loop, index)

    def _divide(self, index: Value, by: int) -> tuple[Value, Value]:
        """Quotient and remainder of an index."""
        if by <= 1:
            return index, self._emitter.integer(32, 0)
        args = [index, self._emitter.integer(32, by)]
        quotient, remainder = (
            ops.alu(self._emitter, op, dtypes.uint32, args, by) for op in ("tdiv", "tmod")
        )
        return quotient, remainder

    def _counter(self, loop: Inst, trip: Value) -> Value:
        _, start, _, step = loop.attr
        emitter = self._emitter
        counter = trip if loop in self._narrow else emitter.resize(trip, 64)
        if step != 1:
            counter = emitter.alu("imul", counter, emitter.integer(counter.bits, step))
        if start:
            counter = emitter.alu("iadd", counter, emitter.integer(counter.bits, start))
        return counter
