"""From graphs over several devices to graphs of single devices: a rule for each kind of node.

A node whose device is a tuple of names is a value on all of them, of the shape it has as a whole;
`lower` gives for each what its devices hold (`gpu/compiler/shard/values.py`). Along which axis a
value is cut follows from its sources. Where they disagree, the first one that is cut decides, and
the others are moved to it. Devices exchange data in `copy` nodes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node, Shape, accumulate_as, make, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.shard.values import (
    Sharded,
    aligned,
    all_reduced,
    gathered,
    identity,
    joined,
    overlap,
    part_shape,
    replicated,
)
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported

Rule = Callable[[Node, Sequence[Sharded]], Sharded]


def lower(
    roots: Sequence[Node],
    is_leaf: Callable[[Node], bool],
    value: Callable[[Node], Node],
    note: Callable[[Node, Node], None] = lambda node, part: None,
) -> list[Sharded]:
    """What each of `roots` is on the devices it is on; one part for a node of a single device.

    Args:
        roots: nodes of one device or of several.
        is_leaf: which nodes are in memory; those of single devices stay as they are.
        value: for a leaf on several devices the `multi` node of its memory.
        note: is told of each node that is computed, and of each of its parts.

    Raises Unsupported for an operation along an axis that is cut, where there is no rule.
    """
    done: dict[Node, Sharded] = {}
    for node in toposort(roots, is_leaf):
        if isinstance(node.device, str):
            done[node] = Sharded(None, (_single(node, done, is_leaf),))
        elif is_leaf(node):
            memory = value(node)
            done[node] = Sharded(memory.attr[0], memory.src)
        else:
            done[node] = RULES[node.kind](node, [done[source] for source in node.src])
        if not is_leaf(node):
            for part in done[node].parts:
                note(node, part)
    return [done[root] for root in roots]


def _single(node: Node, done: dict[Node, Sharded], is_leaf: Callable[[Node], bool]) -> Node:
    """A node of one device over what its sources have become."""
    if is_leaf(node):
        return node
    if node.kind == "copy" and not isinstance(node.src[0].device, str):
        return gathered(done[node.src[0]], node.device)
    if node.kind == "part":
        number, axis = node.attr
        part: Node = aligned(done[node.src[0]], axis).parts[number]
        return part
    src = tuple([done[source].parts[0] for source in node.src])
    if all(new is old for new, old in zip(src, node.src, strict=True)):
        return node
    return make(node.kind, src, node.attr, node.shape, node.dtype, node.device)


def _refuse(node: Node, axis: int | None) -> NoReturn:
    raise Unsupported(
        f"{node.kind} along axis {axis}, over which the value of shape {list(node.src[0].shape)} "
        f"is sharded on {', '.join(node.device)}: move it to one device with .to(device) before, "
        "or shard another axis"
    )


def _apart(node: Node, axis: int | None, args: Sequence[Sharded]) -> Sharded:
    """The same operation on each device's parts, the result being cut along `axis`."""
    shape = part_shape(node.shape, axis, len(node.device))
    each = zip(*(arg.parts for arg in args), strict=True) if args else [()] * len(node.device)
    return Sharded(
        axis,
        tuple(
            make(node.kind, parts, node.attr, shape, node.dtype, device)
            for device, parts in zip(node.device, each, strict=True)
        ),
    )


def _together(args: Sequence[Sharded]) -> tuple[int | None, list[Sharded]]:
    """Operands of one shape cut along one axis."""
    axis = next((arg.axis for arg in args if arg.axis is not None), None)
    return axis, [aligned(arg, axis) for arg in args]


def _elementwise(node: Node, args: Sequence[Sharded]) -> Sharded:
    axis, args = _together(args)
    if node.kind != "alu":
        return _apart(node, axis, args)
    each = zip(*(arg.parts for arg in args), strict=True)
    return Sharded(axis, tuple(G.alu(node.attr[0], *parts) for parts in each))


def _const(node: Node, args: Sequence[Sharded]) -> Sharded:
    return _apart(node, None, args)


def _random(node: Node, args: Sequence[Sharded]) -> Sharded:
    return _apart(node, None, [replicated(arg) for arg in args])


def _reduce(node: Node, args: Sequence[Sharded]) -> Sharded:
    monoid, axes = node.attr
    (x,) = args
    if x.axis not in axes:
        return Sharded(x.axis, tuple(G.reduce(monoid, part, axes) for part in x.parts))
    # Rounded once, at the end, as on one device.
    wide = accumulate_as(node.dtype)
    whole = all_reduced([G.reduce(monoid, G.cast(p, wide), axes) for p in x.parts], monoid)
    return Sharded(None, tuple(G.cast(part, node.dtype) for part in whole.parts))


