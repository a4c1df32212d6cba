"""CUDA C through nvrtc to a module that runs here."""

from __future__ import annotations

from functools import cache

from gpu.compiler.toolchain.nvbinary import NvBinary
from gpu.compiler.toolchain.nvrtc import NvrtcCompiler
from gpu.sim.isa.ptx.bare import BareModule


@cache
def cuda(source: str, arch: str = "sm_90") -> BareModule:
    """The kernels of CUDA C; those that are called from Python are ``extern "C"``."""
    return BareModule(NvBinary.unpack(NvrtcCompiler(arch).compile(source)).ptx)
