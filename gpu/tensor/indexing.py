"""Indexing as in numpy and torch: reading elements, and writing to them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from gpu.compiler.ir.dims import product
from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.node import place
from gpu.core.dtype import DType, dtypes, promote
from gpu.core.errors import DeviceMismatch, InvalidIndex, ShapeError
from gpu.core.scalars import check_fits
from gpu.tensor.arguments import Operand
from gpu.tensor.base import TensorBase, broadcast_shape, broadcast_to, node_of
from gpu.tensor.indices import Array, Pick, read_index
from gpu.tensor.movement import Movement
from gpu.tensor.tracing import refuse_counting
from gpu.tensor.views import Range


class Indexing(Movement):
    """`tensor[...]`, and writing to elements.

    Ints, slices of any step, None and ``...`` make views. Tensors, arrays and lists of ints take
    elements, and broadcast with each other; the axes they make stand where theirs were, or first
    if others lie between. As in torch, and unlike numpy, an int or a 0-d tensor beside them just
    drops its axis. Negative positions count from the end.

    Positions that the host knows are checked at once, those of a tensor with ``CHECK=1`` only:
    where they are out of range, reading gives 0 and writing does nothing.

    A mask, of bools, takes the elements where it is true. How many those are decides the shape of
    the result, so that reading through a mask computes the mask. Writing through one does not,
    unless there is a value for each element it takes.

    Written values are converted to the dtype of the tensor without a word, floats to integers
    included, as in torch, which like it refuses a Python number that the dtype does not hold; of
    several written to one element the last one stays.
    """

    __slots__ = ()

    def __getitem__(self, index: object) -> Self:
        """The elements that `index` names, as `read_index` tells; a view unless it holds arrays."""
        region = read_index(index, self.shape)
        view = self._shown(region.ranges, region.shape)
        return view._read_at(_positions(region.picks)) if region.picks else view

    def __setitem__(self, index: object, value: Operand) -> None:
        """Replaces the elements that `index` names by `value`, which broadcasts to their shape.

        Raises:
            InvalidIndex: as for reading.
            ShapeError: `value` does not broadcast.
            InvalidValue: the tensor shows elements more than once, or has requires_grad=True.
        """
        self._refuse_leaf()
        region = read_index(index, self.shape)
        view = self._shown(region.ranges, region.shape)
        node = self._value_node(value)
        if not region.picks:
            # After ``x[i] += y`` the view has been written to already.
            if node is not view._node:
                view._set(_fitted(node, view.shape))
        elif not view._set_where(region.picks, node):
            view._write_at(_positions(region.picks), node)
        self._catch_up()

    def _shown(self, ranges: Sequence[Range], shape: Shape) -> Self:
        """A view of ranges of elements; axes of size 1 may come and go."""
        view = self._sliced(ranges)
        return view if view.shape == shape else view._reshaped(shape)

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, x: Operand) -> bool:
        """Whether an element equals `x`; computes the tensor."""
        found = self.eq(x)
        return bool(self._wrap(G.reduce("or", found._node, range(found.ndim))).numpy().any())

    def assign(self, x: Operand) -> Self:
        """Replaces all elements by `x`, which broadcasts, and returns self.

        Views of self follow, and of a view its base. What was computed from self before keeps its
        value. A tensor with requires_grad=True stays a leaf: it stands for the new value, into
        which no gradient flows back; this is how optimisers change parameters.

        Raises ShapeError where `x` does not broadcast, DeviceMismatch for one on another device.

        >>> from gpu import Tensor
        >>> x = Tensor([1, 2, 3])
        >>> row, double = x.reshape(1, 3), x * 2
        >>> x.assign(x.flip(0)).tolist(), row.tolist(), double.tolist()
        ([3, 2, 1], [[3, 2, 1]], [2, 4, 6])
        """
        self._set(_fitted(self._value_node(x), self.shape))
        return self

    def _value_node(self, value: Operand) -> Node:
        """What is written, in the dtype of self. Raises NumberOverflow for a number beyond it."""
        if isinstance(value, bool | int | float):
            check_fits(value, self.dtype)
            return G.const(value, (), self.dtype.element, self.device)
        return G.cast(self._as_node(value), self.dtype.element)

    def _read_at(self, picks: Sequence[Pick]) -> Self:
        lane = _lane(picks, self.shape)
        line = self._permuted(lane.order)._reshaped((*lane.front, lane.length, *lane.back))
        at = _spread(self._flat_index(picks, lane), lane)
        found = self._wrap(G.gather(line._node, at, len(lane.front)))
        return self._wrap(G.reshape(found._node, lane.result))

    def _write_at(self, picks: Sequence[Pick], value: Node) -> None:
        lane = _lane(picks, self.shape)
        line = self._permuted(lane.order)._reshaped((*lane.front, lane.length, *lane.back))
        at = _spread(self._flat_index(picks, lane), lane)
        updates = G.reshape(_fitted(value, lane.result), at.shape)
        line._set(G.scatter(line._node, at, updates, len(lane.front), "set"))

    def _set_where(self, picks: Sequence[Pick], value: Node) -> bool:
        """Writes where a single mask is true, if `value` has one element for all of its axes."""
        if len(picks) > 1 or not picks[0].is_mask:
            return False
        axis, _, mask = picks[0]
        behind = self.ndim - axis - mask.ndim
        place = len(value.shape) - 1 - behind  # of the axis that counts the elements taken
        if place >= 0 and value.shape[place] != 1:
            return False
        if place >= 0:
            around = (*value.shape[:place], *(1,) * mask.ndim, *value.shape[place + 1 :])
            value = G.reshape(value, around)
        condition = G.reshape(self._index_node(mask), (*mask.shape, *(1,) * behind))
        chosen = _fitted(value, self.shape)
        self._set(G.alu("where", broadcast_to(condition, self.shape), chosen, self._node))
        return True

    def _index_node(self, index: TensorBase | Array) -> Node:
        if not isinstance(index, TensorBase):
            return node_of(index, self.device, None)
        if index.device != self.device:
            raise DeviceMismatch(
                f"the tensor is on {place(self.device)}, an index on {place(index.device)}; "
                "move one of them with .to(device)"
            )
        return index._node

    def _flat_index(self, picks: Sequence[Pick], lane: _Lane) -> Node:
        """Positions along the one axis that all indexed axes make together."""
        wide = dtypes.int32 if lane.length <= dtypes.int32.max else dtypes.int64
        sizes = [self.shape[pick.axis] for pick in picks]
        strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        arrays = [pick.key for pick in picks if isinstance(pick.key, np.ndarray)]
        if len(arrays) == len(picks):
            flat = np.zeros(lane.taken, np.int64)
            for array, size, stride in zip(arrays, sizes, strides, strict=True):
                flat += np.where(array < 0, array + size, array) * stride
            return self._index_node(flat.astype(wide.np))
        total = self._wrap(G.const(0, lane.taken, wide, self.device))
        valid = self._wrap(G.const(True, lane.taken, dtypes.bool, self.device))
        for pick, size, stride in zip(picks, sizes, strides, strict=True):
            index = self._wrap(self._index_node(pick.key))._counted_from_front(size, wide)
            if len(picks) == 1:
                return index._node
            inside = index.lt(size).bitwise_and(index.ge(0))
            valid = valid.bitwise_and(inside)
            total = total._binary("add", index.cast(wide)._binary("mul", stride))
        return valid.where(total, -1)._node

    def _counted_from_front(self, size: int, wide: DType) -> Self:
        """An index array without negative positions, in a dtype that holds `size` too."""
        if self.dtype.bits < wide.bits or self.dtype is dtypes.uint32:
            return self.cast(promote(self.dtype, wide))._counted_from_front(size, wide)
        if not self.dtype.is_signed:
            return self
        return self.lt(0).where(self._binary("add", size), self)


class _Lane(NamedTuple):
    """How indexed axes are brought together, to one axis along which elements are taken.

    Attributes:
        order: the axes so that those that are indexed follow each other.
        front: sizes of the axes before them.
        length: the number of elements they have together.
        back: sizes of the axes behind them.
        taken: the shape that the index arrays broadcast to, which stands in their place.
    """

    order: tuple[int, ...]
    front: Shape
    length: int
    back: Shape
    taken: Shape

    @property
    def result(self) -> Shape:
        """The shape of what is taken."""
        return (*self.front, *self.taken, *self.back)


def _lane(picks: Sequence[Pick], shape: Shape) -> _Lane:
    indexed = [pick.axis for pick in picks]
    rest = [axis for axis in range(len(shape)) if axis not in indexed]
    # An index without axes leaves none behind, so that its place does not count.
    placed = [pick.axis for pick in picks if pick.key.ndim] or indexed[:1]
    lies_between = any(placed[0] < axis < placed[-1] for axis in rest)
    count = 0 if lies_between else sum(axis < placed[0] for axis in rest)
    front, back = rest[:count], rest[count:]
    try:
        taken = broadcast_shape(*(tuple(pick.key.shape) for pick in picks))
    except ShapeError as error:
        texts = " and ".join(str(list(pick.key.shape)) for pick in picks)
        raise InvalidIndex(f"index arrays of shapes {texts} do not broadcast") from error
    return _Lane(
        (*front, *indexed, *back),
        tuple(shape[axis] for axis in front),
        product(shape[axis] for axis in indexed),
        tuple(shape[axis] for axis in back),
        taken,
    )


def _spread(flat: Node, lane: _Lane) -> Node:
    """Positions for each place in front and behind."""
    count = product(flat.shape)
    line = (*(1,) * len(lane.front), count, *(1,) * len(lane.back))
    return G.expand(G.reshape(flat, line), (*lane.front, count, *lane.back))


def _positions(picks: Sequence[Pick]) -> list[Pick]:
    """Picks with each mask as the positions where it is true, one pick for each of its axes."""
    result: list[Pick] = []
    for pick in picks:
        if not pick.is_mask:
            result.append(pick)
            continue
        axis, source_axis, mask = pick
        if isinstance(mask, TensorBase):
            refuse_counting("elements by a mask, x[mask],", "masked_select(mask, size=)")
        values = mask.numpy() if isinstance(mask, TensorBase) else mask
        for i, places in enumerate(np.nonzero(values)):
            result.append(Pick(axis + i, source_axis + i, places))
    return result


def _fitted(value: Node, shape: Shape) -> Node:
    """`value` repeated to the shape of what it replaces; further axes of size 1 in front may go."""
    surplus = max(0, len(value.shape) - len(shape))
    if all(size == 1 for size in value.shape[:surplus]):
        value = G.reshape(value, value.shape[surplus:])
    try:
        return broadcast_to(value, shape)
    except ShapeError as error:
        raise ShapeError(
            f"a value of shape {list(value.shape)} does not fit elements of shape {list(shape)}"
        ) from error
