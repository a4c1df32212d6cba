"""The body of a `loop` node: what one step of it computes, as a graph of its own.

A body has parameters, buffer nodes that stand for values: constants, which are the same in each
step, then carries, which a step hands on to the next, then slices, of which each step has its own.
Its results are the next carries and what a step gives besides, which is stacked.

A loop has a result for each carry after the last step, for each that is stacked, and for each carry
before every step, stacked too: gradients are computed from these. What nobody asks for is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu.compiler.ir.graph.node import Node, Shape
from gpu.core.dtype import DType
from gpu.core.unpicklable import Unpicklable

STEP: Final = "step"
"""The variable that is the number of a step: a body may have places and sizes that depend on it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """The handle of a parameter, by its number: equal bodies have equal ones."""

    number: int


@dataclass(frozen=True, slots=True)
class Stack:
    """The handle of memory of which each step of a loop reads or writes one part, in place."""

    number: int


class Value(NamedTuple):
    """The form of a loop's result."""

    shape: Shape
    dtype: DType


class Body(Unpicklable):
    """One step of a loop; see the module's text.

    Attributes:
        parameters: constants, carries and slices.
        results: the next carries, then what is stacked.
        carries: how many there are.
        slices: how many there are.
        form: what the runtime knows it by; None until it asked.
    """

    __slots__ = ("__weakref__", "carries", "form", "parameters", "results", "slices")

    def __init__(
        self, parameters: Sequence[Node], results: Sequence[Node], carries: int, slices: int
    ):
        self.parameters, self.results = tuple(parameters), tuple(results)
        self.carries, self.slices = carries, slices
        self.form: object = None

    @property
    def constants(self) -> int:
        """How many constants there are."""
        return len(self.parameters) - self.carries - self.slices

    @property
    def stacked(self) -> int:
        """How many results a step gives besides the carries."""
        return len(self.results) - self.carries

    def values(self, length: int) -> list[Value]:
        """The results of a loop of so many steps."""
        carries = [Value(p.shape, p.dtype) for p in self.results[: self.carries]]
        apart = [*self.results[self.carries :], *self.carried]
        return carries + [Value((length, *each.shape), each.dtype) for each in apart]

    @property
    def carried(self) -> tuple[Node, ...]:
        """The parameters that are carries."""
        return self.parameters[self.constants : self.constants + self.carries]

    @property
    def sliced(self) -> tuple[Node, ...]:
        """The parameters that are slices."""
        return self.parameters[len(self.parameters) - self.slices :]

    def bound(self, operands: Sequence[object]) -> Mapping[Node, object]:
        """The parameters with what stands for each."""
        return dict(zip(self.parameters, operands, strict=True))

    def __repr__(self) -> str:
        return f"<Body of {self.carries} carries: {list(self.results)}>"
