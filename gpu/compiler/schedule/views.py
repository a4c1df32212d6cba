"""Which element of its sources each node reads: functions from a node's index to theirs.

This is how views vanish: no kernel ever holds one. A mask says for which indices the source is read
at all; elsewhere its value is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu.compiler.ir.graph import MOVEMENT, Node, Shape
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, at_most, between, expr

Indices = tuple[Expr, ...]
Access = tuple[Indices, Mask]

ZERO = expr(0)


def flatten(indices: Sequence[Expr], shape: Shape) -> Expr:
    """The row-major position of an element."""
    position = ZERO
    for index, size in zip(indices, shape, strict=True):
        position = position * size + index
    return position


def unflatten(position: Expr, shape: Shape) -> Indices:
    """The index of the element at a row-major position."""
    indices: list[Expr] = []
    for size in reversed(shape[1:]):
        indices.append(position % size)
        position = position // size
    if shape:
        indices.append(position if shape[0] > 1 else ZERO)
    return tuple(reversed(indices))


def source_index(node: Node, indices: Indices) -> tuple[Indices, Mask]:
    """Where a movement node reads its source for the element at `indices`, and when it does."""
    source = node.src[0].shape
    match node.kind:
        case "reshape":
            return unflatten(flatten(indices, node.shape), source), ALWAYS
        case "expand":
            return tuple(
                ZERO if d == 1 else i for i, d in zip(indices, source, strict=True)
            ), ALWAYS
        case "permute":
            where = dict(zip(node.attr[0], indices, strict=True))
            return tuple(where[axis] for axis in range(len(source))), ALWAYS
        case "slice":
            picks = zip(indices, node.attr, strict=True)
            return tuple(i * step + start for i, (start, step) in picks), ALWAYS
        case "pad":
            return _unpad(node, indices)
    raise AssertionError(f"{node.kind} is not a movement")


def _unpad(node: Node, indices: Indices) -> tuple[Indices, Mask]:
    mask = ALWAYS
    result: list[Expr] = []
    padding = zip(indices, node.attr, node.src[0].shape, strict=True)
    for index, (before, after, interior), size in padding:
        if (before, after, interior) == (0, 0, 0):
            result.append(index)
            continue
        stride = interior + 1
        offset = index - before
        mask = mask & between(offset, 0, (size - 1) * stride)
        if interior:
            mask = mask & at_most(offset % stride, 0)
        result.append(offset // stride if size > 1 else ZERO)
    return tuple(result), mask


def domain_loops(shape: Shape, name: str) -> tuple[Var, ...]:
    """A loop for each axis of more than one element."""
    return tuple(Var(f"{name}{axis}", 0, d - 1) for axis, d in enumerate(shape) if d > 1)


def domain_indices(shape: Shape, loops: Iterable[Var]) -> Indices:
    """The element that `domain_loops` stand at."""
    remaining = iter(loops)
    return tuple(expr(next(remaining)) if size > 1 else ZERO for size in shape)


def reduce_loops(node: Node, name: str) -> tuple[Var, ...]:
    """A loop over each axis that a reduction combines."""
    source = node.src[0].shape
    return tuple(Var(f"{name}{axis}", 0, source[axis] - 1) for axis in node.attr[1])


def source_accesses(
    node: Node, access: Access, loops: Iterable[Var] = ()
) -> Iterable[tuple[Node, Access]]:
    """What `node` reads for one of its elements; `loops` are those of a reduction."""
    indices, mask = access
    if node.kind in MOVEMENT:
        moved, own_mask = source_index(node, indices)
        yield node.src[0], (moved, mask & own_mask)
    elif node.kind == "reduce":
        remaining = iter(loops)
        axes = node.attr[1]
        inner = tuple(expr(next(remaining)) if a in axes else i for a, i in enumerate(indices))
        yield node.src[0], (inner, mask)
    else:
        for source in node.src:
            yield source, access
