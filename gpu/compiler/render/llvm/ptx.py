"""Linear IR printed as LLVM IR text, which becomes PTX: for NVIDIA GPUs where nvrtc is missing.

The function printed is a `ptx_kernel` (LLVM, "User Guide for NVPTX Back-end"), with parameters and
launch as those of `gpu/compiler/render/cstyle/cuda.py`, except that there may be vectors.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.ir.linear.ranges import constant_value
from gpu.compiler.render.launch.grid import MOST_GROUPS
from gpu.compiler.render.launch.locals import ALIGN
from gpu.compiler.render.launch.nv import (
    launch_data,
    nv_grid,
    nv_places,
    nv_shared,
    warp_members,
)
from gpu.compiler.render.llvm import ops
from gpu.compiler.render.llvm.gpu import SHARED, GridPrinter
from gpu.compiler.render.llvm.narrow_integers import INT32
from gpu.compiler.render.llvm.ptx_matrix import MatrixPrinter
from gpu.compiler.render.llvm.text import POINTER, Value, integer, memory_element
from gpu.compiler.targets import Target
from gpu.compiler.targets.nvidia import WARP, nv_target
from gpu.core.dtype import dtypes

_ASKED_FOR: Final = "block_memory"
"""Name of the shared memory that a launch gives the size of."""
_IDS: Final = ("llvm.nvvm.read.ptx.sreg.ctaid.x", "llvm.nvvm.read.ptx.sreg.tid.x")


class PTXRenderer:
    """Prints programs for one architecture.

    Attributes:
        target: the architecture; what it lacks is refused.
    """

    def __init__(self, arch: str):
        """`arch` as NVIDIA's compilers call it: `sm_90`. Raises Unsupported for an unknown one."""
        self.target = nv_target(arch)

    def render(self, program: Program) -> str:
        """The text of a module that defines the kernel `program.name`.

        Raises Unsupported for an operation the target does not have, for too much shared memory and
        for grids that are too large, VerifyError for a program that is not well formed in a way
        that shows.
        """
        return _Kernel(self.target, program).text()

    def launch_data(self, program: Program) -> dict[str, int]:
        """As `gpu/compiler/render/launch/nv.py:launch_data` says."""
        return launch_data(program, self.target)


