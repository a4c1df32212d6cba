"""What CUDA C, HIP C++ and MSL share: the text is that of one thread, of blocks along x.

A launch is what `gpu/compiler/render/launch/grid.py` plans (Metal's words: threadgroups and
threads). Buffers begin at multiples of 16 bytes and do not overlap.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.ir.linear.ranges import int_ranges
from gpu.compiler.render.cstyle.counters import ThreadId, counter_lines
from gpu.compiler.render.cstyle.flow import OpenLoop
from gpu.compiler.render.cstyle.gpu import KernelPrinter
from gpu.compiler.render.cstyle.memory import store
from gpu.compiler.render.cstyle.opencl_ops import OpenCLOps
from gpu.compiler.render.cstyle.text import Value, integer
from gpu.compiler.render.cstyle.wide import Wide
from gpu.compiler.render.launch.grid import Grid
from gpu.compiler.render.launch.locals import Places
from gpu.compiler.targets import Target
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported

_SPREAD: Final = ("grid", "thread")
_LOWEST: Final = int(dtypes.int32.min)
_HIGHEST: Final = int(dtypes.int32.max)
# What may be a vector: what moves it to or from memory.
_WIDE: Final = ("load", "store", "pack", "splat")
_EXACT: Final = {"add": "+", "sub": "-", "mul": "*"}


class GridOps(OpenCLOps):
    """Operations on scalars, in words of C++ where OpenCL C has functions of integers."""

    def integers(self, name: str, args: list[Value]) -> Value:
        """Choices in place of functions."""
        kind, a = args[0].type, args[0]
        if name == "abs":
            if kind == kind.unsigned:
                return a
            negated = f"({kind})(0 - ({kind.unsigned}){a})"
            return self.emitter.value(kind, f"{a} < {integer(kind, 0)} ? {negated} : {a}")
        if name in ("max", "min"):
            sign = ">" if name == "max" else "<"
            return self.emitter.value(kind, f"{a} {sign} {args[1]} ? {a} : {args[1]}")
        return super().integers(name, args)


class GridPrinter(KernelPrinter):
    """One program on its way to text.

    A 64-bit integer that is known to fit 32 bits is a variable of 32, which half the instructions
    compute; it is widened where another operand is wide.

    Attributes:
        grid: how it is launched.
        places: where its locals are.
        thread: the words for which thread this is.
    """

    def __init__(
        self,
        target: Target,
        program: Program,
        ops: GridOps,
        grid: Grid,
        places: Places,
        thread: ThreadId,
        wide: Wide,
    ):
        super().__init__(target, program, ops)
        self.grid, self.places, self.thread, self.wide = grid, places, thread, wide
        self.ranges = {
            inst: found
            for inst, found in int_ranges(program).items()
            if found[0] >= _LOWEST and found[1] <= _HIGHEST
        }
        self._int, self._long = self.language.type("i32"), self.language.type("i64")
        self.counters: dict[Inst, Value] = {}

    def body(self) -> list[str]:
        """The statements of the kernel."""
        narrow = frozenset(self.ranges)
        self.counters, counting = counter_lines(
            self.grid, self.language, self.emitter, narrow, self.thread
        )
        self.print_body()
        return [*self._own_workspace(), *counting, *self.emitter.entry, *self.emitter.lines]

    @abstractmethod
    def _own_workspace(self) -> list[str]:
        """Lines that find this thread's part of the workspace, if there is one."""

    def _refuse(self, inst: Inst) -> None:
        if inst.lanes != 1 and inst.op not in _WIDE:
            raise Unsupported(
                f"{self.program.name}: {inst} is a vector, and threads only load and store those;"
                " give the target no vector_bytes"
            )

    def _thread_offset(self) -> str:
        """Where this thread's part of the workspace begins, in bytes."""
        number = f"(ulong){self.thread.block} * {self.grid.block} + {self.thread.thread}"
        return f"({number}) * {self.places.workspace}"

    # Loops.

    def _loop(self, inst: Inst) -> Value:
        _, start, stop, step = inst.attr
        if inst.attr[0] in _SPREAD:
            return self._spread_loop(inst)
        last = self._stop(stop)
        if inst in self.ranges and self.ranges[inst][1] + step <= _HIGHEST:
            if isinstance(stop, int) and _LOWEST <= stop <= _HIGHEST:
                last = integer(self._int, stop)
        else:
            last = self._widened(last)
        return self._open(inst, start, last, step)

    def _spread_loop(self, inst: Inst) -> Value:
        """The iteration of a loop that is this thread's; what is inside is skipped without one."""
        counter, checks = self.counters[inst], []
        grid = self.grid
        if inst in grid.inner[:1] and grid.lanes != grid.block * grid.lane_groups:
            checks.append(f"lane < {grid.lanes}")
        if isinstance(inst.attr[2], Limit):
            checks.append(f"{counter} < {self._stop(inst.attr[2])}")
        self.emitter.open(f"if ({' && '.join(checks)})" if checks else "")
        self.open_loops.append(OpenLoop(inst, ()))
        return counter

    # Values.

    def _args(self, inst: Inst) -> list[Value]:
        return [
            self._widened(self.values[a]) if self._is_narrow(a) else self.values[a]
            for a in inst.args
        ]

    def _is_narrow(self, inst: Inst) -> bool:
        return inst.dtype is dtypes.int64 and self.values[inst].type == self._int

    def _const(self, inst: Inst) -> Value:
        return integer(self._int, inst.attr[0]) if inst in self.ranges else super()._const(inst)

    def _val(self, inst: Inst) -> Value:
        return self._narrowed(inst, super()._val(inst))

    def _narrowed(self, inst: Inst, value: Value) -> Value:
        """A value of a launch, in 32 bits where it is known to fit."""
        return self.emitter.value(self._int, f"(int){value}") if inst in self.ranges else value

    def _alu(self, inst: Inst) -> Value:
        name = inst.attr[0]
        args = inst.args[1:] if name == "where" else inst.args
        compares = inst.dtype is dtypes.bool and args[0].dtype is dtypes.int64
        if not (all(map(self._is_narrow, args)) and (inst in self.ranges or compares)):
            return super()._alu(inst)
        values = [self.values[a] for a in inst.args]
        if name in _EXACT:
            return self.emitter.value(self._int, f"{values[0]} {_EXACT[name]} {values[1]}")
        return self.ops.alu(name, dtypes.int32, values)

    def _cast(self, inst: Inst) -> Value:
        source = inst.args[0]
        x = self.values[source]
        if self._is_narrow(source):
            return self.ops.cast(x, dtypes.int32, inst.dtype)
        if inst in self.ranges and source.dtype.bits < 64:
            return self.ops.cast(x, source.dtype, dtypes.int32)
        return super()._cast(inst)

    def _load(self, inst: Inst) -> Value:
        if inst.lanes == 1:
            return super()._load(inst)
        access = self._access(self.language.type_of(inst.dtype, inst.lanes), *inst.args)
        return self.wide.load(access)

    def _splat(self, inst: Inst) -> Value:
        """Of a mask, which all elements of an access have in common."""
        return self.values[inst.args[0]]

    def _pack(self, inst: Inst) -> Value:
        return self.wide.pack(self._args(inst))

    def _store(self, inst: Inst) -> None:
        pointer, index, stored, *mask = inst.args
        if stored.lanes > 1:
            where = self._access(self.values[stored].type, pointer, index, *mask)
            self.wide.store(where, self.values[stored], in_array=pointer.op != "param")
            return
        access = self._access(self.language.type_of(stored.dtype), pointer, index, *mask)
        store(self.emitter, access, self.values[stored])

    def _extract(self, inst: Inst) -> Value:
        element = self.wide.element(self.values[inst.args[0]], inst.attr[0])
        if inst.dtype is not dtypes.bool:
            return element
        return self.emitter.bool_of(f"{element} != 0", element.type)

    def _widened(self, x: Value) -> Value:
        """A 64-bit integer in a variable of either width, in 64."""
        return x if x.type == self._long else Value(self._long, f"((long){x})")
