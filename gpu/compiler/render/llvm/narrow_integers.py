"""Integers of 64 bits that fit into 32, computed in 32: half the work where registers have 32 bits.

Each such value is there in both widths; LLVM drops what nobody uses.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.ir.linear.ranges import Range, int_ranges
from gpu.compiler.render.llvm import ops
from gpu.compiler.render.llvm.function import FunctionPrinter
from gpu.compiler.render.llvm.text import INT64, Type, Value, integer
from gpu.compiler.targets import Target
from gpu.core.dtype import dtypes

INT32: Final = Type("i32")
_LOWEST: Final = int(dtypes.int32.min)
_HIGHEST: Final = int(dtypes.int32.max)
_EXACT: Final = ("add", "sub", "mul")


class NarrowPrinter(FunctionPrinter):
    """Prints a program with its small integers in 32 bits.

    Attributes:
        ranges: bounds of int64 values, where they are known.
        narrow: the 32-bit values of those that have one.
    """

    def __init__(self, target: Target, program: Program):
        super().__init__(target, program)
        self.ranges: dict[Inst, Range] = {
            inst: found
            for inst, found in int_ranges(program).items()
            if found[0] >= _LOWEST and found[1] <= _HIGHEST
        }
        self.narrow: dict[Inst, Value] = {}

    def keep(self, inst: Inst, value: Value) -> Value:
        """Notes a 32-bit value of an instruction; the 64-bit one."""
        self.narrow[inst] = value
        if value.name.lstrip("-").isdigit():
            return Value(INT64, value.name)
        opcode = "zext nneg" if self.ranges[inst][0] >= 0 else "sext"
        return self.emitter.convert(opcode, value, "i64")

    def _const(self, inst: Inst) -> Value:
        if inst in self.ranges:
            return self.keep(inst, integer(INT32, inst.attr[0]))
        return super()._const(inst)

    def _loop(self, inst: Inst) -> Value:
        last = self._narrow_limit(inst) if inst in self.ranges else None
        if last is None:
            return super()._loop(inst)
        return self.keep(inst, self.loops.open(inst, tuple(self._args(inst)), last))

    def _narrow_limit(self, inst: Inst) -> Value | None:
        """What the counter stays below, in 32 bits. The step beyond must fit them as well."""
        _, start, stop, step = inst.attr
        if self.ranges[inst][1] + step > _HIGHEST or start < _LOWEST:
            return None
        if isinstance(stop, int):
            return integer(INT32, stop) if _LOWEST <= stop <= _HIGHEST else None
        return self.narrow.get(stop.value)

    def _alu(self, inst: Inst) -> Value:
        name = inst.attr[0]
        args = inst.args[1:] if name == "where" else inst.args
        compares = inst.dtype is dtypes.bool and args[0].dtype is dtypes.int64
        fits = all(arg in self.narrow for arg in args) and (inst in self.ranges or compares)
        if not fits:
            return super()._alu(inst)
        values = [self.narrow.get(arg) or self.values[arg] for arg in inst.args]
        if name in _EXACT:
            signs = [self.ranges[arg][0] >= 0 for arg in (*args, inst)]
            flags = "nuw nsw" if all(signs) else "nsw"
            result = self.emitter.binary(f"{name} {flags}", *values)
        else:
            result = ops.alu(self.emitter, name, dtypes.int32, values)
        return result if compares else self.keep(inst, result)

    def _cast(self, inst: Inst) -> Value:
        source = inst.args[0]
        if source in self.narrow and inst.dtype is not dtypes.uint64:
            narrow = self.narrow[source]
            return ops.cast(self.emitter, narrow, dtypes.int32, inst.dtype)
        if inst in self.ranges and source.dtype.bits < 64:
            wide = dtypes.int32
            return self.keep(inst, ops.cast(self.emitter, self.values[source], source.dtype, wide))
        return super()._cast(inst)
