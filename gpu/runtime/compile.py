"""From a graph to launches, compiled once for every graph of the same form.

`graph_key` numbers a graph's buffers by first use, so that two graphs that differ in nothing but
their buffers share one plan. A plan is a list of steps over numbered slots: first the buffers that
exist already, then those the steps fill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph import verify as verify_graph
from gpu.compiler.ir.kernel_verify import verify_kernel
from gpu.compiler.ir.linear import Program as LinearProgram
from gpu.compiler.ir.linear_verify import verify_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy import schedule
from gpu.compiler.schedule.build import BuiltKernel, build_kernel
from gpu.compiler.schedule.fusion import plan_fusion
from gpu.compiler.schedule.plan import Plan
from gpu.compiler.target import Target
from gpu.core.config import config
from gpu.core.dtype import DType
from gpu.core.log import get_logger
from gpu.runtime.device import Device
from gpu.runtime.program import Program

log = get_logger(__name__)

Key = tuple[Any, ...]


class Slot(NamedTuple):
    """Memory a plan fills: an output, or an intermediate value that dies with the execution."""

    device: str
    size: int
    dtype: DType


class Launch(NamedTuple):
    """Runs a kernel on slots."""

    program: Program
    slots: tuple[int, ...]


class Transfer(NamedTuple):
    """Copies one slot to another one, across devices or not."""

    source: int
    target: int


class Schedule(NamedTuple):
    """A compiled graph.

    Attributes:
        leaves: how many slots are given from outside; they come first.
        slots: the slots the steps fill, numbered after the leaves.
        steps: in the order in which they run.
        outputs: the slot of each root.
    """

    leaves: int
    slots: tuple[Slot, ...]
    steps: tuple[Launch | Transfer, ...]
    outputs: tuple[int, ...]


def _as_it_is(attr: Key) -> object:
    return attr


# Constants tell -0.0 from 0.0; the identity of a contiguous node changes nothing that is computed.
_KEY_ATTR: dict[str, Callable[[Key], object]] = {"const": repr, "contiguous": lambda attr: ()}


def graph_key(
    roots: Sequence[Node], is_leaf: Callable[[Node], bool]
) -> tuple[Key, list[Node], list[Node]]:
    """The form of a graph: its key, its leaves in order of first use, and all nodes, sources first.

    Graphs with equal keys compute the same function of their leaves.
    """
    order = toposort(roots, is_leaf)
    number: dict[Node, int] = {}
    leaves: list[Node] = []
    parts: list[Key] = []
    for position, node in enumerate(order):
        number[node] = position
        if is_leaf(node):
            leaves.append(node)
            parts.append((node.shape, node.dtype, node.device))
        else:
            sources = tuple(number[s] for s in node.src)
            attr = _KEY_ATTR.get(node.kind, _as_it_is)(node.attr)
            parts.append((node.kind, attr, node.shape, node.dtype, node.device, sources))
    return (tuple(parts), tuple(number[r] for r in roots)), leaves, order


def compile_graph(
    roots: Sequence[Node], leaves: Sequence[Node], is_leaf: Callable[[Node], bool]
) -> Schedule:
    """Plans, lowers and compiles everything needed for `roots`."""
    if config.VERIFY:
        verify_graph(roots)
    plan = plan_fusion(roots, is_leaf)
    slot_of = {leaf: i for i, leaf in enumerate(leaves)}
    slots: list[Slot] = []
    steps: list[Launch | Transfer] = []
    for number, (root,) in enumerate(plan.kernels):
        slot_of[root] = len(leaves) + len(slots)
        slots.append(Slot(root.device, root.size, root.dtype))
        if root.kind == "copy":
            steps.append(Transfer(slot_of[root.src[0]], slot_of[root]))
        else:
            built = build_kernel("kernel", number, plan)
            program = compile_kernel(built, root.device)
            steps.append(Launch(program, tuple(slot_of[node] for node in built.params)))
    log.debug("%d kernels for %s", len(steps), [*roots])
    return Schedule(len(leaves), tuple(slots), tuple(steps), tuple(slot_of[r] for r in roots))


def lower_kernel(built: BuiltKernel, target: Target) -> LinearProgram:
    """A kernel as linear IR that `target` can render; verified on the way where VERIFY is set."""
    if config.VERIFY:
        verify_kernel(built.kernel)
    kernel, opts = schedule(built.kernel, target, optimize=not config.NOOPT)
    log.debug("%s: %s", kernel.name, opts)
    if config.VERIFY:
        verify_kernel(kernel)
    program = linearize(kernel, target)
    if config.VERIFY:
        verify_linear(program)
    return program


_programs: dict[tuple[str, bytes], Program] = {}


def compile_kernel(built: BuiltKernel, device_name: str) -> Program:
    """A kernel lowered, compiled and loaded; equal code is loaded once."""
    device = Device[device_name]
    program = lower_kernel(built, device.renderer.target)
    lib = device.compiler.compile_cached(device.renderer.render(program))
    key = (device_name, lib)
    if key not in _programs:
        _programs[key] = device.runtime(program, lib)
    return _programs[key]


__all__ = ["Launch", "Plan", "Schedule", "Slot", "Transfer", "compile_graph", "graph_key"]
