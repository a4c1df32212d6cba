"""Every pass of the compiler against the meaning of the graph it came from, on random programs.

Each random graph is planned; then its kernels are run after every pass by the interpreter of the
representation that the pass gives. (tests/backend runs such graphs as machine code.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu.backends.python.device import BLOCKS
from gpu.compiler.fusion.build import BuiltKernel, build_kernel
from gpu.compiler.fusion.placement import plan_fusion
from gpu.compiler.fusion.transforms import expand_transforms
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph.rewrite import without_custom_grads
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.opts import apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets import Target
from gpu.compiler.targets.cpu import host_target
from prop.graphs import computed
from prop.judge import check, expect
from prop.programs import random_graph

Array = np.ndarray[Any, Any]
RunKernel = Callable[[BuiltKernel, list[Array]], None]

WORKERS = host_target(workers=2)
WIDE = Target("wide", WORKERS.native, "worker", 1, 64, 32)
SCALAR = Target("scalar", WORKERS.native, "grid")
VECTORS = replace(BLOCKS, name="vectors", vector_bytes=16, threads=256, warp=32, shuffle=0)


def run_plan(
    roots: list[Node], inputs: dict[Any, Array], run: RunKernel, in_blocks: bool = False
) -> list[Array]:
    """The values of `roots`, each kernel of their plan run by `run` on numpy arrays."""

    def is_leaf(node: Node) -> bool:
        return node.kind == "buffer"

    shapes = [root.shape for root in roots]
    roots = expand_transforms(without_custom_grads(roots, is_leaf), is_leaf)
    plan = plan_fusion(roots, is_leaf, has_blocks=lambda device: in_blocks)
    values: dict[Node, Array] = {}

    def value(node: Node) -> Array:
        if node not in values and is_leaf(node):
            values[node] = np.ascontiguousarray(inputs[node.attr[0]]).reshape(-1)
        return values[node]

    for number, made in enumerate(plan.kernels):
        values |= {root: np.zeros(root.size, root.dtype.np) for root in made}
        built = build_kernel(f"k{number}", number, plan)
        run(built, [value(node) for node in built.params])
    return [value(root).reshape(shape) for root, shape in zip(roots, shapes, strict=True)]


def as_built(built: BuiltKernel, arrays: list[Array]) -> None:
    verify_kernel(built.kernel)
    names = [buf.name for buf in built.kernel.params]
    interpret_kernel(built.kernel, dict(zip(names, arrays, strict=True)))


def scheduled(target: Target) -> RunKernel:
    def run(built: BuiltKernel, arrays: list[Array]) -> None:
        kernel, opts = schedule(built.kernel, target)
        verify_kernel(kernel)
        again = apply(built.kernel, opts)
        assert [p.name for p in again.params] == [p.name for p in kernel.params]
        names = [buf.name for buf in kernel.params]
        interpret_kernel(again, dict(zip(names, arrays, strict=True)))

    return run


def linear(target: Target) -> RunKernel:
    def run(built: BuiltKernel, arrays: list[Array]) -> None:
        kernel, _ = schedule(built.kernel, target)
        program = linearize(kernel, target)
        interpret_linear(parse_linear(print_linear(program)), arrays)

    return run


STAGES: dict[str, RunKernel] = {
    "built": as_built,
    "scheduled-workers": scheduled(WORKERS),
    "scheduled-wide": scheduled(WIDE),
    "scheduled-grid": scheduled(SCALAR),
    "linear-workers": linear(WORKERS),
    "linear-wide": linear(WIDE),
    "linear-grid": linear(SCALAR),
    "scheduled-blocks": scheduled(BLOCKS),
    "linear-blocks": linear(BLOCKS),
    "linear-vectors": linear(VECTORS),
}


@pytest.mark.parametrize("batch", range(6))
@pytest.mark.parametrize("stage", STAGES)
def test_stage_keeps_the_meaning(stage: str, batch: int) -> None:
    for seed in range(batch * 5, batch * 5 + 5):
        rng = np.random.default_rng(seed)
        roots, inputs = random_graph(rng, depth=int(rng.integers(3, 31)), max_size=600)
        if wanted := computed(roots):
            got = run_plan(wanted, inputs, STAGES[stage])
            check(got, expect(wanted, inputs, rng), wanted)
