"""Linear IR printed as HIP C++, for AMD GPUs.

The kernel is ``extern "C"`` and takes the address of each parameter, that of the workspace if it
needs one, then the values of the launch as longs: 8 bytes each. It expects the workgroups and
work-items that `gpu/compiler/render/launch/amd.py` plans, along x alone, and buffers that begin at
multiples of 16 bytes and do not overlap. Products are never fused with sums but by `fma`; the
compiler is told so. Nothing is included, and no library of AMD's is linked: functions are those
that clang has built in ("Clang Language Extensions", and `BuiltinsAMDGPU.def`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.render.cstyle.counters import ThreadId
from gpu.compiler.render.cstyle.cuda_grid import CudaGridPrinter
from gpu.compiler.render.cstyle.cuda_text import TYPES, VECTORS, CudaWide
from gpu.compiler.render.cstyle.grid import GridOps
from gpu.compiler.render.cstyle.text import Emitter, Value
from gpu.compiler.render.launch.amd import amd_places, launch_data
from gpu.compiler.render.launch.grid import plan_grid
from gpu.compiler.targets import Target, edges
from gpu.compiler.targets.amd import Chip, amd_target, check_chip

_WORDS: Final = "\n".join(
    f"#define __{word}__ __attribute__(({word}))" for word in ("global", "device", "shared")
)
_ROOTS: Final = """\
static __device__ float sqrt(float x) {
  const bool is_small = x < 0x1p-96f;
  const float scaled = is_small ? x * 0x1p+32f : x;
  float near = __builtin_amdgcn_sqrtf(scaled);
  const float below = as_float(as_uint(near) - 1), above = as_float(as_uint(near) + 1);
  const float rest = __builtin_fmaf(-below, near, scaled);
  const float more = __builtin_fmaf(-above, near, scaled);
  near = rest <= 0.0f ? below : near;
  near = more > 0.0f ? above : near;
  near = is_small ? near * 0x1p-16f : near;
  return x == 0.0f || x == __builtin_inff() ? x : near;
}
static __device__ double sqrt(double x) {
  const bool is_small = x < 0x1p-767;
  const double scaled = is_small ? x * 0x1p+256 : x;
  const double inverse = __builtin_amdgcn_rsq(scaled);
  double near = scaled * inverse, half = inverse * 0.5;
  const double first = __builtin_fma(-half, near, 0.5);
  near = __builtin_fma(near, first, near);
  half = __builtin_fma(half, first, half);
  near = __builtin_fma(__builtin_fma(-near, near, scaled), half, near);
  near = __builtin_fma(__builtin_fma(-near, near, scaled), half, near);
  near = is_small ? near * 0x1p-128 : near;
  return x == 0.0 || x == __builtin_inf() ? x : near;
}"""
"""Square roots that are correctly rounded: instructions for them are not (V_SQRT_F32: 1 ulp).

