"""Sorting: by counting where lines are short, else digit by digit, least significant first.

Every element has a key, an integer that compares as the element does, of as many bits as tell all
elements of its dtype apart. In a line of few elements each one is counted against all others.
Longer ones are sorted by eight bits of the key at a time (D. Knuth, "Sorting and searching",
section 5.2.5): pieces of a line count by themselves how many elements have each value of the digit,
running sums of the counts tell where each piece puts those that it has, and there they go. All of
it keeps equal elements in order.

A few of the first elements need no sorted line: they lie in those pieces of it whose smallest keys
are the first, which are as many pieces as elements are wanted.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final, NamedTuple, Self

from gpu.compiler.ir.dims import Dim, dimension, has_symbols, upper
from gpu.compiler.ir.graph import Node, Place, Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, PyScalar, dtype_named, dtypes
from gpu.core.errors import DTypeError, InvalidValue, ShapeError
from gpu.tensor.arguments import axis_of, integer
from gpu.tensor.gathering import Gathering

# Elements of a line up to which they are counted against each other: work grows with the square.
COUNTED: Final = 256
# Bits of a digit, and elements of a piece of a line: a few for each value of a digit.
DIGIT_BITS: Final = 8
PIECE: Final = 2048
# How many times the elements that are wanted a line has at least where pieces of it are chosen.
SELECTED: Final = 16
# Bits of a place in a line, and of the keys that are sorted at once.
_WORD: Final = 32
# Elements of a line, at most: places are counted in 32 bits.
_MOST: Final = (1 << 31) - 1
# Bits of the fraction of floats that are sorted as float32.
_FRACTION: Final = {
    dtypes.float16: 10,
    dtypes.bfloat16: 7,
    dtypes.fp8e4m3: 3,
    dtypes.fp8e5m2: 2,
}
_FRACTION32: Final = 23


class Keys(NamedTuple):
    """Integers that compare as the elements of lines do, along the last axis.

    Attributes:
        node: int32 or int64.
        bits: they are in -2**(bits - 1)..2**(bits - 1) - 1.
    """

    node: Node
    bits: int


class Sorting(Gathering):
    """NaN counts as larger than everything, -0 as equal to 0; equal elements keep their order."""

    __slots__ = ()

    def sort(
        self, dim: int = -1, descending: bool = False, *, stable: bool = True
    ) -> tuple[Self, Self]:
        """The elements in order along `dim`, and where each was, as int64.

        Equal elements keep their order, whatever `stable` says; NaN comes last, or first where
        `descending`.

        >>> values, places = Tensor([3.0, 1.0, 3.0]).sort(descending=True)
        >>> values.tolist(), places.tolist()
        ([3.0, 3.0, 1.0], [0, 2, 1])
        """
        order = self.argsort(dim, descending)
        if not self.shape:
            return self, order
        return self._taken(order, axis_of(dim, self.ndim, "dim")), order

    def argsort(self, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Self:
        """The places of the elements along `dim` in the order of the elements, as int64.

        Those of equal elements rise, whatever `stable` says.
        """
        axis = self._line_axis(dim)
        if axis is None:
            return self._wrap(G.const(0, (), dtypes.int64, self.device))
        size = self.shape[axis]
        return self._places_of_first(upper(size), axis, descending)._sliced(
            [(0, size if a == axis else n, 1) for a, n in enumerate(self.shape)]
        )

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
        places = self._places_of_first(count, axis, largest)
        return self._taken(places, axis), places

    def _places_of_first(self, count: int, axis: int, descending: bool) -> Self:
        """The places of the first `count` elements along `axis` in the order of the elements.

        Raises ShapeError for a line of 2**31 elements and more.
        """
        if upper(self.shape[axis]) > _MOST:
            raise ShapeError(f"{self.shape[axis]} elements along axis {axis}: at most {_MOST}")
        order = [*(a for a in range(self.ndim) if a != axis), axis]
        lines = self.detach().permute(order)
        places = first_places(keys_of(lines._node, descending), count)
        return self._wrap(G.permute(places, [order.index(a) for a in range(self.ndim)]))


def first_places(keys: Keys, count: int) -> Node:
    """The places of the `count` smallest keys of each line in order, as int64; equal ones stay so.

    A symbolic axis is taken to have all elements that it can have; those there are come first.
    """
    *front, size = keys.node.shape
    length = upper(size)
    if not length or not count:
        return G.const(0, (*front, count), dtypes.int64, keys.node.device)
    if length <= COUNTED or length < SELECTED * count:
        return _front(_order(keys), count)
    return _selected(keys, count)


def _selected(keys: Keys, count: int) -> Node:
    """The same for few: they are in the `count` pieces of a line that have the smallest keys.

    Of two pieces with equal ones the first counts as smaller; so whatever is in a piece that is not
    among these comes behind an element of each of them.
    """
    *front, size = keys.node.shape
    length = upper(size)
    piece = _piece(length, math.isqrt(length // count))
    pieces = -(-length // piece)
    wide = _filled_up(keys, pieces * piece)
    apart = G.reshape(wide.node, (*front, pieces, piece))
    smallest = G.reduce("min", apart, (len(front) + 1,))
    best = first_places(Keys(G.reshape(smallest, (*front, pieces)), keys.bits), count)
    own = Keys(G.cast(best, dtypes.int32), pieces.bit_length() + 1)
    inside = (*front, count, piece)
    begin = _repeated(G.gather(own.node, _order(own), len(front)), inside)
    within = _along(inside, len(front) + 1, dtypes.int32, best.device)
    places = G.alu("add", G.alu("mul", begin, _const(piece, begin)), within)
    places = G.contiguous(G.reshape(places, (*front, count * piece)))
    candidates = G.contiguous(G.gather(wide.node, places, len(front)))
    chosen = first_places(Keys(candidates, keys.bits), count)
    return G.cast(G.gather(places, chosen, len(front)), dtypes.int64)


@cache
def _piece(length: int, near: int) -> int:
    """Elements of a piece of a line: a number near by that divides the line, if there is one."""
    exact = [n for n in range(near // 2 + 1, 2 * near) if length % n == 0]
    return min(exact, key=lambda n: abs(n - near), default=near)


def _order(keys: Keys) -> Node:
    """The places of all keys of a line in order, as int64."""
    *front, size = keys.node.shape
    length, axis = upper(size), len(front)
    if length == 1:
        return G.const(0, keys.node.shape, dtypes.int64, keys.node.device)
    keys = _filled_up(keys, length)
    if keys.bits <= _WORD:
        return _by_counting(keys) if length <= COUNTED else _by_digits(keys)
    low = G.alu("sub", _low(keys.node), _const(1 << (_WORD - 1), keys.node))
    by_low = _order(Keys(low, _WORD))
    high = G.alu("shr", keys.node, _const(_WORD, keys.node))
    order = _order(Keys(G.gather(high, by_low, axis), keys.bits - _WORD))
    return G.gather(by_low, order, axis)


def _by_counting(keys: Keys) -> Node:
    """Each element goes behind those below it; with its key, above, goes its place, below."""
    *front, size = keys.node.shape
    axis, pairs = len(front), (*front, size, size)
    bits = (COUNTED - 1).bit_length()
    kind = dtypes.int32 if keys.bits + bits <= _WORD else dtypes.int64
    packed = G.contiguous(_packed(G.cast(keys.node, kind), bits))
    other = G.expand(G.reshape(packed, (*front, 1, size)), pairs)
    below = G.alu("lt", other, _repeated(packed, pairs))
    rank = G.reduce("add", G.cast(below, dtypes.int32), (axis + 1,))
    places = _along(packed.shape, axis, dtypes.int64, packed.device)
    return G.reorder(places, G.reshape(rank, packed.shape), axis)


def _packed(key: Node, bits: int) -> Node:
    """Numbers of a key and, in the lowest `bits`, its place in the line."""
    place = _along(key.shape, len(key.shape) - 1, key.dtype, key.device)
    return G.alu("or", G.alu("shl", key, _const(bits, key)), place)


def _by_digits(keys: Keys) -> Node:
    """The same digit by digit; with each key, above, goes its place in the line, below."""
    *front, length = keys.node.shape
    pieces = -(-length // PIECE)
    wide = _filled_up(keys, -(-length // pieces) * pieces)
    key = G.cast(wide.node, dtypes.int64)
    packed = _packed(G.alu("add", key, _const(1 << (keys.bits - 1), key)), _WORD)
    packed = G.contiguous(G.reshape(packed, (*front, pieces, key.shape[-1] // pieces)))
    digits = -(-keys.bits // DIGIT_BITS)
    for _ in range(digits - 1):
        # The next digit comes to where this one is, so that all are sorted by the same kernels.
        rest = G.alu("shr", packed, _const(_WORD + DIGIT_BITS, packed))
        rest = G.alu("shl", rest, _const(_WORD, packed))
        packed = _distributed(packed, G.alu("or", rest, _low(packed)), 1 << DIGIT_BITS)
    places = _distributed(packed, _low(packed), 1 << min(keys.bits, DIGIT_BITS))
    return _front(G.reshape(places, key.shape), length)


def _distributed(packed: Node, x: Node, bins: int) -> Node:
    """`x` in the order of the lowest digits of the keys in `packed`."""
    *front, pieces, length = packed.shape
    axis, lines = len(front), (*front, pieces * length)
    digit = G.alu("shr", packed, _const(_WORD, packed))
    digit = G.cast(G.alu("and", digit, _const(bins - 1, packed)), dtypes.int32)
    rank = G.cumcount(digit, bins, axis + 1)
    blank = G.const(0, (*front, pieces, bins), dtypes.int32, packed.device)
    # Of the elements of a bin the last one stays, which is as many as there are.
    counts = G.scatter(blank, digit, G.alu("add", rank, _const(1, rank)), axis + 1, "set")
    turned = [*range(axis), axis + 1, axis]
    by_bin = G.reshape(G.permute(counts, turned), (*front, bins * pieces))
    before = G.alu("sub", G.scan("add", by_bin, axis), by_bin)
    starts = G.permute(G.reshape(before, (*front, bins, pieces)), turned)
    place = G.alu("add", G.gather(G.contiguous(starts), digit, axis + 1), rank)
    moved = G.reorder(G.reshape(x, lines), G.reshape(place, lines), axis)
    return G.reshape(moved, packed.shape)


def _filled_up(keys: Keys, length: int) -> Keys:
    """Lines brought to `length` elements; what is added is as large as any key."""
    *front, size = keys.node.shape
    if size == length:
        return keys
    wide = G.pad(keys.node, [*((0, 0, 0) for _ in front), (0, dimension(length - size), 0)])
    place = _along(wide.shape, len(front), dtypes.int64, wide.device)
    behind = G.alu("le", _filled(size, wide), place)
    largest = _const((1 << (keys.bits - 1)) - 1, wide)
    return Keys(G.alu("where", behind, largest, wide), keys.bits)


def _filled(size: Dim, like: Node) -> Node:
    """A size as an int64 in each element of the shape of `like`."""
    if not has_symbols(size):
        return G.const(size, like.shape, dtypes.int64, like.device)
    number = G.reshape(G.index(size, dtypes.int64, like.device), (1,) * len(like.shape))
    return G.expand(number, like.shape)


def _front(x: Node, count: int) -> Node:
    """The first elements of each line."""
    *front, _ = x.shape
    return G.slice_(x, [*((0, n, 1) for n in front), (0, count, 1)])


def _repeated(x: Node, shape: Shape) -> Node:
    """`x` with a last axis more, along which each element is repeated."""
    return G.expand(G.reshape(x, (*x.shape, 1)), shape)


def _along(shape: Shape, axis: int, dtype: DType, device: Place) -> Node:
    """The place along `axis` of every element of a shape."""
    line = tuple(n if a == axis else 1 for a, n in enumerate(shape))
    return G.expand(G.reshape(G.iota(shape[axis], dtype, device), line), shape)


def _const(value: PyScalar, like: Node) -> Node:
    """A number in the shape and dtype of `like`."""
    return G.const(value, like.shape, like.dtype, like.device)


def _low(packed: Node) -> Node:
    """The low half of an int64, as a number from 0 on."""
    return G.alu("and", packed, _const((1 << _WORD) - 1, packed))


def keys_of(x: Node, descending: bool = False) -> Keys:
    """The keys of elements; those of larger ones are smaller where `descending`.

    Raises DTypeError for complex numbers.
    """
    if x.dtype.is_complex:
        raise DTypeError(
            f"complex numbers have no order: sort parts of {x.dtype.name}, as .real or .abs()"
        )
    keys = _float_keys(x) if x.dtype.is_float else _integer_keys(x)
    return Keys(G.alu("not", keys.node), keys.bits) if descending else keys


def _integer_keys(x: Node) -> Keys:
    if x.dtype is dtypes.bool:
        number = G.cast(x, dtypes.int32)
        return Keys(G.alu("sub", number, _const(1, number)), 1)
    bits = x.dtype.bits
    if not x.dtype.is_signed:
        signed = dtype_named(f"int{bits}")
        x = G.bitcast(x, signed)
        x = G.alu("xor", x, _const(signed.min, x))
    return Keys(x if bits == 64 else G.cast(x, dtypes.int32), bits)


def _float_keys(x: Node) -> Keys:
    """The bits of a float, the magnitude of negative ones reversed; NaN is largest.

    Those of less than 32 bits are taken as float32, and need only the first bits of its fraction.
    """
    unused = 0
    if x.dtype.bits < 32:
        unused = _FRACTION32 - _FRACTION[x.dtype]
        x = G.cast(x, dtypes.float32)
    bits = G.bitcast(x, dtype_named(f"int{x.dtype.bits}"))
    zero, largest = _const(0, bits), _const(bits.dtype.max, bits)
    ordered = G.alu("where", G.alu("lt", bits, zero), G.alu("xor", bits, largest), bits)
    ordered = G.alu("where", G.alu("eq", x, _const(0, x)), zero, ordered)
    ordered = G.alu("where", G.alu("ne", x, x), largest, ordered)
    if unused:
        ordered = G.alu("shr", ordered, _const(unused, ordered))
    return Keys(ordered, x.dtype.bits - unused)
