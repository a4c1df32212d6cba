"""Linear IR printed as CUDA C, for NVIDIA GPUs.

The kernel is ``extern "C"`` and takes the address of each parameter, that of the workspace if it
needs one, then the values of the launch as longs: 8 bytes each. It expects the blocks and threads
that `gpu/compiler/render/launch/nv.py` plans, along x alone, and buffers that begin at multiples of
16 bytes and do not overlap. Products are never fused with sums but by `fma`; nvrtc is told so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.ir.linear.ranges import int_factors
from gpu.compiler.render.cstyle.counters import ThreadId
from gpu.compiler.render.cstyle.cuda_grid import CudaGridPrinter
from gpu.compiler.render.cstyle.cuda_matrix import MatrixPrinter, Place
from gpu.compiler.render.cstyle.cuda_text import INTRINSICS, TYPES, VECTORS, CudaOps, CudaWide
from gpu.compiler.render.cstyle.opencl_memory import OpenCLAccess
from gpu.compiler.render.cstyle.text import OPENCL, Emitter, Type, Value
from gpu.compiler.render.launch.locals import ALIGN
from gpu.compiler.render.launch.nv import (
    launch_data,
    nv_grid,
    nv_places,
    nv_shared,
    warp_members,
)
from gpu.compiler.targets import Target, edges
from gpu.compiler.targets.nvidia import nv_target
from gpu.core.dtype import dtypes

HEAD: Final = f"{TYPES}\n{VECTORS}\n{INTRINSICS}"
"""What every source begins with."""
THREAD: Final = ThreadId("blockIdx.x", "threadIdx.x")
_I32: Final = OPENCL.type("i32")


class CUDARenderer:
    """Prints programs for one architecture.

    Attributes:
        target: the architecture; what it lacks is refused.
    """

    def __init__(self, arch: str):
        """`arch` as nvrtc calls it: `sm_90`. Raises Unsupported for one that is not known."""
        self.target = replace(nv_target(arch), language="cuda").with_edges(edges.CUDA)

    def render(self, program: Program) -> str:
        """A source that defines the kernel `program.name`.

        Raises Unsupported for an operation the target does not have, for vectors, for too much
        shared memory and for grids that are too large, VerifyError for a program that is not well
        formed in a way that shows.
        """
        return _Kernel(self.target, program).text()

    def launch_data(self, program: Program) -> dict[str, int]:
        """As `gpu/compiler/render/launch/nv.py:launch_data` says."""
        return launch_data(program, self.target)


class _Kernel(CudaGridPrinter):
    """One program on its way to text."""

    def __init__(self, target: Target, program: Program):
        grid = nv_grid(program)
        places = nv_places(program, grid, target)
        emitter = Emitter()
        super().__init__(target, program, CudaOps(emitter), grid, places, THREAD, CudaWide(emitter))
        self.factors = int_factors(program)
        self.shared = nv_shared(program, self.places)
        self.matrices = MatrixPrinter(self.emitter)
        self.members = warp_members(self.grid)

    def text(self) -> str:
        """The whole source."""
        body = self.body()
        bounds = f"__launch_bounds__({self.grid.block})"
        parameters = ", ".join(self._parameters())
        return "\n".join(
            [
                HEAD,
                f'extern "C" __global__ void {bounds} {self.program.name}({parameters}) {{',
                *self._asked_for(),
                *body,
                "}",
                "",
            ]
        )

    def _refuse(self, inst: Inst) -> None:
        if inst.op not in ("fragment", "mma") and not _is_part(inst):
            super()._refuse(inst)

    def _asked_for(self) -> list[str]:
        """A line that declares shared memory which a launch gives the size of."""
        array = f"extern __shared__ __attribute__((aligned({ALIGN}))) uchar block_memory[];"
        return [f"  {array}"] if self.shared.size else []

    def _place(self, inst: Inst) -> str | None:
        if inst in self.shared.offsets:
            return f"block_memory + {self.shared.offsets[inst]}"
        return super()._place(inst)

    def _alu(self, inst: Inst) -> Value:
        if clamp := _clamp(inst):
            return self.ops.alu(clamp, inst.dtype, self._args(inst)[1:])
        return super()._alu(inst)

    def _access(
        self, kind: Type, pointer: Inst, index: Inst, mask: Inst | None = None
    ) -> OpenCLAccess:
        """As elsewhere, and nvrtc is told of alignment, so that it joins stores to neighbours.

        Not of a buffer that is only read: its loads would not go through the cache for such
        buffers any more (`ld.global.nc`; seen with nvrtc 12.9).
        """
        access = super()._access(kind, pointer, index, mask)
        size = kind.bits // 8
        align = min(self.factors.get(index, 1) * size, ALIGN)
        is_written = pointer.op == "param" and self.program.params[pointer.attr[0]].written
        if kind.lanes > 1 or not is_written or align == size:
            return access
        place = f"__builtin_assume_aligned({access.start}, {align})"
        return replace(
            access,
            pointer=Value(access.pointer.type, f"(({kind} *){place})"),
            index=Value(_I32, "0"),
        )

    def _shuffle_xor(self, inst: Inst) -> Value:
        (x,), (distance, _) = self._args(inst), inst.attr
        members = f"0x{self.members.mask:x}u"
        if self.members.rest:
            rest = f"0x{self.members.rest:x}u"
            members = f"(threadIdx.x < {self.members.whole} ? {members} : {rest})"
        return self.emitter.value(x.type, f"__shfl_xor_sync({members}, {x}, {distance})")

    # Matrix instructions.

    def _copy(self, inst: Inst) -> None:
        target, to, source, at, *mask = inst.args
        condition = self.values[mask[0]] if mask else None
        nbytes = inst.attr[0] * target.dtype.itemsize
        places = Place(self.values[target], self.values[to], target.dtype.itemsize)
        self.matrices.copy(places, self.values[source], self.values[at], nbytes, condition)

    def _commit(self, inst: Inst) -> None:
        del inst
        self.matrices.commit()

    def _wait(self, inst: Inst) -> None:
        self.matrices.wait(inst.attr[0])

    def _fragment(self, inst: Inst) -> Value:
        pointer, index = inst.args
        place = Place(self.values[pointer], self.values[index], pointer.dtype.itemsize)
        return self.matrices.fragment(inst, place)

    def _shuffle(self, inst: Inst) -> Value:
        return self.matrices.part(inst)

    def _mma(self, inst: Inst) -> Value:
        return self.matrices.multiply(inst, [self.values[arg] for arg in inst.args])

    def _extract(self, inst: Inst) -> Value:
        return self.matrices.total(inst) if inst.args[0].op == "mma" else super()._extract(inst)

    def _barrier(self, inst: Inst) -> None:
        del inst
        if self.grid.has_threads:
            self.emitter.line("__syncthreads();")


def _clamp(inst: Inst) -> str | None:
    """The extreme that chooses, as this does, between a constant and a float32 that may be NaN."""
    if inst.attr[0] != "where" or inst.dtype is not dtypes.float32:
        return None
    condition, bound, x = inst.args
    if condition.op != "alu" or condition.attr[0] != "lt" or bound.op != "const":
        return None
    if not abs(bound.attr[0]) > 0:  # which may change the sign of a zero, or is NaN
        return None
    return {(x, bound): "max", (bound, x): "min"}.get((condition.args[0], condition.args[1]))


def _is_part(inst: Inst) -> bool:
    """Whether this takes a part of a matrix out of those that were loaded."""
    return inst.op == "shuffle" and inst.args[0].op == "fragment"
