"""Graph IR: whole tensors as values.

A node's shape, dtype and device are fixed when it is made. Nodes are frozen and interned: two equal
expressions are one object, so `is` compares them and common subexpressions vanish by themselves.
Anything known about a node beyond its fields lives in the pass that found it out.

Nodes are made by the functions of `gpu/compiler/ir/graph_build.py`, which simplify; `make` here
only checks. `KINDS` says for each kind what it needs, its shape rule and what it computes.

==========  ===================================  =================================================
kind        attr                                 value
==========  ===================================  =================================================
buffer      (handle,)                            memory of the runtime, opaque to the compiler
const       (value,)                             one value everywhere
iota        ()                                   0, 1, 2, ... ; one dimension
alu         (op,)                                a scalar operation, element by element
cast        ()                                   converted by value to the node's dtype
bitcast     ()                                   the same bits, as the node's dtype
reduce      (monoid, axes)                       the axes combined, kept with size 1
reshape     ()                                   same elements in row-major order, another shape
expand      ()                                   dimensions of size 1 repeated
permute     (order,)                             dimension i of the result is order[i] of the source
slice       ((start, step), ...)                 result size is the node's; step may be negative
pad         ((before, after, interior), ...)     zeros around, and `interior` zeros between elements
contiguous  (identity,)                          the source, placed in memory of its own
detach      ()                                   the source, through which no gradient flows
copy        ()                                   the source, on the node's device
==========  ===================================  =================================================
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.compiler.ir import evaluate, optable
from gpu.compiler.ir.evaluate import Array
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import DeviceMismatch, DTypeError, ShapeError

Shape = tuple[int, ...]


class Node:
    """One tensor-valued expression.

    Attributes:
        kind: a key of `KINDS`.
        src: operands.
        attr: what else the kind needs, see the module's table; hashable.
        shape: sizes of the result's dimensions.
        dtype: element type of the result.
        device: name of the device the value lives on.
    """

    __slots__ = ("__weakref__", "attr", "device", "dtype", "kind", "shape", "src")

    kind: str
    src: tuple[Node, ...]
    attr: tuple[Any, ...]
    shape: Shape
    dtype: DType
    device: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the value in bytes."""
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        label = " ".join([self.kind, *map(str, self.attr if self.kind != "buffer" else ())])
        return f"<{label}: {self.dtype.code}{list(self.shape)}>"


_interned: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()


def make(
    kind: str, src: tuple[Node, ...], attr: tuple[Any, ...], shape: Shape, dtype: DType, device: str
) -> Node:
    """The node with these fields, made and checked once; raises as `check` does."""
    # Floats as constants need a key that tells -0.0 from 0.0 and finds NaN again.
    unique = (attr[0].hex(),) if kind == "const" and isinstance(attr[0], float) else attr
    key = (kind, tuple(map(id, src)), unique, shape, dtype, device)
    node = _interned.get(key)
    if node is None:
        node = Node()
        node.kind, node.src, node.attr = kind, src, attr
        node.shape, node.dtype, node.device = shape, dtype, device
        _interned[key] = check(node)
    return node


def _no_leaf(node: Node) -> bool:
    return False


