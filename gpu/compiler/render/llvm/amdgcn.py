"""Linear IR printed as LLVM IR text, for AMD GPUs.

The function printed is an `amdgpu_kernel` (LLVM, "User Guide for AMDGPU Backend", "Kernarg
Segment"): its arguments are the address of each parameter, that of the workspace if it needs one,
then the values of the launch, 8 bytes each. It expects the workgroups and work-items that
`gpu/compiler/render/launch/grid.py` plans, and buffers that begin at multiples of 16 bytes; it
needs x ids alone, and no hidden arguments.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.render.launch.amd import amd_places, launch_data
from gpu.compiler.render.launch.grid import plan_grid
from gpu.compiler.render.launch.locals import ALIGN
from gpu.compiler.render.llvm import amd_matrix
from gpu.compiler.render.llvm.gpu import GridPrinter
from gpu.compiler.render.llvm.narrow_integers import INT32
from gpu.compiler.render.llvm.text import BOOL, Type, Value, integer
from gpu.compiler.targets import Target
from gpu.compiler.targets.amd import Chip, amd_target, check_chip
from gpu.core.dtype import dtypes

_PRIVATE: Final = Type("ptr addrspace(5)")
_IDS: Final = ("llvm.amdgcn.workgroup.id.x", "llvm.amdgcn.workitem.id.x")
_DPP_XMASK_WAVE: Final = 32  # RDNA has DPP with ROW_XMASK, and V_PERMLANEX16; CDNA has neither
_ROW: Final = 16
_ROW_XMASK: Final = 0x160
_SAME_LANES: Final = (0x76543210, 0xFEDCBA98 - (1 << 32))  # of the other row, 4 bits for each lane
# What the kernel does without, so that no registers and no hidden arguments are set up for it.
_UNUSED: Final = (
    "completion-action", "default-queue", "dispatch-id", "dispatch-ptr", "heap-ptr",
    "hostcall-ptr", "implicitarg-ptr", "lds-kernel-id", "multigrid-sync-arg", "queue-ptr",
    "workgroup-id-y", "workgroup-id-z", "workitem-id-y", "workitem-id-z",
)  # fmt: skip


class AMDRenderer:
    """Prints programs for one chip.

    Attributes:
        target: the chip; what it lacks is refused.
    """

    def __init__(self, chip: str):
        """`chip` as LLVM calls it: `gfx1100`. Raises Unsupported for one that is not known."""
        self.target = amd_target(chip)
        self._chip = check_chip(chip)

    def render(self, program: Program) -> str:
        """The text of a module that defines the kernel `program.name`.

        Raises Unsupported for an operation the target does not have, for too much local memory
        and for grids that are too large, VerifyError for a program that is not well formed in a way
        that shows.
        """
        return _Kernel(self.target, program, self._chip).text()

    def launch_data(self, program: Program) -> dict[str, int]:
        """As `gpu/compiler/render/launch/amd.py:launch_data` says."""
        return launch_data(program, self._chip)


class _Kernel(GridPrinter):
    """One program on its way to a kernel."""

    def __init__(self, target: Target, program: Program, chip: Chip):
        grid = plan_grid(program, chip.wave)
        super().__init__(target, program, grid, amd_places(program, grid, chip), _IDS)

    def text(self) -> str:
        """The whole module."""
        return "\n".join(
            [
                *self.function("amdgpu_kernel", "#0 !reqd_work_group_size !1"),
                f"attributes #0 = {{ {self._attributes()} }}",
                "!0 = !{}",
                f"!1 = !{{i32 {self.grid.block}, i32 1, i32 1}}",
                '!2 = !{!"amdgpu-synchronize-as", !"local"}',
                "",
            ]
        )

    def _attributes(self) -> str:
        block = self.grid.block
        unused = " ".join(f'"amdgpu-no-{name}"' for name in _UNUSED)
        sizes = f'"amdgpu-flat-work-group-size"="{block},{block}"'
        return f'nounwind {sizes} "uniform-work-group-size"="true" {unused}'

    def _private(self, name: str, array: str) -> Value:
        self.emitter.entry.append(f"  {name} = alloca {array}, align {ALIGN}, addrspace(5)")
        return Value(_PRIVATE, name)

    def _cast(self, inst: Inst) -> Value:
        """As elsewhere, but for products rounded to float16.

        LLVM makes an FMA with +0 of the two (v_fma_mixlo_f16), which loses the sign of a zero.
        """
        result = super()._cast(inst)
        source = inst.args[0]
        if (source.dtype, inst.dtype) != (dtypes.float32, dtypes.float16):
            return result
        emitter, x = self.emitter, self.values[source]
        bits = emitter.convert("bitcast", x, "i32")
        top = emitter.binary("lshr", bits, integer(bits.type, 16))
        high = emitter.convert("trunc", top, "i16")
        sign = emitter.binary("and", high, integer(high.type, -0x8000))
        size = emitter.binary("and", result, integer(result.type, 0x7FFF))
        return emitter.binary("or", sign, size)

    def _shuffle_xor(self, inst: Inst) -> Value:
        """DPP within rows of 16 lanes, which LLVM makes a part of what uses the value.

        V_PERMLANEX16 reads the other row of 32 ("RDNA3" ISA, 7.3 "DPP", ROW_XMASK, from RDNA on).
        On CDNA any lane reads any other by its number, through local memory's crossbar.
        """
        x, (distance, _) = self.values[inst.args[0]], inst.attr
        emitter, no, yes = self.emitter, integer(BOOL, 0), integer(BOOL, 1)
        if self.target.warp != _DPP_XMASK_WAVE:
            return emitter.convert("bitcast", self._of_lane(x, distance), x.type.element)
        both = Value(INT32, "poison"), emitter.convert("bitcast", x, "i32")
        if distance < _ROW:
            how = (integer(INT32, number) for number in (_ROW_XMASK | distance, 0xF, 0xF))
            moved = emitter.intrinsic("llvm.amdgcn.update.dpp.i32", INT32, *both, *how, yes)
        else:
            how = (integer(INT32, lanes) for lanes in _SAME_LANES)
            moved = emitter.intrinsic("llvm.amdgcn.permlanex16.i32", INT32, *both, *how, no, no)
        return emitter.convert("bitcast", moved, x.type.element)

    def _of_lane(self, x: Value, distance: int) -> Value:
        """What the lane so far away has in `x`, in bits ("CDNA3" ISA, DS_BPERMUTE_B32)."""
        emitter, none = self.emitter, integer(INT32, 0)
        every = integer(INT32, -1)
        below = emitter.intrinsic("llvm.amdgcn.mbcnt.lo", INT32, every, none)
        lane = emitter.intrinsic("llvm.amdgcn.mbcnt.hi", INT32, every, below)
        other = emitter.binary("xor", lane, integer(INT32, distance))
        place = emitter.binary("shl", other, integer(INT32, 2))  # four bytes a lane
        bits = emitter.convert("bitcast", x, "i32")
        return emitter.intrinsic("llvm.amdgcn.ds.bpermute", INT32, place, bits)

    def _mma(self, inst: Inst) -> Value:
        return amd_matrix.multiply(self.emitter, inst, self._args(inst))

    def _barrier(self, inst: Inst) -> None:
        """All threads arrive; what they stored to local memory before is seen by all behind."""
        del inst
        if not self.grid.has_threads:
            return
        self.emitter.line('fence syncscope("workgroup") release, !mmra !2')
        self.emitter.effect("llvm.amdgcn.s.barrier")
        self.emitter.line('fence syncscope("workgroup") acquire, !mmra !2')
