"""Compiles LLVM IR for gfx1100 and runs it on the lane engine."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.run import Machine
from gpu.sim.isa.waves import aligned_bytes
from sim.isa.codeobject import CodeObject, place_object

TRIPLE = "amdgcn-amd-amdhsa"
HEAD = """
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
"""


@cache
def _target(chip: str) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=chip, opt=3, reloc="pic")


def compile_ir(text: str, chip: str = "gfx1100", optimize: bool = False) -> bytes:
    """An object of the kernels in LLVM IR."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    machine = _target(chip)
    module.triple = TRIPLE
    module.data_layout = str(machine.target_data)
    module.verify()
    if optimize:
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
    emitted: bytes = machine.emit_object(module)
    return emitted


def assembly(text: str, chip: str = "gfx1100") -> str:
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    module.triple = TRIPLE
    listing: str = _target(chip).emit_assembly(module)
    return listing


class Launcher:
    """Memory with one placed code object, on which kernels are launched."""

    def __init__(self, object_bytes: bytes, seed: int = 0, chip: str = "gfx1100"):
        self.chip = chip
        self.code: CodeObject = place_object(object_bytes)
        self.image = aligned_bytes(len(self.code.image), 4096)
        self.image[:] = np.frombuffer(self.code.image, np.uint8)
        self.seed = seed

    def run(
        self,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        *args: npt.NDArray[Any] | int | np.generic,
    ) -> None:
        """Arrays are passed by address (8 bytes), numpy scalars as they are, ints as i32."""
        memory = MemoryMap()
        base = self.image.ctypes.data
        memory.add(base, len(self.image), base, layout.READ)
        packed = bytearray()
        seen: set[int] = set()
        for arg in args:
            if isinstance(arg, np.ndarray):
                address = arg.ctypes.data
                if address not in seen:
                    flags = layout.READ | layout.WRITE | layout.ATOMIC
                    memory.add(address, arg.nbytes, address, flags)
                    seen.add(address)
                value = np.uint64(address).tobytes()
            else:
                value = (np.int32(arg) if isinstance(arg, int) else arg).tobytes()
            packed += bytes(-len(packed) % len(value)) + value
        packed += bytes(512)
        kernel = np.frombuffer(bytes(packed), np.uint8)
        memory.add(kernel.ctypes.data, len(kernel), kernel.ctypes.data, layout.READ)
        descriptor = self.code.descriptor(name, base)
        pointers = {"kernarg_segment_ptr": kernel.ctypes.data}
        machine = Machine(memory, seed=self.seed, chip=self.chip)
        machine.run(descriptor.dispatch(grid, block, pointers))