class _Kernel(GridPrinter):
    """One program on its way to a kernel."""

    def __init__(self, target: Target, program: Program):
        grid = nv_grid(program, MOST_GROUPS)  # `GridPrinter` counts threads in 31 bits
        super().__init__(target, program, grid, nv_places(program, grid, target), _IDS)
        self.shared = nv_shared(program, self.places)
        self.matrices = MatrixPrinter(self.emitter)

    def text(self) -> str:
        """The whole module."""
        name, block = self.program.name, self.grid.block
        if self.shared.size:
            array = f"external addrspace(3) global [0 x i8], align {ALIGN}"
            self.globals.append(f"@{name}_{_ASKED_FOR} = {array}")
        return "\n".join(
            [
                *self.function("ptx_kernel", "#0"),
                "attributes #0 = { nounwind }",
                "!nvvm.annotations = !{!1}",
                "!0 = !{}",
                f'!1 = !{{ptr @{name}, !"maxntidx", i32 {block}}}',
                "",
            ]
        )

    def _private(self, name: str, array: str) -> Value:
        self.emitter.entry.append(f"  {name} = alloca {array}, align {ALIGN}")
        return Value(POINTER, name)

    def _alu(self, inst: Inst) -> Value:
        """As elsewhere, but for counts of 64-bit shifts that need more than 32 bits.

        LLVM leaves the guard to shl.b64 and shr.u64, which clamp their count, but gives them the
        low half of it alone (seen with LLVM 22).
        """
        name, last = inst.attr[0], inst.args[-1]
        if name not in ("shl", "shr") or inst.dtype.bits < 64 or constant_value(last) is not None:
            return super()._alu(inst)
        a, b = self._args(inst)
        width = integer(b.type, inst.dtype.bits)
        count = self.emitter.intrinsic(f"llvm.umin.{b.type.mangled}", b.type, b, width)
        return ops.alu(self.emitter, name, inst.dtype, [a, count])

    def _cast(self, inst: Inst) -> Value:
        """As elsewhere, and between float32 and bfloat16, the upper half of one."""
        (source,), emitter = inst.args, self.emitter
        x = self.values[source]
        if (source.dtype, inst.dtype) == (dtypes.float32, dtypes.bfloat16):
            return emitter.convert("bitcast", emitter.convert("fptrunc", x, "bfloat"), "i16")
        if (source.dtype, inst.dtype) == (dtypes.bfloat16, dtypes.float32):
            bits = emitter.convert("zext", x, "i32")
            upper = emitter.binary("shl", bits, integer(bits.type, 16))
            return emitter.convert("bitcast", upper, "float")
        return super()._cast(inst)

    def _shuffle_xor(self, inst: Inst) -> Value:
        """`shfl.sync.bfly` of the threads that the warp has (PTX ISA, "shfl.sync")."""
        x, (distance, _) = self.values[inst.args[0]], inst.attr
        emitter, bits = self.emitter, self.emitter.convert("bitcast", x, "i32")
        numbers = (integer(INT32, number) for number in (distance, WARP - 1))
        args = (self._members(), bits, *numbers)
        moved = emitter.intrinsic("llvm.nvvm.shfl.sync.bfly.i32", INT32, *args)
        return emitter.convert("bitcast", moved, x.type.element)

    def _members(self) -> Value:
        """The threads of this one's warp, as a mask."""
        members = warp_members(self.grid)
        mask, rest = (integer(INT32, number) for number in (members.mask, members.rest))
        if not members.rest:
            return mask
        thread = self.emitter.intrinsic(self.ids[1], INT32)
        in_whole = self.emitter.compare("icmp ult", thread, integer(INT32, members.whole))
        return self.emitter.select(in_whole, mask, rest)

    def _local(self, inst: Inst) -> Value:
        if inst not in self.shared.offsets:
            return super()._local(inst)
        name, start = self.emitter.fresh("%local"), f"@{self.program.name}_{_ASKED_FOR}"
        place = f"getelementptr inbounds i8, {SHARED} {start}, i64 {self.shared.offsets[inst]}"
        self.emitter.entry.append(f"  {name} = {place}")
        return Value(SHARED, name)

    # Matrix instructions.

    def _in_shared(self, pointer: Inst, index: Inst) -> Value:
        """The address of an element of shared memory."""
        place = self.narrow.get(index) or self.values[index]
        return self.matrices.address(self.values[pointer], place, pointer.dtype.itemsize)

    def _copy(self, inst: Inst) -> None:
        target, to, source, at, *mask = inst.args
        condition, place = None, self.values[at]
        if mask:
            condition = self.values[mask[0]]
            place = self.emitter.select(condition, place, integer(place.type, 0))
        element = memory_element(source.dtype)
        start = self.emitter.element_address(self.values[source], element, place, True)
        size = inst.attr[0] * target.dtype.itemsize
        self.matrices.copy(self._in_shared(target, to), start, size, condition)

    def _commit(self, inst: Inst) -> None:
        del inst
        self.matrices.commit()

    def _wait(self, inst: Inst) -> None:
        self.matrices.wait(inst.attr[0])

    def _fragment(self, inst: Inst) -> Value:
        return self.matrices.fragment(inst, self._in_shared(*inst.args))

    def _shuffle(self, inst: Inst) -> Value:
        if inst.args[0].op == "fragment":
            return self.matrices.part(inst)
        return super()._shuffle(inst)

    def _mma(self, inst: Inst) -> Value:
        return self.matrices.multiply(inst, self._args(inst))

    def _extract(self, inst: Inst) -> Value:
        return self.matrices.total(inst) or super()._extract(inst)

    def _barrier(self, inst: Inst) -> None:
        del inst
        if self.grid.has_threads:
            self.emitter.effect("llvm.nvvm.barrier0")
