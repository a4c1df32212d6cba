"""What one trace of a function becomes: a compiled graph, where its inputs come from, what it
gives.

Part of `gpu.jit`; see `gpu/tensor/jit.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from gpu.compiler.ir.dims import Symbol, find_symbols, plain, rebound
from gpu.compiler.ir.graph import Node, Place, Shape
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.grid import Layout, layout_of
from gpu.core.dtype import DType, dtypes
from gpu.runtime.buffer import Buffer, Status
from gpu.runtime.device import Device
from gpu.runtime.execute import (
    is_computed,
    is_only_storage,
    is_spread,
    on_devices,
    parts_of,
    prepare,
    realize,
    storage,
    without_reshapes,
)
from gpu.runtime.origins import copy_origin
from gpu.runtime.ownership import is_only_reference
from gpu.runtime.prepared import Prepared
from gpu.runtime.profile import is_profiling
from gpu.runtime.recipe import Schedule
from gpu.runtime.status import any_words, with_words
from gpu.runtime.timeline import span
from gpu.runtime.users import touching_alone
from gpu.tensor.autodiff import reached
from gpu.tensor.callforms import map_tensors, tensors_in
from gpu.tensor.guards import Guards
from gpu.tensor.handle import Handle
from gpu.tensor.randomness import generator_state, restore_generator, write_state
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import Trace

_NOTHING: Final = nullcontext()


class _Source(NamedTuple):
    """Where the memory of a leaf comes from in a replay.

    `kind` is `argument` (number `position` of the call's tensors), `state` (a tensor from
    outside), `random` (the next random words) or `constant` (memory made by the trace). `part` is
    the number of the device whose part of the tensor it is.
    """

    kind: str
    position: int = 0
    handle: Handle | None = None
    device: str = ""
    words: int = 0
    node: Node | None = None
    part: int = 0


class Target(NamedTuple):
    """What becomes of a value: part of the `result`, or a tensor's new value or gradient.

    `kind` is `result`, `move` or `grad`; the tensor is argument number `argument` of the call, or
    `handle` where that is -1.
    """

    kind: str
    handle: Handle | None = None
    argument: int = -1

    def tensor(self, arguments: list[Tensor]) -> Handle:
        """The tensor whose value or gradient it is."""
        found = self.handle if self.argument < 0 else arguments[self.argument]
        assert found is not None
        return found


class _Wanted(NamedTuple):
    """A value that a replay gives, and the form of the tensor over it.

    It is put together from `parts` as `layout` says if it is on several devices.
    """

    target: Target
    parts: tuple[_Part, ...]
    layout: Layout
    shape: Shape
    device: Place


class _Part(NamedTuple):
    """What one device has of a value that a replay gives.

    `output` is the number of a computed value, `given` that of one that was there. Both are -1 for
    a tensor without elements, which is `node`.
    """

    shape: Shape
    dtype: DType
    device: str
    output: int = -1
    given: int = -1
    node: Node | None = None


class Capture:
    """One form of a function's arguments: its graph, and what goes in and comes out.

    It holds no nodes of the trace: they would keep the memory that state had then.

    Attributes:
        result: what the function returned, with the same tensor in place of each.
        shapes: shape, dtype and device of each argument.
        origins: for each result, the arguments by number, and the tensors from outside, that a
            gradient of it would reach; nothing for a function that trains.
        given_grads: tensors that get a gradient that was there before (as an argument, by number),
            or none.
        has_effects: whether a replay changes tensors that are there.
        strangers: see `gpu/tensor/watching.py:Watch`; until the second call.
    """

    def __init__(self, trace: Trace, stand_ins: list[Node], arguments: list[Tensor], result: Any):
        self.calls = self.attempts = 1
        self._name = trace.name
        self.strangers: dict[int, Any] = {}
        self.shapes = [(plain(t.shape), t.dtype, t.device) for t in arguments]
        wanted = list(_wanted(trace, result, arguments))
        spread = _on_devices([node for _, node in wanted])
        nodes = [node for parts, _ in spread for node in parts]
        bases = [without_reshapes(node) for node in nodes]
        for base, node in zip(bases, nodes, strict=True):
            copy_origin(node, base)
        fresh = [n for n in dict.fromkeys(bases) if not is_computed(n) and n.size]
        given = [n for n in dict.fromkeys(bases) if is_computed(n)]
        depends = with_words(fresh, is_computed, storage)
        prepared = prepare(fresh) if fresh else None
        place_of = {leaf: slot for slot, leaf in enumerate(prepared.leaves)} if prepared else {}
        # Of each root the status words, and the slots of leaves, which may have more.
        self._statuses = [
            (each._replace(leaves=[]), [place_of[leaf] for leaf in each.leaves if leaf in place_of])
            for each in depends
        ]
        find = _Sources(trace, stand_ins)
        self.sources = [find(leaf) for leaf in prepared.leaves] if prepared else []
        self.given_sources = [find(node) for node in given]
        self.prepared = prepared._replace(leaves=[]) if prepared else None
        position = {id(tensor): i for i, tensor in enumerate(arguments)}
        self.given_grads: list[tuple[Target, Handle | int | None]] = [
            (target, position.get(id(grad), grad))
            for target, grad in _gradients_set(trace, arguments)
            if grad is None or id(grad) in position or id(grad) not in trace.born
        ]
        self.has_effects = bool(
            self.given_grads or any(target.kind != "result" for target, _ in wanted)
        )
        output = {node: i for i, node in enumerate(fresh)}
        place = {node: i for i, node in enumerate(given)}
        made = iter(
            _Part(
                node.shape, node.dtype, node.device,
                output.get(base, -1), place.get(base, -1), None if base.size else node,
            )
            for node, base in zip(nodes, bases, strict=True)
        )  # fmt: skip
        self.wanted = [
            _Wanted(target, tuple(next(made) for _ in parts), layout, node.shape, node.device)
            for (target, node), (parts, layout) in zip(wanted, spread, strict=True)
        ]
        stand_in = Tensor._wrap(G.const(0, (), dtypes.int32, Device.DEFAULT))
        self.result = map_tensors(result, lambda _: stand_in)
        self.origins = _origins(trace, stand_ins, wanted)
        self._workspace: list[Buffer] | None = None
        self._allowed = [allowed for _, allowed in trace.checks]
        self._checked: Capture | None = None
        if trace.checks:
            positions = [given for given, _ in trace.checks]
            self._checked = Capture(trace.of_checks(), stand_ins, arguments, positions)

    def guard(self, guards: Guards, trace: Trace, arguments: list[Tensor]) -> None:
        """Notes what must be outside as it is now, and which arguments come from there too."""
        self.guards = guards
        outside = [*guards.tensors(), *trace.state, *trace.moved]
        known = {id(tensor) for tensor in arguments}.difference(map(id, guards.tensors()))
        self._outside = {id(h): h for h in outside if id(h) not in known}
        self._shared = self._found_outside(arguments)

    def holds(self, arguments: list[Tensor]) -> bool:
        """Whether all outside is as it was, and the same arguments are tensors from there."""
        return self._found_outside(arguments) == self._shared and self.guards.hold()

    def _found_outside(self, arguments: list[Tensor]) -> list[tuple[int, int]]:
        if not self._outside:
            return []
        bases = [id(t if t._view is None else t._view.base) for t in arguments]
        return [(i, base) for i, base in enumerate(bases) if base in self._outside]

    def ends(self, arguments: list[Tensor]) -> list[set[Node]]:
        """For each result, what it is computed from, if a gradient of it would have to go there."""
        found = []
        for origins in self.origins:
            handles = [arguments[o] if isinstance(o, int) else o for o in origins]
            has_gradient = any(handle._has_gradient() for handle in handles)
            found.append({n for h in handles for n in h._nodes()} if has_gradient else set())
        return found

    def form(self) -> tuple[Any, ...]:
        """What must be the same each time the function is traced."""
        sources = (*self.sources, *self.given_sources)
        kinds = [(s.kind, s.position, id(s.handle), s.words, s.part, _content(s)) for s in sources]
        targets = [wanted.target for wanted in self.wanted]
        targets += [target for target, _ in self.given_grads]
        key = self.prepared.key if self.prepared else None
        places = [(t.kind, t.argument, t.argument < 0 and id(t.handle)) for t in targets]
        given = [g if isinstance(g, int) else id(g) for _, g in self.given_grads]
        return key, kinds, places, given

    def replay(
        self,
        arguments: list[Tensor],
        symbols: dict[str, Symbol],
        before_changes: Callable[[], None] | None = None,
    ) -> list[Node]:
        """Runs the graph on these arguments; the value of each wanted node, in memory.

        `symbols` are the variables that arguments depend on, bound to their values now; those that
        the function binds itself keep the value they were traced with. When `before_changes` was
        called, the caller gives the values to the tensors they are for before it is interrupted;
        gradients that are computed anew are let go of first, as `zero_grad` does.
        Raises InvalidIndex, before anything else is done, where a check of positions fails.
        """
        if self._checked is not None:
            self._check(self._checked, arguments, symbols)
        if before_changes is not None:
            self._let_go_of_gradients(arguments)
        given = [_buffer(source, arguments) for source in self.given_sources]
        slots = [_buffer(source, arguments) for source in self.sources]
        outputs = self._run(slots, arguments, symbols, before_changes)
        result = []
        for wanted in self.wanted:
            parts = [_node_over(part, outputs, given, symbols) for part in wanted.parts]
            if isinstance(wanted.device, str):
                result.append(parts[0])
            else:
                result.append(G.multi(parts, wanted.layout, wanted.shape, wanted.device))
        return result

    def _let_go_of_gradients(self, arguments: list[Tensor]) -> None:
        """Gradients that the replay gives anew, and does not read, need no memory beside these."""
        targets = [wanted.target for wanted in self.wanted if wanted.target.kind == "grad"]
        if not targets:
            return
        read = {
            arguments[source.position] if source.kind == "argument" else source.handle
            for source in self.sources
        }
        for target in targets:
            handle = target.tensor(arguments)
            if handle.grad is not None and handle.grad not in read:
                handle.grad = None

    def replay_over(
        self, memory: Sequence[Buffer], symbols: dict[str, Symbol]
    ) -> list[Buffer | None]:
        """As `replay`, on the memory of arguments: that of each result, None without elements.

        For a function that gives tensors on one device, changes none and looks at no positions. No
        memory of an argument is written to.
        """
        assert self._checked is None

        def found(source: _Source) -> Buffer:
            return memory[source.position] if source.kind == "argument" else _buffer(source, [])

        slots = [found(source) for source in self.sources]
        outputs = self._run(slots, None, symbols, None)
        result: list[Buffer | None] = []
        for wanted in self.wanted:
            (part,) = wanted.parts
            if part.node is not None:
                result.append(None)
            elif part.output >= 0:
                result.append(outputs[part.output])
            else:
                result.append(found(self.given_sources[part.given]))
        return result

    def _check(self, checked: Capture, arguments: list[Tensor], symbols: dict[str, Symbol]) -> None:
        """Computes the positions apart, of the random numbers that the replay then has again."""
        state = generator_state()
        positions = checked.replay(arguments, symbols)
        for node, allowed in zip(positions, self._allowed, strict=True):
            size = rebound(allowed.size, symbols)
            allowed._replace(size=size).verify(Tensor._wrap(node).numpy())
        restore_generator(state)

    def _run(
        self,
        slots: list[Buffer],
        arguments: list[Tensor] | None,
        symbols: dict[str, Symbol],
        before_changes: Callable[[], None] | None,
    ) -> list[Buffer]:
        """The memory of each root that is computed, given that of each leaf.

        `arguments` are tensors that may lose their memory; None where none may.
        """
        prepared = self.prepared
        if prepared is None:
            return []
        is_timed = is_profiling()
        if is_timed != (prepared.lines is not None):  # as nobody knew when it was traced
            prepared = prepared._replace(lines=() if is_timed else None)
        schedule = prepared.schedule
        for source in self.sources if prepared.values else ():
            if source.handle is not None:
                find_symbols(source.handle._value.shape, symbols)
        vals = prepared.numbers(symbols) if prepared.values else ()
        given = [slot.statuses for slot in slots] if any_words() else None
        with span(f"replay {self._name}") if is_timed else _NOTHING:
            if schedule.writes or schedule.reuses:
                self._run_in_place(prepared, slots, arguments, vals, before_changes)
            else:
                self._add_slots(schedule, slots)
                prepared.run(slots, vals)
        outputs = [slots[slot] for slot in schedule.outputs]
        if given is not None:
            self._note_statuses(outputs, given)
        return outputs

    def _add_slots(self, schedule: Schedule, slots: list[Buffer]) -> None:
        """Memory behind that of the leaves, of which only a result's is new in each replay."""
        if self._workspace is None:
            assert self.prepared is not None
            self._workspace = self.prepared.make_slots()
        count = len(slots)
        slots += self._workspace
        for slot in schedule.outputs:
            if slot >= count:
                old = slots[slot]
                slots[slot] = Buffer(old.device, old.size, old.dtype)

    def _run_in_place(
        self,
        prepared: Prepared,
        slots: list[Buffer],
        arguments: list[Tensor] | None,
        vals: Sequence[int],
        before_changes: Callable[[], None] | None,
    ) -> None:
        """Runs what changes the memory of leaves, or of copies where others need it."""
        schedule = prepared.schedule

        def may_change(slot: int) -> bool:
            if arguments is None:
                return False
            return self._may_change(slot, slots[slot : slot + 1], arguments)

        for slot in schedule.writes:
            if not may_change(slot):
                slots[slot] = slots[slot].duplicate()
        self._add_slots(schedule, slots)
        with touching_alone() if schedule.reuses else _NOTHING as alone:
            reused = schedule.reused(may_change) if alone else {}
            prepared.run_in_place(slots, reused, vals, before_changes)

    def _note_statuses(
        self, outputs: Sequence[Buffer], given: Sequence[tuple[Status, ...]]
    ) -> None:
        """Has results keep the status words that are theirs; `given` are those of leaves."""
        for output, (dependence, leaves) in zip(outputs, self._statuses, strict=False):
            theirs = (status for leaf in leaves for status in given[leaf])
            output.statuses = (*dependence.over(outputs), *theirs)

    def _may_change(self, slot: int, memory: list[Buffer], arguments: list[Tensor]) -> bool:
        """Whether only the tensor that a leaf stands for, which moves on, needs its memory."""
        source = self.sources[slot]
        handle = arguments[source.position] if source.kind == "argument" else source.handle
        if handle is None or handle._view is not None:
            return False
        moves = (w.target.tensor(arguments) for w in self.wanted if w.target.kind == "move")
        if not any(moved is handle for moved in moves):
            return False
        if not is_only_reference([handle._value], 1):
            return False
        if isinstance(handle.device, str):
            return is_only_storage(handle._value, memory)
        parts = parts_of(handle._value)
        apart = is_only_reference([parts[source.part]], 1)
        return apart and is_only_storage(parts[source.part], memory)


