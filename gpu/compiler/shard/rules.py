"""From graphs over several devices to graphs of single devices: a rule for each kind of node.

A node whose device is a tuple of names is a value on all of them, of the shape it has as a whole;
`lower` gives for each what its devices hold (`gpu/compiler/shard/values.py`). Along which axes a
value is cut follows from its sources. Where they disagree, the first one that is cut decides, and
the others are moved to it. A sum over an axis that is cut is partial, and its reader says whether
all devices need all of it. Devices exchange data in `copy` nodes and in calls of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NoReturn

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node, Shape, accumulate_as, make, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.barrier import barrier
from gpu.compiler.ir.graph.grid import axes_of, cuts_of
from gpu.compiler.shard.values import (
    Cut,
    Sharded,
    aligned,
    combined,
    gathered,
    identity,
    joined,
    overlap,
    part_shape,
    replicated,
    single,
    uncut,
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
            done[node] = single(_single(node, done, is_leaf))
        elif is_leaf(node):
            memory = value(node)
            done[node] = Sharded(cuts_of(memory.attr[0]), memory.src, axes_of(node.device))
        else:
            args = [done[source] for source in node.src]
            if node.kind not in _OF_PARTIAL:
                args = [combined(arg) for arg in args]
            done[node] = RULES[node.kind](node, args)
        if not is_leaf(node):
            for part in done[node].parts:
                note(node, part)
    return [combined(done[root]) for root in roots]


def _single(node: Node, done: dict[Node, Sharded], is_leaf: Callable[[Node], bool]) -> Node:
    """A node of one device over what its sources have become."""
    if is_leaf(node):
        return node
    if node.kind == "copy" and not isinstance(node.src[0].device, str):
        return gathered(done[node.src[0]], node.device)
    if node.kind == "part":
        number, layout = node.attr
        part: Node = aligned(done[node.src[0]], cuts_of(layout)).parts[number]
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


def _refuse_cut(node: Node, x: Sharded, *axes: int) -> None:
    """Refuses a value that is cut along one of the axes."""
    for axis in axes:
        if axis in x.cuts:
            _refuse(node, axis)


def _apart(node: Node, cuts: Sequence[Cut], args: Sequence[Sharded]) -> Sharded:
    """The same operation on each device's parts, the result being cut so."""
    axes = axes_of(node.device)
    shape = part_shape(node.shape, cuts, axes)
    each = zip(*(arg.parts for arg in args), strict=True) if args else [()] * len(node.device)
    parts = tuple(
        make(node.kind, parts, node.attr, shape, node.dtype, device)
        for device, parts in zip(node.device, each, strict=True)
    )
    return Sharded(tuple(cuts), parts, axes)


def _each(x: Sharded, cuts: Sequence[Cut], change: Callable[[Node], Node]) -> Sharded:
    """Each part changed, which lie so then."""
    return Sharded(tuple(cuts), tuple(map(change, x.parts)), x.axes)


def _first_cuts(args: Sequence[Sharded], shape: Shape) -> list[int | None]:
    """Along each axis of the devices the cut of the first operand that has one there.

    An axis of `shape` that would have no equal parts then is cut as far as it has.
    """
    found: list[int | None] = []
    parts = [1] * len(shape)
    for number, along in enumerate(args[0].axes):
        cuts = (arg.cuts[number] for arg in args)
        axis = next((cut for cut in cuts if isinstance(cut, int)), None)
        if axis is not None:
            parts[axis] *= along.size
            if has_symbols(shape[axis]) or shape[axis] % parts[axis]:
                parts[axis] //= along.size
                axis = None
        found.append(axis)
    return found


def _together(node: Node, args: Sequence[Sharded]) -> list[Sharded]:
    """Operands of one shape, cut alike."""
    cuts = _first_cuts(args, node.src[0].shape)
    return [aligned(arg, cuts) for arg in args]


