"""What expansions are written over: a `Builder`, and `Term`, its values with operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gpu.core.dtype import DType

V = TypeVar("V")
Number = bool | int | float


class Builder(Protocol[V]):
    """Makes the basic operations of some representation, `V` being its values.

    An interpreter returns arrays, a compiler nodes; an expansion cannot tell. All is lane-wise.
    """

    def op(self, name: str, *args: V) -> V:
        """Applies a basic operation. Operands have one dtype, but for ``where``'s bool condition.

        ``add sub mul rint fma`` follow IEEE 754 for floats, and ``add sub mul`` wrap for integers;
        ``fma(a, b, c)`` is ``a*b + c`` and may round once or twice. ``and or xor`` are bitwise,
        ``shl shr`` shift by less than the width (``shr`` arithmetically for signed integers),
        ``lt eq ne`` give bool, ``where(condition, a, b)`` selects. No others are used.
        """
        ...

    def const(self, dtype: DType, value: Number) -> V:
        """A constant; a float is rounded to the nearest value of `dtype`."""
        ...

    def cast(self, x: V, dtype: DType) -> V:
        """Converts by value: float to int truncates and saturates, NaN gives 0; all else rounds."""
        ...

    def bitcast(self, x: V, dtype: DType) -> V:
        """The same bits read as another dtype of the same width."""
        ...

    def dtype(self, x: V) -> DType:
        """The element type of a value."""
        ...

    def repeat(
        self, count: V, most: int, initial: tuple[V, ...], step: Callable[..., tuple[V, ...]]
    ) -> tuple[V, ...]:
        """`initial` after `count` times `step`, as `gpu.compiler.ir.builder.Builder.repeat`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Term(Generic[V]):
    """A builder's value with Python's operators, so that expansions read as formulas.

    A Python number beside a term becomes a constant of its dtype. An operator is one operation.
    """

    builder: Builder[V]
    value: V

    @property
    def dtype(self) -> DType:
        """The element type of the value."""
        return self.builder.dtype(self.value)

    def constant(self, number: Number) -> Term[V]:
        """`number` in this term's dtype."""
        return Term(self.builder, self.builder.const(self.dtype, number))

    def apply(self, name: str, *others: Term[V] | Number) -> Term[V]:
        """The operation `name` with this term as first operand."""
        operands = [o.value if isinstance(o, Term) else self.constant(o).value for o in others]
        return Term(self.builder, self.builder.op(name, self.value, *operands))

    def __add__(self, other: Term[V] | Number) -> Term[V]:
        return self.apply("add", other)

    def __sub__(self, other: Term[V] | Number) -> Term[V]:
        return self.apply("sub", other)

    def __mul__(self, other: Term[V] | Number) -> Term[V]:
        return self.apply("mul", other)

    def __and__(self, other: Term[V] | Number) -> Term[V]:
        return self.apply("and", other)

    def __or__(self, other: Term[V]) -> Term[V]:
        return self.apply("or", other)

    def __xor__(self, other: Term[V] | Number) -> Term[V]:
        return self.apply("xor", other)

    def __lshift__(self, other: Term[V] | int) -> Term[V]:
        return self.apply("shl", other)

    def __rshift__(self, other: Term[V] | int) -> Term[V]:
        return self.apply("shr", other)

    def __lt__(self, other: Term[V] | Number) -> Term[V]:
        return self.apply("lt", other)

    def equals(self, other: Term[V] | Number) -> Term[V]:
        """Bool: equal by value. A method, as `==` on terms compares identity."""
        return self.apply("eq", other)

    def differs(self, other: Term[V] | Number) -> Term[V]:
        """Bool: not equal by value."""
        return self.apply("ne", other)

    def times_plus(self, factor: Term[V] | Number, addend: Term[V] | Number) -> Term[V]:
        """``self * factor + addend``, rounded once or twice as the device likes."""
        return self.apply("fma", factor, addend)

    def select(self, if_true: Term[V], if_false: Term[V]) -> Term[V]:
        """`if_true` in the lanes where this bool term holds, else `if_false`."""
        return self.apply("where", if_true, if_false)

    def cast(self, dtype: DType) -> Term[V]:
        """Converted by value."""
        return Term(self.builder, self.builder.cast(self.value, dtype))

    def bitcast(self, dtype: DType) -> Term[V]:
        """The same bits as another dtype."""
        return Term(self.builder, self.builder.bitcast(self.value, dtype))


def polynomial(x: Term[V], coefficients: tuple[float, ...]) -> Term[V]:
    """Horner's rule: ``c[0] + c[1]*x + c[2]*x**2 + ...`` in ``len(c) - 1`` operations."""
    result = x.times_plus(coefficients[-1], coefficients[-2])
    for coefficient in reversed(coefficients[:-2]):
        result = result.times_plus(x, coefficient)
    return result


def unless_all(
    is_near: Term[V],
    near: tuple[Term[V], ...],
    anywhere: Callable[[Term[V]], tuple[Term[V], ...]],
    x: Term[V],
) -> tuple[Term[V], ...]:
    """`near` in lanes that are, else `anywhere` of x, which is computed if there is such a lane.

    The loop that runs once or not is given x as a value of its own, so that nothing of `anywhere`
    moves out of it.
    """
    b = x.builder

    def step(x: V, is_near: V, *near: V) -> tuple[V, ...]:
        right = anywhere(Term(b, x))
        chosen = (b.op("where", is_near, n, a.value) for n, a in zip(near, right, strict=True))
        return (x, is_near, *chosen)

    far = is_near ^ True
    first = (x.value, is_near.value, *(term.value for term in near))
    return tuple(Term(b, value) for value in b.repeat(far.value, 1, first, step)[2:])
