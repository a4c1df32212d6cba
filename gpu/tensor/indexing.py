"""Basic indexing, as numpy's: ints, slices of any step, None and an ellipsis."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from gpu.core.errors import InvalidIndex, InvalidType, InvalidValue, Unsupported
from gpu.tensor.base import TensorBase
from gpu.tensor.movement import Movement


class Indexing(Movement):
    """`tensor[...]`. Indexing with tensors, lists or masks is not there yet."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Self:
        """The elements that `index` names.

        Raises InvalidIndex for an element that is not there or too many indices, InvalidValue for a
        step of 0, InvalidType for what is no index, Unsupported for tensors, lists and masks.
        """
        items = index if isinstance(index, tuple) else (index,)
        for item in items:
            _refuse(item)
        ranges: list[tuple[int, int, int]] = []
        shape: list[int] = []
        for item in _without_ellipsis(items, self.shape):
            if item is None:
                shape.append(1)
                continue
            axis = len(ranges)
            if isinstance(item, slice):
                ranges.append(_slice(item, self.shape[axis]))
                shape.append(ranges[-1][1])
            else:
                ranges.append((_position(item, axis, self.shape[axis]), 1, 1))
        return self._sliced(ranges)._reshaped(tuple(shape))

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))


def _refuse(item: object) -> None:
    if isinstance(item, TensorBase | np.ndarray | list | bool | np.bool_):
        raise Unsupported(
            f"indexing with {type(item).__name__} is not supported by this version; "
            "use ints, slices, None and ..."
        )


def _without_ellipsis(items: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """One item for each axis, and the Nones between them."""
    rank = len(shape)
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > rank:
        raise InvalidIndex(f"{used} indices for shape {list(shape)}, which has {rank} axes")
    places = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(places) > 1:
        raise InvalidIndex("an index can have one ellipsis (...) only")
    place = places[0] if places else len(items)
    return (*items[:place], *(slice(None),) * (rank - used), *items[place + 1 :])


def _position(item: Any, axis: int, size: int) -> int:
    try:
        position = operator.index(item)
    except TypeError as error:
        raise InvalidType(
            f"{type(item).__name__} {item!r} is no index; use ints, slices, None and ..."
        ) from error
    if not -size <= position < size:
        raise InvalidIndex(
            f"index {position} is out of range for axis {axis} of size {size}: "
            + (f"it allows {-size}..{size - 1}" if size else "it has no element")
        )
    return position % size


def _slice(item: slice, size: int) -> tuple[int, int, int]:
    """A slice of an axis as (start, size, step)."""
    if item.step is not None and item.step == 0:
        raise InvalidValue("the step of a slice must not be 0")
    try:
        start, stop, step = item.indices(size)
    except TypeError as error:
        raise InvalidType(f"{item} must be made of ints and None") from error
    count = len(range(start, stop, step))
    return (start if count else 0, count, step)
