"""Graph IR: whole tensors as values.

A node's shape, dtype and device are fixed when it is made. Nodes are frozen and interned: two equal
expressions are one object, so `is` compares them and common subexpressions vanish by themselves.
Anything known about a node beyond its fields lives in the pass that found it out, but for two notes
of the runtime, `value` and `origin`, which nothing here reads.

A value on several devices has a tuple of names as its device, and the shape it has as a whole;
before it is computed, `gpu/compiler/shard/rules.py` makes nodes of single devices of it.

Complex numbers are in graphs alone: `gpu/compiler/ir/graph/complex.py` makes two floats of each.

Sizes, and where slices, pads and writes start, may be symbolic (`gpu/compiler/ir/dims.py`).

Nodes are made by the functions of `gpu/compiler/ir/graph/build.py`, which simplify; `make` here
only checks. `RULES` and `RUN` say for each kind what it needs, its shape rule and what it computes.

==========  ===================================  =================================================
kind        attr                                 value
==========  ===================================  =================================================
buffer      (handle,)                            memory of the runtime, opaque to the compiler
const       (value,)                             one value everywhere
iota        ()                                   0, 1, 2, ... ; one dimension
index       (expression,)                        a symbolic size as a number; no dimension
alu         (op,)                                a scalar operation, element by element
cast        ()                                   converted by value to the node's dtype
bitcast     ()                                   the same bits, as the node's dtype
reduce      (monoid, axes)                       the axes combined, kept with size 1
reshape     ()                                   same elements in row-major order, another shape
expand      ()                                   dimensions of size 1 repeated
permute     (order,)                             dimension i of the result is order[i] of the source
slice       ((start, step), ...)                 result size is the node's; step may be negative
pad         ((before, after, interior), ...)     zeros around, and `interior` zeros between elements
skew        (axis, tap, stride, dilation)        element (o, k) of two axes is (o * stride + k *
                                                 dilation, k) of the source: windows of it
unskew      (axis, tap, stride, dilation)        the reverse, zero where nothing comes from
gather      (axis,)                              source, index: along axis, the element that index
                                                 says; zero where that is out of range
scatter     (axis, monoid)                       source, index, updates: each update combined into
                                                 the element that index says (`set`: the last one
                                                 stays); those out of range do nothing
scan        (monoid, axis)                       running combination along axis, inclusive
cumcount    (bins, axis)                         how many of the indices before it along axis are
                                                 equal; of those below bins, 0 for others
reorder     (axis,)                              source, index: each element at the place along axis
                                                 that index says, which is a permutation of each
                                                 line: the reverse of gather
write       ((start, step), ...)                 source, value: the region replaced by value
as_real     ()                                   complex numbers as pairs of floats, a last axis of
                                                 two: real and imaginary part
as_complex  ()                                   the reverse
interleave  (is_stored, axes)                    sources side by side along new axes of the result,
                                                 the last of which counts fastest; if 1, who asks
                                                 for one of them reads it from memory
fft         (axis, radices, inverse, scale)      pairs, factors: the discrete Fourier transform of
                                                 complex numbers, of which the last axis has the
                                                 parts, times scale; `gpu/compiler/ir/graph/fft.py`
random      ()                                   Threefry-2x32 bits; the source is uint32[4]: key,
                                                 then the 64-bit counter of element 0
contiguous  (identity,)                          the source, placed in memory of its own
detach      ()                                   the source, through which no gradient flows
barrier     ()                                   source, others: the source; what reads it waits for
                                                 the others, and is apart from what reads the source
custom_grad (rule, number, ...)                  source, operands: the source, whose gradient goes
                                                 to the operands by a rule of its own
copy        ()                                   the source, on the node's device
multi       (axis,)                              a source for each of the node's devices: side by
                                                 side along axis, or for None all the same
part        (number, axis)                       what device `number` of several has of the source
                                                 if it is cut along axis; for None all of it
loop        (body, length, reverse)              constants, carries, slices: so many steps of a
                                                 graph of its own (`gpu/compiler/ir/graph/body.py`),
                                                 of slices the last first if reverse; no value
kernel      (user kernel, gradient rule)         operands: a kernel that a user wrote
                                                 (`gpu/compiler/ir/graph/userkernel.py`); no value
host        (host call, gradient rule)           operands: a function of the host
                                                 (`gpu/compiler/ir/graph/hostcall.py`); no value
result      (number,)                            of a loop, a kernel or a function of the host
==========  ===================================  =================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from gpu.compiler.ir.dims import Symbol, any_symbols, bound, find_symbols, ordered, rebound, symbol
from gpu.compiler.ir.evaluate import Array
from gpu.compiler.ir.graph.body import STEP, Body
from gpu.compiler.ir.graph.grid import Grid
from gpu.compiler.ir.graph.hostcall import run_host
from gpu.compiler.ir.graph.interp import RUN, accumulate_as
from gpu.compiler.ir.graph.node import Node, Place, Shape, place
from gpu.compiler.ir.graph.rules import RULES, check_image
from gpu.compiler.ir.graph.userkernel import UserKernel
from gpu.compiler.ir.optable import constant_key
from gpu.core.dtype import DType
from gpu.core.errors import DeviceMismatch, ShapeError, Unsupported
from gpu.core.weak import WeakTable

__all__ = [
    "APART",
    "LOOPING",
    "MOVEMENT",
    "NO_SOURCES",
    "RULES",
    "WITH_RESULTS",
    "Node",
    "Place",
    "Shape",
    "accumulate_as",
    "fresh_memory",
    "interpret",
    "make",
    "toposort",
    "unmoved",
]

_interned: WeakTable[tuple[Any, ...], Node] = WeakTable()


def make(
    kind: str,
    src: tuple[Node, ...],
    attr: tuple[Any, ...],
    shape: Shape,
    dtype: DType,
    device: Place,
) -> Node:
    """The node with these fields, made and checked once; raises as `check` does."""
    if device.__class__ is Grid and device.is_shared:
        # Each is its own: what one rank happens to keep, and so has computed, another may not.
        own = check(_filled(kind, src, attr, shape, dtype, device))
        return _interned.file((object(),), own)
    # 1 is told from 1.0: only one of them is a constant of the dtype.
    unique = (constant_key(attr[0]), attr[0].__class__) if kind == "const" else attr
    key = (kind, src, unique, shape, dtype, device)
    entry = _interned.entry(key)
    known = None if entry is None else entry()
    if known is not None:
        return known
    return _interned.file(key, check(_filled(kind, src, attr, shape, dtype, device)))


def fresh_memory(handle: object, like: Node) -> Node:
    """The `buffer` node of memory that no node stands for yet, of a value as that of `like`."""
    fields = ("buffer", (), (handle,), like.shape, like.dtype, like.device)
    return _interned.file(fields, _filled(*fields))


def known_nodes() -> list[Node]:
    """The nodes that there are, oldest first."""
    return _interned.values()


def _filled(*fields: Any) -> Node:
    node = Node()
    node.kind, node.src, node.attr, node.shape, node.dtype, node.device = fields
    node.value = node.origin = None
    return node


def _no_leaf(node: Node) -> bool:
    return False


def symbols_of(
    nodes: Iterable[Node], is_leaf: Callable[[Node], bool] = _no_leaf
) -> tuple[Symbol, ...]:
    """The variables that nodes depend on, by name; leaves do by their shapes only.

    Raises InvalidValue where one name stands for two variables, or for two values.
    """
    found: dict[str, Symbol] = {}
    for node in nodes:
        find_symbols(node.shape if is_leaf(node) else (node.shape, node.attr), found)
    return ordered(found)


def toposort(roots: Iterable[Node], is_leaf: Callable[[Node], bool] = _no_leaf) -> list[Node]:
    """Every node reachable from `roots`, sources first; what lies behind a leaf is not visited.

    Deep graphs are fine: there is no recursion.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    entered: list[Node] = []  # nodes whose sources are being visited
    stack: list[Node | None] = [*roots]  # None: the last node that was entered has all its sources
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:
            order.append(entered.pop())
        elif node not in seen:
            seen.add(node)
            if node.src and not is_leaf(node):
                entered.append(node)
                stack.append(None)
                stack.extend(node.src[::-1])
            else:
                order.append(node)
    return order


