"""Pieces of text in languages like C: types, values, constants, and an emitter of statements.

C for clang has `ext_vector_type` for vectors (clang's "Language Extensions", section on vectors),
OpenCL C built-in ones, whose operators, comparisons and `?:` both work lane by lane: most
expressions read the same for scalars and vectors, and in all languages. What does not is in a
`Language`. A bool is a byte of 0 or 1; a narrow float is an unsigned integer of its bits. Sections
named here are those of the OpenCL C specification 1.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu.compiler.ir.evaluate import bitcast
from gpu.compiler.ir.optable import scalar
from gpu.compiler.render.cstyle.flow import Statements
from gpu.core.dtype import DType, PyScalar, dtypes

PATTERNS: Final = {
    8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Language:
    """The words in which languages differ; braces stand for what is said of each.

    Attributes:
        words: types of elements, from what they are called here: i8, u8, ..., f32, f64 and half.
        vector: a type of {lanes} of an {element}.
        lane: what picks the lane with a {number} of a vector.
        make: a vector of a {kind} made of {lanes}.
        literal: a constant of a {kind}: {number}.
        long: suffix of literals of 64 bits.
        least: -2**63, which has no literal, of a {kind}.
        convert, convert_vector: `x` converted to a {kind} by value.
        truth: a bool of a {kind} from a {comparison} of scalars.
        compared: the {comparison} of vectors as an operand.
        mask: a {vector} of integers as what selects: {zero} is its constant.
        casts_vectors: whether a cast of a vector, to its own type too, keeps its bits.
    """

    words: Mapping[str, str]
    vector: str
    lane: str
    make: str
    literal: str
    long: str
    least: str
    convert: str
    convert_vector: str
    truth: str
    compared: str
    mask: str
    casts_vectors: bool

    def type(self, element: str, lanes: int = 1) -> Type:
        """A type by what its elements are called here."""
        return Type(self, element, lanes)

    def type_of(self, dtype: DType, lanes: int = 1) -> Type:
        """The type of values of a dtype, and of their memory."""
        if dtype is dtypes.bool:
            return Type(self, "u8", lanes)
        letter = "i" if dtype.is_int and dtype.is_signed else "u"
        letter = "f" if dtype.is_float and dtype.bits >= 32 else letter
        return Type(self, f"{letter}{dtype.bits}", lanes)

    def constant(self, dtype: DType, lanes: int, value: PyScalar) -> Value:
        """A constant of the linear IR: `value` in each of `lanes` lanes; integers wrap."""
        array = scalar(dtype)(value)
        kind = self.type_of(dtype, lanes)
        if kind.element[0] == "f":
            return Value(kind, self.real(kind, float(array)))
        number = bitcast(array, PATTERNS[dtype.bits]) if dtype.is_float else array
        return integer(kind, int(number))

    def real(self, kind: Type, value: float) -> str:
        """A float in each lane, as an expression."""
        if math.isfinite(value):
            literal = value.hex() + ("f" if kind.bits == 32 else "")
        else:
            literal = self.special(kind.scalar, value)
        return self.literal.format(kind=kind, number=literal)

    def special(self, kind: Type, value: float) -> str:
        """An infinity or a NaN, by its bits: macros for these are of type float."""
        dtype = dtypes.float32 if kind.bits == 32 else dtypes.float64
        pattern = int(bitcast(scalar(dtype)(value), PATTERNS[kind.bits]))
        return self.same_bits(kind, f"({kind.unsigned})({pattern:#x}UL)")

    def same_bits(self, kind: Type, expression: str) -> str:
        """The bits of an expression as a type of the same width."""
        return f"as_{kind}({expression})"


class Type(NamedTuple):
    """A type: `lanes` elements, a scalar where that is 1. Printed as its language spells it."""

    language: Language
    element: str
    lanes: int = 1

    def __str__(self) -> str:
        word = self.language.words[self.element]
        if self.lanes == 1:
            return word
        return self.language.vector.format(element=word, lanes=self.lanes)

    @property
    def bits(self) -> int:
        """Of one element."""
        return 16 if self.element == "half" else int(self.element[1:])

    @property
    def scalar(self) -> Type:
        """One element."""
        return self._replace(lanes=1)

    def of(self, element: str) -> Type:
        """As many lanes of another element."""
        return self._replace(element=element)

    @property
    def signed(self) -> Type:
        """Signed integers of the same width: what a comparison of vectors gives (6.3.d)."""
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
        picked = self.type.language.lane.format(number=number)
        return self.text if self.type.lanes == 1 else f"{self.text}{picked}"

    def lanes(self) -> list[str]:
        """All lanes as expressions."""
        return [self.lane(number) for number in range(self.type.lanes)]


def integer(kind: Type, value: int) -> Value:
    """The integer `value` in every lane of an integer type that holds it."""
    language = kind.language
    if value == -(1 << 63):
        return Value(kind, language.least.format(kind=kind, most=f"{(1 << 63) - 1}{language.long}"))
    number = f"{value}{'U' if value >= 1 << 63 else ''}{language.long}"
    return Value(kind, language.literal.format(kind=kind, number=number))


class Emitter(Statements[Value]):
    """Collects the statements of one function, and names its variables."""

    def use(self, kind: Type) -> Type:
        """Notes that a type is used; returns it."""
        return kind

    def value(self, kind: Type, expression: str) -> Value:
        """A new variable that holds an expression of its type."""
        name = self.name()
        self.line(f"{self.use(kind)} {name} = {expression};")
        return Value(kind, name)

    def copy(self, value: Value) -> Value:
        """A new variable that holds a value."""
        return self.value(value.type, value.text)

    def cast(self, kind: Type, expression: str) -> Value:
        """A new variable that holds an expression of integers of a type.

        A scalar that C promoted to int wraps into it.
        """
        casts = kind.lanes == 1 or kind.language.casts_vectors
        return self.value(kind, f"({self.use(kind)})({expression})" if casts else expression)

    def vector(self, kind: Type, lanes: list[str]) -> Value:
        """A new variable made of one expression for each lane."""
        if kind.lanes == 1:
            return self.value(kind, lanes[0])
        made = kind.language.make.format(kind=self.use(kind), lanes=", ".join(lanes))
        return self.value(kind, made)

    def converted(self, x: Value, element: str) -> str:
        """An expression for `x` with each lane converted by value to another element type.

        Integers wrap, other values round to nearest (6.2.3).
        """
        kind = x.type.of(element)
        if kind == x.type:
            return x.text
        language = kind.language
        pattern = language.convert if kind.lanes == 1 else language.convert_vector
        return pattern.format(kind=self.use(kind), x=x)

    def bool_of(self, comparison: str, compared: Type) -> Value:
        """A bool from a comparison of operands of type `compared`.

        Which gives 1 for true in scalars, and -1 in the lanes of vectors (6.3.d).
        """
        kind, language = compared.of("u8"), compared.language
        if kind.lanes == 1:
            return self.value(kind, language.truth.format(kind=kind, comparison=comparison))
        lanes = Value(compared.signed, language.compared.format(comparison=comparison))
        converted = language.convert_vector.format(kind=self.use(kind), x=lanes)
        return self.value(kind, f"{converted} & {integer(kind, 1)}")

    def condition(self, x: Value, kind: Type) -> str:
        """An expression for the bool `x` that selects, by `?:`, between operands of type `kind`."""
        if kind.lanes == 1:
            return x.text
        signed = self.use(kind.signed)
        vector = self.converted(x, signed.element)
        return kind.language.mask.format(vector=vector, zero=integer(signed, 0))


OPENCL: Final = Language(
    words={
        "i8": "char", "u8": "uchar", "i16": "short", "u16": "ushort", "i32": "int", "u32": "uint",
        "i64": "long", "u64": "ulong", "half": "half", "f32": "float", "f64": "double",
    },
    vector="{element}{lanes}",
    lane=".s{number:x}",
    make="({kind})({lanes})",
    literal="(({kind})({number}))",
    long="L",
    least="(({kind})(-{most} - 1))",
    convert="({kind}){x}",
    convert_vector="convert_{kind}({x})",
    truth="({kind})({comparison})",
    compared="({comparison})",
    mask="({vector} != {zero})",
    casts_vectors=False,
)  # fmt: skip
"""OpenCL C, and CUDA C with definitions of its types."""
LANES: Final = (1, 2, 4, 8, 16)
"""Lengths of vectors that have loads, stores and shuffles of their own in OpenCL C (6.1.2)."""
