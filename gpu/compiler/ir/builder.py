"""The one interface through which scalar operations are built, whatever is being built.

Derivations (an operation in terms of simpler ones) and gradients are written once against
`Builder` and serve graph nodes, kernel values, linear instructions and plain numpy arrays alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from gpu.core.dtype import DType, PyScalar

V = TypeVar("V")


class Builder(ABC, Generic[V]):
    """Builds scalar operations over values of type `V`; operands of one operation share a dtype."""

    @abstractmethod
    def op(self, name: str, *args: V) -> V:
        """The operation called `name` in the op table."""

    @abstractmethod
    def const(self, dtype: DType, value: PyScalar) -> V:
        """A constant."""

    @abstractmethod
    def cast(self, x: V, dtype: DType) -> V:
        """`x` converted to `dtype` by value."""

    @abstractmethod
    def bitcast(self, x: V, dtype: DType) -> V:
        """The bits of `x` read as `dtype`, of the same width."""

    @abstractmethod
    def dtype(self, x: V) -> DType:
        """The element type of `x`."""

    def repeat(
        self, count: V, most: int, initial: tuple[V, ...], step: Callable[..., tuple[V, ...]]
    ) -> tuple[V, ...]:
        """`initial` after `count` times `step`, an int32 that is at most `most` in every lane.

        A bool counts as 0 or 1.
        One more time must change nothing: where lanes differ, all go on for the longest, and what
        has no loops takes all of `most` steps.
        """
        for _ in range(most):
            initial = step(*initial)
        return initial

    def like(self, x: V, value: PyScalar) -> V:
        """A constant of the dtype of `x`."""
        return self.const(self.dtype(x), value)

    def add(self, a: V, b: V) -> V:
        """a + b."""
        return self.op("add", a, b)

    def sub(self, a: V, b: V) -> V:
        """a - b."""
        return self.op("sub", a, b)

    def mul(self, a: V, b: V) -> V:
        """a * b."""
        return self.op("mul", a, b)

    def div(self, a: V, b: V) -> V:
        """a / b, floats only."""
        return self.op("div", a, b)

    def neg(self, a: V) -> V:
        """-a."""
        return self.op("neg", a)

    def lt(self, a: V, b: V) -> V:
        """a < b."""
        return self.op("lt", a, b)

    def eq(self, a: V, b: V) -> V:
        """a == b."""
        return self.op("eq", a, b)

    def where(self, cond: V, a: V, b: V) -> V:
        """`a` where `cond`, else `b`."""
        return self.op("where", cond, a, b)
