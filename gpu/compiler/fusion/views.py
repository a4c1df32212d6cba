"""Which element of its sources each node reads: functions from a node's index to theirs.

This is how views vanish: no kernel ever holds one. A mask says for which indices the source is read
at all; elsewhere its value is zero.

Symbolic axes are loops that end at their value of the launch; memory is laid out for the largest.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu.compiler.ir.dims import has_symbols, is_many, reshape_groups, upper
from gpu.compiler.ir.graph import MOVEMENT, Node, Shape
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, at_most, between, expr, loop_var
from gpu.compiler.ir.index.rows import ZERO, flatten, unflatten

Indices = tuple[Expr, ...]
Access = tuple[Indices, Mask]


def _reshaped(indices: Indices, shape: Shape, source: Shape) -> Indices:
    """The index in `source` of the element at `indices` of `shape`."""
    groups = reshape_groups(source, shape)
    if groups is None:
        assert not has_symbols((shape, source)), "no such node is made"
        return unflatten(flatten(indices, shape), source)
    result: list[Expr] = []
    for old, new in groups:
        position = flatten([indices[a] for a in new], tuple(shape[a] for a in new))
        result += unflatten(position, tuple(source[a] for a in old))
    return tuple(result)


def source_index(node: Node, indices: Indices) -> tuple[Indices, Mask]:
    """Where a movement node reads its source for the element at `indices`, and when it does."""
    source = node.src[0].shape
    match node.kind:
        case "reshape":
            return _reshaped(indices, node.shape, source), ALWAYS
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
        case "skew":
            axis, tap, stride, dilation = node.attr
            place = indices[axis] * stride + indices[tap] * dilation
            return (*indices[:axis], place, *indices[axis + 1 :]), ALWAYS
        case "unskew":
            return _unskew(node, indices)
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
        result.append(offset // stride if is_many(size) else ZERO)
    return tuple(result), mask


def _unskew(node: Node, indices: Indices) -> tuple[Indices, Mask]:
    axis, tap, stride, dilation = node.attr
    offset = indices[axis] - indices[tap] * dilation
    mask = between(offset, 0, (node.src[0].shape[axis] - 1) * stride)
    mask = mask & at_most(offset % stride, 0)
    return (*indices[:axis], offset // stride, *indices[axis + 1 :]), mask


def written_region(node: Node, indices: Indices) -> tuple[Indices, Mask]:
    """Where a `write` takes its value from for the element at `indices`, and when it does."""
    mask = ALWAYS
    result: list[Expr] = []
    ranges = zip(indices, node.attr, node.src[1].shape, strict=True)
    for index, (start, step), size in ranges:
        offset = index - start
        mask = mask & between(offset, 0, (size - 1) * step) & at_most(offset % step, 0)
        result.append(offset // step if is_many(size) else ZERO)
    return tuple(result), mask


def picked(node: Node, access: Access, pick: Var) -> Access:
    """What `gather`, `scatter` and `reorder` touch along their axis once `pick` is the index.

    `pick` is one more than the last element where the index is out of range.
    """
    indices, mask = access
    axis = node.attr[0]
    inside = at_most(expr(pick), node.src[0].shape[axis] - 1)
    return (*indices[:axis], expr(pick), *indices[axis + 1 :]), mask & inside


def walked(root: Node) -> Shape:
    """What the loops of a kernel with this output go over: the shape, less what is written out."""
    if root.kind != "interleave":
        return root.shape
    _, axes = root.attr
    return tuple([1 if axis in axes else size for axis, size in enumerate(root.shape)])


def domain_loops(shape: Shape, name: str) -> tuple[Var, ...]:
    """A loop for each axis of more than one element."""
    return tuple(loop_var(f"{name}{axis}", d) for axis, d in enumerate(shape) if is_many(d))


def outer_first(node: Node, loops: tuple[Var, ...]) -> tuple[Var, ...]:
    """The loops of an output's domain in the order they nest: a walk in order goes innermost."""
    if node.kind not in ("scan", "cumcount"):
        return loops
    position = sum(is_many(size) for size in node.shape[: node.attr[1]])
    return (*loops[:position], *loops[position + 1 :], loops[position])


def domain_indices(shape: Shape, loops: Iterable[Var]) -> Indices:
    """The element that `domain_loops` stand at."""
    remaining = iter(loops)
    return tuple(expr(next(remaining)) if is_many(size) else ZERO for size in shape)


def inner_vars(node: Node, name: str) -> tuple[Var, ...]:
    """The variables besides its own index that what `node` reads depends on.

    For a reduction a loop over each axis it combines, for a gather the value of its index.
    """
    source = node.src[0].shape if node.src else ()
    if node.kind == "gather":
        return (Var(name, 0, upper(source[node.attr[0]])),)
    if node.kind != "reduce":
        return ()
    return tuple(loop_var(f"{name}{axis}", source[axis]) for axis in node.attr[1])


def source_accesses(
    node: Node, access: Access, loops: Iterable[Var] = ()
) -> Iterable[tuple[Node, Access]]:
    """What `node` reads for one of its elements, in the order of its sources.

    `loops` are the node's `inner_vars`.
    """
    indices, mask = access
    if node.kind in MOVEMENT:
        moved, own_mask = source_index(node, indices)
        yield node.src[0], (moved, mask & own_mask)
    elif node.kind == "reduce":
        remaining = iter(loops)
        axes = node.attr[1]
        inner = tuple(expr(next(remaining)) if a in axes else i for a, i in enumerate(indices))
        yield node.src[0], (inner, mask)
    elif node.kind == "write":
        place, own_mask = written_region(node, indices)
        yield node.src[0], access
        yield node.src[1], (place, mask & own_mask)
    elif node.kind == "gather":
        (pick,) = loops
        yield node.src[0], picked(node, access, pick)
        yield node.src[1], access
    elif node.kind == "interleave":
        _, axes = node.attr
        own = tuple([index for axis, index in enumerate(indices) if axis not in axes])
        for source in node.src:
            yield source, (own, mask)
    elif node.kind == "barrier":  # the others are waited for, not read
        yield node.src[0], access
    elif node.kind == "random":
        for word in range(4):
            yield node.src[0], ((expr(word),), mask)
    else:
        for source in node.src:
            yield source, access