def _reshape(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    axis = None if x.axis is None else _reshaped_axis(node, x.axis)
    shape = part_shape(node.shape, axis, len(x.parts))
    return Sharded(axis, tuple(G.reshape(part, shape) for part in x.parts))


def _reshaped_axis(node: Node, axis: int) -> int:
    """The axis that is cut when `axis` was: as many elements lie before it, and it divides."""
    source = node.src[0].shape
    if not has_symbols((source, node.shape)):
        before, count = math.prod(source[:axis]), len(node.device)
        for number, size in enumerate(node.shape):
            if math.prod(node.shape[:number]) == before and size % count == 0 and size:
                return number
    _refuse(node, axis)


def _expand(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    shape = part_shape(node.shape, x.axis, len(x.parts))
    return Sharded(x.axis, tuple(G.expand(part, shape) for part in x.parts))


def _permute(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    order = node.attr[0]
    axis = None if x.axis is None else order.index(x.axis)
    return Sharded(axis, tuple(G.permute(part, order) for part in x.parts))


def _ranges(node: Node, shape: Shape) -> list[tuple[int, int, int]]:
    return [(start, size, step) for (start, step), size in zip(node.attr, shape, strict=True)]


def _slice(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    ranges = _ranges(node, node.shape)
    if x.axis is None or ranges[x.axis] == (0, node.src[0].shape[x.axis], 1):
        if x.axis is not None:
            ranges[x.axis] = (0, x.parts[0].shape[x.axis], 1)
        return Sharded(x.axis, tuple(G.slice_(part, ranges) for part in x.parts))
    return _slice_across(node, x, ranges)


def _slice_across(node: Node, x: Sharded, ranges: list[tuple[int, int, int]]) -> Sharded:
    """Elements along the axis that is cut: those asked for go to every device."""
    axis = x.axis
    assert axis is not None
    start, size, step = ranges[axis]
    if has_symbols((start, size)):
        _refuse(node, axis)
    length = x.parts[0].shape[axis]
    found: list[tuple[int, Node]] = []
    for number, part in enumerate(x.parts):
        begin, count = overlap(start, size, step, number * length, length)
        if count:
            own = list(ranges)
            own[axis] = (start + begin * step - number * length, count, step)
            found.append((begin, G.slice_(part, own)))
    pieces = [piece for _, piece in sorted(found, key=lambda item: item[0])]
    if not pieces:
        return _const(G.const(0, node.shape, node.dtype, node.device), ())
    return Sharded(None, tuple(joined([G.copy(p, d) for p in pieces], axis) for d in node.device))


def _write(node: Node, args: Sequence[Sharded]) -> Sharded:
    x, value = args
    shape = node.src[1].shape
    axis = x.axis
    if axis is None or (shape[axis] == node.shape[axis] and node.attr[axis] == (0, 1)):
        value = aligned(value, axis)
        each = zip(x.parts, value.parts, strict=True)
        return Sharded(axis, tuple(G.write(part, v, node.attr) for part, v in each))
    start, step = node.attr[axis]
    if has_symbols((start, shape[axis])):
        _refuse(node, axis)
    length = x.parts[0].shape[axis]
    parts = []
    each = zip(x.parts, replicated(value).parts, strict=True)
    for number, (part, whole) in enumerate(each):
        begin, count = overlap(start, shape[axis], step, number * length, length)
        if count:
            ranges = [(0, size, 1) for size in shape]
            ranges[axis] = (begin, count, 1)
            region = list(node.attr)
            region[axis] = (start + begin * step - number * length, step)
            parts.append(G.write(part, G.slice_(whole, ranges), region))
        else:
            parts.append(part)
    return Sharded(axis, tuple(parts))


def _pad(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    if x.axis is not None and node.attr[x.axis] != (0, 0, 0):
        _refuse(node, x.axis)
    return Sharded(x.axis, tuple(G.pad(part, node.attr) for part in x.parts))


def _skew(node: Node, args: Sequence[Sharded]) -> Sharded:
    if args[0].axis in node.attr[:2]:
        _refuse(node, args[0].axis)
    return _apart(node, args[0].axis, args)


def _scan(node: Node, args: Sequence[Sharded]) -> Sharded:
    if args[0].axis == node.attr[1]:
        _refuse(node, args[0].axis)
    return _apart(node, args[0].axis, args)


def _reorder(node: Node, args: Sequence[Sharded]) -> Sharded:
    along = next((arg.axis for arg in args if arg.axis is not None), None)
    if along == node.attr[0]:
        _refuse(node, along)
    return _apart(node, along, [aligned(arg, along) for arg in args])


def _gather(node: Node, args: Sequence[Sharded]) -> Sharded:
    x, index = args
    (axis,) = node.attr
    if x.axis == axis:
        return _gather_across(node, x, replicated(index), axis)
    cut_axis = index.axis if index.axis is not None else x.axis
    x = aligned(x, None if cut_axis == axis else cut_axis)
    index = aligned(index, cut_axis)
    each = zip(x.parts, index.parts, strict=True)
    return Sharded(cut_axis, tuple(G.gather(part, i, axis) for part, i in each))


def _gather_across(node: Node, x: Sharded, index: Sharded, axis: int) -> Sharded:
    """Each device gives the elements it has, and zeros for those of others."""
    parts = []
    for number, (part, where) in enumerate(zip(x.parts, index.parts, strict=True)):
        wide = G.cast(where, dtypes.int64)
        first = G.const(number * part.shape[axis], wide.shape, dtypes.int64, wide.device)
        parts.append(G.gather(part, G.alu("sub", wide, first), axis))
    if node.dtype is dtypes.bool:
        return all_reduced(parts, "or")
    is_complex, dtype = node.dtype.is_complex, node.dtype.real
    if not dtype.is_float:
        return all_reduced(parts, "add")
    # As integers: adding zeros would lose the sign of -0.0.
    bits = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}[dtype.bits]
    floats = [G.as_real(part) for part in parts] if is_complex else parts
    total = all_reduced([G.bitcast(part, bits) for part in floats], "add")
    whole = [G.bitcast(part, dtype) for part in total.parts]
    return Sharded(None, tuple(map(G.as_complex, whole) if is_complex else whole))


def _scatter(node: Node, args: Sequence[Sharded]) -> Sharded:
    x, index, updates = args
    axis, monoid = node.attr
    along = next((a.axis for a in (index, updates) if a.axis is not None), x.axis)
    if along != axis:
        return _apart(node, along, [aligned(arg, along) for arg in args])
    if x.axis == axis and index.axis is None and updates.axis is None:
        x = replicated(x)
        return _apart(node, None, [x, index, updates])
    if monoid == "set":
        _refuse(node, axis)
    # Every device adds its updates to a share of its own, and the shares are combined.
    x = replicated(x)
    shares = (x.parts[0], *(identity(part, monoid) for part in x.parts[1:]))
    own = [Sharded(None, shares), aligned(index, axis), aligned(updates, axis)]
    return all_reduced(_apart(node, None, own).parts, monoid)


def _as_complex(node: Node, args: Sequence[Sharded]) -> Sharded:
    if args[0].axis == len(node.shape):
        _refuse(node, args[0].axis)
    return _apart(node, args[0].axis, args)


def _interleave(node: Node, args: Sequence[Sharded]) -> Sharded:
    axis, args = _together(args)
    kept = [a for a in range(len(node.shape)) if a not in node.attr[1]]
    return _apart(node, None if axis is None else kept[axis], args)


def _fft(node: Node, args: Sequence[Sharded]) -> Sharded:
    pairs, *factors = args
    if pairs.axis in (node.attr[0], len(node.shape) - 1):
        _refuse(node, pairs.axis)
    return _apart(node, pairs.axis, [pairs, *map(replicated, factors)])


def _multi(node: Node, args: Sequence[Sharded]) -> Sharded:
    return Sharded(node.attr[0], tuple(arg.parts[0] for arg in args))


def _copy(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    if x.axis is not None and len(x.parts) == len(node.device):
        moved = zip(x.parts, node.device, strict=True)
        return Sharded(x.axis, tuple(G.copy(part, device) for part, device in moved))
    return Sharded(None, tuple(gathered(x, device) for device in node.device))


# For each kind of node on several devices, what they hold, given what they hold of its sources.
RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("const", "iota", "index"), _const),
    **dict.fromkeys(("alu", "cast", "bitcast", "contiguous", "detach"), _elementwise),
    "custom_grad": lambda node, args: args[0],
    "random": _random,
    "reduce": _reduce,
    "reshape": _reshape,
    "expand": _expand,
    "permute": _permute,
    "slice": _slice,
    "pad": _pad,
    "skew": _skew,
    "unskew": _skew,
    "gather": _gather,
    "scatter": _scatter,
    "scan": _scan,
    "cumcount": _scan,
    "reorder": _reorder,
    "write": _write,
    "as_real": lambda node, args: _apart(node, args[0].axis, args),
    "as_complex": _as_complex,
    "interleave": _interleave,
    "fft": _fft,
    "multi": _multi,
    "copy": _copy,
}
