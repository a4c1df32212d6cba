"""Pieces of C text: types, values, constants, and an emitter that declares what it prints.

Vectors are clang's `ext_vector_type`, whose comparisons, `?:`, and casts of scalars work lane by
lane (clang's "Language Extensions", section on vectors): most expressions read the same for scalars
and vectors. A bool is a byte of 0 or 1; a narrow float is an unsigned integer of its bits.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpu.compiler.ir.evaluate import bitcast
from gpu.compiler.ir.optable import scalar
from gpu.compiler.render.cstyle.flow import Statements
from gpu.core.dtype import DType, PyScalar, dtypes

_SCALARS: Final = {
    "i8": "signed char", "u8": "unsigned char", "i16": "short", "u16": "unsigned short",
    "i32": "int", "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long",
    "f32": "float", "f64": "double", "half": "__fp16",
}  # fmt: skip
PRELUDE: Final = "\n".join(
    [
        "#ifndef SYMBOL",
        "#define SYMBOL(name) name",
        "#endif",
        *(f"typedef {spelled} {name};" for name, spelled in _SCALARS.items()),
    ]
)
"""Head of every source. `SYMBOL` lets a compiler of several sources at once tell their functions
apart; types may be defined again as the same types."""
_PATTERNS: Final = {8: dtypes.uint8, 16: dtypes.uint16}


def element_of(dtype: DType) -> str:
    """The element type of values of `dtype`, and of their memory."""
    if dtype is dtypes.bool:
        return "u8"
    if dtype.is_float:
        return f"f{dtype.bits}" if dtype.bits >= 32 else f"u{dtype.bits}"
    return f"{'i' if dtype.is_signed else 'u'}{dtype.bits}"


class Type(NamedTuple):
    """A type: `lanes` elements, a scalar where that is 1. Printed as `f32` or `f32x8`."""

    element: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.element if self.lanes == 1 else f"{self.element}x{self.lanes}"

    @property
    def bits(self) -> int:
        """Of one element."""
        return 16 if self.element == "half" else int(self.element[1:])

    def of(self, element: str) -> Type:
        """As many lanes of another element."""
        return Type(element, self.lanes)

    @property
    def signed(self) -> Type:
        """Signed integers of the same width: what a comparison of vectors gives."""
        return self.of(f"i{self.bits}")

    @property
    def unsigned(self) -> Type:
        """Unsigned integers of the same width."""
        return self.of(f"u{self.bits}")


class Value(NamedTuple):
    """A typed operand: a variable, or a constant in parentheses."""

    type: Type
    text: str

    def __str__(self) -> str:
        return self.text

    def lane(self, number: int) -> str:
        """One lane as an expression."""
        return self.text if self.type.lanes == 1 else f"{self.text}[{number}]"

    def lanes(self) -> list[str]:
        """All lanes as expressions."""
        return [self.lane(number) for number in range(self.type.lanes)]


I64: Final = Type("i64")


def constant(dtype: DType, lanes: int, value: PyScalar) -> Value:
    """A constant of the linear IR: `value` in each of `lanes` lanes; integers wrap into range."""
    array = scalar(dtype)(value)
    kind = Type(element_of(dtype), lanes)
    if dtype.is_float and dtype.bits >= 32:
        return Value(kind, f"(({kind}){_float_literal(float(array), dtype)})")
    number = bitcast(array, _PATTERNS[dtype.bits]) if dtype.is_float else array
    return integer(kind, int(number))


def integer(kind: Type, value: int) -> Value:
    """The integer `value` in every lane of an integer type that holds it."""
    if value == -(1 << 63):  # C has no negative literals
        return Value(kind, f"(({kind})(-{(1 << 63) - 1}LL - 1))")
    return Value(kind, f"(({kind}){value}{'ULL' if value >= 1 << 63 else 'LL'})")


def real(kind: Type, value: float) -> Value:
    """`value`, which the format holds exactly, in every lane of a float type."""
    dtype = dtypes.float32 if kind.bits == 32 else dtypes.float64
    return constant(dtype, kind.lanes, value)


def _float_literal(value: float, dtype: DType) -> str:
    suffix = "f" if dtype is dtypes.float32 else ""
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if math.isnan(value):
        return f'{sign}__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{sign}__builtin_inf{suffix}()"
    return f"{value.hex()}{suffix}"


class Emitter(Statements[Value]):
    """Collects the statements of one function, and names its variables.

    Attributes:
        declarations: of vector types, in order of first use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.declarations: dict[str, None] = {}
        self._spares: set[str] = set()

    def use(self, kind: Type) -> Type:
        """Declares a type where it is a vector; returns it."""
        if kind.lanes > 1:
            attribute = f"__attribute__((ext_vector_type({kind.lanes})))"
            self.declarations[f"typedef {kind.element} {kind} {attribute};"] = None
        return kind

    def in_memory(self, kind: Type) -> str:
        """The name of a type as it lies in an array: aligned as its elements only are."""
        if self.use(kind).lanes == 1:
            return kind.element
        attribute = f"__attribute__((aligned({kind.bits // 8})))"
        self.declarations[f"typedef {kind} {kind}_packed {attribute};"] = None
        return f"{kind}_packed"

    def value(self, kind: Type, expression: str) -> Value:
        """A new variable that holds an expression of its type."""
        name = self.name()
        self.line(f"{self.use(kind)} {name} = {expression};")
        return Value(kind, name)

    def copy(self, value: Value) -> Value:
        """A new variable that holds a value."""
        return self.value(value.type, value.text)

    def cast(self, kind: Type, expression: str) -> Value:
        """A new variable that holds an expression converted by a C cast.

        Which keeps the bits of a vector, wraps an integer that C promoted to int, and repeats a
        scalar in all lanes of a vector.
        """
        return self.value(kind, f"({self.use(kind)})({expression})")

    def vector(self, kind: Type, lanes: list[str]) -> Value:
        """A new variable made of one expression for each lane."""
        if kind.lanes == 1:
            return self.value(kind, lanes[0])
        return self.value(kind, f"({self.use(kind)}){{{', '.join(lanes)}}}")

    def converted(self, x: Value, element: str) -> str:
        """An expression for `x` with each lane converted by value to another element type."""
        kind = x.type.of(element)
        if kind == x.type:
            return x.text
        if kind.lanes == 1:
            return f"(({kind}){x})"
        return f"__builtin_convertvector({x}, {self.use(kind)})"

    def bool_of(self, comparison: str, compared: Type) -> Value:
        """A bool from a C comparison of operands of type `compared`."""
        kind = compared.of("u8")
        if kind.lanes == 1:
            return self.value(kind, comparison)
        converted = f"__builtin_convertvector({comparison}, {self.use(kind)})"
        return self.value(kind, f"{converted} & {integer(kind, 1)}")

    def condition(self, x: Value, kind: Type) -> str:
        """An expression for the bool `x` that selects, by `?:`, between operands of type `kind`."""
        if kind.lanes == 1:
            return x.text
        self.use(kind.signed)
        return f"({self.converted(x, kind.signed.element)} != 0)"

    def spare(self, purpose: str) -> str:
        """The name of 8 bytes on the stack, zero at first; one for each `purpose`."""
        if purpose not in self._spares:
            self._spares.add(purpose)
            self.entry.append(f"  u64 {purpose}[1] = {{0}};")
        return purpose