def _wanted(trace: Trace, result: Any, arguments: list[Tensor]) -> Iterable[tuple[Target, Node]]:
    for tensor in tensors_in(result):
        yield Target("result"), tensor._node
    position = {id(tensor): i for i, tensor in enumerate(arguments)}
    for handle in trace.moved:
        yield Target("move", handle, position.get(id(handle), -1)), handle._value
    for target, grad in _gradients_set(trace, arguments):
        if grad is not None and id(grad) in trace.born and id(grad) not in position:
            yield target, grad._node


def _origins(
    trace: Trace, stand_ins: list[Node], wanted: list[tuple[Target, Node]]
) -> list[tuple[int | Handle, ...]]:
    if trace.grads or any(handle._requires_grad for handle in trace.moved):
        return []  # it computes its gradients itself
    known: dict[Node, int | Handle] = {node: handle for handle, node in trace.state.items()}
    known |= {node: number for number, node in enumerate(stand_ins)}
    results = [node for target, node in wanted if target.kind == "result"]
    return [tuple([known[found] for found in reached(node, known)]) for node in results]


def _gradients_set(trace: Trace, arguments: list[Tensor]) -> Iterable[tuple[Target, Handle | None]]:
    """The tensors from outside that were given a gradient, and which, None if they have none."""
    position = {id(tensor): i for i, tensor in enumerate(arguments)}
    for handle in trace.grads:
        if id(handle) in position or id(handle) not in trace.born:
            yield Target("grad", handle, position.get(id(handle), -1)), handle._grad


