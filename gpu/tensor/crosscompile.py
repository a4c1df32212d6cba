"""`gpu.compile_for`: what tensors compile to on a machine that need not be here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu.runtime.device import toolchain_for

if TYPE_CHECKING:
    from gpu.runtime.crosscompile import CompiledKernel
    from gpu.tensor.tensor import Tensor


def compile_for(target: str, *tensors: Tensor) -> list[CompiledKernel]:
    """The kernels that would compute `tensors` on another machine, compiled and not run.

    Each has `source`, `lib` (the object or binary) and `disassembly()`.

        >>> a, b = Tensor.randn(64, 64).realize(), Tensor.randn(64, 64).realize()
        >>> (kernel,) = gpu.compile_for("CPU:LLVM:znver5", a @ b)
        >>> "zmm" in kernel.disassembly()
        True

    Args:
        target: the machine, as `DEV=` names one with its architecture: ``CPU:LLVM:x86-64-v4``,
            ``CPU:CLANG:apple-m1``, ``NV::sm_90``, ``NV:PTX:sm_100``, ``AMD::gfx1201``,
            ``METAL::apple7``, ``QCOM::a630``; or the name of a CPU alone. CPUs are taken to have
            as many threads as CPU_THREADS says.
        tensors: on any device. What has been computed already is read, not computed again.

    Raises ConfigError for what names no device, Unsupported for one that alone compiles its code
    (``CL``, ``WEBGPU``), for an architecture or toolchain that is not there and for what the
    machine cannot compute, and CompileError where its compiler fails.
    """
    from gpu.runtime.crosscompile import cross_compile  # brings the whole compiler

    return cross_compile([tensor._node for tensor in tensors], toolchain_for(target))
