"""Running a loop of a graph: one compiled step, launched again and again on other memory.

`step_graph` makes of a body the graph of a step that knows its number: it reads slices out of what
is stacked, and writes there in place, at an offset that is an argument. So one program serves all
steps.

A carry lies in two places in turn, such that the last step leaves it where its value is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from gpu.compiler.ir.dims import Symbol, dimension, symbol
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.body import STEP, Body, Stack
from gpu.compiler.ir.graph.rewrite import substitute
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device


class LoopForm(NamedTuple):
    """A loop of a compiled graph.

    Attributes:
        body: which of the bodies of the graph, in the order of `bodies_of`.
        length: how many steps it has.
        reverse: whether the last slices come first.
        kept: the numbers of the results that are wanted, without the last carries.
    """

    body: int
    length: int
    reverse: bool
    kept: tuple[int, ...]


class Steps(Protocol):
    """What is asked of a `Schedule`."""

    @property
    def outputs(self) -> tuple[int, ...]:
        """The slot of each root."""

    @property
    def writes(self) -> tuple[int, ...]:
        """The slots of leaves that are changed."""

    @property
    def weight(self) -> int:
        """What keeping it costs."""


class Compiled(Protocol):
    """What is asked of a `Prepared`."""

    @property
    def leaves(self) -> list[Node]:
        """Nodes whose memory the first slots are."""

    @property
    def schedule(self) -> Steps:
        """What to run."""

    @property
    def values(self) -> tuple[Symbol | int, ...]:
        """What launches take."""

    def numbers(self, symbols: Mapping[str, Symbol]) -> list[int]:
        """The values as numbers."""

    def make_slots(self) -> list[Buffer]:
        """Buffers for the slots after the leaves."""


P = TypeVar("P", bound=Compiled)


class StepGraph(NamedTuple):
    """One step of a loop.

    Attributes:
        roots: the next carries, then what is stacked.
        place: for each leaf the number of its memory, as `Iteration.run` is given it.
    """

    roots: list[Node]
    place: dict[Node, int]


def step_graph(body: Body, form: LoopForm, apart: bool) -> StepGraph:
    """The graph of a step. The next carries get memory of their own if `apart`."""
    step = dimension(symbol(STEP, 0, form.length - 1, 0).as_expr)
    place = {node: number for number, node in enumerate(body.parameters)}
    new: dict[Node, Node] = {}
    for parameter in body.sliced:
        number = place.pop(parameter)
        stack = _stack(parameter, number, form.length)
        place[stack] = number
        whole = [(0, size, 1) for size in parameter.shape]
        new[parameter] = G.reshape(G.slice_(stack, [(step, 1, 1), *whole]), parameter.shape)
    results = [*substitute(body.results, new), *body.carried]
    roots = results[: body.carries]
    if apart:
        roots = [G.contiguous(root, number) for number, root in enumerate(roots, 1)]
    first = len(body.parameters) + 2 * body.carries
    for number, kept in enumerate(form.kept, first):
        stack = _stack(results[kept], number, form.length)
        place[stack] = number
        row = G.reshape(results[kept], (1, *results[kept].shape))
        roots.append(G.write(stack, row, [(step, 1), *((0, 1) for _ in row.shape[1:])]))
    return StepGraph(roots, place)


def _stack(node: Node, number: int, length: int) -> Node:
    return G.buffer(Stack(number), (length, *node.shape), node.dtype, node.device)


def step_of(made: Sequence[Node]) -> StepGraph:
    """The graph of a step of a loop, of which the results behind it in `made` are wanted."""
    loop, *results = made
    body, length, reverse = loop.attr
    kept = (node.attr[0] for node in results)
    form = LoopForm(0, length, reverse, tuple(each for each in kept if each >= body.carries))
    return step_graph(body, form, apart=False)


def is_parameter(node: Node) -> bool:
    """Whether a node of a step is in memory before it runs."""
    return node.kind == "buffer"


class Iteration(Generic[P]):
    """A compiled step, and how often it runs.

    Attributes:
        prepared: the step.
        device: where all of it runs.
        weight: what keeping it costs, in kernels of a CPU.
    """

    def __init__(self, body: Body, form: LoopForm, prepare: Callable[[list[Node]], P]):
        """`prepare` compiles a graph. Raises what that does."""
        self.form, self._operands = form, len(body.parameters)
        self._carries = range(body.constants, body.constants + body.carries)
        graph = step_graph(body, form, apart=False)
        self.device: str = body.parameters[0].device
        own = len({*graph.roots}) == len(graph.roots) and all(map(_is_computed, graph.roots))
        if not (own and self._take(graph, prepare(graph.roots))):
            is_right = self._take(graph := step_graph(body, form, True), prepare(graph.roots))
            assert is_right, "a step changes what it reads"

    def _take(self, graph: StepGraph, prepared: P) -> bool:
        """Takes a compiled step, if it changes no memory but what it is for."""
        self.prepared, schedule = prepared, prepared.schedule
        self.weight = schedule.weight
        symbols = (getattr(value, "name", "") for value in prepared.values)
        self._step = next((i for i, name in enumerate(symbols) if name == STEP), None)
        self._leaves = [graph.place[leaf] for leaf in prepared.leaves]
        slot_of = {place: slot for slot, place in enumerate(self._leaves)}
        # The slots of each carry before the step, None where it is not read, and after it.
        self._before = {number: slot_of.get(number) for number in self._carries}
        self._after = dict(zip(self._carries, schedule.outputs, strict=False))
        self._in_place = [n for n, slot in self._after.items() if slot == self._before[n]]
        stacked = {slot for place, slot in slot_of.items() if place >= self._operands}
        return {*schedule.writes} == stacked | {self._after[n] for n in self._in_place}

    def run(
        self, memories: Sequence[Any], launch: Callable[[list[Any], Sequence[int]], None]
    ) -> None:
        """Runs all steps; `launch` runs one, on memory for each slot.

        `memories` has the operands of the loop, then for each carry where its last value goes and
        scratch memory, then stacked results that are kept.
        """
        last = {number: self._operands + i for i, number in enumerate(self._carries)}
        scratch = {number: place + len(self._carries) for number, place in last.items()}
        places = [scratch, last]  # where a carry is with an odd number of steps left, and an even
        begin = {n: n for n in last}
        if self._in_place:
            self._copy_in_place(memories, last)
            own = {n: last[n] for n in self._in_place}
            scratch |= own
            begin |= own
        # Alive while the steps run, with nothing in the slots of carries.
        workspace = self.prepared.make_slots()
        carried = {*self._after.values()}
        own_memory = [memories[place] for place in self._leaves]
        for slot, buffer in enumerate(workspace, len(own_memory)):
            own_memory.append(None if slot in carried else buffer.memory)

        def bound(before: Mapping[int, int], after: Mapping[int, int]) -> list[Any]:
            slots = own_memory.copy()
            for number, slot in self._after.items():
                slots[slot] = memories[after[number]]
                if (read := self._before[number]) is not None:
                    slots[read] = memories[before[number]]
            return slots

        turns = [bound(places[not even], places[even]) for even in (False, True)]
        steps = range(self.form.length)
        vals = self.prepared.numbers({})
        for number, step in enumerate(reversed(steps) if self.form.reverse else steps):
            even = (self.form.length - number) % 2 == 1
            if self._step is not None:
                vals[self._step] = step
            launch(turns[even] if number else bound(begin, places[even]), vals)

    def _copy_in_place(self, memories: Sequence[Any], last: Mapping[int, int]) -> None:
        """Brings what steps change in place to where it is left."""
        leaves = dict(zip(self._leaves, self.prepared.leaves, strict=True))
        for number in self._in_place:
            leaf = leaves[number]
            device = Device[leaf.device]
            device.synchronize()
            device.allocator.copy(memories[last[number]], memories[number], leaf.nbytes)


def _is_computed(root: Node) -> bool:
    """Whether a step computes the root, instead of showing what is there."""
    while root.kind in ("reshape", "detach"):
        root = root.src[0]
    return root.kind != "buffer"
