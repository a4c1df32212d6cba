"""CUDA C in the words of `opencl_text.py`: the head of every source, and operations on scalars.

Nothing is included: nvrtc knows the mathematical functions by itself, and headers may be missing.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.render.opencl_ops import Ops
from gpu.compiler.render.opencl_text import Type, Value, integer
from gpu.core.dtype import DType, dtypes

_TYPES: Final = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong",
                 "float", "double")  # fmt: skip
TYPES: Final = "\n".join(
    [
        *(f"typedef unsigned {name} u{name};" for name in ("char", "short", "int", "long")),
        # Where the host is an ARM, nvrtc's char has no sign.
        "#define char signed char",
        'static_assert(sizeof(long) == 8, "a long has 64 bits");',
        *(f"#define as_{name}(x) __builtin_bit_cast({name}, x)" for name in _TYPES),
    ]
)
"""The types of OpenCL C, and its reinterpretations of bits."""
HALVES: Final = """\
static __device__ float from_half(ushort x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
  return result;
}
static __device__ ushort to_half(float x) {
  ushort result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
}"""
"""Conversions of float16 (PTX ISA, "cvt"), whose type and functions in CUDA C are in a header."""


class CudaOps(Ops):
    """Prints operations on scalars as CUDA C, where OpenCL C has a function that it lacks."""

    def _int_op(self, name: str, args: list[Value]) -> Value:
        kind, a = args[0].type, args[0]
        if name == "abs":
            if kind == kind.unsigned:
                return a
            negated = f"({kind})(0 - ({kind.unsigned}){a})"
            return self.emitter.value(kind, f"{a} < {integer(kind, 0)} ? {negated} : {a}")
        if name in ("max", "min"):
            sign = ">" if name == "max" else "<"
            return self.emitter.value(kind, f"{a} {sign} {args[1]} ? {a} : {args[1]}")
        return super()._int_op(name, args)

    def cast(self, x: Value, source: DType, target: DType) -> Value:
        """`x` of dtype `source` converted by value to `target`, as in `Ops`."""
        if (source, target) == (dtypes.float16, dtypes.float32):
            return self.emitter.value(Type("float"), f"from_half({x})")
        if (source, target) == (dtypes.float32, dtypes.float16):
            return self.emitter.value(Type("ushort"), f"to_half({x})")
        return super().cast(x, source, target)