def bodies_of(roots: Iterable[Node], is_leaf: Callable[[Node], bool] = _no_leaf) -> list[Body]:
    """The bodies of the loops in a graph, each once, in the order of the graph."""
    loops = (n for n in toposort(roots, is_leaf) if n.kind == "loop" and not is_leaf(n))
    return list(dict.fromkeys(loop.attr[0] for loop in loops))


def check(node: Node) -> Node:
    """Verifies one node against its kind's rule and returns it.

    Raises ShapeError, DTypeError or DeviceMismatch.
    """
    sources, rule = RULES[node.kind]
    src, device = node.src, node.device
    if sources >= 0 and len(src) != sources:
        raise ShapeError(f"{node.kind} has {sources} operands, got {len(src)}")
    if node.kind not in _BETWEEN_DEVICES:
        for source in src:
            if source.device != device:
                raise DeviceMismatch(
                    f"{node.kind} on {place(node.device)} reads a tensor on "
                    f"{place(source.device)}; move one of them with .to(device)"
                )
    rule(node)
    if node.dtype.is_image:
        check_image(node)
    return node


_BETWEEN_DEVICES: Final = frozenset({"barrier", "custom_grad", "copy", "multi", "part"})
MOVEMENT: Final = frozenset({"reshape", "expand", "permute", "slice", "pad", "skew", "unskew"})
LOOPING: Final = frozenset({"scatter", "scan", "cumcount", "reorder", "interleave"})
"""Kinds whose kernels have loops, or places they store to, unlike any other's."""
WITH_RESULTS: Final = frozenset({"loop", "kernel", "host"})
"""Kinds that have no value, but results."""
APART: Final = WITH_RESULTS | {"result"}
"""These and their results, which no kernel that is made of nodes computes."""
NO_SOURCES: Final = frozenset({"const", "iota", "index"})
"""Kinds that are computed from nothing: numbers in a kernel."""


