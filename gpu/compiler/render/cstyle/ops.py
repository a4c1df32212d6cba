"""Scalar operations, casts and folds as expressions of languages like C.

Every result is the one `gpu/compiler/ir/evaluate.py` fixes, given operands for which the language
(C with ``-fwrapv``) defines it: `gpu/compiler/lower/edges.py` has seen to that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.render.cstyle.text import Emitter, Language, Value, integer
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported

SUMS: Final = {"add": "+", "sub": "-", "mul": "*"}
_BINARY: Final = {
    **SUMS, "div": "/", "and": "&", "or": "|", "xor": "^", "tdiv": "/", "tmod": "%", "shl": "<<",
    "shr": ">>",
}  # fmt: skip
_BOOL_BINARY: Final = {"and": "&", "or": "|", "xor": "^", "max": "|", "min": "&"}
_COMPARISONS: Final = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
CLANG: Final = {
    "abs": "__builtin_elementwise_abs", "floor": "__builtin_elementwise_floor",
    "rint": "__builtin_elementwise_roundeven", "trunc": "__builtin_elementwise_trunc",
}  # fmt: skip
"""Functions of floats that clang has built in: one instruction each on most machines."""


class Ops(ABC):
    """Prints operations with an emitter; here all that the languages share.

    Attributes:
        language: its words.
        emitter: where the statements go.
        functions: those of floats, by operation.
    """

    def __init__(self, language: Language, emitter: Emitter, functions: dict[str, str]):
        self.language, self.emitter, self.functions = language, emitter, functions

    # What languages differ in.

    @abstractmethod
    def integers(self, name: str, args: list[Value]) -> Value:
        """An operation on integers that is no plain operator everywhere."""

    @abstractmethod
    def same_bits(self, element: str, x: Value) -> Value:
        """The bits of each lane as an element of the same width."""

    @abstractmethod
    def half(self, x: Value) -> Value:
        """Float32 as the bits of float16, rounded to nearest."""

    @abstractmethod
    def from_half(self, x: Value) -> Value:
        """The bits of float16 as float32."""

    @abstractmethod
    def joins(self, a: Value, b: Value, lanes: tuple[int, ...]) -> bool:
        """Whether one built-in function picks these lanes."""

    # Operations.

    def alu(self, name: str, dtype: DType, args: list[Value]) -> Value:
        """The operation `name` on operands of `dtype` (for `where`, that of the last two)."""
        emitter = self.emitter
        if name in _COMPARISONS:
            return emitter.bool_of(f"{args[0]} {_COMPARISONS[name]} {args[1]}", args[0].type)
        if name == "where":
            mask, a, b = args
            return emitter.value(a.type, f"{emitter.condition(mask, a.type)} ? {a} : {b}")
        if dtype is dtypes.bool:
            return self._bool_op(name, args)
        if dtype.is_float:
            return self.floats(name, args)
        kind = args[0].type
        if name in _BINARY and name not in SUMS:
            return emitter.cast(kind, f"{args[0]} {_BINARY[name]} {args[1]}")
        if name == "not":
            return emitter.cast(kind, f"~{args[0]}")
        return self.integers(name, args)

    def _bool_op(self, name: str, args: list[Value]) -> Value:
        kind = args[0].type
        if name == "not":
            return self.emitter.cast(kind, f"{args[0]} ^ {integer(kind, 1)}")
        return self.emitter.cast(kind, f"{args[0]} {_BOOL_BINARY[name]} {args[1]}")

    def floats(self, name: str, args: list[Value]) -> Value:
        """An operation on floats."""
        return self.emitter.value(args[0].type, self.float_text(name, args))

    def float_text(self, name: str, args: list[Value]) -> str:
        """An operation on floats as an expression."""
        if name in _BINARY:
            return f"{args[0]} {_BINARY[name]} {args[1]}"
        if name == "neg":
            return f"-{args[0]}"
        return f"{self.functions[name]}({', '.join(map(str, args))})"

    def cast(self, x: Value, source: DType, target: DType) -> Value:
        """`x` of dtype `source` converted by value to `target`.

        Raises Unsupported for narrow floats, float16 from and to float32 aside.
        """
        if source is target:
            return x
        if (source, target) == (dtypes.float16, dtypes.float32):
            return self.from_half(x)
        if (source, target) == (dtypes.float32, dtypes.float16):
            return self.half(x)
        if narrow := [d.name for d in (source, target) if d.is_float and d.bits < 32]:
            raise Unsupported(
                f"C-like renderer: no conversion from {source.name} to {target.name}; legalize"
                f" {' and '.join(narrow)} before rendering"
            )
        if target is dtypes.bool:
            zero = self.language.constant(source, x.type.lanes, 0)
            return self.emitter.bool_of(f"{x} != {zero}", x.type)
        element = self.language.type_of(target).element
        return self.emitter.value(x.type.of(element), self.emitter.converted(x, element))

    def bitcast(self, x: Value, source: DType, target: DType) -> Value:
        """The bits of `x`; a bool is a byte of 0 or 1, and any other byte reads as true."""
        if source is not dtypes.bool and target is dtypes.bool:
            return self.is_set(x)
        element = self.language.type_of(target).element
        return x if x.type.element == element else self.same_bits(element, x)

    def is_set(self, x: Value) -> Value:
        """A bool from a byte."""
        return self.emitter.bool_of(f"{x} != {integer(x.type, 0)}", x.type)

    # Lanes.

    def ramp(self, base: Value, step: int, lanes: int) -> Value:
        """The vector of 64-bit integers base + step * lane."""
        if lanes == 1:
            return base
        kind = self.emitter.use(self.language.type("i64", lanes))
        offsets = (self.language.constant(dtypes.int64, 1, step * i).text for i in range(lanes))
        made = self.language.make.format(kind=kind, lanes=", ".join(offsets))
        return self.emitter.value(kind, f"({kind})({base}) + {made}")

    def shuffle(self, a: Value, b: Value, lanes: tuple[int, ...]) -> Value:
        """Lanes picked from `a` and `b`, joined in this order; either may be a scalar."""
        kind = a.type._replace(lanes=len(lanes))
        if a.type == b.type and min(a.type.lanes, len(lanes)) > 1 and self.joins(a, b, lanes):
            picked = ", ".join(map(str, lanes))
            return self.emitter.cast(kind, f"__builtin_shufflevector({a}, {b}, {picked})")
        both = [*a.lanes(), *b.lanes()]
        return self.emitter.vector(kind, [both[lane] for lane in lanes])

    def fold(self, monoid: str, dtype: DType, vector: Value) -> Value:
        """The lanes combined by the monoid named: halves the vector until one lane is left."""
        combine = MONOIDS[monoid].combine
        leftovers: list[Value] = []
        while (lanes := vector.type.lanes) > 1:
            half = lanes // 2
            if lanes % 2:
                leftovers.append(self.shuffle(vector, vector, (lanes - 1,)))
            low = self.shuffle(vector, vector, tuple(range(half)))
            high = self.shuffle(vector, vector, tuple(range(half, 2 * half)))
            vector = self.alu(combine, dtype, [low, high])
        for leftover in leftovers:
            vector = self.alu(combine, dtype, [vector, leftover])
        return vector


class COps(Ops):
    """Operations as C for clang."""

    def __init__(self, language: Language, emitter: Emitter):
        super().__init__(language, emitter, CLANG)

    def floats(self, name: str, args: list[Value]) -> Value:
        """An operation on floats; roots have no function of vectors."""
        kind = args[0].type
        if name == "sqrt":
            function = "__builtin_sqrtf" if kind.bits == 32 else "__builtin_sqrt"
            return self.emitter.vector(kind, [f"{function}({lane})" for lane in args[0].lanes()])
        return super().floats(name, args)

    def float_text(self, name: str, args: list[Value]) -> str:
        """An operation on floats as an expression.

        `fma` is fused by -ffp-contract=on, which joins what stands in one expression and no more.
        """
        if name == "fma":
            return f"{args[0]} * {args[1]} + {args[2]}"
        return super().float_text(name, args)

    def integers(self, name: str, args: list[Value]) -> Value:
        """Operators, which wrap, and built-in functions."""
        kind = args[0].type
        if name in SUMS:
            return self.emitter.cast(kind, f"{args[0]} {SUMS[name]} {args[1]}")
        if name == "neg":
            return self.emitter.cast(kind, f"-{args[0]}")
        if name == "abs" and kind == kind.unsigned:
            return self.emitter.cast(kind, args[0].text)
        listed = ", ".join(map(str, args))
        return self.emitter.cast(kind, f"__builtin_elementwise_{name}({listed})")

    def same_bits(self, element: str, x: Value) -> Value:
        """By a cast of vectors, and a union of scalars."""
        kind = x.type.of(element)
        if kind.lanes > 1:
            return self.emitter.cast(kind, x.text)
        union = f"union {{ {x.type} from; {kind} to; }}"
        return self.emitter.value(kind, f"(({union}){{.from = {x}}}).to")

    def half(self, x: Value) -> Value:
        """By conversion to clang's type for it."""
        half = self.emitter.value(x.type.of("half"), self.emitter.converted(x, "half"))
        return self.same_bits("u16", half)

    def from_half(self, x: Value) -> Value:
        """By conversion from clang's type for it."""
        half = self.same_bits("half", x)
        return self.emitter.value(x.type.of("f32"), self.emitter.converted(half, "f32"))

    def joins(self, a: Value, b: Value, lanes: tuple[int, ...]) -> bool:
        """Always."""
        return True
