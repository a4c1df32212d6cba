"""Sorting: a merge network over 64-bit numbers that carry an element's rank and its place.

Each element becomes one integer: in the high half a key that compares as the element does, in the
low half its place. All are different, so whatever sorts them keeps equal elements in order. Dtypes
of 64 bits take two rounds, by the low half of their key and then by the high one.

A network (K. Batcher, "Sorting networks and their applications", 1968) merges runs twice as long
in each round; a round of runs of length n takes log2(n) steps, each an elementwise min and max. The
first runs are made by counting, for each element, those below it in its run.
"""

from __future__ import annotations

from typing import Final, Self

from gpu.compiler.ir.dims import Dim, dimension, has_symbols, upper
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtype_named, dtypes
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import axis_of, integer
from gpu.tensor.gathering import Gathering

# Runs of this length are sorted by counting: fewer steps, but work that grows with the square.
_RUN: Final = 256
_PLACE_BITS: Final = 32


class Sorting(Gathering):
    """NaN counts as larger than everything, -0 as equal to 0; equal elements keep their order."""

    __slots__ = ()

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """The elements in order along `dim`, and where each was, as int64."""
        order = self.argsort(dim, descending)
        if not self.shape:
            return self, order
        return self._taken(order, axis_of(dim, self.ndim, "dim")), order

    def argsort(self, dim: int = -1, descending: bool = False) -> Self:
        """The places of the elements along `dim` in the order of the elements, as int64."""
        axis = self._line_axis(dim)
        if axis is None:
            return self._wrap(G.const(0, (), dtypes.int64, self.device))
        if upper(self.shape[axis]) > 1 << _PLACE_BITS:
            raise ShapeError(f"{self.shape[axis]} elements along dim {dim} are more than 2**32")
        order = [*(a for a in range(self.ndim) if a != axis), axis]
        lines = self.detach().permute(order)
        places = _argsort(lines._node, descending)
        return self._wrap(G.permute(places, [order.index(a) for a in range(self.ndim)]))

    def topk(
        self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True
    ) -> tuple[Self, Self]:
        """The `k` largest or smallest elements along `dim`, and their places as int64.

        They come in order, whatever `sorted_` says; of equal elements the first are taken.
        """
        count = integer(k, "k")
        size = self.shape[axis_of(dim, self.ndim, "dim")] if self.shape else 1
        if not 0 <= count <= size:
            raise ShapeError(f"topk of {count} elements: there are {size} along dim {dim}")
        if not self.shape:
            if count == 0:
                raise InvalidValue("topk of a 0-d tensor needs k=1")
            return self.sort(dim, descending=largest)
        axis = axis_of(dim, self.ndim, "dim")
        places = self.argsort(axis, largest)
        first = [(0, count if a == axis else n, 1) for a, n in enumerate(self.shape)]
        places = places._sliced(first)
        return self._taken(places, axis), places


def sorted_lines(packed: Node) -> Node:
    """int64 numbers in ascending order along the last axis.

    They have to be all different, and less than the last 2**32 of the dtype.
    """
    *front, size = packed.shape
    if not packed.size:
        return packed
    # A symbolic axis is filled up as if it had all elements that it can have.
    width = 1 << (upper(size) - 1).bit_length()
    packed = G.contiguous(_filled_up(packed, width))
    run = min(width, _RUN)
    packed = _sorted_runs(packed, run)
    while run < width:
        run *= 2
        packed = _merged(packed, run)
    return G.slice_(packed, [*((0, n, 1) for n in front), (0, size, 1)])


def _filled_up(packed: Node, width: int) -> Node:
    """Lines brought to `width` elements; those added are larger than all others, and different."""
    *front, size = packed.shape
    if size == width:
        return packed
    wide = G.pad(packed, [*((0, 0, 0) for _ in front), (0, dimension(width - size), 0)])
    place = _places(wide)
    behind = G.alu("le", _filled(size, wide), place)
    last = G.const(dtypes.int64.max - width, wide.shape, dtypes.int64, wide.device)
    return G.alu("where", behind, G.alu("add", last, place), wide)


def _filled(size: Dim, like: Node) -> Node:
    """A size as an int64 in each element of the shape of `like`."""
    if not has_symbols(size):
        return G.const(size, like.shape, dtypes.int64, like.device)
    number = G.reshape(G.index(size, dtypes.int64, like.device), (1,) * len(like.shape))
    return G.expand(number, like.shape)


def _places(x: Node) -> Node:
    """The place along the last axis of every element of `x`, as int64."""
    *front, size = x.shape
    iota = G.iota(size, dtypes.int64, x.device)
    return G.expand(G.reshape(iota, (*(1 for _ in front), size)), x.shape)