def verify(roots: Iterable[Node]) -> None:
    """Checks every node reachable from `roots`; raises as `check` does."""
    for node in toposort(roots):
        check(node)


def unmoved(node: Node) -> Node:
    """The node whose elements `node` shows, moved and perhaps repeated."""
    while node.kind in MOVEMENT:
        node = node.src[0]
    return node


def in_memory(node: Node, is_leaf: Callable[[Node], bool]) -> Node:
    """The node whose memory, under another shape, is what a loop reads as `node`."""
    while node.kind == "reshape" and not is_leaf(node):
        node = node.src[0]
    return node


def bound_node(node: Node) -> Node:
    """The node with the values of its variables in shape and attributes; not interned."""
    shape, attr = bound(node.shape), bound(node.attr)
    return _filled(node.kind, node.src, attr, shape, node.dtype, node.device)


def _iterate(loop: Node, operands: Sequence[Array]) -> list[Array]:
    """The results of a loop."""
    body, length, reverse = loop.attr
    first, last = body.constants, body.constants + body.carries
    constants, carries, slices = operands[:first], operands[first:last], operands[last:]
    stacked = [
        np.empty(value.shape, value.dtype.np) for value in body.values(length)[body.carries :]
    ]
    for step in reversed(range(length)) if reverse else range(length):
        own = body.bound([*constants, *carries, *(each[step] for each in slices)])
        results = interpret(_at_step(body, length, step), own.__getitem__)
        for whole, part in zip(stacked, (*results[body.carries :], *carries), strict=True):
            whole[step] = part
        carries = results[: body.carries]
    return [*carries, *stacked]


def _at_step(body: Body, length: int, step: int) -> list[Node]:
    """The results of a body, with the number of the step in places and sizes that depend on it."""
    if not any_symbols():
        return list(body.results)
    number = {STEP: symbol(STEP, 0, length - 1, step)}
    new: dict[Node, Node] = {}
    for node in toposort(body.results):
        sources = tuple([new[source] for source in node.src])
        attr, shape = rebound((node.attr, node.shape), number)
        new[node] = make(node.kind, sources, attr, shape, node.dtype, node.device)
    return [new[result] for result in body.results]


def _launch(kernel: UserKernel, operands: Sequence[Array]) -> list[Array]:
    """The results of a user's kernel; what it writes nowhere is zero here.

    Raises Unsupported for one that is not given in the kernel IR.
    """
    # Only now: a graph is interpreted in tests, and to find what made a NaN.
    from gpu.compiler.ir.kernel.interp import interpret_kernel
    from gpu.compiler.ir.kernel.text import parse_kernel

    if not kernel.ir:
        raise Unsupported(
            f"the kernel {kernel.name} is given in {kernel.languages} alone, which is not"
            " interpreted; give it a function too, that says in the kernel IR what it computes"
        )
    results = [np.zeros(each.shape, each.dtype.np) for each in kernel.outputs]
    names = (each.name for each in (*kernel.outputs, *kernel.inputs))
    flat = (each.reshape(-1) for each in (*results, *map(np.ascontiguousarray, operands)))
    interpret_kernel(parse_kernel(kernel.ir), dict(zip(names, flat, strict=True)))
    return results


def interpret(roots: Iterable[Node], inputs: Callable[[Node], Array]) -> list[Array]:
    """The values of `roots` computed with numpy; `inputs` gives the value of each buffer node.

    Arrays have the sizes that variables are bound to.
    """
    roots = list(roots)
    values: dict[Node, Any] = {}
    for node in toposort(roots):
        if node.kind == "buffer":
            values[node] = inputs(node)
        else:
            values[node] = value_of(node, tuple(values[s] for s in node.src))
    return [values[root] for root in roots]


def value_of(node: Node, args: tuple[Any, ...]) -> Any:
    """What a node is computed to be from its sources' values; of what has results a list."""
    if node.kind == "loop":
        return _iterate(node, args)
    if node.kind == "kernel":
        return _launch(node.attr[0], args)
    if node.kind == "host":
        return run_host(node.attr[0], args)
    if node.kind == "result":
        return args[0][node.attr[0]]
    return RUN[node.kind](bound_node(node) if any_symbols() else node, args)
