"""Scalar operations, casts and folds as LLVM instructions.

Every result is the one `gpu/compiler/ir/evaluate.py` fixes, given operands for which LLVM defines
it: `gpu/compiler/lower/edges.py` has seen to that.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.render.llvm.text import (
    Emitter,
    Type,
    Value,
    constant,
    integer,
    literal,
    value_element,
)
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported

_FLOAT_BINARY: Final = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_FLOAT_INTRINSICS: Final = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "rint": "roundeven", "trunc": "trunc",
    "fma": "fma",
}  # fmt: skip
_FLOAT_COMPARISONS: Final = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
_INT_BINARY: Final = {n: n for n in ("add", "sub", "mul", "and", "or", "xor", "shl")}
_INT_COMPARISONS: Final = {"lt": "lt", "le": "le"}
_BOOL_BINARY: Final = {"and": "and", "or": "or", "xor": "xor", "max": "or", "min": "and"}
_DIVISIONS: Final = {"tdiv": "div", "tmod": "rem"}


def alu(emitter: Emitter, name: str, dtype: DType, args: list[Value]) -> Value:
    """The operation `name` on operands of `dtype` (for `where`, that of the last two)."""
    if name == "where":
        return emitter.select(*args)
    if dtype.is_float:
        return _float_op(emitter, name, args)
    if name in ("eq", "ne"):
        return emitter.compare(f"icmp {name}", *args)
    if name == "not":
        return emitter.binary("xor", args[0], integer(args[0].type, -1))
    if dtype is dtypes.bool:
        return _bool_op(emitter, name, args)
    return _int_op(emitter, name, dtype, args)


def _float_op(emitter: Emitter, name: str, args: list[Value]) -> Value:
    kind = args[0].type
    if name in _FLOAT_BINARY:
        return emitter.binary(_FLOAT_BINARY[name], *args)
    if name in _FLOAT_COMPARISONS:
        return emitter.compare(f"fcmp {_FLOAT_COMPARISONS[name]}", *args)
    if name == "neg":
        return emitter.value(kind, f"fneg {args[0]}")
    if name in ("max", "min"):
        # NaN wins in llvm.maximum; the op table leaves the zero's sign open, hence nsz.
        full_name = f"llvm.{name}imum.{kind.mangled}"
        return emitter.intrinsic(full_name, kind, *args, flags="nsz ")
    return emitter.intrinsic(f"llvm.{_FLOAT_INTRINSICS[name]}.{kind.mangled}", kind, *args)


def _bool_op(emitter: Emitter, name: str, args: list[Value]) -> Value:
    if name in _BOOL_BINARY:
        return emitter.binary(_BOOL_BINARY[name], *args)
    return emitter.compare(f"icmp u{_INT_COMPARISONS[name]}", *args)


def _int_op(emitter: Emitter, name: str, dtype: DType, args: list[Value]) -> Value:
    kind, sign = args[0].type, "s" if dtype.is_signed else "u"
    if name in _INT_BINARY:
        return emitter.binary(_INT_BINARY[name], *args)
    if name in _DIVISIONS:
        return emitter.binary(f"{sign}{_DIVISIONS[name]}", *args)
    if name == "shr":
        return emitter.binary("ashr" if dtype.is_signed else "lshr", *args)
    if name in _INT_COMPARISONS:
        return emitter.compare(f"icmp {sign}{_INT_COMPARISONS[name]}", *args)
    if name == "neg":
        return emitter.binary("sub", integer(kind, 0), args[0])
    if name == "abs":
        if not dtype.is_signed:
            return args[0]
        wraps = Value(Type("i1"), "false")
        return emitter.intrinsic(f"llvm.abs.{kind.mangled}", kind, args[0], wraps)
    return emitter.intrinsic(f"llvm.{sign}{name}.{kind.mangled}", kind, *args)


def cast(emitter: Emitter, x: Value, source: DType, target: DType) -> Value:
    """`x` of dtype `source` converted by value to `target`.

    Raises Unsupported for narrow floats, float16 from and to float32 aside.
    """
    if source is target:
        return x
    if dtypes.float16 in (source, target) and dtypes.float32 in (source, target):
        return _cast_half(emitter, x, target)
    if narrow := [d.name for d in (source, target) if d.is_float and d.bits < 32]:
        raise Unsupported(
            f"LLVM renderer: no conversion from {source.name} to {target.name}; legalize"
            f" {' and '.join(narrow)} before rendering"
        )
    element = value_element(target)
    if target is dtypes.bool:
        opcode = "fcmp une" if source.is_float else "icmp ne"
        return emitter.compare(opcode, x, constant(source, x.type.lanes, 0))
    if source.is_float and target.is_float:
        return emitter.convert("fpext" if target.bits > source.bits else "fptrunc", x, element)
    if target.is_float:
        return emitter.convert("sitofp" if source.is_signed else "uitofp", x, element)
    if source.is_float:
        return emitter.convert("fptosi" if target.is_signed else "fptoui", x, element)
    if source is not dtypes.bool and target.bits <= source.bits:
        return emitter.convert("trunc", x, element)
    return emitter.convert("sext" if source.is_signed else "zext", x, element)


def _cast_half(emitter: Emitter, x: Value, target: DType) -> Value:
    if target is dtypes.float32:
        return emitter.convert("fpext", emitter.convert("bitcast", x, "half"), "float")
    return emitter.convert("bitcast", emitter.convert("fptrunc", x, "half"), "i16")


def bitcast(emitter: Emitter, x: Value, source: DType, target: DType) -> Value:
    """The bits of `x`; a bool is a byte of 0 or 1, and any other byte reads as true."""
    if source is target:
        return x
    if source is dtypes.bool:
        return emitter.convert("zext", x, "i8")
    if target is dtypes.bool:
        return emitter.compare("icmp ne", x, integer(x.type, 0))
    return emitter.convert("bitcast", x, value_element(target))


def ramp(emitter: Emitter, base: Value, step: int, lanes: int) -> Value:
    """The int64 vector base + step * lane."""
    offsets = ", ".join(f"i64 {literal(dtypes.int64, step * lane)}" for lane in range(lanes))
    spread = emitter.splat(base, lanes)
    if lanes == 1:
        return spread
    return emitter.binary("add", spread, Value(spread.type, f"<{offsets}>"))


def shuffle(emitter: Emitter, a: Value, b: Value, lanes: tuple[int, ...]) -> Value:
    """Lanes picked from `a` and `b`, joined in this order; either may be a scalar."""
    first = a.type.lanes
    width = max(first, b.type.lanes)
    if len(lanes) == 1 or width == 1:
        picked = [
            emitter.extract(a, lane) if lane < first else emitter.extract(b, lane - first)
            for lane in lanes
        ]
        return emitter.pack(picked)
    # LLVM wants both of one width; lanes of `b` count from there.
    placed = tuple(lane if lane < first else lane - first + width for lane in lanes)
    return emitter.shuffle(_widen(emitter, a, width), _widen(emitter, b, width), placed)


def _widen(emitter: Emitter, x: Value, lanes: int) -> Value:
    """`x` in the first lanes of a vector of `lanes`; what the others hold is not defined."""
    if x.type.lanes == lanes:
        return x
    if x.type.lanes == 1:
        return emitter.splat(x, lanes)
    none = Value(x.type, "poison")
    return emitter.shuffle(x, none, tuple(min(i, x.type.lanes - 1) for i in range(lanes)))


def fold(emitter: Emitter, monoid: str, dtype: DType, vector: Value) -> Value:
    """The lanes of `vector` combined by the monoid named, in any order."""
    if vector.type.lanes == 1:
        return vector
    combine = MONOIDS[monoid].combine
    if dtype.is_float:
        return _fold_float(emitter, combine, vector)
    if dtype is dtypes.bool:
        combine = _BOOL_BINARY[combine]
    elif combine in ("max", "min"):
        combine = f"{'s' if dtype.is_signed else 'u'}{combine}"
    name = f"llvm.vector.reduce.{combine}.{vector.type.mangled}"
    return emitter.intrinsic(name, Type(vector.type.element), vector)


def _fold_float(emitter: Emitter, combine: str, vector: Value) -> Value:
    """Halves the vector until one lane is left; a lane left over joins at the end."""
    leftovers: list[Value] = []
    while (lanes := vector.type.lanes) > 1:
        half = lanes // 2
        if lanes % 2:
            leftovers.append(emitter.extract(vector, lanes - 1))
        vector = _combine_halves(emitter, combine, vector, half)
    for leftover in leftovers:
        vector = _float_op(emitter, combine, [vector, leftover])
    return vector


def _combine_halves(emitter: Emitter, combine: str, vector: Value, half: int) -> Value:
    if half == 1:
        return _float_op(emitter, combine, [emitter.extract(vector, 0), emitter.extract(vector, 1)])
    none = Value(vector.type, "poison")
    low = emitter.shuffle(vector, none, tuple(range(half)))
    high = emitter.shuffle(vector, none, tuple(range(half, 2 * half)))
    return _float_op(emitter, combine, [low, high])
