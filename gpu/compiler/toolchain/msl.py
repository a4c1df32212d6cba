"""MSL on machines that are no Mac: as C++ for OpenCL, which clang compiles for a CPU.

Both languages are C++ with address spaces, of which Metal's have other names: a pointer that is
declared in a wrong one, or in none, is an error in either. What Metal's standard library has
besides is written out here as far as the kernels that are printed here need it. Barriers and
exchanges among threads are functions that whoever runs the object provides:

    void gpu_msl_barrier(uint flags)                  until all threads of the threadgroup are here
    uint gpu_msl_exchange(uint value, uint distance)  what the thread gave whose number in the
                                                      SIMD-group differs from this one's by an
                                                      exclusive or with `distance`

Attributes in brackets mean nothing to clang, so that a kernel's threads get their numbers as plain
arguments, in the order in which they are declared. Memory of a threadgroup is that of the object:
one threadgroup runs at a time. Nothing here says that Apple's compiler takes a text.
"""

from __future__ import annotations

from typing import Final

_LACKING: Final = ("__opencl_c_generic_address_space", "__opencl_c_fp64", "cl_khr_fp64",
                   "__opencl_c_pipes", "__opencl_c_device_enqueue")  # fmt: skip
MSL_OPTIONS: Final = (
    "-cl-std=clc++2021", "-cl-no-stdinc", "-O1", "-ffp-contract=off", "-fno-math-errno",
    "-Xclang", f"-cl-ext={','.join(f'-{name}' for name in _LACKING)}",
)  # fmt: skip
"""Those of C++ for OpenCL without what Metal has not: pointers to any address space, and double."""
_INCLUDE: Final = "#include <metal_stdlib>"
_VECTORS: Final = (
    "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float",
)  # fmt: skip
_FLOAT_FUNCTIONS: Final = ("fabs", "floor", "rint", "trunc")
LIBRARY: Final = "\n".join(
    [
        "#define kernel __kernel",
        "#define device __global",
        "#define constant __constant",
        "#define threadgroup __local",
        "#define thread __private",
        *(f"typedef unsigned {name} u{name};" for name in ("char", "short", "int", "long")),
        "#pragma OPENCL EXTENSION cl_khr_fp16 : enable",
        *(
            line
            for name in _VECTORS
            for lanes in (2, 3, 4)
            for line in (
                f"typedef {name} {name}{lanes} __attribute__((ext_vector_type({lanes})));",
                f"#define {name}{lanes}(...) (({name}{lanes})(__VA_ARGS__))",
            )
        ),
        "template <class To, class From> inline To as_type(From from) {",
        "  return __builtin_bit_cast(To, from);",
        "}",
        'extern "C" void gpu_msl_barrier(uint flags);',
        'extern "C" uint gpu_msl_exchange(uint value, uint distance);',
        "namespace metal {",
        "enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };",
        "inline void threadgroup_barrier(mem_flags flags) { gpu_msl_barrier((uint)flags); }",
        "template <class T> inline T simd_shuffle_xor(T value, ushort distance) {",
        "  return as_type<T>(gpu_msl_exchange(as_type<uint>(value), distance));",
        "}",
        *(
            f"inline float {name}(float x) {{ return __builtin_{name}f(x); }}"
            for name in _FLOAT_FUNCTIONS
        ),
        "inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }",
        "namespace precise { inline float sqrt(float x) { return __builtin_sqrtf(x); } }",
        "}",
    ]
)
"""Metal's address spaces, types and functions, in C++ for OpenCL."""


def with_library(source: str) -> str:
    """A source with the library in the place of its header, its lines counted as before."""
    return f'{LIBRARY}\n#line 1 "source0"\n{source.replace(_INCLUDE, "", 1)}'
