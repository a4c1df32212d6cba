"""Scalar operations, constants and conversions as WGSL expressions.

WGSL has bool, i32, u32, f32 and perhaps f16. An int8 or int16 is held in an i32 that is in range,
a uint8 or uint16 in a u32, an int64 (a counter or a place in memory, which fit 32 bits) in an i32,
a narrow float in the u32 of its bits. Every result is the one `gpu/compiler/ir/evaluate.py` fixes;
where WGSL leaves one open, or refuses to compile it, the expression avoids the case. What WGSL
leaves to the device is in the table of docs/devices/webgpu.md.

From https://www.w3.org/TR/WGSL/: shifts by the width and divisions by a constant zero do not
compile (sections 8.7 and 8.8), constants may not be infinite or NaN (15.7.2), conversions of floats
clamp, to values a float32 can have (15.7.6), and max and min of a NaN are open (17.5).
"""

from __future__ import annotations

import math
import struct
from typing import Final

import numpy as np

from gpu.compiler.ir.optable import fold_cast
from gpu.core.dtype import DType, PyScalar, dtypes
from gpu.core.errors import Unsupported

# Functions that printed expressions call; the text of those that are used stands before the kernel.
HELPERS: Final = {
    # Through a variable: the compiler refuses to compute infinities and NaNs itself.
    "bits": """fn float_of_bits(bits: u32) -> f32 {
  var hidden = bits;
  return bitcast<f32>(hidden);
}""",
    "half": """fn half_of_bits(bits: u32) -> f16 {
  var hidden = bits;
  return bitcast<vec2<f16>>(hidden).x;
}""",
    "is_nan": """fn is_nan(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}""",
    "max": """fn largest(a: f32, b: f32) -> f32 {
  return select(max(a, b), a + b, is_nan(a) || is_nan(b));
}""",
    "min": """fn smallest(a: f32, b: f32) -> f32 {
  return select(min(a, b), a + b, is_nan(a) || is_nan(b));
}""",
    "opaque": """var<private> zero: u32;
fn opaque(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) ^ zero);
}""",
    "tdiv_i32": """fn tdiv_i32(a: i32, b: i32) -> i32 {
  let excluded = b == 0 || (b == -1 && a == i32(-2147483648));
  let quotient = a / select(b, 1, excluded);
  return select(quotient, 0, b == 0);
}""",
    "tmod_i32": """fn tmod_i32(a: i32, b: i32) -> i32 {
  let excluded = b == 0 || b == -1;
  return a % select(b, 1, excluded);
}""",
    "tdiv_u32": """fn tdiv_u32(a: u32, b: u32) -> u32 {
  return select(a / select(b, 1u, b == 0u), 0u, b == 0u);
}""",
    "tmod_u32": """fn tmod_u32(a: u32, b: u32) -> u32 {
  return a % select(b, 1u, b == 0u);
}""",
    "shl_i32": """fn shl_i32(a: i32, b: i32) -> i32 {
  let count = bitcast<u32>(b);
  return select(a << (count & 31u), 0, count > 31u);
}""",
    "shl_u32": """fn shl_u32(a: u32, count: u32) -> u32 {
  return select(a << (count & 31u), 0u, count > 31u);
}""",
    "shr_i32": """fn shr_i32(a: i32, b: i32) -> i32 {
  return a >> min(bitcast<u32>(b), 31u);
}""",
    "shr_u32": """fn shr_u32(a: u32, count: u32) -> u32 {
  return select(a >> (count & 31u), 0u, count > 31u);
}""",
    "to_i32": """fn to_i32(x: f32) -> i32 {
  let inside = x >= -2147483648.0f && x < 2147483648.0f;
  let outside = select(i32(-2147483648), 2147483647, x > 0.0f);
  return select(select(outside, 0, is_nan(x)), i32(select(0.0f, x, inside)), inside);
}""",
    "to_u32": """fn to_u32(x: f32) -> u32 {
  let inside = x >= 0.0f && x < 4294967296.0f;
  let outside = select(0u, 0xffffffffu, x > 0.0f);
  return select(outside, u32(select(0.0f, x, inside)), inside);
}""",
}
_BITS: Final = {8: dtypes.uint8, 16: dtypes.uint16}
_NEEDS: Final = {"max": ("is_nan",), "min": ("is_nan",), "to_i32": ("is_nan",)}

