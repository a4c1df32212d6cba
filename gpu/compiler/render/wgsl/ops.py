"""Scalar operations, constants and conversions as WGSL expressions.

WGSL has bool, i32, u32, f32 and perhaps f16. An int8 or int16 is held in an i32 that is in range,
a uint8 or uint16 in a u32, an int64 (a counter or a place in memory, which fit 32 bits) in an i32,
a narrow float in the u32 of its bits. Every result is the one `gpu/compiler/ir/evaluate.py` fixes,
given operands for which WGSL defines it: `gpu/compiler/lower/edges.py` has seen to that. What WGSL
leaves to the device is in the table of docs/devices/webgpu.md.

From https://www.w3.org/TR/WGSL/: constants may not be infinite or NaN (15.7.2).
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
    "opaque": """var<private> zero: u32;
fn opaque(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) ^ zero);
}""",
}
_BITS: Final = {8: dtypes.uint8, 16: dtypes.uint16}

_BINARY: Final = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
    "tdiv": "/", "tmod": "%", "shl": "<<", "shr": ">>",
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
    "max": "max({0}, {1})", "min": "min({0}, {1})",
}  # fmt: skip
NATIVE: Final = frozenset({*_BINARY, *_FLOAT, "not", "where"})
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
        text = str(np.float32(value))
        # The shortest text for the largest number is one of a larger number.
        is_beyond = abs(float(text)) > float(np.finfo(np.float32).max)
        if is_subnormal or is_beyond or (value == 0 and bits):
            return f"bitcast<f32>({bits:#x}u)"
        return f"{text}f" if value >= 0 else f"({text}f)"

    def alu(self, name: str, dtype: DType, args: list[str]) -> str:
        """An operation on operands of `dtype`."""
        if name == "where":
            return f"select({args[2]}, {args[1]}, {args[0]})"
        if dtype is dtypes.bool:
            return _BOOL[name].format(*args)
        if dtype is dtypes.float32:
            if name == "ne":  # `!=` of a NaN is false in Dawn's translation to SPIR-V
                return f"!({args[0]} == {args[1]})"
            if name in _FLOAT:
                return _FLOAT[name].format(*args)
            return f"{args[0]} {_BINARY[name]} {args[1]}"
        return _integer(name, type_name(dtype, self.has_f16), args)

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


def _integer(name: str, kind: str, args: list[str]) -> str:
    """An operation on integers of a type, `i32` or `u32`."""
    if name in _BINARY:
        return f"{args[0]} {_BINARY[name]} {args[1]}"
    if name == "not":
        return f"~{args[0]}"
    if name == "neg":
        return f"-{args[0]}" if kind == "i32" else f"0u - {args[0]}"
    return f"{name}({', '.join(args)})"
