"""Pieces of OpenCL C text: types, values, constants, and an emitter of statements.

Types are the built-in ones, whose operators, comparisons and `?:` work lane by lane: most
expressions read the same for scalars and vectors. A bool is a byte of 0 or 1; a narrow float is an
unsigned integer of its bits. Sections named here are those of the OpenCL C specification 1.2.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpu.compiler.ir.evaluate import bitcast
from gpu.compiler.ir.optable import scalar
from gpu.compiler.render.cstyle.flow import Statements
from gpu.core.dtype import DType, PyScalar, dtypes

LANES: Final = (1, 2, 4, 8, 16)
"""Lengths of vectors that have loads, stores and shuffles of their own (6.1.2)."""
_INTEGERS: Final = {8: "char", 16: "short", 32: "int", 64: "long"}
_FLOATS: Final = {"half": 16, "float": 32, "double": 64}
_BITS: Final = {
    **_FLOATS,
    **{name: bits for bits, name in _INTEGERS.items()},
    **{f"u{name}": bits for bits, name in _INTEGERS.items()},
}
_PATTERNS: Final = {
    8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64,
}  # fmt: skip


def element_of(dtype: DType) -> str:
    """The element type of values of `dtype`, and of their memory."""
    if dtype is dtypes.bool:
        return "uchar"
    if dtype.is_float and dtype.bits >= 32:
        return "float" if dtype.bits == 32 else "double"
    signed = _INTEGERS[dtype.bits]
    return signed if dtype.is_signed and not dtype.is_float else f"u{signed}"


class Type(NamedTuple):
    """A type: `lanes` elements, a scalar where that is 1. Printed as `float` or `float8`."""

    element: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.element if self.lanes == 1 else f"{self.element}{self.lanes}"

    @property
    def bits(self) -> int:
        """Of one element."""
        return _BITS[self.element]

    @property
    def is_float(self) -> bool:
        """Whether the elements are floats, to OpenCL."""
        return self.element in _FLOATS

    def of(self, element: str) -> Type:
        """As many lanes of another element."""
        return Type(element, self.lanes)

    @property
    def signed(self) -> Type:
        """Signed integers of the same width: what a comparison of vectors gives (6.3.d)."""
        return self.of(_INTEGERS[self.bits])

    @property
    def unsigned(self) -> Type:
        """Unsigned integers of the same width."""
        return self.of(f"u{_INTEGERS[self.bits]}")


class Value(NamedTuple):
    """A typed operand: a variable, or a constant in parentheses."""

    type: Type
    text: str

    def __str__(self) -> str:
        return self.text

    def lane(self, number: int) -> str:
        """One lane as an expression."""
        return self.text if self.type.lanes == 1 else f"{self.text}.s{number:x}"

    def lanes(self) -> list[str]:
        """All lanes as expressions."""
        return [self.lane(number) for number in range(self.type.lanes)]


I64: Final = Type("long")


def constant(dtype: DType, lanes: int, value: PyScalar) -> Value:
    """A constant of the linear IR: `value` in each of `lanes` lanes; integers wrap into range."""
    array = scalar(dtype)(value)
    kind = Type(element_of(dtype), lanes)
    if kind.is_float:
        return real(kind, float(array))
    number = bitcast(array, _PATTERNS[dtype.bits]) if dtype.is_float else array
    return integer(kind, int(number))


def integer(kind: Type, value: int) -> Value:
    """The integer `value` in every lane of an integer type that holds it."""
    if value == -(1 << 63):  # C has no negative literals
        return Value(kind, f"(({kind})(-{(1 << 63) - 1}L - 1))")
    return Value(kind, f"(({kind})({value}{'UL' if value >= 1 << 63 else 'L'}))")


def real(kind: Type, value: float) -> Value:
    """`value`, which the format holds exactly, in every lane of a float type."""
    if math.isfinite(value):
        literal = value.hex() + ("f" if kind.bits == 32 else "")
    else:  # the macros for these are of type float
        dtype = dtypes.float32 if kind.bits == 32 else dtypes.float64
        pattern = int(bitcast(scalar(dtype)(value), _PATTERNS[kind.bits]))
        unsigned = Type(kind.element).unsigned
        literal = f"as_{kind.element}(({unsigned})({pattern:#x}UL))"
    return Value(kind, f"(({kind})({literal}))")


class Emitter(Statements[Value]):
    """Collects the statements of one kernel, and names its variables."""

    def copy(self, value: Value) -> Value:
        """A new variable that holds a value."""
        return self.value(value.type, value.text)

    def value(self, kind: Type, expression: str) -> Value:
        """A new variable that holds an expression of its type."""
        name = self.name()
        self.line(f"{kind} {name} = {expression};")
        return Value(kind, name)

    def wrapped(self, kind: Type, expression: str) -> Value:
        """A new variable of an integer type; a scalar that C promoted to int wraps into it."""
        return self.value(kind, f"({kind})({expression})" if kind.lanes == 1 else expression)

    def vector(self, kind: Type, lanes: list[str]) -> Value:
        """A new variable made of one expression for each lane, or of one for all."""
        if kind.lanes == 1:
            return self.value(kind, lanes[0])
        return self.value(kind, f"({kind})({', '.join(lanes)})")

    def bool_of(self, comparison: str, compared: Type) -> Value:
        """A bool from a comparison of operands of type `compared`.

        Which gives 1 for true in scalars, and -1 in the lanes of vectors (6.3.d).
        """
        kind = compared.of("uchar")
        if kind.lanes == 1:
            return self.value(kind, f"({kind})({comparison})")
        converted = converted_to("uchar", Value(compared.signed, f"({comparison})"))
        return self.value(kind, f"{converted} & {integer(kind, 1)}")


def converted_to(element: str, x: Value) -> str:
    """An expression for `x` with each lane converted by value to another element type.

    Integers wrap, other values round to nearest (6.2.3).
    """
    kind = x.type.of(element)
    if kind == x.type:
        return x.text
    return f"({kind}){x}" if kind.lanes == 1 else f"convert_{kind}({x})"


def same_bits(element: str, x: Value) -> str:
    """An expression for the bits of each lane as an element of the same width."""
    kind = x.type.of(element)
    return x.text if kind == x.type else f"as_{kind}({x})"


def condition(x: Value, kind: Type) -> str:
    """An expression for the bool `x` that selects, by `?:`, between operands of type `kind`."""
    if kind.lanes == 1:
        return x.text
    wide = Value(kind.signed, converted_to(kind.signed.element, x))
    return f"({wide} != {integer(kind.signed, 0)})"
