"""Operations as OpenCL C.

Sums of signed integers, which are to wrap, are made of unsigned ones.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.render.cstyle.ops import CLANG, SUMS, Ops
from gpu.compiler.render.cstyle.text import OPENCL, Emitter, Language, Type, Value

_FUNCTIONS: Final = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "rint": "rint", "trunc": "trunc", "fma": "fma",
}  # fmt: skip


class OpenCLOps(Ops):
    """Prints operations for one device.

    Attributes:
        clang: the compiler has clang's built-in functions, where PoCL's library spells them out.
        through_double: float32 is divided, and its roots are taken, in float64, which gives the
            correctly rounded result where the device's own is not: 53 bits are enough to round
            twice (Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter 30(3), 1995).
    """

    def __init__(
        self,
        emitter: Emitter,
        clang: bool = False,
        through_double: bool = False,
        language: Language = OPENCL,
    ):
        super().__init__(language, emitter, {**_FUNCTIONS, **CLANG} if clang else _FUNCTIONS)
        self.clang, self.through_double = clang, through_double

    def floats(self, name: str, args: list[Value]) -> Value:
        """An operation on floats."""
        kind, converted = args[0].type, self.emitter.converted
        if not (name in ("div", "sqrt") and self.through_double and kind.bits == 32):
            return super().floats(name, args)
        wide = [Value(kind.of("f64"), converted(x, "f64")) for x in args]
        result = Value(wide[0].type, f"({self.float_text(name, wide)})")
        return self.emitter.value(kind, converted(result, "f32"))

    def integers(self, name: str, args: list[Value]) -> Value:
        """Sums of unsigned integers, and functions."""
        kind = args[0].type
        if name in SUMS:
            a, b = (_unsigned(x) for x in args)
            return self._from_unsigned(kind, f"{a} {SUMS[name]} {b}")
        if name == "neg":
            return self._from_unsigned(kind, f"-{_unsigned(args[0])}")
        if name == "abs":  # of the unsigned type (6.12.3)
            return self.emitter.value(kind, kind.language.same_bits(kind, f"abs({args[0]})"))
        return self.emitter.value(kind, f"{name}({args[0]}, {args[1]})")

    def _from_unsigned(self, kind: Type, expression: str) -> Value:
        if kind.lanes == 1:
            return self.emitter.value(kind, f"({kind})({expression})")
        result = Value(kind.unsigned, f"({expression})")
        return self.emitter.value(kind, _as(kind, result))

    def same_bits(self, element: str, x: Value) -> Value:
        """By a function for it."""
        kind = x.type.of(element)
        return self.emitter.value(kind, _as(kind, x))

    def is_set(self, x: Value) -> Value:
        """A bool from a byte, which is unsigned for that."""
        return super().is_set(Value(x.type.unsigned, _as(x.type.unsigned, x)))

    def half(self, x: Value) -> Value:
        """By conversion, of which the rounding is told."""
        kind = x.type.of("half")
        return self.same_bits("u16", Value(kind, f"convert_{kind}_rte({x})"))

    def from_half(self, x: Value) -> Value:
        """By conversion."""
        kind = x.type.of("f32")
        return self.emitter.value(kind, f"convert_{kind}({_as(x.type.of('half'), x)})")

    def joins(self, a: Value, b: Value, lanes: tuple[int, ...]) -> bool:
        """With clang alone.

        It takes lanes one by one from where they were loaded, through shuffles before this one, and
        finds no good shuffles for what that leaves; its built-in function stays whole.
        """
        return self.clang


def _as(kind: Type, x: Value) -> str:
    """The bits of each lane as a type of the same width."""
    return x.text if kind == x.type else kind.language.same_bits(kind, x.text)


def _unsigned(x: Value) -> str:
    """An integer as unsigned: of 32 bits at least where it is a scalar, as C would promote it."""
    kind = x.type
    if kind.lanes == 1:
        return f"(ulong){x}" if kind.bits == 64 else f"(uint){x}"
    return _as(kind.unsigned, x)
