"""What the compiler makes of a graph, stage by stage, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph_text import print_graph
from gpu.compiler.ir.kernel_text import print_kernel
from gpu.compiler.ir.linear_text import print_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy import schedule
from gpu.compiler.schedule.build import build_kernel
from gpu.compiler.schedule.fusion import plan_fusion
from gpu.compiler.schedule.narrow import narrow_sums
from gpu.compiler.schedule.plan import At, Plan
from gpu.compiler.schedule.split import split_reductions
from gpu.runtime.device import Renderer


class Stage(NamedTuple):
    """One representation of a graph, or of one of its kernels."""

    name: str
    text: str


def explain(
    roots: Sequence[Node], is_leaf: Callable[[Node], bool], renderer: Renderer
) -> list[Stage]:
    """The stages from `roots` to source code, those after the plan once for each kernel.

    All devices of the graph are taken to be like the one that `renderer` prints for.
    """
    roots = split_reductions(roots, is_leaf, lambda name: renderer.target)
    roots = narrow_sums(roots, is_leaf)
    plan = plan_fusion(roots, is_leaf)
    stages = [Stage("graph", print_graph(roots)), Stage("plan", print_plan(roots, plan))]
    for number, made in enumerate(plan.kernels):
        if made[0].kind == "copy":
            continue
        built = build_kernel(f"k{number}", number, plan)
        kernel, opts = schedule(built.kernel, renderer.target)
        program = linearize(kernel, renderer.target)
        stages += [
            Stage("kernel", print_kernel(built.kernel)),
            Stage("schedule", "".join(f"{opt}\n" for opt in opts)),
            Stage("scheduled kernel", print_kernel(kernel)),
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