The neighbour is taken of which the product with what was found is nearer (P. Markstein, "IA-64 and
Elementary Functions", 2000, 9), and of float64 an approximation of 1 / sqrt(x) made better by
Goldschmidt's steps (the same, 9.4); numbers whose rests would underflow are scaled before.
"""
_HALVES: Final = """\
static __device__ float from_half(ushort x) {
  return (float)__builtin_bit_cast(_Float16, x);
}
static __device__ ushort to_half(float x) {
  const ushort bits = __builtin_bit_cast(ushort, (_Float16)x);
  return (bits & 0x7fff) | (as_uint(x) >> 16 & 0x8000);
}"""
"""Conversions of float16. LLVM makes a product that is converted an FMA with +0 (V_FMA_MIXLO_F16),
which loses the sign of a zero.
"""
_LANES: Final = """\
static __device__ int of_lane(int x, uint distance) {
  const uint lane = __builtin_amdgcn_mbcnt_hi(-1, __builtin_amdgcn_mbcnt_lo(-1, 0));
  return __builtin_amdgcn_ds_bpermute((lane ^ distance) << 2, x);
}"""
"""What another lane has, through local memory's crossbar (DS_BPERMUTE_B32)."""
_BARRIER: Final = """\
static __device__ void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}"""
HEAD: Final = "\n".join((_WORDS, TYPES, VECTORS, _ROOTS, _HALVES, _LANES, _BARRIER))
"""What every source begins with."""
_BUILT_IN: Final = {
    "abs": "fabs", "floor": "floor", "rint": "rint", "trunc": "trunc", "fma": "fma",
}  # fmt: skip
IDS: Final = ("__builtin_amdgcn_workgroup_id_x()", "__builtin_amdgcn_workitem_id_x()")
"""Which workgroup this is, and which work-item of it."""
_THREAD: Final = ThreadId("block", "thread")
# Lanes of a row, within which DPP exchanges ("RDNA3" ISA, 7.3 "DPP", ROW_XMASK; from RDNA on).
_ROW: Final = 16
_ROW_XMASK: Final = 0x160
_DPP_XMASK_WAVE: Final = 32


def bounds(block: int) -> str:
    """What tells the compiler how many work-items a workgroup has."""
    return f"__attribute__((amdgpu_flat_work_group_size({block}, {block})))"


class HIPRenderer:
    """Prints programs for one chip.

    Attributes:
        target: the chip; what it lacks is refused. It has no matrix instructions here.
    """

    def __init__(self, chip: str):
        """`chip` as LLVM calls it: `gfx1030`. Raises Unsupported for one that is not known."""
        target = replace(amd_target(chip), language="hip", matrices=())
        self.target = target.with_edges(edges.HIP)
        self._chip = check_chip(chip)

    def render(self, program: Program) -> str:
        """A source that defines the kernel `program.name`.

        Raises Unsupported for an operation the target does not have, for vectors, for too much
        local memory and for grids that are too large, VerifyError for a program that is not well
        formed in a way that shows.
        """
        return _Kernel(self.target, program, self._chip).text()

    def launch_data(self, program: Program) -> dict[str, int]:
        """As `gpu/compiler/render/launch/amd.py:launch_data` says."""
        return launch_data(program, self._chip)


class HIPOps(GridOps):
    """Operations on scalars as HIP C++."""

    def float_text(self, name: str, args: list[Value]) -> str:
        """An operation on floats as an expression."""
        if name not in _BUILT_IN:
            return super().float_text(name, args)
        suffix = "f" * (args[0].type.bits == 32)
        return f"__builtin_{_BUILT_IN[name]}{suffix}({', '.join(map(str, args))})"

    def half(self, x: Value) -> Value:
        """By conversion, which rounds to nearest, ties to even."""
        return self.emitter.value(x.type.of("u16"), f"to_half({x})")

    def from_half(self, x: Value) -> Value:
        """By conversion."""
        return self.emitter.value(x.type.of("f32"), f"from_half({x})")


class _Kernel(CudaGridPrinter):
    """One program on its way to text."""

    def __init__(self, target: Target, program: Program, chip: Chip):
        grid, emitter = plan_grid(program, chip.wave), Emitter()
        places = amd_places(program, grid, chip)
        super().__init__(target, program, HIPOps(emitter), grid, places, _THREAD, CudaWide(emitter))

    def text(self) -> str:
        """The whole source."""
        body = self.body()
        kernel = f'extern "C" __global__ void {bounds(self.grid.block)} {self.program.name}'
        ids = (f"  const uint {name} = {word};" for name, word in zip(_THREAD, IDS, strict=True))
        return "\n".join(
            [HEAD, f"{kernel}({', '.join(self._parameters())}) {{", *ids, *body, "}", ""]
        )

    def _shuffle_xor(self, inst: Inst) -> Value:
        """DPP within rows of RDNA's waves, which LLVM makes a part of what uses the value."""
        (x,), (distance, _) = self._args(inst), inst.attr
        bits = f"as_int({x})"
        if self.target.warp == _DPP_XMASK_WAVE and distance < _ROW:
            control = f"{_ROW_XMASK | distance:#x}, 0xf, 0xf, true"
            moved = f"__builtin_amdgcn_update_dpp(0, {bits}, {control})"
        else:
            moved = f"of_lane({bits}, {distance})"
        return self.emitter.value(x.type, f"as_{x.type}({moved})")

    def _barrier(self, inst: Inst) -> None:
        """All threads arrive; what they stored to local memory before is seen by all behind."""
        del inst
        if self.grid.has_threads:
            self.emitter.line("__syncthreads();")
