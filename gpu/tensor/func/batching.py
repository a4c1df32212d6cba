"""From the graph of one example to that of a batch: a rule for each kind of node.

A value of a batch has the examples along a new first axis. What does not depend on anything that
differs between examples stays as it is, and is shown once for each where it meets what does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpu.compiler.ir.dims import Dim, has_symbols
from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.barrier import barrier
from gpu.compiler.ir.graph.grid import moved_cuts
from gpu.core.errors import Unsupported
from gpu.runtime.origins import copy_origin
from gpu.runtime.status import CHECKED
from gpu.tensor import customgrad
from gpu.tensor.loops import Bound, given, make_loop
from gpu.tensor.recompute import is_recomputed, recomputed


class Batch:
    """What nodes of one example are for all examples.

    Attributes:
        size: how many examples there are.
    """

    def __init__(self, size: Dim, mapped: Mapping[Node, Node]):
        """`mapped` says what the nodes are that differ between examples, to begin with."""
        self.size = size
        self._done = dict(mapped)

    def compute(self, roots: Sequence[Node]) -> None:
        """Finds what `roots` are for the batch, for `of` to tell.

        Raises Unsupported for a node of a kind that has no rule.
        """
        for node in toposort(roots, self._done.__contains__):
            if node in self._done or self._done.keys().isdisjoint(node.src):
                continue
            rule = None if node.dtype.is_image else RULES.get(node.kind)
            if rule is None:
                what = "an image" if node.dtype.is_image else node.kind
                raise Unsupported(f"vmap has no rule for {what}, which gives {node!r}")
            self._done[node] = made = rule(node, self)
            copy_origin(node, made)

    def of(self, node: Node) -> Node:
        """The value of a node for the batch; one that is the same in all is repeated."""
        found = self._done.get(node)
        return self.repeated(node) if found is None else found

    def differs(self, node: Node) -> bool:
        """Whether a node depends on what differs between examples."""
        return node in self._done

    def repeated(self, node: Node) -> Node:
        """A value that is the same in all examples, for each of them."""
        shape = node.shape
        return G.expand(G.reshape(node, (1, *shape)), (self.size, *shape))


Rule = Callable[[Node, Batch], Node]


def _later(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis + 1 for axis in axes)


def _alu(node: Node, batch: Batch) -> Node:
    return G.alu(node.attr[0], *map(batch.of, node.src))


def _reduce(node: Node, batch: Batch) -> Node:
    monoid, axes = node.attr
    return G.reduce(monoid, batch.of(node.src[0]), _later(axes))


def _permute(node: Node, batch: Batch) -> Node:
    return G.permute(batch.of(node.src[0]), (0, *_later(node.attr[0])))


def _slice(node: Node, batch: Batch) -> Node:
    ranges = [(s, n, d) for (s, d), n in zip(node.attr, node.shape, strict=True)]
    return G.slice_(batch.of(node.src[0]), [(0, batch.size, 1), *ranges])


def _pad(node: Node, batch: Batch) -> Node:
    return G.pad(batch.of(node.src[0]), [(0, 0, 0), *node.attr])


def _skew(node: Node, batch: Batch) -> Node:
    axis, tap, stride, dilation = node.attr
    move = G.skew if node.kind == "skew" else G.unskew
    size = node.shape[axis]
    return move(batch.of(node.src[0]), axis + 1, tap + 1, stride, dilation, size)


def _gather(node: Node, batch: Batch) -> Node:
    x, index = map(batch.of, node.src)
    return G.gather(x, index, node.attr[0] + 1)


def _scatter(node: Node, batch: Batch) -> Node:
    x, index, updates = map(batch.of, node.src)
    axis, monoid = node.attr
    return G.scatter(x, index, updates, axis + 1, monoid)


def _scan(node: Node, batch: Batch) -> Node:
    monoid, axis = node.attr
    return G.scan(monoid, batch.of(node.src[0]), axis + 1)


def _cumcount(node: Node, batch: Batch) -> Node:
    bins, axis = node.attr
    return G.cumcount(batch.of(node.src[0]), bins, axis + 1)


def _reorder(node: Node, batch: Batch) -> Node:
    x, index = map(batch.of, node.src)
    return G.reorder(x, index, node.attr[0] + 1)


def _write(node: Node, batch: Batch) -> Node:
    x, value = map(batch.of, node.src)
    return G.write(x, value, [(0, 1), *node.attr])


def _interleave(node: Node, batch: Batch) -> Node:
    is_stored, axes = node.attr
    sizes = {axis + 1: node.shape[axis] for axis in axes}
    return G.interleave_all([*map(batch.of, node.src)], sizes, bool(is_stored))


def _fft(node: Node, batch: Batch) -> Node:
    axis, radices, inverse, scale = node.attr
    pairs, *factors = node.src  # the factors follow from the size
    own = factors[0] if factors else None
    return G.fft(batch.of(pairs), axis + 1, radices, own, bool(inverse), scale)


def _random(node: Node, batch: Batch) -> Node:
    # The state is one for the batch: numbers follow from places in it.
    return G.random_bits(batch.of(node.src[0]), (batch.size, *node.shape))


def _barrier(node: Node, batch: Batch) -> Node:
    x, *others = map(batch.of, node.src)
    return barrier(x, others)


def _custom_grad(node: Node, batch: Batch) -> Node:
    rule, *numbers = node.attr
    first, *operands = map(batch.of, node.src)
    if rule == "argument":  # of a derivative that is known by now
        return first
    if is_recomputed(node):  # what it begins with in the graph of the batch is found anew
        return recomputed([first], operands)[0]
    if rule == "given":
        raise Unsupported(
            f"vmap of {node!r}, whose gradient is a function's, as that of a collective is: call it"
            " outside of vmap"
        )
    if rule in customgrad.AXES:
        numbers = [*_later(numbers)]
    if rule == CHECKED:  # the words are those of all examples
        numbers.insert(1, batch.size)
    return G.custom_grad(rule, first, operands, *numbers)


def _multi(node: Node, batch: Batch) -> Node:
    (layout,) = node.attr
    parts = [batch.of(part) for part in node.src]
    return G.multi(parts, moved_cuts(layout, 1), (batch.size, *node.shape), node.device)


def _part(node: Node, batch: Batch) -> Node:
    number, layout = node.attr
    return G.part(batch.of(node.src[0]), number, moved_cuts(layout, 1))


def _copy(node: Node, batch: Batch) -> Node:
    layout = (moved_cuts(each, 1) for each in node.attr)
    return G.copy(batch.of(node.src[0]), node.device, *layout)


def _loop(node: Node, batch: Batch) -> Node:
    """A loop whose carries have all examples; what is the same in all of the rest stays so."""
    body, length, reverse = node.attr
    _refuse_symbolic(node, batch)
    if batch.size == 0:
        return node
    first, last = body.constants, body.constants + body.carries
    inside: dict[Node, Node] = {}
    bound: list[Bound] = []
    for number, (parameter, x) in enumerate(zip(body.parameters, node.src, strict=True)):
        if not (first <= number < last or batch.differs(x)):
            bound.append(Bound(parameter, x))
            continue
        operand = batch.of(x) if number < last else _exchanged(batch.of(x))
        inside[parameter] = given(batch.repeated(parameter))
        bound.append(Bound(inside[parameter], operand))
    step = Batch(batch.size, inside)
    step.compute(body.results)
    results = [step.of(result) for result in body.results]
    return make_loop(bound[:first], bound[first:last], bound[last:], results, length, reverse)


def _kernel(node: Node, batch: Batch) -> Node:
    """A loop over the examples, since a kernel is for operands of certain shapes."""
    kernel, gradient = node.attr
    _refuse_symbolic(node, batch)
    if batch.size == 0:
        return node
    if batch.size == 1:
        operands = [G.reshape(batch.of(x), x.shape) for x in node.src]
        return G.kernel(kernel, gradient, operands, node.device)
    own: list[Node] = []
    constants: list[Bound] = []
    slices: list[Bound] = []
    for x in node.src:
        own.append(given(x))
        if batch.differs(x):
            slices.append(Bound(own[-1], batch.of(x)))
        else:
            constants.append(Bound(own[-1], x))
    made = G.kernel(kernel, gradient, own, node.device)
    results = [G.result(made, number) for number in range(len(kernel.outputs))]
    return make_loop(constants, [], slices, results, batch.size, False)


def _host(node: Node, batch: Batch) -> Node:
    """The same call: its matrices may have any axes before them."""
    call, gradient = node.attr
    _refuse_symbolic(node, batch)
    if batch.size == 0:
        return node
    inputs, outputs = (
        tuple([form._replace(shape=(batch.size, *form.shape)) for form in forms])
        for forms in (call.inputs, call.outputs)
    )
    batched = call._replace(inputs=inputs, outputs=outputs)
    return G.host(batched, gradient, [batch.of(x) for x in node.src])


def _refuse_symbolic(node: Node, batch: Batch) -> None:
    if has_symbols(batch.size):
        raise Unsupported(f"vmap of a {node.kind} over a symbolic number of examples, {batch.size}")


def _result(node: Node, batch: Batch) -> Node:
    (source,), (number,) = node.src, node.attr
    made = batch.of(source)
    shape = (batch.size, *node.shape)
    if made is source:  # there are no examples
        return G.const(0, shape, node.dtype, node.device)
    value = G.result(made, number)
    if source.kind == "loop" and number >= source.attr[0].carries:
        return _exchanged(value)
    return G.reshape(value, shape)


def _exchanged(x: Node) -> Node:
    """`x` with its first two axes exchanged: of examples and of steps."""
    return G.permute(x, (1, 0, *range(2, len(x.shape))))


RULES: Final[dict[str, Rule]] = {
    "alu": _alu,
    "cast": lambda node, batch: G.cast(batch.of(node.src[0]), node.dtype),
    "bitcast": lambda node, batch: G.bitcast(batch.of(node.src[0]), node.dtype),
    "reduce": _reduce,
    "reshape": lambda node, batch: G.reshape(batch.of(node.src[0]), (batch.size, *node.shape)),
    "expand": lambda node, batch: G.expand(batch.of(node.src[0]), (batch.size, *node.shape)),
    "permute": _permute,
    "slice": _slice,
    "pad": _pad,
    "skew": _skew,
    "unskew": _skew,
    "gather": _gather,
    "scatter": _scatter,
    "scan": _scan,
    "cumcount": _cumcount,
    "reorder": _reorder,
    "write": _write,
    "as_real": lambda node, batch: G.as_real(batch.of(node.src[0])),
    "as_complex": lambda node, batch: G.as_complex(batch.of(node.src[0])),
    "interleave": _interleave,
    "fft": _fft,
    "random": _random,
    "contiguous": lambda node, batch: G.contiguous(batch.of(node.src[0]), *node.attr),
    "detach": lambda node, batch: G.detach(batch.of(node.src[0])),
    "barrier": _barrier,
    "custom_grad": _custom_grad,
    "copy": _copy,
    "multi": _multi,
    "part": _part,
    "loop": _loop,
    "kernel": _kernel,
    "host": _host,
    "result": _result,
}
"""For each kind of node that has sources, what it is for a batch; others are the same in all."""