def _on_devices(nodes: Sequence[Node]) -> list[tuple[tuple[Node, ...], Layout]]:
    """What each of `nodes` is on its devices, and how it lies there."""
    if not (Device.has_groups and is_spread(nodes)):
        return [((node,), None) for node in nodes]
    return [
        (each.parts, layout_of(node.device, each.layout) if each.axes else None)
        for node, each in zip(nodes, on_devices(nodes), strict=True)
    ]


def _node_over(
    part: _Part, outputs: list[Buffer], given: list[Buffer], symbols: dict[str, Symbol]
) -> Node:
    if part.node is not None:
        return part.node
    memory = outputs[part.output] if part.output >= 0 else given[part.given]
    shape = rebound(part.shape, symbols) if symbols else part.shape
    return G.buffer(memory, shape, part.dtype, part.device)


class _Sources:
    """Tells where each leaf of a traced graph comes from."""

    def __init__(self, trace: Trace, stand_ins: list[Node]):
        self.known: dict[Node, _Source] = {}
        for i, whole in enumerate(stand_ins):
            for number, node in enumerate(parts_of(whole)):
                self.known[node] = _Source("argument", i, part=number)
        for handle, whole in trace.state.items():
            for number, node in enumerate(parts_of(whole)):
                self.known.setdefault(node, _Source("state", handle=handle, part=number))
        for node, device, words in trace.random:
            self.known[node] = _Source("random", device=device, words=words, node=node)

    def __call__(self, leaf: Node) -> _Source:
        return self.known.get(leaf) or _Source("constant", node=leaf)


def _content(source: _Source) -> bytes:
    """What must not change in memory that the trace made itself."""
    if source.kind != "constant":
        return b""
    assert source.node is not None
    return blake2b(storage(source.node).copy_out().tobytes(), digest_size=16).digest()


def _buffer(source: _Source, arguments: list[Tensor]) -> Buffer:
    kind = source.kind
    if kind in ("argument", "state"):
        handle = arguments[source.position] if source.handle is None else source.handle
        node = handle._node
        if node.kind == "buffer":
            memory: Buffer = node.attr[0]
            return memory
        if kind == "state" and not is_computed(node):
            (node,) = realize([node])
            handle._become(node, set())
        return storage(node if isinstance(node.device, str) else parts_of(node)[source.part])
    assert source.node is not None
    memory = storage(source.node)
    if kind == "random":
        write_state(memory, source.device, source.words)
    return memory
