"""CUDA C as C++ for this machine: kernels run on the CPU, the threads of a block in turn."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.cstyle.cuda import HEAD, CUDARenderer
from gpu.compiler.render.cstyle.cuda_text import INTRINSICS
from gpu.compiler.render.cstyle.text import OPENCL
from gpu.compiler.toolchain.clang import find_clang
from unit.linear_kernels import printed

ARCH = "sm_90"
_OPTIONS = ["-x", "c++", "-std=c++20", "-O1", "-fwrapv", "-ffp-contract=off", "-w", "-shared",
            "-march=native", "-fPIC", "-fno-strict-aliasing"]  # fmt: skip
# A thread waits for the others by going back to `launch`, which lets each go on in turn.
_MACHINE = r"""
#include <stdlib.h>
#include <ucontext.h>
#define BOTH(name) static float name(float x) { return __builtin_##name##f(x); } \
                   static double name(double x) { return __builtin_##name(x); }
BOTH(sqrt) BOTH(floor) BOTH(rint) BOTH(trunc) BOTH(fabs)
static float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)
#define __syncthreads() swapcontext(&fibers[threadIdx.x], &launching)
#define __shfl_xor_sync(members, x, distance) exchanged(members, x, distance)
struct Index { unsigned x; };
static Index blockIdx, threadIdx;
static ucontext_t launching, fibers[1024];
static bool finished[1024];
static void **given;
static int chosen;
template <class T> static T exchanged(unsigned members, T x, unsigned distance) {
  static T given_by[1024];
  const unsigned lane = threadIdx.x % 32;
  if (distance > 31 || !(members >> lane & members >> (lane ^ distance) & 1)) abort();
  given_by[threadIdx.x] = x;
  __syncthreads();
  const T result = given_by[threadIdx.x ^ distance];
  __syncthreads();
  return result;
}
static void call(int which);
static void whole_thread() { call(chosen); finished[threadIdx.x] = true; }
extern "C" int launch(int which, void **arguments, long blocks, unsigned threads) {
  chosen = which;
  const size_t size = 1 << 18;
  char *stacks = (char *)malloc(size * threads);
  given = arguments;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    for (unsigned t = 0; t < threads; t++) {
      finished[t] = false;
      getcontext(&fibers[t]);
      fibers[t].uc_stack.ss_sp = stacks + size * t;
      fibers[t].uc_stack.ss_size = size;
      fibers[t].uc_link = &launching;
      makecontext(&fibers[t], whole_thread, 0);
    }
    for (unsigned left = threads; left;) {
      unsigned arrived = 0;
      for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
        swapcontext(&launching, &fibers[threadIdx.x]);
        if (finished[threadIdx.x]) left--; else arrived++;
      }
      if (left && arrived != threads) return 1;
    }
  }
  free(stacks);
  return 0;
}
"""
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
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        command = [find_clang(), *_OPTIONS, "-o", str(library), "-"]
        code = "\n".join([_MACHINE, *texts, caller])
        done = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        launch = ctypes.CDLL(str(library)).launch
        for number, (data, given) in enumerate(zip(launches, arrays, strict=True)):
            _launch(partial(launch, number), data, given, vals)


def _launch(
    launch: Callable[..., int],
    data: dict[str, int],
    arrays: Sequence[np.ndarray],
    vals: tuple[int, ...],
) -> None:
    buffers = [_aligned(array) for array in arrays]
    workspace = [_aligned(np.zeros(data["workspace"], np.uint8))] if data["workspace"] else []
    words = [b.ctypes.data for b in (*buffers, *workspace)] + list(vals)
    arguments = (ctypes.c_int64 * len(words))(*words)
    failed = launch(arguments, ctypes.c_long(data["groups"]), data["block"])
    assert not failed, "some threads of a block ended where others waited for them"
    for array, buffer in zip(arrays, buffers, strict=True):
        array.view(np.uint8).reshape(-1)[:] = buffer[: array.nbytes]


def _call(program: Program, data: dict[str, int]) -> str:
    """A statement that calls a kernel with what `launch` was given."""
    types = [f"{OPENCL.type_of(p.dtype)} *" for p in program.params]
    types += ["uchar *"] * bool(data["workspace"]) + ["long"] * len(program.vals)
    arguments = ", ".join(f"({kind})given[{i}]" for i, kind in enumerate(types))
    return f"{program.name}({arguments});"


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy of an array's bytes that begins where buffers do."""
    room = np.zeros(array.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 256
    room[start : start + array.nbytes] = array.view(np.uint8).reshape(-1)
    return room[start:]
