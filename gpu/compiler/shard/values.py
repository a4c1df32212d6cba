"""Values on several devices: what each device holds, and how that is moved between them.

Devices are counted along the axes of a grid (`gpu/compiler/ir/graph/grid.py`). Along each of these
a value is cut into equal parts, or the same everywhere, or partial: what its devices have is still
to be combined. Everything here builds nodes of single devices. What moves along an axis of devices
of this process is a `copy`; along one of ranks a call of the host that all of them make.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from gpu.compiler.ir.dims import Dim, dimension
from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.body import Value
from gpu.compiler.ir.graph.grid import Axis, Layout, cut_shape
from gpu.compiler.ir.graph.hostcall import Across, HostCall
from gpu.compiler.ir.optable import MONOIDS

# Elements from which a value is reduced in parts, each by one device, instead of whole by all.
RING_SIZE: Final = 1 << 16

# The axis of the value that is cut, None where all have the same, or the monoid that combines what
# is partial.
Cut: TypeAlias = "int | str | None"


class Sharded(NamedTuple):
    """What stands for a value on several devices.

    Attributes:
        cuts: for each axis of the grid how the value lies along it.
        parts: what each device of this process has.
        axes: of the grid.
    """

    cuts: tuple[Cut, ...]
    parts: tuple[Node, ...]
    axes: tuple[Axis, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of each part."""
        return tuple(part.device for part in self.parts)

    @property
    def axis(self) -> int | None:
        """The first axis of the value that is cut; None where every device has all of it."""
        return next(iter(self.cut_axes), None)

    @property
    def cut_axes(self) -> list[int]:
        """The axes of the value that are cut."""
        return [cut for cut in self.cuts if isinstance(cut, int)]

    @property
    def layout(self) -> tuple[int | None, ...]:
        """The cuts of a value of which nothing is partial."""
        return tuple(cut if isinstance(cut, int) else None for cut in self.cuts)

    def along(self, axis: int) -> list[int]:
        """The axes of the grid along which an axis of the value is cut."""
        return [number for number, cut in enumerate(self.cuts) if cut == axis]

    def with_cut(self, number: int, cut: Cut, parts: Sequence[Node]) -> Sharded:
        """Other parts, which lie otherwise along one axis of the grid."""
        cuts = (*self.cuts[:number], cut, *self.cuts[number + 1 :])
        return Sharded(cuts, tuple(parts), self.axes)

    def groups(self, number: int) -> list[list[int]]:
        """The parts that lie along an axis of devices, for each place along the others."""
        size = self.axes[number].size
        inner = math.prod(a.size for a in self.axes[number + 1 :] if not a.ranks)
        firsts = (i for i in range(len(self.parts)) if i // inner % size == 0)
        return [[first + step * inner for step in range(size)] for first in firsts]

    def start(self, axis: int, number: int) -> Dim:
        """Where along an axis of the value the part of a device begins, whichever rank it is."""
        place: Dim = 0
        inner = len(self.parts)
        for cut, along in zip(self.cuts, self.axes, strict=True):
            if along.ranks:
                own: Dim = along.offset
            else:
                inner //= along.size
                own = number // inner % along.size
            if cut == axis:
                place = place * along.size + own
        return dimension(place * self.parts[number].shape[axis])


def single(node: Node) -> Sharded:
    """A value of one device."""
    return Sharded((), (node,), ())


def cut(x: Node, axis: int, number: Dim, count: int) -> Node:
    """Part `number` of `count` of a value that is there as a whole."""
    shape = list(x.shape)
    shape[axis] = dimension(shape[axis] // count)
    if x.kind == "expand" and x.src[0].shape[axis] == 1:
        return G.expand(x.src[0], tuple(shape))  # all parts are one expression, and so one kernel
    if x.kind == "const":
        return G.const(x.attr[0], tuple(shape), x.dtype, x.device)
    if x.kind == "copy":
        return G.copy(cut(x.src[0], axis, number, count), x.device)
    ranges = [(0, size, 1) for size in x.shape]
    ranges[axis] = (dimension(number * shape[axis]), shape[axis], 1)
    return G.slice_(x, ranges)


def joined(parts: Sequence[Node], axis: int) -> Node:
    """Parts on one device side by side along `axis`."""
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    whole = G.const(0, tuple(shape), parts[0].dtype, parts[0].device)
    start = 0
    for part in parts:
        ranges = [(0, 1)] * len(shape)
        ranges[axis] = (start, 1)
        whole = G.write(whole, part, ranges)
        start += part.shape[axis]
    return whole


def gathered(x: Sharded, device: str) -> Node:
    """The whole value on one device."""
    own = [number for number, part in enumerate(x.parts) if part.device == device] or [0]
    inside = [g for g, c in enumerate(x.cuts) if isinstance(c, int) and not x.axes[g].ranks]
    if len(inside) == 1 and len(x.cut_axes) == 1 and not any(isinstance(c, str) for c in x.cuts):
        # Parts of devices of this process alone: they go to this device, and to no other.
        (group,) = (each for each in x.groups(inside[0]) if own[0] in each)
        return joined([G.copy(x.parts[number], device) for number in group], x.cut_axes[0])
    return G.copy(replicated(x).parts[own[0]], device)


def replicated(x: Sharded) -> Sharded:
    """The whole value on every device."""
    return aligned(x, (None,) * len(x.cuts))


def combined(x: Sharded) -> Sharded:
    """The value with nothing partial, which is the same everywhere instead."""
    return aligned(x, x.layout)


def uncut(x: Sharded, axis: int) -> Sharded:
    """The value with all of one axis everywhere."""
    return aligned(x, tuple(None if cut == axis else cut for cut in x.layout))


def aligned(x: Sharded, cuts: Sequence[int | None]) -> Sharded:
    """The same value cut so, or whole, along each axis of the grid.

    What has to move between devices moves: whole parts for None, else only what each needs. Of what
    is partial each device gets what it needs of the result.
    """
    stays: list[bool] = []
    for number, (old, new) in enumerate(zip(x.cuts, cuts, strict=True)):
        # Parts of parts: those of the first axis of the grid are cut along the next ones.
        outer = zip(x.cuts[:number], cuts[:number], strict=True)
        stays.append(old == new and all((a == old) == (b == old) for a, b in outer))
    if all(stays):
        return x
    if all(part.kind == "expand" for part in x.parts):
        return _expanded(x, cuts)
    for number in reversed(range(len(cuts))):
        old, new = x.cuts[number], cuts[number]
        if stays[number] or not isinstance(old, int):
            continue
        others = {*x.cuts[:number], *x.cuts[number + 1 :], *cuts[:number], *cuts[number + 1 :]}
        if new is not None and new != old and others.isdisjoint((old, new)):
            x = _exchanged(x, number, old, new)
        else:
            x = _whole(x, number, old)
    for number, new in enumerate(cuts):
        old = x.cuts[number]
        if isinstance(old, str):
            x = _scattered(x, number, old, new) if isinstance(new, int) else _summed(x, number, old)
        elif old is None and new is not None:
            x = _cut(x, number, new)
    return x


def _expanded(x: Sharded, cuts: Sequence[int | None]) -> Sharded:
    """`aligned` of what is expanded: what it is expanded from moves, and not each copy of it."""
    part = x.parts[0]
    sizes = part.src[0].shape
    repeated = {axis for axis, size in enumerate(sizes) if size == 1 != part.shape[axis]}
    own = tuple(None if cut in repeated else cut for cut in x.cuts)
    wanted = tuple(None if cut in repeated else cut for cut in cuts)
    moved = aligned(Sharded(own, tuple(each.src[0] for each in x.parts), x.axes), wanted)
    shape = list(part.shape)
    for cut, along in zip(x.cuts, x.axes, strict=True):
        if isinstance(cut, int):
            shape[cut] = dimension(shape[cut] * along.size)
    shape = cut_shape(tuple(shape), cuts, x.axes)
    return Sharded(tuple(cuts), tuple(G.expand(each, shape) for each in moved.parts), x.axes)


def _cut(x: Sharded, number: int, axis: int) -> Sharded:
    along = x.axes[number]
    if along.ranks:
        return x.with_cut(number, axis, [cut(p, axis, along.offset, along.size) for p in x.parts])
    parts = list(x.parts)
    for group in x.groups(number):
        for place, at in enumerate(group):
            parts[at] = cut(parts[at], axis, place, along.size)
    return x.with_cut(number, axis, parts)


def _whole(x: Sharded, number: int, axis: int) -> Sharded:
    along = x.axes[number]

    def between(part: Node) -> Node:
        every = _called("all_gather", part, along, (along.size, *part.shape))
        return _side_by_side(every, axis)

    def inside(parts: Sequence[Node]) -> list[Node]:
        return [joined([G.copy(p, part.device) for p in parts], axis) for part in parts]

    return x.with_cut(number, None, _moved(x, number, between, inside))


def _exchanged(x: Sharded, number: int, old: int, new: int) -> Sharded:
    along = x.axes[number]

    def between(part: Node) -> Node:
        apart = _apart(part, new, along.size)
        return _side_by_side(_called("all_to_all", apart, along, apart.shape), old)

    def inside(parts: Sequence[Node]) -> list[Node]:
        made = []
        for place, own in enumerate(parts):
            pieces = [G.copy(cut(part, new, place, along.size), own.device) for part in parts]
            made.append(joined(pieces, old))
        return made

    return x.with_cut(number, new, _moved(x, number, between, inside))


def _summed(x: Sharded, number: int, monoid: str) -> Sharded:
    along = x.axes[number]

    def between(part: Node) -> Node:
        return _called("all_reduce", part, along, part.shape, monoid)

    def inside(parts: Sequence[Node]) -> list[Node]:
        return list(all_reduced(parts, monoid))

    return x.with_cut(number, None, _moved(x, number, between, inside))


def _scattered(x: Sharded, number: int, monoid: str, axis: int) -> Sharded:
    along = x.axes[number]

    def between(part: Node) -> Node:
        apart = _apart(part, axis, along.size)
        return _called("reduce_scatter", apart, along, apart.shape[1:], monoid)

    def inside(parts: Sequence[Node]) -> list[Node]:
        made = []
        for place, own in enumerate(parts):
            pieces = [cut(part, axis, place, along.size) for part in parts]
            made.append(_combined(pieces, monoid, own.device))
        return made

    return x.with_cut(number, axis, _moved(x, number, between, inside))


def _moved(
    x: Sharded,
    number: int,
    between: Callable[[Node], Node],
    inside: Callable[[Sequence[Node]], list[Node]],
) -> list[Node]:
    """Parts after a move along an axis: `between` ranks, or `inside` a group of this one's."""
    if x.axes[number].ranks:
        return [between(part) for part in x.parts]
    parts = list(x.parts)
    for group in x.groups(number):
        for at, part in zip(group, inside([parts[at] for at in group]), strict=True):
            parts[at] = part
    return parts


def _called(name: str, x: Node, along: Axis, shape: Shape, monoid: str = "") -> Node:
    """What all ranks along an axis do together with a value of one device."""
    if not x.size:
        return G.const(0, shape, x.dtype, x.device)
    if x.dtype.is_complex:
        return G.as_complex(_called(name, G.as_real(x), along, (*shape, 2), monoid))
    forms = (Value(x.shape, x.dtype),), (Value(shape, x.dtype),)
    across = Across(along.ranks, along.number, monoid)
    return G.result(G.host(HostCall(name, *forms, across), None, [x]), 0)


def _apart(x: Node, axis: int, count: int) -> Node:
    """Equal parts along `axis`, along a new first axis."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    apart = G.reshape(x, (*before, count, x.shape[axis] // count, *after))
    order = [axis, *(a for a in range(len(apart.shape)) if a != axis)]
    return G.permute(apart, order)


def _side_by_side(x: Node, axis: int) -> Node:
    """What lies along the first axis, side by side along `axis` of what remains."""
    count, *shape = x.shape
    order = [a + 1 for a in range(len(shape))]
    order.insert(axis, 0)
    shape[axis] *= count
    return G.reshape(G.permute(x, order), tuple(shape))


def all_reduced(parts: Sequence[Node], monoid: str) -> tuple[Node, ...]:
    """The parts, of one shape, combined element by element, on every device.

    Every device gets the same bits: they are combined in one order. Small values go from each
    device to each other one. Large ones are combined in as many pieces as there are devices, each
    on its way around the ring of devices, and then handed on around it: every device sends and gets
    about twice the value, however many there are.
    """
    size = parts[0].size
    if size < RING_SIZE or len(parts) == 2:
        return tuple(_combined(parts, monoid, part.device) for part in parts)
    return _around_ring(parts, monoid)


def _combined(parts: Sequence[Node], monoid: str, device: str) -> Node:
    total = G.copy(parts[0], device)
    for part in parts[1:]:
        total = G.alu(monoid, total, G.copy(part, device))
    return total


def _around_ring(parts: Sequence[Node], monoid: str) -> tuple[Node, ...]:
    count, size, shape = len(parts), parts[0].size, parts[0].shape
    length = -(-size // count)
    flat = [G.pad(G.reshape(p, (size,)), [(0, length * count - size, 0)]) for p in parts]
    pieces: list[list[Node]] = [[] for _ in parts]
    for number in range(count):
        order = [(number + 1 + step) % count for step in range(count)]
        total = cut(flat[order[0]], 0, number, count)
        for place in order[1:]:
            own = cut(flat[place], 0, number, count)
            total = G.contiguous(G.alu(monoid, G.copy(total, own.device), own))
        for place in (order[-1], *order[:-1]):
            total = G.copy(total, parts[place].device)
            pieces[place].append(total)
    whole = (G.slice_(joined(each, 0), [(0, size, 1)]) for each in pieces)
    return tuple(G.reshape(each, shape) for each in whole)


def identity(like: Node, monoid: str) -> Node:
    """What changes nothing when it is combined, of the shape of `like` and where that is."""
    return G.const(MONOIDS[monoid].identity(like.dtype), like.shape, like.dtype, like.device)


def overlap(start: int, size: int, step: int, first: int, length: int) -> tuple[int, int]:
    """Which elements of a range lie in `length` places from `first` on: the first, and how many."""
    if step < 0:
        begin, count = overlap(start + (size - 1) * step, size, -step, first, length)
        return size - begin - count, count
    begin = max(0, math.ceil((first - start) / step))
    end = min(size, math.ceil((first + length - start) / step))
    return begin, max(0, end - begin)


def part_shape(shape: Shape, cuts: Sequence[Cut], axes: Sequence[Axis]) -> Shape:
    """The shape of what each device has of a value of `shape`."""
    found: Shape = cut_shape(shape, cuts, axes)
    return found


__all__ = [
    "Cut", "Layout", "Sharded", "aligned", "all_reduced", "combined", "cut", "gathered", "identity",
    "joined", "overlap", "part_shape", "replicated", "single", "uncut",
]  # fmt: skip
