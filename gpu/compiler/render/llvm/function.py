"""A linear program on its way to LLVM text: what is the same on every machine that LLVM knows.

The text is meant for code generation without LLVM's optimiser: it is in SSA form, loops are tested
at the bottom, and counters cannot wrap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.ir.linear.ranges import constant_value
from gpu.compiler.render.checks import refuse_what_is_lacking
from gpu.compiler.render.llvm import ops
from gpu.compiler.render.llvm.loops import LoopPrinter
from gpu.compiler.render.llvm.text import INT64, Emitter, Value, constant, integer, value_type
from gpu.compiler.targets import Target
from gpu.core.errors import VerifyError


class FunctionPrinter(ABC):
    """One program on its way to text; instructions are printed by the method of their name.

    Attributes:
        target, program: what is printed, and for which machine.
        emitter: collects the text.
        values: what each instruction's value is called.
    """

    def __init__(self, target: Target, program: Program):
        self.target, self.program = target, program
        self.emitter = Emitter()
        self.values: dict[Inst, Value] = {}
        self.loops = LoopPrinter(self.emitter)
        self.ends_of_ifs: dict[Inst, str] = {}

    def body(self) -> list[str]:
        """Prints all instructions; the lines of the body, which ends without `ret`.

        Raises Unsupported for an operation the target does not have, and VerifyError for a program
        that is not well formed in a way that shows.
        """
        for inst in self.program.body:
            refuse_what_is_lacking(self.target, self.program, inst)
            value = getattr(self, f"_{inst.op}")(inst)
            if value is not None:
                self.values[inst] = value
        if self.loops.innermost is not None:
            raise VerifyError(f"{self.program.name}: {self.loops.innermost} has no end")
        return self.emitter.lines

    def _args(self, inst: Inst) -> list[Value]:
        return [self.values[a] for a in inst.args]

    # What machines differ in.

    @abstractmethod
    def _param(self, inst: Inst) -> Value: ...

    @abstractmethod
    def _val(self, inst: Inst) -> Value: ...

    @abstractmethod
    def _local(self, inst: Inst) -> Value: ...

    @abstractmethod
    def _load(self, inst: Inst) -> Value: ...

    @abstractmethod
    def _store(self, inst: Inst) -> None: ...

    @abstractmethod
    def _barrier(self, inst: Inst) -> None: ...

    # Control.

    def _limit(self, inst: Inst) -> Value:
        """What the counter of a `loop` stays below."""
        stop = inst.attr[2]
        return self.values[stop.value] if isinstance(stop, Limit) else integer(INT64, stop)

    def _loop(self, inst: Inst) -> Value:
        return self.loops.open(inst, tuple(self._args(inst)), self._limit(inst))

    def _carry(self, inst: Inst) -> Value:
        return self.loops.carry(inst.args[0], inst.attr[0])

    def _end(self, inst: Inst) -> None:
        self.loops.close(inst, tuple(self._args(inst)))

    def _result(self, inst: Inst) -> Value:
        return self.loops.result(inst.args[0], inst.attr[0])

    def _if(self, inst: Inst) -> None:
        then = self.emitter.fresh("then")
        self.ends_of_ifs[inst] = f"{then}.after"
        self.emitter.branch_if(self.values[inst.args[0]], then, f"{then}.after")
        self.emitter.start_block(then)

    def _endif(self, inst: Inst) -> None:
        after = self.ends_of_ifs[inst.attr[0]]
        self.emitter.branch(after)
        self.emitter.start_block(after)

    # Values.

    def _const(self, inst: Inst) -> Value:
        return constant(inst.dtype, inst.lanes, inst.attr[0])

    def _alu(self, inst: Inst) -> Value:
        return ops.alu(self.emitter, inst.attr[0], inst.args[-1].dtype, self._args(inst))

    def _cast(self, inst: Inst) -> Value:
        source = inst.args[0]
        return ops.cast(self.emitter, self.values[source], source.dtype, inst.dtype)

    def _bitcast(self, inst: Inst) -> Value:
        source = inst.args[0]
        x = self.values[source]
        if source.lanes != inst.lanes:
            joined = value_type(inst.dtype, inst.lanes)
            return self.emitter.value(joined, f"bitcast {x} to {joined}")
        return ops.bitcast(self.emitter, x, source.dtype, inst.dtype)

    def _splat(self, inst: Inst) -> Value:
        known = constant_value(inst)
        if known is not None:
            return constant(inst.dtype, inst.lanes, known)
        return self.emitter.splat(self.values[inst.args[0]], inst.lanes)

    def _ramp(self, inst: Inst) -> Value:
        return ops.ramp(self.emitter, self.values[inst.args[0]], inst.attr[0], inst.lanes)

    def _extract(self, inst: Inst) -> Value:
        return self.emitter.extract(self.values[inst.args[0]], inst.attr[0])

    def _pack(self, inst: Inst) -> Value:
        return self.emitter.pack(self._args(inst))

    def _fold(self, inst: Inst) -> Value:
        return ops.fold(self.emitter, inst.attr[0], inst.dtype, self.values[inst.args[0]])

    def _shuffle(self, inst: Inst) -> Value:
        a, b = self._args(inst)
        return ops.shuffle(self.emitter, a, b, inst.attr[0])
