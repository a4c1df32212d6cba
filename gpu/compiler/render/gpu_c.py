"""A linear program on its way to a language like C for GPUs: what OpenCL C and CUDA C share.

Each instruction is a statement or a few. Types, expressions and memory accesses are those of
`opencl_text.py`, `opencl_ops.py` and `opencl_memory.py`, which for scalars are plain C.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.render import opencl_memory
from gpu.compiler.render.cpu import constant_value, refuse_what_is_lacking
from gpu.compiler.render.opencl_ops import Ops
from gpu.compiler.render.opencl_text import I64, Emitter, Type, Value, constant, element_of
from gpu.compiler.target import Target
from gpu.core.dtype import dtypes
from gpu.core.errors import VerifyError


class OpenLoop(NamedTuple):
    """A loop that is being printed: its `loop`, and the variables of its carries."""

    inst: Inst
    carries: tuple[Value, ...]


class KernelPrinter(ABC):
    """One program on its way to text; instructions are printed by the method of their name.

    Attributes:
        target, program: what is printed, and for which machine.
        ops: prints operations.
        emitter: collects the text.
        values: what each instruction's value is called.
        open_loops: those around the instruction that is printed, outermost first.
    """

    def __init__(self, target: Target, program: Program, ops: Ops):
        self.target, self.program, self.ops = target, program, ops
        self.emitter: Emitter = ops.emitter
        self.values: dict[Inst, Value] = {}
        self.open_loops: list[OpenLoop] = []
        self._carried: dict[Inst, tuple[Value, ...]] = {}

    def print_body(self) -> None:
        """Prints all instructions.

        Raises Unsupported for what the target does not have, and VerifyError for a program that is
        not well formed in a way that shows.
        """
        for inst in self.program.body:
            refuse_what_is_lacking(self.target, self.program, inst)
            self._refuse(inst)
            value = getattr(self, f"_{inst.op}")(inst)
            if value is not None:
                self.values[inst] = value
        if self.open_loops:
            raise VerifyError(f"{self.program.name}: {self.open_loops[-1].inst} has no end")

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
        carries = tuple(self.emitter.value(v.type, v.text) for v in self._args(inst))
        counter = self.emitter.name("n")
        head = f"{last.type} {counter} = {first}; {counter} < {last}; {counter} += {advance}"
        self.emitter.open(f"for ({head})")
        self.open_loops.append(OpenLoop(inst, carries))
        return Value(last.type, counter)

    def _stop(self, stop: int | Limit) -> Value:
        if isinstance(stop, Limit):
            return self.values[stop.value]
        return constant(dtypes.int64, 1, stop)

    def _carry(self, inst: Inst) -> Value:
        position: int = inst.attr[0]
        for loop in self.open_loops:
            if loop.inst is inst.args[0]:
                return loop.carries[position]
        raise VerifyError(f"a carry of {inst.args[0]} stands outside of that loop")

    def _end(self, inst: Inst) -> None:
        innermost = self.open_loops[-1].inst if self.open_loops else None
        if innermost is not inst.attr[0]:
            raise VerifyError(f"{inst} of {inst.attr[0]} ends {innermost}")
        carries = self.open_loops.pop().carries
        # All are read before any is changed: they may be swapped.
        following = [self.emitter.value(v.type, v.text) for v in self._args(inst)]
        for carry, value in zip(carries, following, strict=True):
            self.emitter.line(f"{carry} = {value};")
        self.emitter.close()
        self._carried[inst] = carries

    def _result(self, inst: Inst) -> Value:
        position: int = inst.attr[0]
        return self._carried[inst.args[0]][position]

    def _if(self, inst: Inst) -> None:
        self.emitter.open(f"if ({self.values[inst.args[0]]})")

    def _endif(self, inst: Inst) -> None:
        del inst
        self.emitter.close()

    # Values.

    def _args(self, inst: Inst) -> list[Value]:
        return [self.values[a] for a in inst.args]

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
        last = inst.args[-1]
        known = constant_value(last) if last.dtype.is_int else None
        return self.ops.alu(inst.attr[0], last.dtype, self._args(inst), known)

    def _cast(self, inst: Inst) -> Value:
        (x,), source = self._args(inst), inst.args[0].dtype
        return self.ops.cast(x, source, inst.dtype)

    def _bitcast(self, inst: Inst) -> Value:
        (x,), source = self._args(inst), inst.args[0].dtype
        return self.ops.bitcast(x, source, inst.dtype)
