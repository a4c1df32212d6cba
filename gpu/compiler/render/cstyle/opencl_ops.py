"""Scalar operations, casts and folds as OpenCL C expressions.

Every result is the one `gpu/compiler/ir/evaluate.py` fixes, given operands for which OpenCL C
defines it: `gpu/compiler/lower/edges.py` has seen to that. Sums of signed integers, which are to
wrap, are made of unsigned ones.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.render.cstyle.opencl_text import (
    Emitter,
    Type,
    Value,
    condition,
    constant,
    converted_to,
    element_of,
    integer,
    same_bits,
)
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported

_ARITHMETIC: Final = {"add": "+", "sub": "-", "mul": "*"}
_BITWISE: Final = {"and": "&", "or": "|", "xor": "^"}
_PLAIN: Final = {**_BITWISE, "tdiv": "/", "tmod": "%", "shl": "<<", "shr": ">>"}
_BOOL_BINARY: Final = {**_BITWISE, "max": "|", "min": "&"}
_COMPARISONS: Final = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_FUNCTIONS: Final = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "rint": "rint", "trunc": "trunc", "fma": "fma",
}  # fmt: skip
# One instruction each on most machines, where PoCL's library spells them out.
_CLANG_FUNCTIONS: Final = {
    **_FUNCTIONS,
    "abs": "__builtin_elementwise_abs",
    "floor": "__builtin_elementwise_floor",
    "rint": "__builtin_elementwise_roundeven",
    "trunc": "__builtin_elementwise_trunc",
}


class Ops:
    """Prints operations with an emitter, for one device.

    Attributes:
        emitter: where the statements go.
        clang: the compiler has clang's built-in functions.
        through_double: float32 is divided, and its roots are taken, in float64, which gives the
            correctly rounded result where the device's own is not: 53 bits are enough to round
            twice (Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter 30(3), 1995).
    """

    def __init__(self, emitter: Emitter, clang: bool = False, through_double: bool = False):
        self.emitter, self.clang, self.through_double = emitter, clang, through_double

    def alu(self, name: str, dtype: DType, args: list[Value]) -> Value:
        """The operation `name` on operands of `dtype` (for `where`, that of the last two)."""
        emitter = self.emitter
        if name in _COMPARISONS:
            return emitter.bool_of(f"{args[0]} {_COMPARISONS[name]} {args[1]}", args[0].type)
        if name == "where":
            mask, a, b = args
            return emitter.value(a.type, f"{condition(mask, a.type)} ? {a} : {b}")
        if dtype is dtypes.bool:
            return self._bool_op(name, args)
        if dtype.is_float:
            return self._float_op(name, args)
        return self._int_op(name, args)

    def _bool_op(self, name: str, args: list[Value]) -> Value:
        kind = args[0].type
        if name == "not":
            return self.emitter.wrapped(kind, f"{args[0]} ^ {integer(kind, 1)}")
        return self.emitter.wrapped(kind, f"{args[0]} {_BOOL_BINARY[name]} {args[1]}")

    def _float_op(self, name: str, args: list[Value]) -> Value:
        kind = args[0].type
        if name in ("div", "sqrt") and self.through_double and kind.bits == 32:
            wide = [Value(kind.of("double"), converted_to("double", x)) for x in args]
            result = Value(wide[0].type, f"({self._float_text(name, wide)})")
            return self.emitter.value(kind, converted_to("float", result))
        return self.emitter.value(kind, self._float_text(name, args))

    def _float_text(self, name: str, args: list[Value]) -> str:
        if name in _ARITHMETIC or name == "div":
            return f"{args[0]} {_ARITHMETIC.get(name, '/')} {args[1]}"
        if name == "neg":
            return f"-{args[0]}"
        function = (_CLANG_FUNCTIONS if self.clang else _FUNCTIONS)[name]
        return f"{function}({', '.join(map(str, args))})"

    def _int_op(self, name: str, args: list[Value]) -> Value:
        kind = args[0].type
        if name in _PLAIN:
            return self.emitter.wrapped(kind, f"{args[0]} {_PLAIN[name]} {args[1]}")
        if name == "not":
            return self.emitter.wrapped(kind, f"~{args[0]}")
        if name in _ARITHMETIC:
            a, b = (_unsigned(x) for x in args)
            return self._from_unsigned(kind, f"{a} {_ARITHMETIC[name]} {b}")
        if name == "neg":
            return self._from_unsigned(kind, f"-{_unsigned(args[0])}")
        if name == "abs":  # of the unsigned type (6.12.3)
            return self.emitter.value(kind, f"as_{kind}(abs({args[0]}))")
        return self.emitter.value(kind, f"{name}({args[0]}, {args[1]})")

    def _from_unsigned(self, kind: Type, expression: str) -> Value:
        if kind.lanes == 1:
            return self.emitter.value(kind, f"({kind})({expression})")
        result = Value(kind.unsigned, f"({expression})")
        return self.emitter.value(kind, same_bits(kind.element, result))

    def cast(self, x: Value, source: DType, target: DType) -> Value:
        """`x` of dtype `source` converted by value to `target`.

        Raises Unsupported for narrow floats, float16 from and to float32 aside.
        """
        emitter = self.emitter
        if source is target:
            return x
        if (source, target) == (dtypes.float16, dtypes.float32):
            half = Value(x.type.of("half"), same_bits("half", x))
            return emitter.value(x.type.of("float"), f"convert_{x.type.of('float')}({half})")
        if (source, target) == (dtypes.float32, dtypes.float16):
            kind = x.type.of("half")
            half = Value(kind, f"convert_{kind}_rte({x})")
            return emitter.value(x.type.of("ushort"), same_bits("ushort", half))
        if narrow := [d.name for d in (source, target) if d.is_float and d.bits < 32]:
            raise Unsupported(
                f"OpenCL renderer: no conversion from {source.name} to {target.name}; legalize"
                f" {' and '.join(narrow)} before rendering"
            )
        if target is dtypes.bool:
            return emitter.bool_of(f"{x} != {constant(source, x.type.lanes, 0)}", x.type)
        element = element_of(target)
        return emitter.value(x.type.of(element), converted_to(element, x))

    def bitcast(self, x: Value, source: DType, target: DType) -> Value:
        """The bits of `x`; a bool is a byte of 0 or 1, and any other byte reads as true."""
        if source is not dtypes.bool and target is dtypes.bool:
            unsigned = Value(x.type.unsigned, same_bits("uchar", x))
            return self.emitter.bool_of(f"{unsigned} != {integer(unsigned.type, 0)}", unsigned.type)
        element = element_of(target)
        if x.type.element == element:
            return x
        return self.emitter.value(x.type.of(element), same_bits(element, x))

    def ramp(self, base: Value, step: int, lanes: int) -> Value:
        """The long vector base + step * lane."""
        if lanes == 1:
            return base
        kind = Type("long", lanes)
        offsets = ", ".join(constant(dtypes.int64, 1, step * i).text for i in range(lanes))
        return self.emitter.value(kind, f"({kind})({base}) + ({kind})({offsets})")

    def shuffle(self, a: Value, b: Value, lanes: tuple[int, ...]) -> Value:
        """Lanes picked from `a` and `b`, joined in this order; either may be a scalar.

        Clang takes lanes one by one from where they were loaded, through shuffles before this
        one, and finds no good shuffles for what that leaves; its built-in function stays whole.
        """
        if self.clang and a.type == b.type and min(a.type.lanes, len(lanes)) > 1:
            picked = ", ".join(map(str, lanes))
            kind = Type(a.type.element, len(lanes))
            return self.emitter.value(kind, f"__builtin_shufflevector({a}, {b}, {picked})")
        both = [*a.lanes(), *b.lanes()]
        kind = Type(a.type.element, len(lanes))
        return self.emitter.vector(kind, [both[lane] for lane in lanes])

    def fold(self, monoid: str, dtype: DType, vector: Value) -> Value:
        """The lanes combined by the monoid named: halves the vector until one lane is left."""
        combine = MONOIDS[monoid].combine
        while (lanes := vector.type.lanes) > 1:
            half = lanes // 2
            low = self.shuffle(vector, vector, tuple(range(half)))
            high = self.shuffle(vector, vector, tuple(range(half, lanes)))
            vector = self.alu(combine, dtype, [low, high])
        return vector


def _unsigned(x: Value) -> str:
    """An integer as unsigned: of 32 bits at least where it is a scalar, as C would promote it."""
    kind = x.type
    if kind.lanes == 1:
        return f"(ulong){x}" if kind.bits == 64 else f"(uint){x}"
    return same_bits(kind.unsigned.element, x)
