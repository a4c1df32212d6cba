"""Scalar operations, casts and folds as C expressions.

Every result is the one `gpu/compiler/ir/evaluate.py` fixes, given operands for which C (with
``-fwrapv``) defines it: `gpu/compiler/lower/edges.py` has seen to that.
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
)
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported

_BINARY: Final = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
    "tdiv": "/", "tmod": "%", "shl": "<<", "shr": ">>",
}  # fmt: skip
_BOOL_BINARY: Final = {"and": "&", "or": "|", "xor": "^", "max": "|", "min": "&"}
_COMPARISONS: Final = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_ROUNDINGS: Final = {"floor": "floor", "rint": "roundeven", "trunc": "trunc"}


def alu(emitter: Emitter, name: str, dtype: DType, args: list[Value]) -> Value:
    """The operation `name` on operands of `dtype` (for `where`, that of the last two)."""
    if name in _COMPARISONS:
        return emitter.bool_of(f"{args[0]} {_COMPARISONS[name]} {args[1]}", args[0].type)
    if name == "where":
        mask, a, b = args
        return emitter.value(a.type, f"{emitter.condition(mask, a.type)} ? {a} : {b}")
    if dtype is dtypes.bool:
        return _bool_op(emitter, name, args)
    if dtype.is_float:
        return _float_op(emitter, name, args)
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
        case "fma":
            # Fused by -ffp-contract=on, which joins what stands in one expression and no more.
            return emitter.value(kind, f"{args[0]} * {args[1]} + {args[2]}")
    return emitter.value(kind, f"__builtin_elementwise_{_ROUNDINGS[name]}({args[0]})")


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
    element = element_of(target)
    return emitter.value(x.type.of(element), emitter.converted(x, element))


def _cast_half(emitter: Emitter, x: Value, target: DType) -> Value:
    if target is dtypes.float32:
        half = reinterpret(emitter, x, "half")
        return emitter.value(x.type.of("f32"), emitter.converted(half, "f32"))
    half = emitter.value(x.type.of("half"), emitter.converted(x, "half"))
    return reinterpret(emitter, half, "u16")


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
        vector = alu(emitter, combine, dtype, [low, high])
    for leftover in leftovers:
        vector = alu(emitter, combine, dtype, [vector, leftover])
    return vector
