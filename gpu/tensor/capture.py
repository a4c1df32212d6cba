"""What one trace of a function becomes: a compiled graph, where its inputs come from, what it
gives.

Part of `gpu.jit`; see `gpu/tensor/jit.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from gpu.compiler.ir import graph_build as G
from gpu.compiler.ir.dims import Symbol, find_symbols, rebound
from gpu.compiler.ir.graph import Node
from gpu.runtime.buffer import Buffer
from gpu.runtime.execute import Prepared, is_computed, prepare, realize, storage, without_reshapes
from gpu.tensor.handle import Handle
from gpu.tensor.randomness import write_state
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import Trace


class _Source(NamedTuple):
    """Where the memory of a leaf comes from in a replay.

    `kind` is `argument` (number `position` of the call's tensors), `state` (a tensor from
    outside), `random` (the next random words) or `constant` (memory made by the trace).
    """

    kind: str
    position: int = 0
    handle: Handle | None = None
    device: str = ""
    words: int = 0
    node: Node | None = None


class Capture:
    """One form of a function's arguments: its graph, and what goes in and comes out."""

    def __init__(self, trace: Trace, stand_ins: list[Node], arguments: list[Tensor], result: Any):
        self.calls = self.attempts = 1
        self.result = result
        # Everything that has to be computed: (what becomes of it, node).
        self.wanted = list(_wanted(trace, result, arguments))
        nodes = [without_reshapes(node) for _, node in self.wanted]
        fresh = [n for n in dict.fromkeys(nodes) if not is_computed(n) and n.size]
        self.prepared: Prepared | None = prepare(fresh) if fresh else None
        leaves = self.prepared.leaves if self.prepared else []
        given = [n for n in dict.fromkeys(nodes) if is_computed(n)]
        self.given = given
        find = _Sources(trace, stand_ins)
        self.sources = [find(leaf) for leaf in leaves]
        self.given_sources = [find(node) for node in given]
        self.place = {node: i for i, node in enumerate(fresh)}
        self.bases = nodes
        self._workspace: list[Buffer] | None = None

    def form(self) -> tuple[Any, ...]:
        """What must be the same each time the function is traced."""
        sources = (*self.sources, *self.given_sources)
        kinds = [(s.kind, s.position, id(s.handle), s.words, _content(s)) for s in sources]
        targets = [target for target, _ in self.wanted]
        key = self.prepared.key if self.prepared else None
        return key, kinds, [(t.kind, t.argument, t.argument < 0 and id(t.handle)) for t in targets]

    def replay(self, arguments: list[Tensor], symbols: dict[str, Symbol]) -> list[Node]:
        """Runs the graph on these arguments; the value of each wanted node, in memory.

        `symbols` are the variables that arguments depend on, bound to their values now; those that
        the function binds itself keep the value they were traced with.
        """
        outputs: list[Buffer] = []
        if self.prepared is not None:
            schedule = self.prepared.schedule
            leaves = [_buffer(source, arguments) for source in self.sources]
            for source in self.sources:
                if source.handle is not None:
                    find_symbols(source.handle._value.shape, symbols)
            vals = [symbols.get(s.base, s).number for s in self.prepared.symbols]
            if self._workspace is None:
                self._workspace = self.prepared.make_slots()
            rest = list(self._workspace)
            count = len(leaves)
            for slot in schedule.outputs:
                old = rest[slot - count]
                rest[slot - count] = Buffer(old.device, old.size, old.dtype)
            slots = [*leaves, *rest]
            self.prepared.run(slots, vals)
            outputs = [slots[slot] for slot in schedule.outputs]
        given = {
            node: _buffer(source, arguments)
            for node, source in zip(self.given, self.given_sources, strict=True)
        }
        return [
            _node_over(base, node, outputs, self.place, given, symbols)
            for base, (_, node) in zip(self.bases, self.wanted, strict=True)
        ]


def _node_over(
    base: Node,
    node: Node,
    outputs: list[Buffer],
    place: dict[Node, int],
    given: dict[Node, Buffer],
    symbols: dict[str, Symbol],
) -> Node:
    if not base.size:
        return node
    memory = outputs[place[base]] if base in place else given[base]
    shape = rebound(node.shape, symbols) if symbols else node.shape
    return G.buffer(memory, shape, node.dtype, node.device)


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


def _wanted(trace: Trace, result: Any, arguments: list[Tensor]) -> Iterable[tuple[Target, Node]]:
    for tensor in tensors_in(result):
        yield Target("result"), tensor._node
    position = {id(tensor): i for i, tensor in enumerate(arguments)}
    for handle in trace.moved:
        yield Target("move", handle, position.get(id(handle), -1)), handle._value
    for handle in (*trace.state, *arguments):
        if handle.grad is not None and id(handle.grad) in trace.born:
            yield Target("grad", handle, position.get(id(handle), -1)), handle.grad._node


class _Sources:
    """Tells where each leaf of a traced graph comes from."""

    def __init__(self, trace: Trace, stand_ins: list[Node]):
        self.known = {node: _Source("argument", i) for i, node in enumerate(stand_ins)}
        for handle, node in trace.state.items():
            self.known.setdefault(node, _Source("state", handle=handle))
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
    match source.kind:
        case "argument":
            return storage(arguments[source.position]._node)
        case "state":
            assert source.handle is not None
            node = source.handle._node
            if not is_computed(node):
                (node,) = realize([node])
                source.handle._become(node, set())
            return storage(node)
        case "random":
            assert source.node is not None
            memory = storage(source.node)
            write_state(memory, source.device, source.words)
            return memory
    assert source.node is not None
    return storage(source.node)


def changed_number(first: Capture, second: Capture) -> tuple[str, str] | None:
    """The first number that differs between two traces that are alike otherwise."""
    a, b = (c.prepared.key[0] if c.prepared else () for c in (first, second))
    if [part[0] for part in a] != [part[0] for part in b]:
        return None
    for x, y in zip(a, b, strict=True):
        if x != y and x[0] == "const":
            return str(x[1]).strip("(,)"), str(y[1]).strip("(,)")
    return None


def tensors_in(value: Any) -> Iterable[Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with each tensor in its lists, tuples and dicts changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        made = [map_tensors(v, change) for v in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {k: map_tensors(v, change) for k, v in value.items()}
    return value
