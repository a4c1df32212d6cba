"""Random programs with symbolic axes: compiled for one value of each variable, run with others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from gpu.backends.python.device import BLOCKS
from gpu.compiler.fusion.build import BuiltKernel, build_kernel
from gpu.compiler.fusion.placement import plan_fusion
from gpu.compiler.ir.graph import Node, interpret, symbols_of, toposort
from gpu.compiler.ir.graph.text import handles_of, parse_graph, print_graph
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets import Target
from gpu.runtime.buffer import Buffer
from gpu.runtime.execute import realize, storage
from gpu.runtime.prepared import Counters
from prop.symbolic_programs import (
    Array,
    cut,
    input_of,
    memory_of,
    random_values,
    symbolic_graph,
)
from prop.test_passes import SCALAR, WIDE, WORKERS


def is_leaf(node: Node) -> bool:
    return node.kind == "buffer"


def as_built(built: BuiltKernel, arrays: list[Array], vals: list[int]) -> None:
    verify_kernel(built.kernel)
    kernel = parse_kernel(print_kernel(built.kernel))
    interpret_kernel(kernel, {p.name: a for p, a in zip(kernel.params, arrays, strict=True)}, vals)


def scheduled(built: BuiltKernel, arrays: list[Array], vals: list[int]) -> None:
    after_schedule(built, arrays, vals, WIDE)


def scheduled_blocks(built: BuiltKernel, arrays: list[Array], vals: list[int]) -> None:
    after_schedule(built, arrays, vals, BLOCKS)


def after_schedule(
    built: BuiltKernel, arrays: list[Array], vals: list[int], target: Target
) -> None:
    kernel, _ = schedule(built.kernel, target)
    verify_kernel(kernel)
    again = parse_kernel(print_kernel(kernel))
    interpret_kernel(again, {p.name: a for p, a in zip(again.params, arrays, strict=True)}, vals)


def linear_grid(built: BuiltKernel, arrays: list[Array], vals: list[int]) -> None:
    program = linearize(schedule(built.kernel, SCALAR)[0], SCALAR)
    interpret_linear(parse_linear(print_linear(program)), arrays, vals)


def linear_blocks(built: BuiltKernel, arrays: list[Array], vals: list[int]) -> None:
    program = linearize(schedule(built.kernel, BLOCKS)[0], BLOCKS)
    interpret_linear(parse_linear(print_linear(program)), arrays, vals)


def linear_workers(built: BuiltKernel, arrays: list[Array], vals: list[int]) -> None:
    program = linearize(schedule(built.kernel, WORKERS)[0], WORKERS)
    interpret_linear(parse_linear(print_linear(program)), arrays, vals)


def wanted_of(roots: list[Node]) -> list[Node]:
    return [root for root in dict.fromkeys(roots) if root.size and root.kind != "buffer"]


# The last one reshapes an empty tensor.
@pytest.mark.parametrize("seeds", [range(5), range(5, 10), [15]], ids=["0-4", "5-9", "15"])
@pytest.mark.parametrize(
    "run",
    [as_built, scheduled, scheduled_blocks, linear_grid, linear_blocks, linear_workers],
)
def test_a_kernel_is_right_for_all_values(  # type: ignore[no-untyped-def]
    run, seeds: Iterable[int]
) -> None:
    for seed in seeds:
        rng = np.random.default_rng(seed)
        first = wanted_of(symbolic_graph(seed, random_values(rng, seed)))
        plan = plan_fusion(first, is_leaf)
        for _ in range(2):
            roots = wanted_of(symbolic_graph(seed, random_values(rng, seed)))
            number = {s.name: s.number for s in symbols_of(toposort(roots))}
            memory: dict[Node, Array] = {}
            for kernel_number, made in enumerate(plan.kernels):
                memory |= {root: np.full(root.size, 77, root.dtype.np) for root in made}
                built = build_kernel("k", kernel_number, plan)
                for node in built.params:
                    if node not in memory:
                        memory[node] = memory_of(node.attr[0], node.shape).reshape(-1)
                vals = [number[val.name] for val in built.kernel.vals]
                run(built, [memory[node] for node in built.params], vals)
            for old, new, want in zip(first, roots, interpret(roots, input_of), strict=True):
                np.testing.assert_array_equal(cut(memory[old], new.shape), want)


@pytest.mark.parametrize("batch", range(2))
def test_a_device_compiles_once_for_all_values(device: str, batch: int) -> None:
    for seed in range(100 + batch * 3, 100 + batch * 3 + 3):
        rng = np.random.default_rng(seed)
        compiled = None
        for _ in range(3):
            roots = wanted_of(symbolic_graph(seed, random_values(rng, seed)))
            done = realize(on(device, roots))
            got = [cut(storage(node).copy_out(), node.shape) for node in done]
            for have, want in zip(got, interpret(roots, input_of), strict=True):
                np.testing.assert_array_equal(have, want)
            assert compiled in (None, Counters.compiled), "values must not be compiled in"
            compiled = Counters.compiled


def on(device: str, roots: list[Node]) -> list[Node]:
    """The same graph over buffers of `device`."""
    shapes = {node.attr[0]: node.shape for node in toposort(roots) if node.kind == "buffer"}
    handles = []
    for handle in handles_of(roots):
        array = memory_of(handle, shapes[handle])
        handles.append(Buffer(device, array.size, roots[0].dtype).copy_in(array))
    return parse_graph(print_graph(roots).replace("device CPU", f"device {device}", 1), handles)
