"""Scalar operations and casts as NIR.

Every result is the one `gpu/compiler/ir/evaluate.py` fixes, given operands for which NIR defines
it: `gpu/compiler/lower/edges.py` has seen to that.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.render.nir import exact
from gpu.compiler.render.nir.emit import Emitter, Value
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported

_FLOAT: Final = {
    "add": "fadd", "mul": "fmul", "neg": "fneg", "abs": "fabs", "floor": "ffloor",
    "rint": "fround_even", "trunc": "ftrunc", "fma": "ffma", "lt": "flt", "eq": "feq", "ne": "fneu",
}  # fmt: skip
_INTEGER: Final = {
    "add": "iadd", "sub": "isub", "mul": "imul", "and": "iand", "or": "ior", "xor": "ixor",
    "neg": "ineg", "not": "inot", "eq": "ieq", "ne": "ine",
}  # fmt: skip
_SIGNED: Final = {"lt": "ilt", "max": "imax", "min": "imin", "tdiv": "idiv", "tmod": "irem"}
_UNSIGNED: Final = {"lt": "ult", "max": "umax", "min": "umin", "tdiv": "udiv", "tmod": "umod"}
_BOOL: Final = {
    "and": "iand", "or": "ior", "xor": "ixor", "max": "ior", "min": "iand", "not": "inot",
    "ne": "ixor",
}  # fmt: skip


def alu(e: Emitter, name: str, dtype: DType, args: list[Value], last: int | None) -> Value:
    """The operation ``name`` on operands of ``dtype`` (for `where`, that of the last two).

    ``last`` is the last operand's value where that is known.
    """
    if name == "where":
        return e.select(*args)
    if dtype.is_float:
        return _float_op(e, name, args)
    if dtype is dtypes.bool:
        return _bool_op(e, name, args)
    if name in ("tdiv", "tmod"):
        return _division(e, name, dtype, (args[0], args[1]), last)
    if name in ("shl", "shr"):
        return _shift(e, name, dtype, (args[0], args[1]), last)
    return _int_op(e, name, dtype, args)


def _float_op(e: Emitter, name: str, args: list[Value]) -> Value:
    match name:
        case "sub":
            return e.alu("fadd", args[0], e.alu("fneg", args[1]))
        case "le":
            return e.alu("fge", args[1], args[0])
        case "div":
            return exact.divide(e, *args)
        case "sqrt":
            return exact.square_root(e, *args)
    return e.alu(_FLOAT[name], *args)


def _bool_op(e: Emitter, name: str, args: list[Value]) -> Value:
    match name:
        case "eq":
            return e.alu("inot", e.alu("ixor", *args))
        case "lt":
            return e.alu("iand", e.alu("inot", args[0]), args[1])
        case "le":
            return e.alu("ior", e.alu("inot", args[0]), args[1])
    return e.alu(_BOOL[name], *args)


def _int_op(e: Emitter, name: str, dtype: DType, args: list[Value]) -> Value:
    if name == "le":
        return e.alu("ige" if dtype.is_signed else "uge", args[1], args[0])
    if name == "abs":
        return e.alu("iabs", *args) if dtype.is_signed else args[0]
    named = _INTEGER.get(name) or (_SIGNED if dtype.is_signed else _UNSIGNED)[name]
    return e.alu(named, *args)


def _division(
    e: Emitter, name: str, dtype: DType, args: tuple[Value, Value], by: int | None
) -> Value:
    """`a / b` or `a % b`, rounded toward zero; by a power of two, without dividing."""
    a, b = args
    if by is not None and by > 0 and not by & by - 1 and not dtype.is_signed:
        if name == "tmod":
            return e.alu("iand", a, e.integer(a.bits, by - 1))
        return e.shift("ushr", a, e.integer(32, by.bit_length() - 1))
    return e.alu((_SIGNED if dtype.is_signed else _UNSIGNED)[name], a, b)


def _shift(
    e: Emitter, name: str, dtype: DType, args: tuple[Value, Value], count: int | None
) -> Value:
    """`a` shifted by a count, of which NIR takes 32 bits."""
    a, b = args
    op = "ishl" if name == "shl" else "ishr" if dtype.is_signed else "ushr"
    return e.shift(op, a, e.resize(b, 32) if count is None else e.integer(32, count))


def cast(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    """`x` of dtype ``source`` converted by value to ``target``.

    Raises Unsupported for narrow floats, float16 from and to float32 aside.
    """
    if source is target:
        return x
    if (source, target) == (dtypes.float32, dtypes.float16):
        return e.value("f2f16_rtne", 16, x)
    from_half = (source, target) == (dtypes.float16, dtypes.float32)
    narrow = [d.name for d in (source, target) if d.is_float and d.bits < 32]
    if narrow and not from_half:
        raise Unsupported(
            f"NIR renderer: no conversion from {source.name} to {target.name}; legalize"
            f" {' and '.join(narrow)} before rendering"
        )
    if target is dtypes.bool:
        return e.alu("fneu" if source.is_float else "ine", x, e.integer(x.bits, 0))
    if target.is_float:
        kind = "b" if source is dtypes.bool else "f" if source.is_float else _letter(source)
        return e.value(f"{kind}2f{target.bits}", target.bits, x)
    if source is dtypes.bool:
        return e.value(f"b2i{target.bits}", target.bits, x)
    if source.is_float:
        return e.value(f"f2{_letter(target)}{target.bits}", target.bits, x)
    return e.resize(x, target.bits, source.is_signed)


def _letter(dtype: DType) -> str:
    return "i" if dtype.is_signed else "u"


def bitcast(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    """The bits of `x`; a bool is a byte of 0 or 1, and any other byte reads as true."""
    if source is target:
        return x
    if source is dtypes.bool:
        return e.value("b2i8", 8, x)
    if target is dtypes.bool:
        return e.alu("ine", x, e.integer(8, 0))
    return x