def _elementwise(node: Node, args: Sequence[Sharded]) -> Sharded:
    # Sums of sums that are still to be added up are such a sum again, and so is one alone.
    partial = [{cut for cut in arg.cuts if isinstance(cut, str)} for arg in args]
    alike = all(arg.cuts == args[0].cuts for arg in args)
    adds = node.kind == "alu" and node.attr[0] == "add" and partial[0] <= {"add"}
    if not (alike and (adds or node.kind in _SAME_VALUE)):
        args = _together(node, args)
    if node.kind != "alu":
        return _apart(node, args[0].cuts, args)
    each = zip(*(arg.parts for arg in args), strict=True)
    parts = tuple(G.alu(node.attr[0], *parts) for parts in each)
    return Sharded(args[0].cuts, parts, args[0].axes)


def _barrier(node: Node, args: Sequence[Sharded]) -> Sharded:
    """Each part waits for those of the others on its device, or for a part on another one."""
    x, *others = args
    waited = ([each.parts[number % len(each.parts)] for each in others] for number in count())
    parts = tuple(barrier(part, wait) for part, wait in zip(x.parts, waited, strict=False))
    return Sharded(x.cuts, parts, x.axes)


def _const(node: Node, args: Sequence[Sharded]) -> Sharded:
    return _apart(node, [None] * len(axes_of(node.device)), args)


def _random(node: Node, args: Sequence[Sharded]) -> Sharded:
    return _const(node, [replicated(arg) for arg in args])


def _reduce(node: Node, args: Sequence[Sharded]) -> Sharded:
    monoid, axes = node.attr
    (x,) = args
    if not any(axis in x.cuts for axis in axes):
        return _each(x, x.cuts, lambda part: G.reduce(monoid, part, axes))
    # Rounded once, at the end, as on one device.
    wide = accumulate_as(node.dtype)
    cuts = [monoid if cut in axes else cut for cut in x.cuts]
    partial = _each(x, cuts, lambda part: G.reduce(monoid, G.cast(part, wide), axes))
    if wide is node.dtype:
        return partial
    whole = combined(partial)
    return _each(whole, whole.cuts, lambda part: G.cast(part, node.dtype))


