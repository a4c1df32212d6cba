"""A linear program on its way to a language like C: each instruction is a statement or a few.

Types, expressions and statements are those of `text.py` and `ops.py`; what a language adds stands
in `c.py`, `opencl.py` and `cuda.py`.
"""

from __future__ import annotations

from abc import abstractmethod

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.render.cstyle.flow import FlowPrinter, OpenLoop
from gpu.compiler.render.cstyle.ops import Ops
from gpu.compiler.render.cstyle.text import Emitter, Value
from gpu.compiler.targets import Target
from gpu.core.dtype import dtypes


class Printer(FlowPrinter[Value]):
    """One program on its way to text; instructions are printed by the method of their name.

    Attributes:
        ops: prints operations.
        language: the words of the language.
    """

    emitter: Emitter

    def __init__(self, target: Target, program: Program, ops: Ops):
        super().__init__(target, program, ops.emitter)
        self.ops, self.language = ops, ops.language
        self.counter = self.language.type("i64")

    # What languages and launches differ in.

    @abstractmethod
    def _val(self, inst: Inst) -> Value: ...

    @abstractmethod
    def _local(self, inst: Inst) -> Value: ...

    @abstractmethod
    def _loop(self, inst: Inst) -> Value: ...

    @abstractmethod
    def _load(self, inst: Inst) -> Value: ...

    @abstractmethod
    def _store(self, inst: Inst) -> None: ...

    @abstractmethod
    def _barrier(self, inst: Inst) -> None: ...

    # Control.

    def _open(self, inst: Inst, first: object, last: Value, advance: object) -> Value:
        """Starts a `for` with the carries of a `loop`; returns its counter, of the limit's type."""
        carries = self._start_carries(inst)
        counter = self.emitter.name("n")  # not i, as in i64
        head = f"{last.type} {counter} = {first}; {counter} < {last}; {counter} += {advance}"
        self.emitter.open(f"for ({head})")
        self.open_loops.append(OpenLoop(inst, carries))
        return Value(last.type, counter)

    def _constant_limit(self, stop: int) -> Value:
        return self.language.constant(dtypes.int64, 1, stop)

    def _chunk(self, inst: Inst, share: str) -> tuple[Value, Value]:
        """Where this worker's run of iterations starts and stops.

        `share` is the expression for the {number} of a worker times {trips}, by the workers.
        """
        _, start, stop, step = inst.attr
        trips: object
        if isinstance(stop, Limit):
            length = self.emitter.value(self.counter, f"{self._stop(stop)} - {start}")
            rounds = f"{length} > 0 ? ({length} + {step - 1}) / {step} : 0"
            trips = self.emitter.value(self.counter, rounds)
        else:
            trips = max(0, -(-(stop - start) // step))
        first, last = (
            self.emitter.value(
                self.counter, f"{share.format(number=number, trips=trips)} * {step} + {start}"
            )
            for number in ("worker", "(worker + 1)")
        )
        return first, last

    # Values.

    def _param(self, inst: Inst) -> Value:
        return Value(self.language.type_of(inst.dtype), f"p{inst.attr[0]}")

    def _const(self, inst: Inst) -> Value:
        value = self.language.constant(inst.dtype, inst.lanes, inst.attr[0])
        self.emitter.use(value.type)
        return value

    def _alu(self, inst: Inst) -> Value:
        return self.ops.alu(inst.attr[0], inst.args[-1].dtype, self._args(inst))

    def _cast(self, inst: Inst) -> Value:
        (x,), source = self._args(inst), inst.args[0].dtype
        return self.ops.cast(x, source, inst.dtype)

    def _bitcast(self, inst: Inst) -> Value:
        (x,), source = self._args(inst), inst.args[0].dtype
        return self.ops.bitcast(x, source, inst.dtype)

    def _splat(self, inst: Inst) -> Value:
        kind = self.emitter.use(self.language.type_of(inst.dtype, inst.lanes))
        return self.emitter.value(kind, f"({kind})({self._args(inst)[0]})")

    def _ramp(self, inst: Inst) -> Value:
        return self.ops.ramp(self._args(inst)[0], inst.attr[0], inst.lanes)

    def _extract(self, inst: Inst) -> Value:
        vector = self._args(inst)[0]
        return self.emitter.value(vector.type.scalar, vector.lane(inst.attr[0]))

    def _pack(self, inst: Inst) -> Value:
        lanes = [x.text for x in self._args(inst)]
        return self.emitter.vector(self.language.type_of(inst.dtype, inst.lanes), lanes)

    def _fold(self, inst: Inst) -> Value:
        return self.ops.fold(inst.attr[0], inst.dtype, self._args(inst)[0])

    def _shuffle(self, inst: Inst) -> Value:
        a, b = self._args(inst)
        return self.ops.shuffle(a, b, inst.attr[0])
