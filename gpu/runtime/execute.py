"""Running graphs: values of nodes become buffers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpu.compiler.ir.dims import Symbol, any_symbols, same_memory
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph_build import buffer
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device
from gpu.runtime.schedule import (
    Key,
    Launch,
    Schedule,
    find_on_disk,
    graph_key,
    graph_symbols,
    keep_on_disk,
    load,
)

# Buffers of nodes that were computed while something else still refers to the node.
_values: weakref.WeakKeyDictionary[Node, Node] = weakref.WeakKeyDictionary()
_schedules: dict[Key, Schedule] = {}


class Counters:
    """What has been run since the process started; tests and `gpu demo` read it.

    Attributes:
        launches: kernels launched.
        compiled: graphs compiled.
        kernels: kernels compiled for them.
    """

    launches = 0
    compiled = 0
    kernels = 0


def is_computed(node: Node) -> bool:
    """Whether the node's value is in memory."""
    return node.kind == "buffer" or node in _values


def storage(node: Node) -> Buffer:
    """The buffer of a node whose value is in memory."""
    handle: Buffer = (node if node.kind == "buffer" else _values[node]).attr[0]
    return handle


def realize(roots: Sequence[Node]) -> list[Node]:
    """Computes the values of `roots`; returns a buffer node for each, of the same shape.

    A root that is another one's value under a new shape shares its memory. Raises what compiling
    and allocating raise; nothing is changed then.
    """
    bases = [without_reshapes(root) for root in roots]
    wanted = [b for b in dict.fromkeys(bases) if not is_computed(b) and b.size]
    if wanted:
        _run(wanted)
    return [_view(base, root) for base, root in zip(bases, roots, strict=True)]


def without_reshapes(node: Node) -> Node:
    """The node whose memory, in another shape, is the value of `node`."""
    while node.kind == "reshape" and not is_computed(node):
        if any_symbols() and not same_memory(node.src[0].shape, node.shape):
            return node
        node = node.src[0]
    return node


def _view(base: Node, root: Node) -> Node:
    if not base.size:
        handle = Buffer(root.device, 0, root.dtype)
    else:
        handle = storage(base)
    return buffer(handle, root.shape, root.dtype, root.device)


def _run(roots: list[Node]) -> None:
    prepared = prepare(roots)
    given = [storage(leaf) for leaf in prepared.leaves]
    slots = [*given, *prepared.make_slots()]
    prepared.run(slots)
    for root, slot in zip(roots, prepared.schedule.outputs, strict=True):
        _values[root] = buffer(slots[slot], root.shape, root.dtype, root.device)


class Prepared(NamedTuple):
    """A compiled graph with its leaves, to be run on whatever memory stands for them.

    Attributes:
        key: the graph's form.
        leaves: nodes whose memory the first slots are, in order.
        schedule: what to run, and the slot of each root.
        symbols: the symbolic sizes, bound to values.
    """

    key: Key
    leaves: list[Node]
    schedule: Schedule
    symbols: tuple[Symbol, ...] = ()

    def make_slots(self) -> list[Buffer]:
        """Fresh buffers for the slots after the leaves."""
        return [Buffer(s.device, s.size, s.dtype) for s in self.schedule.slots]

    def run(self, slots: list[Buffer], vals: Sequence[int] | None = None) -> None:
        """Runs the graph on a buffer for each slot.

        `vals` has a value for each of the symbolic sizes; without it they have those they are bound
        to.
        """
        if vals is None:
            vals = [symbol.number for symbol in self.symbols] if self.symbols else ()
        memories = [slot.memory for slot in slots]
        if self.schedule.graph is not None:
            self.schedule.graph(memories, vals)
            Counters.launches += len(self.schedule.steps)
        else:
            _run_steps(self.schedule, slots, memories, vals)


def prepare(roots: list[Node]) -> Prepared:
    """Finds or compiles what computes `roots`, none of which may be in memory already.

    Raises InvalidValue where a symbolic size has two ranges or two values.
    """
    symbols = graph_symbols(roots, is_computed)
    key, leaves = graph_key(roots, is_computed)
    schedule = _schedules.get(key)
    if schedule is None:
        schedule = _schedules[key] = _find_or_compile(key, roots, leaves)
    return Prepared(key, leaves, schedule, symbols)


def _run_steps(
    schedule: Schedule, slots: list[Buffer], memories: list[Any], vals: Sequence[int]
) -> None:
    for step in schedule.steps:
        if isinstance(step, Launch):
            taken = [vals[i] for i in step.vals] if step.vals else ()
            step.program(*[memories[i] for i in step.slots], vals=taken)
            Counters.launches += 1
        else:
            transfer(slots[step.source], slots[step.target])


def _find_or_compile(key: Key, roots: list[Node], leaves: list[Node]) -> Schedule:
    devices = sorted({node.device for node in (*roots, *leaves)})
    recipe = find_on_disk(key, devices)
    if recipe is None:
        # Only now: a process that finds everything it needs on disk never imports the compiler.
        from gpu.runtime.compile import compile_graph

        recipe = compile_graph(roots, leaves, is_computed)
        keep_on_disk(key, devices, recipe)
        Counters.compiled += 1
        Counters.kernels += len(recipe.codes)
    return load(recipe, len(leaves))


def transfer(source: Buffer, target: Buffer) -> None:
    """Copies a buffer to another one of the same size, through the host."""
    target.copy_in(source.copy_out())


def synchronize(device: str) -> None:
    """Waits until everything launched on a device is done."""
    Device[device].synchronize()
