"""What every printer of a language like C shares: statements, loops with carries, and conditions.

The languages differ in how types, constants and vectors are spelled: `c_text.py` has C for clang,
`opencl_text.py` OpenCL C and CUDA C.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.render.checks import refuse_what_is_lacking
from gpu.compiler.targets import Target
from gpu.core.errors import VerifyError

V = TypeVar("V")
"""How a language's module represents a value: a type of the language, and an expression."""


class Statements(ABC, Generic[V]):
    """Collects the statements of one function, and names its variables.

    Attributes:
        entry: statements that are printed before all others.
        lines: statements of the body.
        fenced: whether stores were made that need a fence before the function returns.
    """

    def __init__(self) -> None:
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.fenced = False
        self._depth = 1
        self._names = 0

    def name(self, prefix: str = "v") -> str:
        """A name that no other variable has."""
        self._names += 1
        return f"{prefix}{self._names}"

    def line(self, text: str) -> None:
        """Appends a statement."""
        self.lines.append("  " * self._depth + text)

    def open(self, head: str) -> None:
        """Starts a block, after a head unless that is empty."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1

    def close(self) -> None:
        """Ends a block."""
        self._depth -= 1
        self.line("}")

    @abstractmethod
    def copy(self, value: V) -> V:
        """A new variable that holds a value."""


class OpenLoop(NamedTuple, Generic[V]):
    """A loop that is being printed: its `loop`, and the variables of its carries."""

    inst: Inst
    carries: tuple[V, ...]


class FlowPrinter(ABC, Generic[V]):
    """One program on its way to text; instructions are printed by the method of their name.

    Attributes:
        target, program: what is printed, and for which machine.
        emitter: collects the text.
        values: what each instruction's value is called.
        open_loops: those around the instruction that is printed, outermost first.
    """

    def __init__(self, target: Target, program: Program, emitter: Statements[V]):
        self.target, self.program = target, program
        self.emitter: Statements[V] = emitter
        self.values: dict[Inst, V] = {}
        self.open_loops: list[OpenLoop[V]] = []
        self._carried: dict[Inst, tuple[V, ...]] = {}

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

    def _refuse(self, inst: Inst) -> None:
        """Raises Unsupported for an instruction that the language has no words for."""

    @abstractmethod
    def _constant_limit(self, stop: int) -> V: ...

    def _args(self, inst: Inst) -> list[V]:
        return [self.values[a] for a in inst.args]

    def _stop(self, stop: int | Limit) -> V:
        return self.values[stop.value] if isinstance(stop, Limit) else self._constant_limit(stop)

    def _in_worker_loop(self) -> bool:
        return any(loop.inst.attr[0] == "worker" for loop in self.open_loops)

    def _start_carries(self, inst: Inst) -> tuple[V, ...]:
        """Variables for the carries of a `loop`, with their first values."""
        return tuple(self.emitter.copy(v) for v in self._args(inst))

    def _carry(self, inst: Inst) -> V:
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
        following = [self.emitter.copy(v) for v in self._args(inst)]
        for carry, value in zip(carries, following, strict=True):
            self.emitter.line(f"{carry} = {value};")
        self.emitter.close()
        self._carried[inst] = carries

    def _result(self, inst: Inst) -> V:
        position: int = inst.attr[0]
        return self._carried[inst.args[0]][position]

    def _if(self, inst: Inst) -> None:
        self.emitter.open(f"if ({self.values[inst.args[0]]})")

    def _endif(self, inst: Inst) -> None:
        del inst
        self.emitter.close()