def toposort(roots: Iterable[Node], is_leaf: Callable[[Node], bool] = _no_leaf) -> list[Node]:
    """Every node reachable from `roots`, sources first; what lies behind a leaf is not visited.

    Deep graphs are fine: there is no recursion.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if not is_leaf(node):
                stack.extend((s, False) for s in reversed(node.src) if s not in seen)
    return order


class Kind(NamedTuple):
    """What there is to know about one kind of node.

    Attributes:
        sources: how many operands it has; -1 where the attribute decides.
        check: raises if the node's fields do not follow from its operands.
        run: computes the value from the operands' values.
    """

    sources: int
    check: Callable[[Node], None]
    run: Callable[[Node, tuple[Array, ...]], Array]


def check(node: Node) -> Node:
    """Verifies one node against its kind's rule and returns it.

    Raises ShapeError, DTypeError or DeviceMismatch.
    """
    kind = KINDS[node.kind]
    if kind.sources >= 0 and len(node.src) != kind.sources:
        raise ShapeError(f"{node.kind} has {kind.sources} operands, got {len(node.src)}")
    if node.kind != "copy":
        for source in node.src:
            if source.device != node.device:
                raise DeviceMismatch(
                    f"{node.kind} on {node.device} reads a tensor on {source.device}; "
                    "move one of them with .to(device)"
                )
    kind.check(node)
    return node


def _misfit(node: Node, rule: str) -> ShapeError:
    sources = ", ".join(f"{s.dtype.name}{list(s.shape)}" for s in node.src)
    result = f"{node.dtype.name}{list(node.shape)}"
    return ShapeError(f"{node.kind}{node.attr or ''} of {sources} to {result}: {rule}")


def _require(condition: bool, node: Node, rule: str) -> None:
    if not condition:
        raise _misfit(node, rule)


def _same_dtype(node: Node) -> None:
    if node.dtype is not node.src[0].dtype:
        raise DTypeError(f"{node.kind} keeps the dtype {node.src[0].dtype}, not {node.dtype}")


def _check_leaf(node: Node) -> None:
    _require(all(d >= 0 for d in node.shape), node, "sizes must not be negative")


def _check_iota(node: Node) -> None:
    _require(len(node.shape) == 1, node, "iota has one dimension")


def _check_alu(node: Node) -> None:
    same = all(s.shape == node.shape for s in node.src)
    _require(same, node, "operands must have the result's shape; broadcast them first")
    expected = optable.result_dtype(node.attr[0], tuple(s.dtype for s in node.src))
    if expected is not node.dtype:
        raise DTypeError(f"{node.attr[0]} gives {expected}, not {node.dtype}")


def _check_cast(node: Node) -> None:
    _require(node.shape == node.src[0].shape, node, "the shape does not change")


def _check_bitcast(node: Node) -> None:
    _check_cast(node)
    if node.dtype.bits != node.src[0].dtype.bits:
        raise DTypeError(f"bitcast keeps the width; {node.src[0].dtype} to {node.dtype} does not")


def _check_reduce(node: Node) -> None:
    monoid, axes = node.attr
    source = node.src[0]
    _same_dtype(node)
    if source.dtype.kind not in optable.MONOIDS[monoid].domain:
        raise DTypeError(f"reduce {monoid} is not defined for {source.dtype}")
    _require(list(axes) == sorted(set(axes)), node, "axes are sorted and distinct")
    _require(all(0 <= a < len(source.shape) for a in axes), node, "an axis is out of range")
    expected = tuple(1 if a in axes else d for a, d in enumerate(source.shape))
    if node.shape != expected:
        raise _misfit(node, f"the result has shape {list(expected)}")


def _check_reshape(node: Node) -> None:
    _same_dtype(node)
    _require(node.size == node.src[0].size, node, "the number of elements must stay the same")


def _check_expand(node: Node) -> None:
    _same_dtype(node)
    source = node.src[0].shape
    _require(len(source) == len(node.shape), node, "the number of dimensions must stay the same")
    fits = all(a in (1, b) for a, b in zip(source, node.shape, strict=True))
    _require(fits, node, "only dimensions of size 1 can be repeated")


def _check_permute(node: Node) -> None:
    _same_dtype(node)
    (order,) = node.attr
    source = node.src[0].shape
    _require(sorted(order) == list(range(len(source))), node, "the order names each axis once")
    _require(node.shape == tuple(source[a] for a in order), node, "sizes follow the order")


def _check_slice(node: Node) -> None:
    _same_dtype(node)
    source = node.src[0].shape
    _require(len(node.attr) == len(source) == len(node.shape), node, "one (start, step) per axis")
    for (start, step), size, available in zip(node.attr, node.shape, source, strict=True):
        last = start + (size - 1) * step
        inside = size == 0 or (0 <= start < available and 0 <= last < available)
        if step == 0 or not inside:
            raise _misfit(node, f"elements {start}..{last} are not all in 0..{available - 1}")


def _check_pad(node: Node) -> None:
    _same_dtype(node)
    source = node.src[0].shape
    _require(len(node.attr) == len(source) == len(node.shape), node, "one (lo, hi, gap) per axis")
    for (before, after, interior), size, result in zip(node.attr, source, node.shape, strict=True):
        _require(min(before, after, interior) >= 0, node, "padding must not be negative")
        inner = size + max(size - 1, 0) * interior
        if result != before + inner + after:
            raise _misfit(node, f"the size must be {before + inner + after}")


def _check_same(node: Node) -> None:
    _same_dtype(node)
    _require(node.shape == node.src[0].shape, node, "the shape does not change")


def _run_leaf(node: Node, args: tuple[Array, ...]) -> Array:
    raise AssertionError(f"the value of {node} comes from outside")


def _run_const(node: Node, args: tuple[Array, ...]) -> Array:
    return np.full(node.shape, optable.scalar(node.dtype)(node.attr[0]), node.dtype.np)


def _run_iota(node: Node, args: tuple[Array, ...]) -> Array:
    return np.arange(node.shape[0]).astype(node.dtype.np)


def _run_alu(node: Node, args: tuple[Array, ...]) -> Array:
    return optable.apply(node.attr[0], node.dtype, args)


def _run_cast(node: Node, args: tuple[Array, ...]) -> Array:
    with np.errstate(all="ignore"):
        return evaluate.cast(args[0], node.src[0].dtype, node.dtype)


def _run_bitcast(node: Node, args: tuple[Array, ...]) -> Array:
    return evaluate.bitcast(args[0], node.dtype)


def _run_reduce(node: Node, args: tuple[Array, ...]) -> Array:
    name, axes = node.attr
    monoid = optable.MONOIDS[name]
    wide = accumulate_as(node.dtype)
    start = optable.scalar(wide)(monoid.identity(wide))
    with np.errstate(all="ignore"):
        value = args[0].astype(wide.np)
        result = monoid.ufunc.reduce(value, axis=axes, keepdims=True, initial=start)
        return np.asarray(result).astype(node.dtype.np)


def _run_reshape(node: Node, args: tuple[Array, ...]) -> Array:
    return args[0].reshape(node.shape)


def _run_expand(node: Node, args: tuple[Array, ...]) -> Array:
    return np.broadcast_to(args[0], node.shape)


def _run_permute(node: Node, args: tuple[Array, ...]) -> Array:
    return args[0].transpose(node.attr[0])


def _run_slice(node: Node, args: tuple[Array, ...]) -> Array:
    picks = [
        start + step * np.arange(size)
        for (start, step), size in zip(node.attr, node.shape, strict=True)
    ]
    return np.asarray(args[0][np.ix_(*picks)]) if picks else args[0]


def _run_pad(node: Node, args: tuple[Array, ...]) -> Array:
    result = np.zeros(node.shape, node.dtype.np)
    where = tuple(
        slice(before, before + (size - 1) * (interior + 1) + 1 if size else before, interior + 1)
        for (before, _, interior), size in zip(node.attr, args[0].shape, strict=True)
    )
    result[where] = args[0]
    return result


def _run_same(node: Node, args: tuple[Array, ...]) -> Array:
    return args[0]


def accumulate_as(dtype: DType) -> DType:
    """The dtype a reduction of `dtype` is formed in: float32 for narrower floats, else its own."""
    return dtypes.float32 if dtype.is_float and dtype.bits < 32 else dtype


KINDS: Final = {
    "buffer": Kind(0, _check_leaf, _run_leaf),
    "const": Kind(0, _check_leaf, _run_const),
    "iota": Kind(0, _check_iota, _run_iota),
    "alu": Kind(-1, _check_alu, _run_alu),
    "cast": Kind(1, _check_cast, _run_cast),
    "bitcast": Kind(1, _check_bitcast, _run_bitcast),
    "reduce": Kind(1, _check_reduce, _run_reduce),
    "reshape": Kind(1, _check_reshape, _run_reshape),
    "expand": Kind(1, _check_expand, _run_expand),
    "permute": Kind(1, _check_permute, _run_permute),
    "slice": Kind(1, _check_slice, _run_slice),
    "pad": Kind(1, _check_pad, _run_pad),
    "contiguous": Kind(1, _check_same, _run_same),
    "detach": Kind(1, _check_same, _run_same),
    "copy": Kind(1, _check_same, _run_same),
}
MOVEMENT: Final = frozenset({"reshape", "expand", "permute", "slice", "pad"})


def verify(roots: Iterable[Node]) -> None:
    """Checks every node reachable from `roots`; raises as `check` does."""
    for node in toposort(roots):
        check(node)


def interpret(roots: Iterable[Node], inputs: Callable[[Node], Array]) -> list[Array]:
    """The values of `roots` computed with numpy; `inputs` gives the value of each buffer node."""
    roots = list(roots)
    values: dict[Node, Array] = {}
    for node in toposort(roots):
        if node.kind == "buffer":
            values[node] = inputs(node)
        else:
            values[node] = KINDS[node.kind].run(node, tuple(values[s] for s in node.src))
    return [values[root] for root in roots]
