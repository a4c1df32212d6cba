"""Linear programs on the OpenCL device, called with numpy arrays as on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu.backends.cl.device import CLDevice
from gpu.compiler.render.cstyle.opencl import OpenCLRenderer
from gpu.compiler.targets import Target
from gpu.runtime.device import Device
from unit.linear_kernels import Kernel, printed


def cl_device() -> CLDevice:
    device = Device["CL"]
    assert isinstance(device, CLDevice)
    return device


def grid_target() -> Target:
    """A target such as a GPU's, for the device there is."""
    target = cl_device().renderer.target
    return replace(target, parallel="grid", vector_bytes=0, registers=0)


@dataclass(frozen=True)
class CLRunner:
    """Builds kernels for a target, and runs them on copies of arrays."""

    target: Target

    def run_many(self, kernels: Sequence[Kernel], arrays: Sequence[Sequence[np.ndarray]]) -> None:
        device, renderer = cl_device(), OpenCLRenderer(self.target)
        programs = [kernel.program() for kernel in kernels]
        libs = device.compiler.compile_many_cached([printed(renderer, p) for p in programs])
        for program, lib, given in zip(programs, libs, arrays, strict=True):
            loaded = device.runtime(program.name, lib, renderer.launch_data(program))
            memories = [device.allocator.alloc(array.nbytes) for array in given]
            for memory, array in zip(memories, given, strict=True):
                device.allocator.copy_in(memory, array.view(np.uint8).reshape(-1).data)
            loaded(*memories)
            for memory, array in zip(memories, given, strict=True):
                device.allocator.copy_out(array.view(np.uint8).reshape(-1).data, memory)
                device.allocator.free(memory, array.nbytes)

    def run(self, kernel: Kernel, *arrays: np.ndarray) -> None:
        self.run_many([kernel], [arrays])
