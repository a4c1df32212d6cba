"""Values on several devices: what each device holds, and how that is moved between them.

A value is either cut into equal parts along an axis, one for each device, or the same on all of
them. Everything here builds nodes of single devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.optable import MONOIDS

# Elements from which a value is reduced in parts, each by one device, instead of whole by all.
RING_SIZE: Final = 1 << 16


class Sharded(NamedTuple):
    """What stands for a value on several devices.

    Attributes:
        axis: the axis that is cut; None where every device has all of it.
        parts: what each device has.
    """

    axis: int | None
    parts: tuple[Node, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of each part."""
        return tuple(part.device for part in self.parts)


def part_shape(shape: Shape, axis: int | None, count: int) -> Shape:
    """The shape of what one of `count` devices has of a value of `shape`."""
    if axis is None:
        return shape
    return (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])


def cut(x: Node, axis: int, number: int, count: int) -> Node:
    """Part `number` of `count` of a value that is there as a whole."""
    shape = part_shape(x.shape, axis, count)
    if x.kind == "expand" and x.src[0].shape[axis] == 1:
        return G.expand(x.src[0], shape)  # all parts are one expression, and so one kernel
    ranges = [(0, size, 1) for size in x.shape]
    ranges[axis] = (number * shape[axis], shape[axis], 1)
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
    if x.axis is None:
        own = [part for part in x.parts if part.device == device]
        return own[0] if own else G.copy(x.parts[0], device)
    return joined([G.copy(part, device) for part in x.parts], x.axis)


def replicated(x: Sharded) -> Sharded:
    """The whole value on every device."""
    if x.axis is None:
        return x
    return Sharded(None, tuple(gathered(x, device) for device in x.devices))


def aligned(x: Sharded, axis: int | None) -> Sharded:
    """The same value cut along `axis`, or whole everywhere.

    What has to move between devices moves: whole parts for None, else only what each needs.
    """
    if x.axis == axis:
        return x
    if axis is None:
        return replicated(x)
    count = len(x.parts)
    if x.axis is None:
        return Sharded(axis, tuple(cut(p, axis, i, count) for i, p in enumerate(x.parts)))
    parts = []
    for number, device in enumerate(x.devices):
        pieces = [G.copy(cut(part, axis, number, count), device) for part in x.parts]
        parts.append(joined(pieces, x.axis))
    return Sharded(axis, tuple(parts))


def all_reduced(parts: Sequence[Node], monoid: str) -> Sharded:
    """The parts, of one shape, combined element by element, on every device.

    Every device gets the same bits: they are combined in one order. Small values go from each
    device to each other one. Large ones are combined in as many pieces as there are devices, each
    on its way around the ring of devices, and then handed on around it: every device sends and gets
    about twice the value, however many there are.
    """
    size = parts[0].size
    if size < RING_SIZE or len(parts) == 2:
        devices = [part.device for part in parts]
        return Sharded(None, tuple(_combined(parts, monoid, device) for device in devices))
    return _around_ring(parts, monoid)


def _combined(parts: Sequence[Node], monoid: str, device: str) -> Node:
    total = G.copy(parts[0], device)
    for part in parts[1:]:
        total = G.alu(monoid, total, G.copy(part, device))
    return total


def _around_ring(parts: Sequence[Node], monoid: str) -> Sharded:
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
    return Sharded(None, tuple(G.reshape(each, shape) for each in whole))


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
