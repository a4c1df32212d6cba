"""CUDA C in the words of OpenCL C: the head of every source, and operations on scalars.

Nothing is included: nvrtc knows the mathematical functions by itself, and headers may be missing.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.render.cstyle.grid import GridOps
from gpu.compiler.render.cstyle.opencl_memory import OpenCLAccess
from gpu.compiler.render.cstyle.text import OPENCL, Value
from gpu.compiler.render.cstyle.wide import Wide, struct_of
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
INTRINSICS: Final = """\
static __device__ float from_half(ushort x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
  return result;
}
static __device__ ushort to_half(float x) {
  ushort result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
}
#if __CUDA_ARCH__ >= 800
static __device__ ushort to_bfloat(float x) {
  ushort result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
}
#else
static __device__ ushort to_bfloat(float x) {
  uint bits = as_uint(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#endif
static __device__ int to_int(float x) {
  int result;
  asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(result) : "f"(x));
  return result;
}
static __device__ uint to_uint(float x) {
  uint result;
  asm("cvt.rzi.u32.f32 %0, %1;" : "=r"(result) : "f"(x));
  return result;
}
#if __CUDA_ARCH__ >= 800
static __device__ float larger(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}
static __device__ float smaller(float x, float y) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}
#else
static __device__ float larger(float x, float y) { return x != x || x > y ? x : y; }
static __device__ float smaller(float x, float y) { return x != x || x < y ? x : y; }
#endif"""
"""What is one instruction and has no words in CUDA C, but in headers.

Conversions of float16 and bfloat16; those to integers, which saturate and give 0 for NaN, as C
leaves open; and extremes that are NaN where an operand is. Those to bfloat16 and extremes are
instructions from sm_80 on (PTX ISA, "cvt", "max").
"""


_WORD_BITS: Final = 32
_FLOAT: Final = OPENCL.type("f32")
_EXTREMES: Final = {"max": "larger", "min": "smaller"}
_TO_INTEGERS: Final = {dtypes.int32: "to_int", dtypes.uint32: "to_uint"}


class CudaOps(GridOps):
    """Prints operations on scalars as CUDA C, where OpenCL C has a function that it lacks."""

    def floats(self, name: str, args: list[Value]) -> Value:
        """An operation on floats."""
        if name in _EXTREMES and args[0].type == _FLOAT:
            return self.emitter.value(_FLOAT, f"{_EXTREMES[name]}({args[0]}, {args[1]})")
        return super().floats(name, args)

    def cast(self, x: Value, source: DType, target: DType) -> Value:
        """`x` of dtype `source` converted by value to `target`, as in `Ops`, and bfloat16."""
        if (source, target) == (dtypes.float16, dtypes.float32):
            return self.emitter.value(_FLOAT, f"from_half({x})")
        if (source, target) == (dtypes.float32, dtypes.float16):
            return self.emitter.value(OPENCL.type("u16"), f"to_half({x})")
        if (source, target) == (dtypes.bfloat16, dtypes.float32):
            return self.emitter.value(_FLOAT, f"as_float((uint){x} << 16)")
        if (source, target) == (dtypes.float32, dtypes.bfloat16):
            return self.emitter.value(OPENCL.type("u16"), f"to_bfloat({x})")
        if source is dtypes.float32 and target in _TO_INTEGERS:
            kind = OPENCL.type_of(target)
            return self.emitter.value(kind, f"{_TO_INTEGERS[target]}({x})")
        return super().cast(x, source, target)


class CudaWide(Wide):
    """Prints loads and stores of several elements so that nvrtc 13 sees what they are."""

    def element(self, vector: Value, lane: int) -> Value:
        """One element of what was loaded; a narrow one out of its word, by a shift.

        nvrtc takes words apart by permutations of bytes, which do not merge with what follows.
        """
        kind = vector.type.scalar
        words, rest = divmod(vector.type.bits * vector.type.lanes, _WORD_BITS)
        if rest or kind.bits >= _WORD_BITS:
            return super().element(vector, lane)
        word, bit = divmod(lane * kind.bits, _WORD_BITS)
        source = f"__builtin_bit_cast(wide<uint, {words}>, {vector}).e[{word}]"
        return Value(kind, f"({kind})({source} >> {bit})")

    def place(self, access: OpenCLAccess, in_array: bool) -> str:
        """Where elements are written; in an array, which begins at a vector, counted in vectors.

        Of a sum of elements nvrtc does not see that it is a multiple, and stores one by one to
        shared memory.
        """
        if not in_array:
            return super().place(access, in_array)
        pointer = f"({struct_of(access.type)} *){access.pointer}"
        return f"({pointer})[{access.index} / {access.type.lanes}]"
