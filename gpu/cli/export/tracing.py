"""What a function does with its inputs, as a graph on a device that need not exist.

The function is watched as `gpu.jit` watches it (`gpu/tensor/jit.py`), wherever its tensors are; the
graph is then made anew for the other device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node, make, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.targets import NARROW_FLOATS
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import InvalidValue, Unsupported
from gpu.runtime.buffer import Buffer
from gpu.runtime.execute import is_computed, storage
from gpu.tensor.handle import Handle
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import JitError, Trace, tracing

Function: TypeAlias = "Callable[[dict[str, Tensor]], dict[str, Tensor]]"
"""Named inputs to named outputs."""


class Leaf(NamedTuple):
    """Memory that a graph starts from.

    Attributes:
        kind: `input`, `weight`, or `random`: four words, as
            `gpu/tensor/randomness.py:next_state` describes them.
        name: of an input.
        offset: of `random`, how many random words of a run come before its first.
        source: of a weight, the node whose value in this process it has.
        handle: the tensor that a weight is from, None where the function made it itself.
    """

    kind: str
    name: str = ""
    offset: int = 0
    source: Node | None = None
    handle: Handle | None = None


class Traced(NamedTuple):
    """A function as a graph on one device.

    Attributes:
        inputs: their buffer nodes by name, whether or not the graph reaches them.
        leaves: by the buffer nodes of the graph.
        outputs: by name.
        updates: the new values of weights that the function writes to, by their buffer nodes.
        random_words: how many random words a run takes.
        random_device: where it took them in this process; empty where it takes none.
    """

    inputs: dict[str, Node]
    leaves: dict[Node, Leaf]
    outputs: dict[str, Node]
    updates: dict[Node, Node]
    random_words: int
    random_device: str


class _StandIn(Buffer):
    """What an input is while the function is watched: a buffer that never has memory."""

    __slots__ = ()

    @property
    def memory(self) -> Any:
        """Raises JitError: an input has no value yet."""
        raise JitError(
            "a tensor made inside the exported function was kept in another way than by returning"
            " it, so it has no value: return it, or assign() it to a tensor made outside"
        )


def page_dtype(dtype: DType) -> DType:
    """What an input or output of a dtype is to JavaScript: narrow floats are float32."""
    return dtypes.float32 if dtype in NARROW_FLOATS else dtype


class _Watched(NamedTuple):
    """One run of a function on stand-ins.

    Attributes:
        trace: what it did.
        stand_ins: the inputs, by name.
        outputs: by name.
        moved: old and new value of each tensor from outside that it wrote to.
    """

    trace: Trace
    stand_ins: dict[str, Node]
    outputs: dict[str, Node]
    moved: list[tuple[Node, Node]]


def trace(function: Function, inputs: dict[str, Tensor], device: str) -> Traced:
    """The graph of `function` on `device`; nothing is computed, and no tensor changes its value.

    Raises JitError for what depends on a value, and InvalidValue or Unsupported for what pages do
    not do.
    """
    watched = _watch(function, inputs)
    if _separate(watched.trace):
        watched = _watch(function, inputs)
    return _Rebuilder(watched, device).run()


def _watch(function: Function, inputs: dict[str, Tensor]) -> _Watched:
    watched = Trace(getattr(function, "__qualname__", repr(function)))
    stand_ins = {name: _stand_in(tensor) for name, tensor in inputs.items()}
    try:
        with tracing(watched):
            given = {name: Tensor._wrap(node) for name, node in stand_ins.items()}
            outputs = {name: tensor._node for name, tensor in function(given).items()}
        for name, tensor in given.items():
            if tensor._value is not stand_ins[name]:
                raise InvalidValue(
                    f"the exported function writes to its input {name!r}, which a page cannot give"
                    " back: compute a new tensor, and return that"
                )
        _refuse_gradients(watched)
        moved = [(old, handle._value) for handle, old in watched.moved.items()]
        return _Watched(watched, stand_ins, outputs, moved)
    finally:
        for handle, old in watched.moved.items():
            handle._value = old
        for handle, grad in watched.grads.items():
            handle.grad = grad


def _separate(watched: Trace) -> bool:
    """Gives tensors memory of their own that share it with one that is written to.

    Equal expressions are one node: caches that begin as zeros are one buffer, and may even be taken
    for the number 0. Returns whether there were any.
    """
    written = {storage(old) for old in watched.moved.values() if _is_in_memory(old)}
    seen: set[Buffer] = set()
    found = False
    for handle, node in watched.state.items():
        if not _is_in_memory(node):
            continue
        memory = storage(node)
        if memory in written and (memory in seen or node.kind == "const"):
            copied = memory.duplicate()
            handle._become(G.buffer(copied, node.shape, node.dtype, node.device), set())
            found = True
        seen.add(memory)
    return found


def _is_in_memory(node: Node) -> bool:
    return is_computed(node) and isinstance(node.device, str)


def _stand_in(tensor: Tensor) -> Node:
    assert isinstance(tensor.device, str)
    handle = _StandIn(tensor.device, tensor.numel(), tensor.dtype)
    return G.buffer(handle, tensor.shape, tensor.dtype, tensor.device)


def _refuse_gradients(watched: Trace) -> None:
    for handle in watched.state:
        if handle.grad is not None and id(handle.grad) in watched.born:
            raise Unsupported(
                f"the exported function leaves a gradient in {handle._described()}: a page keeps"
                " none; return what is needed of it, or export only the forward pass"
            )


def _check_size(node: Node) -> None:
    if has_symbols(node.shape):
        raise Unsupported(
            f"the exported function returns or keeps a tensor of shape {list(node.shape)}, but"
            " those of a page have fixed sizes: pad() it to the largest"
        )


class _Rebuilder:
    """Makes the nodes of a watched function anew for another device."""

    def __init__(self, watched: _Watched, device: str):
        self.watched, self.device = watched, device
        self.handles = {node: handle for handle, node in watched.trace.state.items()}
        self.leaves: dict[Node, Leaf] = {}
        self.made: dict[Node, Node] = {}
        self.inputs = {name: self._input(name, n) for name, n in watched.stand_ins.items()}
        self.words = 0
        for node, _, count in watched.trace.random:
            self.made[node] = self._buffer(node, node.dtype, Leaf("random", offset=self.words))
            self.words += count

    def run(self) -> Traced:
        """The whole function."""
        outputs, moved = self.watched.outputs, self.watched.moved
        roots = [*outputs.values(), *(new for _, new in moved)]
        for node in roots:
            _check_size(node)
        for node in toposort(roots, is_computed):
            if node not in self.made:
                self._check(node)
                self.made[node] = self._weight(node) if is_computed(node) else self._inner(node)
        random = self.watched.trace.random
        return Traced(
            self.inputs,
            self.leaves,
            {name: G.cast(self.made[n], page_dtype(n.dtype)) for name, n in outputs.items()},
            # What is written but never read makes no difference to any later run.
            {
                self.made[old]: self.made[new]
                for old, new in moved
                if self.made.get(old) in self.leaves
            },
            self.words,
            random[0][1] if random else "",
        )

    def _check(self, node: Node) -> None:
        if not isinstance(node.device, str) or node.kind in ("multi", "part"):
            raise Unsupported(
                "the exported function uses a tensor on several devices; a page has one: give it"
                " tensors that are not sharded"
            )
        if node.kind == "loop":
            raise Unsupported(
                "the exported function has a scan, whose steps a page does not run; write it as a"
                " Python loop there"
            )
        if node.kind == "host":
            raise Unsupported(
                f"the exported function has {node.attr[0].name}, which is computed by the LAPACK of"
                " the host, and a page has none; compute it before, and give the page the result"
            )
        if node.dtype.is_complex:
            raise Unsupported(
                "the exported function has complex numbers, which pages do not have; write it on"
                " x.view_as_real(), whose last axis has both parts"
            )
        if node.dtype is dtypes.float64:
            what = "uses a tensor of" if is_computed(node) else f"computes {node.kind} in"
            raise Unsupported(
                f"the exported function {what} float64, which WebGPU does not have; make it float32"
            )

    def _buffer(self, node: Node, dtype: DType, leaf: Leaf) -> Node:
        made = G.buffer(Buffer(self.device, node.size, dtype), node.shape, dtype, self.device)
        self.leaves[made] = leaf
        return made

    def _input(self, name: str, node: Node) -> Node:
        made = self._buffer(node, page_dtype(node.dtype), Leaf("input", name))
        self.made[node] = G.cast(made, node.dtype)
        return made

    def _weight(self, node: Node) -> Node:
        _check_size(node)
        leaf = Leaf("weight", source=node, handle=self.handles.get(node))
        return self._buffer(node, node.dtype, leaf)

    def _inner(self, node: Node) -> Node:
        sources = tuple(self.made[source] for source in node.src)
        if node.kind == "copy":  # to another device here, which a page does not have
            return sources[0]
        return make(node.kind, sources, node.attr, node.shape, node.dtype, self.device)
