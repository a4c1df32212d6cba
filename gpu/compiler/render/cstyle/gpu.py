"""A linear program on its way to a language like C for GPUs: what OpenCL C and CUDA C share.

Each instruction is a statement or a few. Types, expressions and memory accesses are those of
`opencl_text.py`, `opencl_ops.py` and `opencl_memory.py`, which for scalars are plain C.
"""

from __future__ import annotations

from abc import abstractmethod

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.render.cstyle import opencl_memory
from gpu.compiler.render.cstyle.flow import FlowPrinter, OpenLoop
from gpu.compiler.render.cstyle.opencl_ops import Ops
from gpu.compiler.render.cstyle.opencl_text import I64, Emitter, Type, Value, constant, element_of
from gpu.compiler.targets import Target
from gpu.core.dtype import dtypes


class KernelPrinter(FlowPrinter[Value]):
    """One program on its way to text; instructions are printed by the method of their name.

    Attributes:
        ops: prints operations.
    """

    emitter: Emitter

    def __init__(self, target: Target, program: Program, ops: Ops):
        super().__init__(target, program, ops.emitter)
        self.ops = ops

    # What languages and launches differ in.

    @abstractmethod
    def _refuse(self, inst: Inst) -> None:
        """Raises Unsupported for an instruction that the language has no words for."""

    @abstractmethod
    def _local(self, inst: Inst) -> Value: ...

    @abstractmethod
    def _loop(self, inst: Inst) -> Value: ...

    @abstractmethod
    def _store(self, inst: Inst) -> None: ...

    @abstractmethod
    def _barrier(self, inst: Inst) -> None: ...

    # Control.

    def _open(self, inst: Inst, first: object, last: Value, advance: object) -> Value:
        """Starts a `for` with the carries of a `loop`; returns its counter, of the limit's type."""
        carries = self._start_carries(inst)
        counter = self.emitter.name("n")
        head = f"{last.type} {counter} = {first}; {counter} < {last}; {counter} += {advance}"
        self.emitter.open(f"for ({head})")
        self.open_loops.append(OpenLoop(inst, carries))
        return Value(last.type, counter)

    def _constant_limit(self, stop: int) -> Value:
        return constant(dtypes.int64, 1, stop)

    # Values.

    def _param(self, inst: Inst) -> Value:
        return Value(Type(element_of(inst.dtype)), f"p{inst.attr[0]}")

    def _val(self, inst: Inst) -> Value:
        return Value(I64, f"value{inst.attr[0]}")

    def _const(self, inst: Inst) -> Value:
        return constant(inst.dtype, inst.lanes, inst.attr[0])

    def _load(self, inst: Inst) -> Value:
        kind = Type(element_of(inst.dtype), inst.lanes)
        access = self._access(kind, *inst.args)
        return opencl_memory.load(self.emitter, access, inst.dtype is dtypes.bool)

    def _access(
        self, kind: Type, pointer: Inst, index: Inst, mask: Inst | None = None
    ) -> opencl_memory.Access:
        """Where a load or store of a type goes."""
        condition = None if mask is None else self.values[mask]
        return opencl_memory.Access(kind, self.values[pointer], self.values[index], condition)

    def _alu(self, inst: Inst) -> Value:
        return self.ops.alu(inst.attr[0], inst.args[-1].dtype, self._args(inst))

    def _cast(self, inst: Inst) -> Value:
        (x,), source = self._args(inst), inst.args[0].dtype
        return self.ops.cast(x, source, inst.dtype)

    def _bitcast(self, inst: Inst) -> Value:
        (x,), source = self._args(inst), inst.args[0].dtype
        return self.ops.bitcast(x, source, inst.dtype)
