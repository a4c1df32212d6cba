"""What OpenCL C and CUDA C share: values of a launch as parameters, and accesses to memory."""

from __future__ import annotations

from gpu.compiler.ir.linear import Inst
from gpu.compiler.render.cstyle.memory import load
from gpu.compiler.render.cstyle.opencl_memory import OpenCLAccess
from gpu.compiler.render.cstyle.printer import Printer
from gpu.compiler.render.cstyle.text import Type, Value
from gpu.core.dtype import dtypes


class KernelPrinter(Printer):
    """One program on its way to text; instructions are printed by the method of their name."""

    def _val(self, inst: Inst) -> Value:
        return Value(self.counter, f"value{inst.attr[0]}")

    def _load(self, inst: Inst) -> Value:
        kind = self.language.type_of(inst.dtype, inst.lanes)
        access = self._access(kind, *inst.args)
        return load(self.emitter, access, inst.dtype is dtypes.bool)

    def _access(
        self, kind: Type, pointer: Inst, index: Inst, mask: Inst | None = None
    ) -> OpenCLAccess:
        """Where a load or store of a type goes."""
        condition = None if mask is None else self.values[mask]
        return OpenCLAccess(kind, self.values[pointer], self.values[index], condition)
