"""Linear programs as PTX, run by the simulated lanes of an NVIDIA GPU: no driver, no cubin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.cstyle.cuda import HEAD, CUDARenderer
from gpu.compiler.render.launch.nv import launch_data
from gpu.compiler.render.llvm.ptx import PTXRenderer
from gpu.compiler.targets.nvidia import nv_target
from gpu.compiler.toolchain.nvptx import generate_ptx
from gpu.compiler.toolchain.nvrtc import NvBinary, NvrtcCompiler
from gpu.sim.isa.ptx.bare import BareModule
from unit.linear_kernels import printed

ARCH = "sm_90"


def run_llvm(
    programs: Sequence[Program], arrays: Sequence[Sequence[np.ndarray]], vals: tuple[int, ...] = ()
) -> None:
    """Runs programs on arrays, one for each parameter, through LLVM."""
    for program, given in zip(programs, arrays, strict=True):
        ptx = generate_ptx(printed(PTXRenderer(ARCH), program))
        _launch(BareModule(ptx), program, given, vals)


def run_nvrtc(
    programs: Sequence[Program], arrays: Sequence[Sequence[np.ndarray]], vals: tuple[int, ...] = ()
) -> None:
    """As `run_llvm`, through CUDA C and nvrtc; all programs are compiled together."""
    texts = [HEAD]
    for program in programs:
        texts.append(printed(CUDARenderer(ARCH), program).replace(HEAD, ""))
    binary = NvBinary.unpack(NvrtcCompiler(ARCH).compile_cached("\n".join(texts)))
    module = BareModule(binary.ptx)
    for program, given in zip(programs, arrays, strict=True):
        _launch(module, program, given, vals)


def _launch(
    module: BareModule, program: Program, arrays: Sequence[np.ndarray], vals: tuple[int, ...]
) -> None:
    data = launch_data(program, nv_target(ARCH))
    given = list(arrays)
    if data["workspace"]:
        given.append(np.zeros(data["workspace"], np.uint8))
    grid, block = (data["groups"], 1, 1), (data["block"], 1, 1)
    module.run(program.name, grid, block, *given, *vals, dynamic=data["shared"])
