"""One kernel brought through a device's renderer, compiler and loader by hand."""

from __future__ import annotations

from collections.abc import Callable

from gpu import Tensor
from gpu.compiler.fusion.build import build_kernel
from gpu.compiler.fusion.placement import plan_fusion
from gpu.runtime.compile import Job, prepare_kernel
from gpu.runtime.device import Device
from gpu.runtime.program import Program

SIZE = 1000


def job_of(device: str, function: Callable[[Tensor], Tensor], size: int = SIZE) -> Job:
    """The only kernel of `function` of a float32 vector; its parameters are result and input."""
    value = function(Tensor.zeros(size, device=device).contiguous().realize())
    plan = plan_fusion([value._node], lambda node: node.kind == "buffer")
    assert len(plan.kernels) == 1
    return prepare_kernel(build_kernel("kernel_by_hand", 0, plan), device)


def loaded(job: Job) -> Program:
    """The program of a job."""
    opened = Device[job.device]
    return opened.runtime(job.name, opened.compiler.compile_cached(job.source), job.data)
