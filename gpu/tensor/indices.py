"""Reading of an index, what stands in brackets behind a tensor, into slices and index arrays."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.dims import Dim, dimension, is_symbolic
from gpu.compiler.ir.graph import Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes
from gpu.core.errors import DTypeError, InvalidIndex, InvalidType, InvalidValue
from gpu.tensor.arguments import integer, size_of
from gpu.tensor.base import TensorBase
from gpu.tensor.checks import Allowed, check_positions
from gpu.tensor.views import Range

Array: TypeAlias = npt.NDArray[Any]
_ALLOWED = "ints, slices, None, ..., and tensors, arrays or lists of ints or bools"


class Pick(NamedTuple):
    """An index array in the place of one axis; a mask, in the place of as many as it has.

    Attributes:
        axis: the first axis it stands for, of the tensor as `Region` leaves it.
        source_axis: the axis it was written for, to name in errors.
        key: the array: integers or bools, on the host or as a tensor.
    """

    axis: int
    source_axis: int
    key: TensorBase | Array

    @property
    def is_mask(self) -> bool:
        """Whether the index array says which elements are taken, rather than names them."""
        if isinstance(self.key, TensorBase):
            return self.key.dtype is dtypes.bool
        return self.key.dtype == np.bool_


class Region(NamedTuple):
    """What an index names: slices of the axes, the shape they get, and index arrays of that.

    Attributes:
        ranges: (start, size, step) of each axis of the tensor.
        shape: without the axes that ints stand for, with those of None. A single bool is an axis
            of size 1 and a mask of one element.
        picks: index arrays, by axis of `shape`.
    """

    ranges: tuple[Range, ...]
    shape: Shape
    picks: tuple[Pick, ...]


def read_index(index: object, shape: Shape) -> Region:
    """What `index` names of a tensor of `shape`.

    Raises:
        InvalidIndex: an element that is not there, too many indices, a mask of another shape.
        InvalidValue: a step of 0.
        InvalidType: something that is no index.
        DTypeError: an index array of floats.
    """
    items = index if isinstance(index, tuple) else (index,)
    ranges: list[Range] = []
    left: list[Dim] = []
    picks: list[Pick] = []
    for item in _without_ellipsis(tuple(_simplified(item) for item in items), shape):
        axis = len(ranges)
        if item is None:
            left.append(1)
        elif isinstance(item, slice):
            ranges.append(_slice(item, shape[axis]))
            left.append(ranges[-1][1])
        elif isinstance(item, (TensorBase, np.ndarray)):
            pick = Pick(len(left), axis, item)
            taken = _checked_mask(pick, shape) if pick.is_mask else _checked_positions(pick, shape)
            ranges += [(0, size, 1) for size in taken]
            left += taken or (1,)
            picks.append(pick if item.shape or not pick.is_mask else _of_one_element(pick))
        else:
            ranges.append((_position(item, axis, shape[axis]), 1, 1))
    return Region(tuple(ranges), tuple(left), tuple(picks))


def _simplified(item: object) -> object:
    """An item with lists as arrays, and arrays of one integer as ints."""
    if isinstance(item, (bool, np.bool_)):
        return np.asarray(item)
    if isinstance(item, (int, slice)):
        return item
    if isinstance(item, (np.ndarray, Sequence)) and not isinstance(item, (str, bytes)):
        array = _array(item)
        return int(array) if array.dtype.kind in "iu" and not array.ndim else array
    if isinstance(item, TensorBase) and not (item.dtype.is_int or item.dtype is dtypes.bool):
        raise DTypeError(f"an index must be of ints or bools, this one is {item.dtype.name}")
    return item


def _array(item: npt.NDArray[Any] | Sequence[Any]) -> Array:
    try:
        array = np.asarray(item)
    except ValueError as error:
        raise InvalidType(f"index {item!r} has no regular shape: {error}") from error
    if not array.size and not isinstance(item, np.ndarray):
        return array.astype(np.int64)
    if array.dtype.kind not in "biu":
        kind = type(item).__name__
        raise DTypeError(f"an index must be of ints or bools, this {kind} holds {array.dtype}")
    return array


def _without_ellipsis(items: tuple[Any, ...], shape: Shape) -> tuple[Any, ...]:
    """An item for each axis or, of masks, for several; Nones and single bools between them."""
    rank = len(shape)
    used = sum(_axes_used(item) for item in items)
    if used > rank:
        raise InvalidIndex(f"{used} indices for shape {list(shape)}, which has {rank} axes")
    places = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(places) > 1:
        raise InvalidIndex("an index can have one ellipsis (...) only")
    place = places[0] if places else len(items)
    return (*items[:place], *(slice(None),) * (rank - used), *items[place + 1 :])


def _axes_used(item: object) -> int:
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, (TensorBase, np.ndarray)) and Pick(0, 0, item).is_mask:
        return item.ndim
    return 1


def _checked_mask(pick: Pick, shape: Shape) -> Shape:
    """The sizes of the axes that a mask stands for, which have to be its own."""
    mask = tuple(pick.key.shape)
    sizes = shape[pick.source_axis : pick.source_axis + len(mask)]
    if mask != sizes:
        raise InvalidIndex(
            f"a mask of shape {list(mask)} does not fit axes of sizes {list(sizes)}, "
            f"from axis {pick.source_axis} of shape {list(shape)} on"
        )
    return sizes


def _checked_positions(pick: Pick, shape: Shape) -> Shape:
    """The size of the axis that an index array stands for, which has to have its elements."""
    axis = pick.source_axis
    where = f"axis {axis} of size {{}}"
    check_positions(pick.key, Allowed("x[...]", shape[axis], where, wraps=True))
    return (shape[axis],)


def _of_one_element(pick: Pick) -> Pick:
    """A single bool as a mask with one axis."""
    key = pick.key
    if isinstance(key, TensorBase):
        return pick._replace(key=key._wrap(G.reshape(key._node, (1,))))
    return pick._replace(key=key.reshape(1))


def _position(item: Any, axis: int, size: Dim) -> Dim:
    if is_symbolic(item) or is_symbolic(size):
        return _symbolic_position(item, axis, size)
    try:
        position = operator.index(item)
    except TypeError as error:
        raise InvalidType(f"{type(item).__name__} {item!r} is no index; use {_ALLOWED}") from error
    if not -size <= position < size:
        raise InvalidIndex(
            f"index {position} is out of range for axis {axis} of size {size}: "
            + (f"it allows {-size}..{size - 1}" if size else "it has no element")
        )
    return position % size


def _symbolic_position(item: Any, axis: int, size: Dim) -> Dim:
    position = size_of(item, "an index")
    place = position if position >= 0 else size + position
    if not 0 <= place < size:
        raise InvalidIndex(f"index {position} is out of range for axis {axis} of size {size}")
    return dimension(place)


def _symbolic_slice(item: slice, size: Dim) -> Range:
    """A slice whose bounds or axis are symbolic: as it is, nothing is cut to what is there."""
    step = 1 if item.step is None else integer(item.step, "the step of a slice")
    if step < 1:
        raise InvalidValue(f"slice {item}: with symbolic sizes the step must be positive")
    start = _from_front(item.start, 0, size)
    stop = _from_front(item.stop, size, size)
    if not 0 <= start <= stop <= size:
        raise InvalidIndex(f"elements {start}..{stop} are not all there in an axis of size {size}")
    return (start, dimension((stop - start + step - 1) // step), step)


def _from_front(end: Any, default: Dim, size: Dim) -> Dim:
    """An end of a slice, counted from the front."""
    if end is None:
        return default
    place = size_of(end, "an end of a slice")
    return place if place >= 0 else dimension(size + place)


def _slice(item: slice, size: Dim) -> Range:
    """A slice of an axis as (start, size, step)."""
    if any(map(is_symbolic, (item.start, item.stop, size))):
        return _symbolic_slice(item, size)
    if item.step is not None and item.step == 0:
        raise InvalidValue("the step of a slice must not be 0")
    try:
        start, stop, step = item.indices(size)
    except TypeError as error:
        raise InvalidType(f"{item} must be made of ints and None") from error
    count = len(range(start, stop, step))
    return (start if count else 0, count, step)
