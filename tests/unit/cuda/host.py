"""CUDA C as C++ for this machine: kernels run on the CPU, the threads of a block in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.cstyle.cuda import HEAD, CUDARenderer
from gpu.compiler.render.cstyle.cuda_text import INTRINSICS
from gpu.compiler.render.cstyle.text import OPENCL
from gpu.compiler.toolchain.clang import find_clang
from unit.fibers import FIBERS, run_fibers
from unit.linear_kernels import printed

ARCH = "sm_90"
_OPTIONS = ["-x", "c++", "-std=c++20", "-O1", "-fwrapv", "-ffp-contract=off", "-w", "-shared",
            "-march=native", "-fPIC", "-fno-strict-aliasing"]  # fmt: skip
_MACHINE = (
    FIBERS
    + r"""
#define BOTH(name) static float name(float x) { return __builtin_##name##f(x); } \
                   static double name(double x) { return __builtin_##name(x); }
BOTH(sqrt) BOTH(floor) BOTH(rint) BOTH(trunc) BOTH(fabs)
static float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)
#define __syncthreads() wait_for_all()
#define __shfl_xor_sync(members, x, distance) among(members, x, distance)
template <class T> static T among(unsigned members, T x, unsigned distance) {
  const unsigned lane = threadIdx.x % 32;
  if (distance > 31 || !(members >> lane & members >> (lane ^ distance) & 1)) abort();
  return exchanged(x, distance);
}
"""
)
_INTRINSICS = """
static float from_half(ushort x) { return (float)__builtin_bit_cast(__fp16, x); }
static ushort to_half(float x) { return __builtin_bit_cast(ushort, (__fp16)x); }
static ushort to_bfloat(float x) {
  if (x != x) return 0x7fff;
  const uint bits = as_uint(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static int to_int(float x) {
  return x != x ? 0 : x >= 0x1p31f ? 0x7fffffff : x < -0x1p31f ? -0x7fffffff - 1 : (int)x;
}
static uint to_uint(float x) { return !(x > 0) ? 0 : x >= 0x1p32f ? 0xffffffff : (uint)x; }
static float larger(float x, float y) { return x != x || x > y ? x : y; }
static float smaller(float x, float y) { return x != x || x < y ? x : y; }
"""


def run_host(
    programs: Sequence[Program], arrays: Sequence[Sequence[np.ndarray]], vals: tuple[int, ...] = ()
) -> None:
    """Runs programs on arrays, one for each parameter, which they may change."""
    renderer = CUDARenderer(ARCH)
    texts = [HEAD.replace(INTRINSICS, _INTRINSICS)]
    for program in programs:
        texts.append(printed(renderer, program).replace(HEAD, ""))
    launches = [renderer.launch_data(program) for program in programs]
    cases = zip(programs, launches, strict=True)
    calls = [f"if (which == {i}) {_call(*case)}" for i, case in enumerate(cases)]
    caller = "static void call(int which) { " + " ".join(calls) + " }"
    code = "\n".join([_MACHINE, *texts, caller])
    command = [find_clang(), *_OPTIONS, "-o", "{library}", "-"]
    run_fibers(command, code, launches, arrays, vals)


def _call(program: Program, data: dict[str, int]) -> str:
    """A statement that calls a kernel with what `launch` was given."""
    types = [f"{OPENCL.type_of(p.dtype)} *" for p in program.params]
    types += ["uchar *"] * bool(data["workspace"]) + ["long"] * len(program.vals)
    arguments = ", ".join(f"({kind})given[{i}]" for i, kind in enumerate(types))
    return f"{program.name}({arguments});"
