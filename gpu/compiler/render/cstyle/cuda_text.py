"""CUDA C in the words of OpenCL C: the head of every source, and operations on scalars.

Nothing is included: nvrtc knows the mathematical functions by itself, and headers may be missing.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.render.cstyle.grid import GridOps
from gpu.compiler.render.cstyle.opencl_memory import OpenCLAccess
from gpu.compiler.render.cstyle.text import OPENCL, Type, Value
from gpu.compiler.render.cstyle.wide import Wide
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


VECTORS: Final = (
    "template <class T, int N> struct __attribute__((aligned(sizeof(T) * N))) vec { T e[N]; };"
)
"""The type of some elements."""
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
    """By structs as aligned as they are large, which nvrtc moves in one instruction.

    Their members have the type of the memory they lie in, so that other accesses to it are seen to
    touch the same.
    """

    def load(self, access: OpenCLAccess) -> Value:
        """A variable with the elements."""
        name, struct = self.emitter.name("wide"), _struct(access.type)
        source = f"*(const {struct} *)({access.start})"
        if access.mask is None:
            self.emitter.line(f"const {struct} {name} = {source};")
        else:
            self.emitter.line(f"{struct} {name} = {{}};")
            self.emitter.line(f"if ({access.mask}) {name} = {source};")
        return Value(access.type, name)

    def element(self, vector: Value, lane: int) -> Value:
        """One element; a narrow one out of its word, by a shift.

        nvrtc takes words apart by permutations of bytes, which do not merge with what follows.
        """
        kind = vector.type.scalar
        words, rest = divmod(vector.type.bits * vector.type.lanes, _WORD_BITS)
        if rest or kind.bits >= _WORD_BITS:
            return Value(kind, f"{vector}.e[{lane}]")
        word, bit = divmod(lane * kind.bits, _WORD_BITS)
        source = f"__builtin_bit_cast(vec<uint, {words}>, {vector}).e[{word}]"
        return Value(kind, f"({kind})({source} >> {bit})")

    def pack(self, elements: list[Value]) -> Value:
        """A variable with the elements."""
        kind = elements[0].type._replace(lanes=len(elements))
        name = self.emitter.name("wide")
        listed = ", ".join(map(str, elements))
        self.emitter.line(f"const {_struct(kind)} {name} = {{{{{listed}}}}};")
        return Value(kind, name)

    def store(self, access: OpenCLAccess, vector: Value, in_array: bool) -> None:
        """Writes elements; those of an array, which begins at a vector, counted in vectors.

        Of a sum of elements nvrtc 13 does not see that it is a multiple, and stores one by one to
        shared memory.
        """
        guard = "" if access.mask is None else f"if ({access.mask}) "
        pointer = f"{_struct(vector.type)} *"
        place = f"*({pointer})({access.start})"
        if in_array:
            place = f"(({pointer}){access.pointer})[{access.index} / {vector.type.lanes}]"
        self.emitter.line(f"{guard}{place} = {vector};")


def _struct(kind: Type) -> str:
    return f"vec<{kind.scalar}, {kind.lanes}>"
