"""What the compiler makes of a graph, stage by stage, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpu.compiler.fusion.build import build_kernel
from gpu.compiler.fusion.plan import Plan, Root
from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph.text import print_graph
from gpu.compiler.ir.graph.userkernel import Source, UserKernel
from gpu.compiler.ir.kernel import Kernel
from gpu.compiler.ir.kernel.text import print_kernel
from gpu.compiler.ir.linear.text import print_linear
from gpu.runtime.device import Renderer
from gpu.runtime.iteration import is_parameter, step_of
from gpu.runtime.pipeline import lower_kernel, plan_graph, user_kernel


class Stage(NamedTuple):
    """One representation of a graph, or of one of its kernels."""

    name: str
    text: str


def explain(
    roots: Sequence[Node], is_leaf: Callable[[Node], bool], renderer: Renderer
) -> list[Stage]:
    """The stages from `roots` to source code, those after the plan once for each kernel.

    They are those of the runtime. All devices of the graph are taken to be like the one that
    `renderer` prints for. Of a loop come the stages of its step. Raises Unsupported for what that
    device cannot do.
    """
    roots, plan, _ = plan_graph(roots, is_leaf, lambda name: renderer.target)
    stages = [Stage("graph", print_graph(roots)), Stage("plan", print_plan(roots, plan))]
    for number, made in enumerate(plan.kernels):
        if made[0].kind in ("copy", "host"):
            continue
        if made[0].kind == "loop":
            stages += explain(step_of(made).roots, is_parameter, renderer)
            continue
        kernel: Kernel | Source
        if made[0].kind == "kernel":
            own: UserKernel = made[0].attr[0]
            kernel = user_kernel(own, renderer.target, made[0].device)
        else:
            kernel = build_kernel(f"k{number}", number, plan).kernel
        if isinstance(kernel, Source):
            from gpu.compiler.render.userkernel import as_program  # only now: all languages

            stages.append(Stage("source", as_program(own, kernel, renderer.target)[0]))
            continue
        opts, scheduled, program = lower_kernel(kernel, renderer.target)
        stages += [
            Stage("kernel", print_kernel(kernel)),
            Stage("schedule", "".join(f"{opt}\n" for opt in opts)),
            Stage("scheduled kernel", print_kernel(scheduled)),
            Stage("linear", print_linear(program)),
            Stage("source", renderer.render(program)),
        ]
    return stages


def print_plan(roots: Sequence[Node], plan: Plan) -> str:
    """The placement of each node that is not inline, with the numbers `print_graph` gives."""
    lines = print_graph(roots).splitlines()
    numbered = [line for line in lines if line.startswith("%")]
    result = []
    for node, line in zip(toposort(roots), numbered, strict=True):
        placed = plan.placement.get(node)
        if placed is None:
            continue
        name = line.split(" ")[0]
        if isinstance(placed, Root):
            result.append(f"{name} Root(kernel {placed.kernel})\n")
        inside = placed if not isinstance(placed, Root) else {placed.kernel: placed.at}
        for kernel, at in inside.items():
            if at is None:
                continue
            result.append(f"{name} At(kernel {kernel}, below {at.depth} loops, {at.space})\n")
    return "".join(result)