_BINARY: Final = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=",
}  # fmt: skip
_BOOL: Final = {
    "not": "!{0}", "and": "{0} && {1}", "or": "{0} || {1}", "xor": "{0} != {1}",
    "max": "{0} || {1}", "min": "{0} && {1}", "lt": "!{0} && {1}", "le": "!{0} || {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}",
}  # fmt: skip
_FLOAT: Final = {
    "neg": "-{0}", "abs": "abs({0})", "sqrt": "sqrt({0})", "floor": "floor({0})",
    "rint": "round({0})", "trunc": "trunc({0})", "fma": "fma({0}, {1}, {2})",
    "max": "largest({0}, {1})", "min": "smallest({0}, {1})",
}  # fmt: skip
NATIVE: Final = frozenset({*_BINARY, *_FLOAT, "not", "tdiv", "tmod", "shl", "shr", "where"})
"""Operations printed here, each in its domain, on bool and 32-bit numbers."""


def type_name(dtype: DType, has_f16: bool) -> str:
    """The WGSL type of a value."""
    if dtype is dtypes.bool:
        return "bool"
    if dtype is dtypes.float32:
        return "f32"
    if dtype is dtypes.float16 and has_f16:
        return "f16"
    return "i32" if dtype.kind == "int" else "u32"


class Expressions:
    """Prints expressions and remembers which helpers they call.

    Attributes:
        has_f16: whether float16 is a type, or the bits of one.
        used: helpers called so far.
    """

    def __init__(self, has_f16: bool):
        self.has_f16 = has_f16
        self.used: dict[str, None] = {}

    def use(self, helper: str) -> None:
        """Notes that a helper is called."""
        for needed in _NEEDS.get(helper, ()):
            self.use(needed)
        self.used[helper] = None

    def const(self, dtype: DType, value: PyScalar) -> str:
        """A constant. Raises Unsupported for an integer of more than 32 bits."""
        if dtype is dtypes.bool:
            return "true" if value else "false"
        if dtype is dtypes.float32:
            return self._float(float(value))
        if dtype.is_float:
            return self._bits(dtype, int(fold_cast(value, dtype, _BITS[dtype.bits], bits=True)))
        if type_name(dtype, self.has_f16) == "u32":
            return f"{value}u"
        number = int(value)
        if not dtypes.int32.min <= number <= dtypes.int32.max:
            raise Unsupported(f"WGSL: the integer {number} has more than 32 bits")
        return f"{number}i" if number >= 0 else f"i32({number})"

    def _bits(self, dtype: DType, bits: int) -> str:
        """A narrow float with these bits."""
        if type_name(dtype, self.has_f16) != "f16":
            return f"{bits:#x}u"
        self.use("half")
        return f"half_of_bits({bits:#x}u)"

    def _float(self, value: float) -> str:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        if not math.isfinite(value):
            self.use("bits")
            return f"float_of_bits({bits:#x}u)"
        is_subnormal = value != 0 and abs(value) < float(np.finfo(np.float32).tiny)
        if is_subnormal or (value == 0 and bits):
            return f"bitcast<f32>({bits:#x}u)"
        text = str(np.float32(value))
        return f"{text}f" if value >= 0 else f"({text}f)"

    def alu(self, name: str, dtype: DType, args: list[str], last: int | None) -> str:
        """An operation on operands of `dtype`; `last` is the last one's value where it is known."""
        if name == "where":
            return f"select({args[2]}, {args[1]}, {args[0]})"
        if dtype is dtypes.bool:
            return _BOOL[name].format(*args)
        if dtype is dtypes.float32:
            if name in ("max", "min"):
                self.use(name)
            if name == "ne":  # `!=` of a NaN is false in Dawn's translation to SPIR-V
                return f"!({args[0]} == {args[1]})"
            if name in _FLOAT:
                return _FLOAT[name].format(*args)
            return f"{args[0]} {_BINARY[name]} {args[1]}"
        return self._int(name, type_name(dtype, self.has_f16), args, last)

    def _int(self, name: str, kind: str, args: list[str], last: int | None) -> str:
        if name in ("shl", "shr"):
            return self._shift(name, kind, args, last)
        if name in ("tdiv", "tmod"):
            if last in (None, 0, -1):
                self.use(f"{name}_{kind}")
                return f"{name}_{kind}({args[0]}, {args[1]})"
            return f"{args[0]} {'/' if name == 'tdiv' else '%'} {args[1]}"
        if name in _BINARY:
            return f"{args[0]} {_BINARY[name]} {args[1]}"
        if name == "not":
            return f"~{args[0]}"
        if name == "neg":
            return f"-{args[0]}" if kind == "i32" else f"0u - {args[0]}"
        if name == "abs":
            return f"abs({args[0]})"
        return f"{name}({args[0]}, {args[1]})"

    def _shift(self, name: str, kind: str, args: list[str], count: int | None) -> str:
        if count is None:
            self.use(f"{name}_{kind}")
            return f"{name}_{kind}({args[0]}, {args[1]})"
        if 0 <= count < 32:
            return f"{args[0]} {'<<' if name == 'shl' else '>>'} {count}u"
        return f"{args[0]} >> 31u" if (name, kind) == ("shr", "i32") else self._zero(kind)

    def _zero(self, kind: str) -> str:
        return {"i32": "0i", "u32": "0u", "f32": "0.0f", "f16": "0.0h", "bool": "false"}[kind]

    def zero(self, dtype: DType) -> str:
        """The zero of a dtype."""
        return self._zero(type_name(dtype, self.has_f16))

    def cast(self, text: str, source: DType, target: DType) -> str:
        """A conversion by value. Raises Unsupported where it should have been legalized."""
        kinds = type_name(source, self.has_f16), type_name(target, self.has_f16)
        if target is dtypes.bool:
            zero = self.zero(source)
            if source is dtypes.float32:  # a device may take a subnormal for zero
                return f"(bitcast<u32>({text}) & 0x7fffffffu) != 0u"
            return f"{text} != {zero}"
        if source is dtypes.float32 and target in (dtypes.int32, dtypes.uint32):
            self.use(f"to_{kinds[1]}")
            return f"to_{kinds[1]}({text})"
        if target.is_float or source.is_float:
            if target.is_float and target.bits < 32 and kinds[1] != "f16":
                raise Unsupported(f"WGSL: a cast to {target.name}; legalize it before rendering")
            if source.is_float and source.bits < 32 and kinds[0] != "f16":
                raise Unsupported(f"WGSL: a cast of {source.name}; legalize it before rendering")
            return f"{kinds[1]}({text})"
        if source is dtypes.bool:
            return f"{kinds[1]}({text})"
        return self._wrap(text, kinds[0], target)

    def _wrap(self, text: str, kind: str, target: DType) -> str:
        """An integer held as `kind` in the range of `target`."""
        if target.bits >= 32:
            wanted = type_name(target, self.has_f16)
            return text if kind == wanted else f"{wanted}({text})"
        if target.kind == "int":
            return f"extractBits({text if kind == 'i32' else f'i32({text})'}, 0u, {target.bits}u)"
        return f"({text if kind == 'u32' else f'u32({text})'} & {(1 << target.bits) - 1:#x}u)"

    def bitcast(self, text: str, source: DType, target: DType) -> str:
        """The same bits as another dtype."""
        kinds = type_name(source, self.has_f16), type_name(target, self.has_f16)
        if kinds[0] == "f16":
            text, kinds = f"bitcast<u32>(vec2<f16>({text}, 0.0h))", ("u32", kinds[1])
            return self._wrap(text, "u32", target)
        if kinds[1] == "f16":
            self.use("half")
            return f"half_of_bits(u32({text}) & 0xffffu)"
        if target is dtypes.bool:
            return f"{text} != {self.zero(source)}"
        if source is dtypes.bool:
            return f"{kinds[1]}({text})"
        if source.bits == 32:
            return text if kinds[0] == kinds[1] else f"bitcast<{kinds[1]}>({text})"
        if (kinds[0] == "i32") == (target.kind == "int"):
            return text
        return self._wrap(text, kinds[0], target)
