"""What the compiler makes of a graph, stage by stage, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpu.compiler.fusion.build import build_kernel
from gpu.compiler.fusion.plan import At, Plan
from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph.text import print_graph
from gpu.compiler.ir.kernel.text import print_kernel
from gpu.compiler.ir.linear.text import print_linear
from gpu.runtime.device import Renderer
from gpu.runtime.pipeline import lower_kernel, plan_graph


class Stage(NamedTuple):
    """One representation of a graph, or of one of its kernels."""

    name: str
    text: str


def explain(
    roots: Sequence[Node], is_leaf: Callable[[Node], bool], renderer: Renderer
) -> list[Stage]:
    """The stages from `roots` to source code, those after the plan once for each kernel.

    They are those of the runtime. All devices of the graph are taken to be like the one that
    `renderer` prints for. Raises Unsupported for what that device cannot do.
    """
    roots, plan, _ = plan_graph(roots, is_leaf, lambda name: renderer.target)
    stages = [Stage("graph", print_graph(roots)), Stage("plan", print_plan(roots, plan))]
    for number, made in enumerate(plan.kernels):
        if made[0].kind == "copy":
            continue
        built = build_kernel(f"k{number}", number, plan)
        opts, scheduled, program = lower_kernel(built.kernel, renderer.target)
        stages += [
            Stage("kernel", print_kernel(built.kernel)),
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
        if isinstance(placed, At):
            where = f"At(kernel {placed.kernel}, below {placed.depth} loops, {placed.space})"
        elif placed is not None:
            where = f"Root(kernel {placed.kernel})"
        else:
            continue
        result.append(f"{line.split(' ')[0]} {where}\n")
    return "".join(result)