def _reshape(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    new = {axis: _reshaped_axis(node, axis, x) for axis in dict.fromkeys(x.cut_axes)}
    cuts = [new[cut] if isinstance(cut, int) else cut for cut in x.cuts]
    shape = part_shape(node.shape, cuts, x.axes)
    return _each(x, cuts, lambda part: G.reshape(part, shape))


def _reshaped_axis(node: Node, axis: int, x: Sharded) -> int:
    """The axis that is cut when `axis` was: as many elements lie before it, and it divides."""
    source = node.src[0].shape
    if not has_symbols((source, node.shape)):
        before = math.prod(source[:axis])
        count = math.prod(x.axes[number].size for number in x.along(axis))
        for number, size in enumerate(node.shape):
            if math.prod(node.shape[:number]) == before and size % count == 0 and size:
                return number
    _refuse(node, axis)


def _expand(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    shape = part_shape(node.shape, x.cuts, x.axes)
    return _each(x, x.cuts, lambda part: G.expand(part, shape))


def _permute(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    order = node.attr[0]
    cuts = [order.index(cut) if isinstance(cut, int) else cut for cut in x.cuts]
    return _each(x, cuts, lambda part: G.permute(part, order))


def _ranges(node: Node, shape: Shape) -> list[tuple[int, int, int]]:
    return [(start, size, step) for (start, step), size in zip(node.attr, shape, strict=True)]


def _slice(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    ranges, shape = _ranges(node, node.shape), node.src[0].shape
    for axis in dict.fromkeys(x.cut_axes):
        if ranges[axis] != (0, shape[axis], 1):
            if len(x.cuts) == 1 and not x.axes[0].ranks:
                return _slice_across(node, x, ranges)
            x = uncut(x, axis)
        else:
            ranges[axis] = (0, x.parts[0].shape[axis], 1)
    return _each(x, x.cuts, lambda part: G.slice_(part, ranges))


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
    parts = tuple(joined([G.copy(p, d) for p in pieces], axis) for d in node.device)
    return Sharded((None,), parts, x.axes)


def _write(node: Node, args: Sequence[Sharded]) -> Sharded:
    x, value = args
    x = combined(x)
    shape, cuts = node.src[1].shape, x.layout
    partly = [
        axis
        for axis in dict.fromkeys(x.cut_axes)
        if shape[axis] != node.shape[axis] or node.attr[axis] != (0, 1)
    ]
    if partly and len(x.cuts) == 1 and not x.axes[0].ranks:
        return _write_across(node, x, value, partly[0])
    for axis in partly:
        x = uncut(x, axis)
    each = zip(x.parts, aligned(value, x.layout).parts, strict=True)
    parts = tuple(G.write(part, v, node.attr) for part, v in each)
    return aligned(Sharded(x.cuts, parts, x.axes), cuts)


def _write_across(node: Node, x: Sharded, value: Sharded, axis: int) -> Sharded:
    """Each device writes what lies in its part."""
    shape = node.src[1].shape
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
    return Sharded(x.cuts, tuple(parts), x.axes)


def _pad(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    for axis in x.cut_axes:
        if node.attr[axis] != (0, 0, 0):
            _refuse(node, axis)
    return _each(x, x.cuts, lambda part: G.pad(part, node.attr))


def _skew(node: Node, args: Sequence[Sharded]) -> Sharded:
    _refuse_cut(node, args[0], *node.attr[:2])
    return _apart(node, args[0].cuts, args)


def _scan(node: Node, args: Sequence[Sharded]) -> Sharded:
    _refuse_cut(node, args[0], node.attr[1])
    return _apart(node, args[0].cuts, args)


def _reorder(node: Node, args: Sequence[Sharded]) -> Sharded:
    args = _together(node, args)
    _refuse_cut(node, args[0], node.attr[0])
    return _apart(node, args[0].cuts, args)


def _gather(node: Node, args: Sequence[Sharded]) -> Sharded:
    x, index = args
    (axis,) = node.attr
    if axis in x.cuts:
        return _gather_across(node, x, index, axis)
    cuts = _first_cuts([index, x], node.shape)
    x = aligned(x, [None if cut == axis else cut for cut in cuts])
    each = zip(x.parts, aligned(index, cuts).parts, strict=True)
    return Sharded(tuple(cuts), tuple(G.gather(part, i, axis) for part, i in each), x.axes)


def _gather_across(node: Node, x: Sharded, index: Sharded, axis: int) -> Sharded:
    """Each device gives the elements it has, and zeros for those of others."""
    x = aligned(x, [cut if cut == axis else None for cut in x.layout])
    parts = []
    for number, (part, where) in enumerate(zip(x.parts, replicated(index).parts, strict=True)):
        wide = G.cast(where, dtypes.int64)
        first = G.index(x.start(axis, number), dtypes.int64, wide.device)
        first = G.expand(G.reshape(first, (1,) * len(wide.shape)), wide.shape)
        parts.append(G.gather(part, G.alu("sub", wide, first), axis))
    is_complex, dtype = node.dtype.is_complex, node.dtype.real
    monoid = "or" if dtype is dtypes.bool else "add"
    own = Sharded(tuple(monoid if cut == axis else None for cut in x.cuts), tuple(parts), x.axes)
    if not dtype.is_float:
        return own
    # As integers: adding zeros would lose the sign of -0.0.
    bits = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}[dtype.bits]

    def as_bits(part: Node) -> Node:
        return G.bitcast(G.as_real(part) if is_complex else part, bits)

    def as_floats(part: Node) -> Node:
        floats = G.bitcast(part, dtype)
        return G.as_complex(floats) if is_complex else floats

    total = combined(_each(own, own.cuts, as_bits))
    return _each(total, total.cuts, as_floats)


def _scatter(node: Node, args: Sequence[Sharded]) -> Sharded:
    x, index, updates = args
    axis, monoid = node.attr
    updated = _first_cuts([index, updates], node.src[1].shape)
    if axis not in updated:
        x = uncut(x, axis)
        shape = tuple(map(math.gcd, node.shape, node.src[1].shape))
        cuts = _first_cuts([index, updates, x], shape)
        return _apart(node, cuts, [aligned(arg, cuts) for arg in args])
    if monoid == "set":
        _refuse(node, axis)
    # Every device combines its updates with nothing, and all of them are combined with the value.
    elsewhere = [None if cut == axis else cut for cut in updated]
    x = aligned(x, elsewhere)
    blank = _each(x, x.cuts, lambda part: identity(part, monoid))
    own = _apart(node, elsewhere, [blank, aligned(index, updated), aligned(updates, updated)])
    partial = own._replace(cuts=tuple(monoid if cut == axis else cut for cut in updated))
    each = zip(x.parts, combined(partial).parts, strict=True)
    return Sharded(x.cuts, tuple(G.alu(monoid, *pair) for pair in each), x.axes)


def _as_complex(node: Node, args: Sequence[Sharded]) -> Sharded:
    _refuse_cut(node, args[0], len(node.shape))
    return _apart(node, args[0].cuts, args)


def _interleave(node: Node, args: Sequence[Sharded]) -> Sharded:
    args = _together(node, args)
    kept = [a for a in range(len(node.shape)) if a not in node.attr[1]]
    return _apart(node, [None if cut is None else kept[cut] for cut in args[0].layout], args)


def _fft(node: Node, args: Sequence[Sharded]) -> Sharded:
    pairs, *factors = args
    _refuse_cut(node, pairs, node.attr[0], len(node.shape) - 1)
    return _apart(node, pairs.cuts, [pairs, *map(replicated, factors)])


def _multi(node: Node, args: Sequence[Sharded]) -> Sharded:
    parts = tuple(arg.parts[0] for arg in args)
    return Sharded(cuts_of(node.attr[0]), parts, axes_of(node.device))


def _copy(node: Node, args: Sequence[Sharded]) -> Sharded:
    (x,) = args
    axes = axes_of(node.device)
    if node.src[0].device != node.device:
        if x.axes == axes and len(axes) == 1 and x.axis is not None:
            moved = zip(x.parts, node.device, strict=True)
            x = Sharded(x.cuts, tuple(G.copy(part, device) for part, device in moved), axes)
        else:
            parts = tuple(gathered(x, device) for device in node.device)
            x = Sharded((None,) * len(axes), parts, axes)
    return aligned(x, cuts_of(node.attr[0])) if node.attr else x


# What says itself how it takes what is partial; others get the same everywhere.
_SAME_VALUE: Final = frozenset({"contiguous"})
_MOVED: Final = frozenset({"reshape", "expand", "permute", "slice"})
_OF_PARTIAL: Final = (
    _SAME_VALUE
    | _MOVED
    | {"barrier", "detach", "alu", "cast", "bitcast", "copy", "custom_grad", "write"}
)

# For each kind of node on several devices, what they hold, given what they hold of its sources.
RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("const", "iota", "index"), _const),
    **dict.fromkeys(("alu", "cast", "bitcast", "contiguous"), _elementwise),
    # As their sources: a sum that is partial is added up once, whoever reads it.
    **dict.fromkeys(("custom_grad", "detach"), lambda node, args: args[0]),
    "barrier": _barrier,
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
    "as_real": lambda node, args: _apart(node, args[0].cuts, args),
    "as_complex": _as_complex,
    "interleave": _interleave,
    "fft": _fft,
    "multi": _multi,
    "copy": _copy,
}