def _sorted_runs(packed: Node, run: int) -> Node:
    """Runs of `run` elements in order: each element goes behind those below it."""
    if run == 1:
        return packed
    *front, width = packed.shape
    runs = (*front, width // run)
    last = len(runs)
    mine = G.expand(G.reshape(packed, (*runs, run, 1)), (*runs, run, run))
    other = G.expand(G.reshape(packed, (*runs, 1, run)), (*runs, run, run))
    below = G.cast(G.alu("lt", other, mine), dtypes.int32)
    rank = G.reshape(G.reduce("add", below, (last + 1,)), (*runs, run))
    blank = G.const(0, rank.shape, dtypes.int64, packed.device)
    placed = G.scatter(blank, rank, G.reshape(packed, rank.shape), last, "set")
    return G.reshape(placed, packed.shape)


def _merged(packed: Node, run: int) -> Node:
    """Pairs of sorted runs as one of `run` elements."""
    distance = run // 2
    packed = _exchange(packed, distance, mirrored=True)
    while distance > 1:
        distance //= 2
        packed = _exchange(packed, distance, mirrored=False)
    return packed


def _exchange(packed: Node, distance: int, mirrored: bool) -> Node:
    """The smaller of two elements to the front: those `distance` apart, or mirror images."""
    shape = packed.shape
    outside = (*shape[:-1], shape[-1] // (2 * distance))
    pairs = (*outside, 2, distance)
    here = G.reshape(packed, pairs)
    step = -1 if mirrored else 1
    start = distance - 1 if mirrored else 0
    there = G.slice_(here, [*((0, n, 1) for n in outside), (1, 2, -1), (start, distance, step)])
    sides = (*(1 for _ in outside), 2, 1)
    side = G.expand(G.reshape(G.iota(2, dtypes.int32, packed.device), sides), pairs)
    first = G.alu("eq", side, G.const(0, pairs, dtypes.int32, packed.device))
    smaller, larger = G.alu("min", here, there), G.alu("max", here, there)
    # Memory of its own for each step: inlined, steps would be computed over and over.
    return G.contiguous(G.reshape(G.alu("where", first, smaller, larger), shape))


def _argsort(lines: Node, descending: bool) -> Node:
    """Places in order along the last axis, as int64."""
    key = _key(lines)
    if descending:
        key = G.alu("not", key)
    own, last = _places(lines), len(lines.shape) - 1
    if key.dtype.bits < 64:
        return _low(sorted_lines(_packed(G.cast(key, dtypes.int64), own)))
    shift = G.const(_PLACE_BITS, lines.shape, dtypes.int64, lines.device)
    by_low = _low(sorted_lines(_packed(_signed_low(key), own)))
    high = G.gather(G.alu("shr", key, shift), by_low, last)
    order = _low(sorted_lines(_packed(high, own)))
    return G.gather(by_low, order, last)


def _packed(key: Node, place: Node) -> Node:
    """A key of 32 bits, as int64, and a place in one number."""
    shift = G.const(_PLACE_BITS, key.shape, dtypes.int64, key.device)
    return G.alu("or", G.alu("shl", key, shift), place)


def _low(packed: Node) -> Node:
    """The low half, as a number from 0 on."""
    mask = G.const((1 << _PLACE_BITS) - 1, packed.shape, dtypes.int64, packed.device)
    return G.alu("and", packed, mask)


def _signed_low(key: Node) -> Node:
    """The low half of an int64 as a signed number that compares as the half does unsigned."""
    middle = G.const(1 << (_PLACE_BITS - 1), key.shape, dtypes.int64, key.device)
    return G.alu("sub", _low(key), middle)


def _key(x: Node) -> Node:
    """An int32 or int64 that compares as `x` does."""
    if x.dtype.is_float:
        return _float_key(x)
    if x.dtype.bits < 32 or x.dtype.is_signed:
        return x if x.dtype is dtypes.int64 else G.cast(x, dtypes.int32)
    signed = dtype_named(f"int{x.dtype.bits}")
    lowest = G.const(signed.min, x.shape, signed, x.device)
    return G.alu("xor", G.bitcast(x, signed), lowest)


def _float_key(x: Node) -> Node:
    """The bits of a float, the magnitude of negative ones reversed; NaN is largest."""
    if x.dtype.bits < 32:
        x = G.cast(x, dtypes.float32)
    kind = dtype_named(f"int{x.dtype.bits}")
    bits = G.bitcast(x, kind)
    zero = G.const(0, x.shape, kind, x.device)
    largest = G.const(kind.max, x.shape, kind, x.device)
    ordered = G.alu("where", G.alu("lt", bits, zero), G.alu("xor", bits, largest), bits)
    ordered = G.alu("where", G.alu("eq", x, G.const(0, x.shape, x.dtype, x.device)), zero, ordered)
    return G.alu("where", G.alu("ne", x, x), largest, ordered)
