"""Scalar operations, casts and folds as C expressions.

Every result is the one `gpu/compiler/ir/evaluate.py` fixes, and none is undefined in C (with
``-fwrapv``): operands of shifts, divisions and conversions that C leaves open are replaced before
the operation, since a vector's `?:` behind it would already compute with the undefined lanes.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.render.cstyle.c_text import (
    Emitter,
    Type,
    Value,
    constant,
    element_of,
    integer,
    real,
)
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported

_BINARY: Final = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_BOOL_BINARY: Final = {"and": "&", "or": "|", "xor": "^", "max": "|", "min": "&"}
_COMPARISONS: Final = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_DIVISIONS: Final = {"tdiv": "/", "tmod": "%"}
_ROUNDINGS: Final = {"floor": "floor", "rint": "roundeven", "trunc": "trunc"}


def alu(
    emitter: Emitter, name: str, dtype: DType, args: list[Value], last_constant: int | None
) -> Value:
    """The operation `name` on operands of `dtype` (for `where`, that of the last two).

    `last_constant` is the last operand's value where that is known.
    """
    if name in _COMPARISONS:
        return emitter.bool_of(f"{args[0]} {_COMPARISONS[name]} {args[1]}", args[0].type)
    if name == "where":
        mask, a, b = args
        return emitter.value(a.type, f"{emitter.condition(mask, a.type)} ? {a} : {b}")
    if dtype is dtypes.bool:
        return _bool_op(emitter, name, args)
    if dtype.is_float:
        return _float_op(emitter, name, args)
    if name in _DIVISIONS:
        return _division(emitter, name, dtype, args[0], args[1], last_constant)
    if name in ("shl", "shr"):
        return _shift(emitter, name, args[0], args[1], last_constant)
    return _int_op(emitter, name, dtype, args)


def _bool_op(emitter: Emitter, name: str, args: list[Value]) -> Value:
    kind = args[0].type
    if name == "not":
        return emitter.cast(kind, f"{args[0]} ^ {integer(kind, 1)}")
    return emitter.cast(kind, f"{args[0]} {_BOOL_BINARY[name]} {args[1]}")


def _float_op(emitter: Emitter, name: str, args: list[Value]) -> Value:
    kind = args[0].type
    if name in _BINARY:
        return emitter.value(kind, f"{args[0]} {_BINARY[name]} {args[1]}")
    match name:
        case "neg":
            return emitter.value(kind, f"-{args[0]}")
        case "abs":
            return emitter.value(kind, f"__builtin_elementwise_abs({args[0]})")
        case "sqrt":
            function = "__builtin_sqrtf" if kind.bits == 32 else "__builtin_sqrt"
            return emitter.vector(kind, [f"{function}({lane})" for lane in args[0].lanes()])
        case "max" | "min":
            return _extreme(emitter, ">" if name == "max" else "<", args[0], args[1])
        case "fma":
            # Fused by -ffp-contract=on, which joins what stands in one expression and no more.
            return emitter.value(kind, f"{args[0]} * {args[1]} + {args[2]}")
    return emitter.value(kind, f"__builtin_elementwise_{_ROUNDINGS[name]}({args[0]})")


def _extreme(emitter: Emitter, comparison: str, a: Value, b: Value) -> Value:
    """NaN where either is: the comparison with a NaN is false, which leaves `b`."""
    chosen = emitter.value(a.type, f"({a} {comparison} {b}) ? {a} : {b}")
    return emitter.value(a.type, f"({a} != {a}) ? {a} : {chosen}")


def _int_op(emitter: Emitter, name: str, dtype: DType, args: list[Value]) -> Value:
    kind = args[0].type
    if name in _BINARY:
        return emitter.cast(kind, f"{args[0]} {_BINARY[name]} {args[1]}")
    if name in ("neg", "not"):
        return emitter.cast(kind, f"{'-' if name == 'neg' else '~'}{args[0]}")
    if name == "abs":
        return emitter.cast(
            kind, f"__builtin_elementwise_abs({args[0]})" if dtype.is_signed else args[0].text
        )
    return emitter.cast(kind, f"__builtin_elementwise_{name}({args[0]}, {args[1]})")


def _division(
    emitter: Emitter, name: str, dtype: DType, a: Value, b: Value, divisor: int | None
) -> Value:
    """`a / b` or `a % b`, rounded toward zero; 0 where `b` is, and wrapping for min / -1."""
    kind, sign = a.type, _DIVISIONS[name]
    if divisor not in (None, 0, -1):
        return emitter.cast(kind, f"{a} {sign} {b}")
    zero, one = integer(kind, 0), integer(kind, 1)
    unsafe = f"({b} == {zero})"
    if dtype.is_signed:
        lowest = integer(kind, int(dtype.min))
        unsafe = f"({unsafe} | (({a} == {lowest}) & ({b} == {integer(kind, -1)})))"
    # Divided by 1 instead, min is the wrapped quotient and 0 either remainder.
    divided = emitter.value(kind, f"{unsafe} ? {one} : {b}")
    result = emitter.cast(kind, f"{a} {sign} {divided}")
    if name == "tmod":
        return result
    return emitter.value(kind, f"({b} == {zero}) ? {zero} : {result}")


def _shift(emitter: Emitter, name: str, a: Value, b: Value, count: int | None) -> Value:
    """`a` shifted; counts outside [0, bits) give 0, or the sign for `shr` of a signed integer."""
    kind, sign = a.type, "<<" if name == "shl" else ">>"
    if count is not None and 0 <= count < kind.bits:
        return emitter.cast(kind, f"{a} {sign} {b}")
    unsigned, widest = emitter.use(kind.unsigned), integer(kind, kind.bits - 1)
    in_range = f"(({unsigned}){b} < {integer(unsigned, kind.bits)})"
    if name == "shr" and kind == kind.signed:
        return emitter.cast(kind, f"{a} >> ({in_range} ? {b} : {widest})")
    return emitter.cast(kind, f"({in_range} ? {a} : {integer(kind, 0)}) {sign} ({b} & {widest})")


def cast(emitter: Emitter, x: Value, source: DType, target: DType) -> Value:
    """`x` of dtype `source` converted by value to `target`.

    Raises Unsupported for narrow floats, float16 from and to float32 aside.
    """
    if source is target:
        return x
    if {source, target} == {dtypes.float16, dtypes.float32}:
        return _cast_half(emitter, x, target)
    if narrow := [d.name for d in (source, target) if d.is_float and d.bits < 32]:
        raise Unsupported(
            f"C renderer: no conversion from {source.name} to {target.name}; legalize"
            f" {' and '.join(narrow)} before rendering"
        )
    if target is dtypes.bool:
        return emitter.bool_of(f"{x} != {constant(source, x.type.lanes, 0)}", x.type)
    if source.is_float and target.is_int:
        return _float_to_int(emitter, x, target)
    element = element_of(target)
    return emitter.value(x.type.of(element), emitter.converted(x, element))


def _cast_half(emitter: Emitter, x: Value, target: DType) -> Value:
    if target is dtypes.float32:
        half = reinterpret(emitter, x, "half")
        return emitter.value(x.type.of("f32"), emitter.converted(half, "f32"))
    half = emitter.value(x.type.of("half"), emitter.converted(x, "half"))
    return reinterpret(emitter, half, "u16")


def _float_to_int(emitter: Emitter, x: Value, target: DType) -> Value:
    """Truncation that saturates, with 0 for NaN."""
    kind = x.type.of(element_of(target))
    # Powers of two, and so exact in every float format.
    low, high = (real(x.type, float(v)) for v in (int(target.min), int(target.max) + 1))
    inside = f"(({x} >= {low}) & ({x} < {high}))"
    safe = emitter.value(x.type, f"{inside} ? {x} : {real(x.type, 0.0)}")
    result = emitter.value(kind, emitter.converted(safe, kind.element))
    for comparison, limit, value in ((">=", high, target.max), ("<", low, target.min)):
        if value == 0:
            continue  # what is outside has become 0 already
        beyond = emitter.condition(emitter.bool_of(f"{x} {comparison} {limit}", x.type), kind)
        result = emitter.value(kind, f"{beyond} ? {integer(kind, int(value))} : {result}")
    return result


def bitcast(emitter: Emitter, x: Value, source: DType, target: DType) -> Value:
    """The bits of `x`; a bool is a byte of 0 or 1, and any other byte reads as true."""
    if source is not dtypes.bool and target is dtypes.bool:
        return emitter.bool_of(f"{x} != {integer(x.type, 0)}", x.type)
    return reinterpret(emitter, x, element_of(target))


def reinterpret(emitter: Emitter, x: Value, element: str) -> Value:
    """The bits of each lane as an element of the same width."""
    kind = x.type.of(element)
    if kind == x.type:
        return x
    if kind.lanes > 1:
        return emitter.cast(kind, x.text)
    union = f"union {{ {x.type} from; {kind} to; }}"
    return emitter.value(kind, f"(({union}){{.from = {x}}}).to")


def ramp(emitter: Emitter, base: Value, step: int, lanes: int) -> Value:
    """The int64 vector base + step * lane."""
    if lanes == 1:
        return base
    kind = Type("i64", lanes)
    offsets = [constant(dtypes.int64, 1, step * lane).text for lane in range(lanes)]
    return emitter.value(kind, f"({emitter.use(kind)}){base} + ({kind}){{{', '.join(offsets)}}}")


def shuffle(emitter: Emitter, a: Value, b: Value, lanes: tuple[int, ...]) -> Value:
    """Lanes picked from `a` and `b`, joined in this order; either may be a scalar."""
    kind = Type(a.type.element, len(lanes))
    if len(lanes) > 1 and a.type == b.type and a.type.lanes > 1:
        picked = ", ".join(map(str, lanes))
        return emitter.cast(kind, f"__builtin_shufflevector({a}, {b}, {picked})")
    both = [*a.lanes(), *b.lanes()]
    return emitter.vector(kind, [both[lane] for lane in lanes])


def fold(emitter: Emitter, monoid: str, dtype: DType, vector: Value) -> Value:
    """The lanes combined by the monoid named: halves the vector until one lane is left."""
    combine = MONOIDS[monoid].combine
    leftovers: list[Value] = []
    while (lanes := vector.type.lanes) > 1:
        half = lanes // 2
        if lanes % 2:
            leftovers.append(shuffle(emitter, vector, vector, (lanes - 1,)))
        low = shuffle(emitter, vector, vector, tuple(range(half)))
        high = shuffle(emitter, vector, vector, tuple(range(half, 2 * half)))
        vector = alu(emitter, combine, dtype, [low, high], None)
    for leftover in leftovers:
        vector = alu(emitter, combine, dtype, [vector, leftover], None)
    return vector
