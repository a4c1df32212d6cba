"""Compiling a graph:

every pass in order, from the plan to code. Imported by the first miss only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import verify as verify_graph
from gpu.compiler.ir.linear import Program as LinearProgram
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy import schedule
from gpu.compiler.schedule.build import BuiltKernel, build_kernel
from gpu.compiler.schedule.fusion import plan_fusion
from gpu.compiler.target import Target
from gpu.core.config import config
from gpu.core.log import get_logger
from gpu.runtime.device import Device
from gpu.runtime.schedule import Code, Recipe, Slot

log = get_logger(__name__)


def compile_graph(
    roots: Sequence[Node], leaves: Sequence[Node], is_leaf: Callable[[Node], bool]
) -> Recipe:
    """Plans, lowers and compiles everything needed for `roots`.

    Raises CompileError where a toolchain fails and Unsupported for what a device cannot do.
    """
    if config.VERIFY:
        verify_graph(roots)
    plan = plan_fusion(roots, is_leaf)
    slot_of = {leaf: i for i, leaf in enumerate(leaves)}
    codes: list[Code] = []
    known: dict[tuple[str, bytes], int] = {}
    slots: list[Slot] = []
    steps: list[tuple[int, tuple[int, ...]]] = []
    for number, (root,) in enumerate(plan.kernels):
        slot_of[root] = len(leaves) + len(slots)
        slots.append(Slot(root.device, root.size, root.dtype))
        if root.kind == "copy":
            steps.append((-1, (slot_of[root.src[0]], slot_of[root])))
        else:
            built = build_kernel("kernel", number, plan)
            code = compile_kernel(built, root.device)
            used = tuple(slot_of[node] for node in built.params)
            kernel = known.setdefault((code.device, code.lib), len(codes))
            if kernel == len(codes):
                codes.append(code)
            steps.append((kernel, used))
    log.info("compiled %d kernels, %d of them distinct", len(steps), len(codes))
    outputs = tuple(slot_of[root] for root in roots)
    return Recipe(tuple(codes), tuple(slots), tuple(steps), outputs)


def lower_kernel(built: BuiltKernel, target: Target) -> LinearProgram:
    """A kernel as linear IR that `target` can render; verified on the way where VERIFY is set."""
    kernel, opts = schedule(built.kernel, target, optimize=not config.NOOPT)
    log.debug("%s: %s", kernel.name, opts)
    program = linearize(kernel, target)
    if config.VERIFY:
        from gpu.compiler.ir.kernel_verify import verify_kernel
        from gpu.compiler.ir.linear_verify import verify_linear

        verify_kernel(built.kernel)
        verify_kernel(kernel)
        verify_linear(program)
    return program


def compile_kernel(built: BuiltKernel, device_name: str) -> Code:
    """A kernel lowered and compiled for a device."""
    device = Device[device_name]
    program = lower_kernel(built, device.renderer.target)
    lib = device.compiler.compile_cached(device.renderer.render(program))
    data = device.renderer.launch_data(program)
    return Code(device_name, program.name, lib, data)
