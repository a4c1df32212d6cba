"""Linear programs compiled for gfx1100 and run on arrays, on the bare lane engine: no driver."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.toolchain.amdgcn import AMDCompiler
from gpu.core.bits import align_up
from gpu.drivers.am.code.object import read_code_object
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.run import Machine
from gpu.sim.isa.waves import aligned_bytes
from sim.isa.codeobject import KernelDescriptor
from unit.linear_kernels import Kernel, printed

CHIP = "gfx1100"
WRITABLE = layout.READ | layout.WRITE | layout.ATOMIC
Bytes = npt.NDArray[np.uint8]


class Memory:
    """Simulated memory; every buffer is a range of just its size.

    It is rounded up to the 16 bytes that compilers load at once, so that an access outside of it is
    a fault.
    """

    def __init__(self) -> None:
        self.map = MemoryMap()

    def buffer(self, data: bytes, flags: int, align: int = 256) -> Bytes:
        made = aligned_bytes(max(align_up(len(data), 16), 16), align)
        made[: len(data)] = np.frombuffer(data, np.uint8)
        self.map.add(made.ctypes.data, len(made), made.ctypes.data, flags)
        return made


def run(kernel: Kernel | Program, *arrays: np.ndarray, vals: tuple[int, ...] = ()) -> None:
    """Runs a kernel on one array for each parameter, which it may change."""
    program = kernel.program() if isinstance(kernel, Kernel) else kernel
    renderer, memory = AMDRenderer(CHIP), Memory()
    sizes = renderer.launch_data(program)
    code = read_code_object(AMDCompiler(CHIP).compile_cached(printed(renderer, program)))
    image = memory.buffer(code.image(0), layout.READ, 4096)
    buffers = [memory.buffer(array.tobytes(), WRITABLE) for array in arrays]
    given = [*buffers]
    if sizes["workspace"]:
        given.append(memory.buffer(bytes(sizes["workspace"]), WRITABLE))
    addresses = [buffer.ctypes.data for buffer in given]
    packed = struct.pack(f"<{len(addresses)}Q{len(vals)}q", *addresses, *vals)
    arguments = memory.buffer(packed, layout.READ)
    at = code.kernels[program.name].descriptor_offset
    descriptor = KernelDescriptor.parse(image[at : at + 64].tobytes(), image.ctypes.data + at)
    pointers = {"kernarg_segment_ptr": arguments.ctypes.data}
    grid, block = (sizes["groups"], 1, 1), (sizes["block"], 1, 1)
    Machine(memory.map).run(descriptor.dispatch(grid, block, pointers))
    for array, buffer in zip(arrays, buffers, strict=True):
        array.view(np.uint8).reshape(-1)[:] = buffer[: array.nbytes]
