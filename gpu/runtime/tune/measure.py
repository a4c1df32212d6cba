"""What a schedule of a kernel costs on a device, once its results were found right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.linear import Limit, block_size
from gpu.compiler.ir.linear import Program as LinearProgram
from gpu.compiler.ir.linear.warps import warp_accesses
from gpu.compiler.opt.opts import Opt
from gpu.compiler.targets import Target
from gpu.core.config import Context, config
from gpu.core.devspec import parse_device_name
from gpu.core.errors import GpuError
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device
from gpu.runtime.launch_time import best_seconds
from gpu.runtime.pipeline import lower_kernel
from gpu.runtime.recipe import Launch
from gpu.runtime.tune.sample import differs, make_sample

SAMPLES: Final = 3
# Devices that are simulated where SIM says so, and those that always are.
_MAY_BE_SIMULATED: Final = ("AMD", "NV", "CUDA")
_NO_MACHINE: Final = ("PYTHON",)


class WrongResult(GpuError):
    """A kernel gave something else than the interpreter."""


def is_simulated(device: str) -> bool:
    """Whether times on a device say nothing, so that its work is counted."""
    kind, _ = parse_device_name(device)
    return kind in _NO_MACHINE or (bool(config.SIM) and kind in _MAY_BE_SIMULATED)


class Subject:
    """A kernel on a device, with memory to run it on.

    Attributes:
        unit: that of costs: "s", or "work" where the device is simulated.
    """

    def __init__(self, kernel: K.Kernel, device: str):
        """Raises Unsupported for a kernel whose results cannot be sampled."""
        self.kernel, self.device = kernel, Device[device]
        self.sample = make_sample(kernel)
        self.unit = "work" if is_simulated(device) else "s"
        self._buffers = {
            param.name: Buffer(device, max(math.prod(param.shape), 1), param.dtype)
            for param in kernel.params
        }

    def cost(self, opts: Sequence[Opt]) -> float:
        """What a schedule costs. Raises WrongResult, and what compiling and running raise."""
        renderer = self.device.renderer
        with Context(VERIFY=1):
            program = lower_kernel(self.kernel, renderer.target, opts).program
        lib = self.device.compiler.compile_cached(renderer.render(program))
        loaded = self.device.runtime(program.name, lib, renderer.launch_data(program))
        for name, array in self.sample.arrays.items():
            self._buffers[name].copy_in(np.ascontiguousarray(array))
        memories = [self._buffers[param.name].memory for param in self.kernel.params]
        loaded(*memories, vals=self.sample.vals, wait=True)
        self._check()
        if self.unit == "work":
            return work_of(program, renderer.target)
        places = tuple(range(len(self.sample.vals)))
        step = Launch(loaded, tuple(range(len(memories))), places)
        return best_seconds(step, self.device, memories, self.sample.vals, SAMPLES)

    def _check(self) -> None:
        dtypes = {param.name: param.dtype for param in self.kernel.params}
        for name in self.sample.outputs:
            wrong = differs(self.sample, name, self._buffers[name].copy_out(), dtypes[name])
            if wrong:
                raise WrongResult(f"{self.kernel.name}: {wrong}")


def work_of(program: LinearProgram, target: Target) -> float:
    """Instructions of warps, and sectors of memory that they move, on the busiest processor.

    Blocks are shared out evenly. Each instruction of the linear IR counts as one, for all threads
    of a warp together; those under a condition count wherever it stands in a loop that runs.
    """
    warps = max(-(-math.prod(block_size(program)) // target.warp), 1) if target.threads else 1
    blocks, instructions, trips = 1, 0, [1]
    for inst in program.body:
        if inst.op == "loop":
            kind, start, stop, step = inst.attr
            count = len(range(start, stop.most if isinstance(stop, Limit) else stop, step))
            if kind in ("grid", "worker"):
                blocks *= count
            trips.append(trips[-1] * (count if kind == "serial" else 1))
        elif inst.op == "end":
            trips.pop()
        elif inst.op not in ("const", "param", "val", "local"):
            instructions += trips[-1] * warps
    sectors = 0
    if target.threads:
        moved = (a for a in warp_accesses(program, target.warp) if a.space == "param")
        sectors = sum(access.times * access.moved for access in moved)
    return float(max(-(-blocks // target.workers) * (instructions + sectors), 1))
