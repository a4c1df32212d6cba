"""Torch's functions that write where an index says, as new tensors.

An index counts from 0 along its axis unless it is said that negative places count from the end;
what lies outside writes nowhere (`gpu/tensor/gathering.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from gpu.core.dtype import dtypes
from gpu.core.errors import DTypeError, InvalidType, ShapeError
from gpu.tensor.arguments import Operand, axis_of
from gpu.tensor.gathering import Gathering
from gpu.tensor.indexing import Indexing


class Indexed(Indexing, Gathering):
    """`index_add` and its relatives, `put`, `masked_scatter`, `argwhere`."""

    __slots__ = ()

    def index_add(self, dim: int, index: Operand, source: Operand, *, alpha: float = 1) -> Self:
        """self with `alpha` times part i of `source` along `dim` added at place index[i]."""
        axis, places, new = self._parts_at(dim, index, source)
        return (
            self._as_line()
            ._scattered(axis, places, new if alpha == 1 else new.mul(alpha).cast(self.dtype), "add")
            ._reshaped(self.shape)
        )

    def index_copy(self, dim: int, index: Operand, source: Operand) -> Self:
        """self with part i of `source` along `dim` at place index[i]; of several the last."""
        axis, places, new = self._parts_at(dim, index, source)
        return self._as_line()._scattered(axis, places, new, "set")._reshaped(self.shape)

    def index_fill(self, dim: int, index: Operand, value: Operand) -> Self:
        """self with `value`, a number or a 0-d tensor, at places `index` along `dim`."""
        x = self._as_line()
        axis = axis_of(dim, x.ndim, "dim")
        places = x._places_in(index, axis, "index_fill")
        fill = self._lift(value).cast(self.dtype)
        if fill.ndim or places.ndim > 1:
            raise ShapeError("index_fill needs an index of one axis, and a single value")
        count = places.numel()
        new = fill.expand([count if a == axis else n for a, n in enumerate(x.shape)])
        return x.index_copy(axis, places, new)._reshaped(self.shape)

    def index_reduce(
        self,
        dim: int,
        index: Operand,
        source: Operand,
        reduce: str,
        *,
        include_self: bool = True,
    ) -> Self:
        """As `index_add`, combined by `reduce`: "prod", "mean", "amax" or "amin"."""
        axis, places, new = self._parts_at(dim, index, source)
        line = self._as_line().scatter_reduce(axis, places, new, reduce, include_self)
        return line._reshaped(self.shape)

    def _as_line(self) -> Self:
        return self if self.shape else self._reshaped((1,))

    def _parts_at(self, dim: int, index: Operand, source: Operand) -> tuple[int, Self, Self]:
        """The axis, a place for each element of `source`, and that, checked."""
        x = self._as_line()
        axis = axis_of(dim, x.ndim, "dim")
        places, new = x._places_in(index, axis, "an index"), self._lift(source)
        if not new.shape:
            new = new._reshaped((1,))
        count = places.numel()
        wanted = tuple(count if a == axis else n for a, n in enumerate(x.shape))
        if places.ndim > 1 or new.shape != wanted:
            raise ShapeError(
                f"index of shape {list(places.shape)} along axis {axis} of {list(self.shape)} "
                f"needs a source of shape {list(wanted)}, got {list(new.shape)}"
            )
        if new.dtype is not self.dtype:
            raise DTypeError(f"source is {new.dtype.name}, the tensor {self.dtype.name}; cast one")
        line = tuple(count if a == axis else 1 for a in range(x.ndim))
        return axis, places._reshaped(line).expand(wanted), new

    def index_put(
        self, indices: Sequence[Operand], values: Operand, accumulate: bool = False
    ) -> Self:
        """self with `values` at self[indices]; with `accumulate` they are added up.

        As in brackets, places may count from the end, and masks choose where they are true.
        """
        if not isinstance(indices, (tuple, list)):
            raise InvalidType(f"indices must be a tuple of indices, got {indices!r}")
        key = tuple(indices)
        whole = self._same()
        if not accumulate:
            whole[key] = values
            return whole
        numbers = self._own_places()
        flat = numbers[key]
        new = self._lift(values).cast(self.dtype).expand(flat.shape)
        line = whole._reshaped((self.numel(),))
        count = flat.numel()
        added = line._scattered(0, flat._reshaped((count,)), new.reshape(count), "add")
        return added._reshaped(self.shape)

    def _own_places(self) -> Self:
        """The place of each element in row-major order, in the shape of self."""
        line = self._reshaped((self.numel(),))
        return line._index_along(0, line.shape)._reshaped(self.shape)

    def put(self, index: Operand, source: Operand, accumulate: bool = False) -> Self:
        """self with `source` at places `index` of the flattened tensor, or added there.

        Negative places count from the end. Raises ShapeError unless there are as many.
        """
        places, new = self._lift(index), self._lift(source)
        if places.numel() != new.numel():
            raise ShapeError(f"put: {places.numel()} places for {new.numel()} elements")
        line, count = self._reshaped((self.numel(),)), places.numel()
        at, values = places._reshaped((count,)), new._reshaped((count,))
        return line.index_put([at], values, accumulate)._reshaped(self.shape)

    def masked_scatter(self, mask: Operand, source: Operand) -> Self:
        """self with the first elements of `source`, in order, where `mask` is true.

        `mask` broadcasts with self. Where `source` has too few, they are zeros.
        """
        chosen, new = self._lift(mask), self._lift(source)
        if chosen.dtype is not dtypes.bool:
            raise DTypeError(f"mask must be bool, got {chosen.dtype.name}; write mask != 0")
        if new.dtype is not self.dtype:
            raise DTypeError(f"source is {new.dtype.name}, the tensor {self.dtype.name}; cast one")
        values, chosen = self._broadcast_with(chosen)
        rank = chosen._reshaped((chosen.numel(),)).cast(dtypes.int64)._scan("add", 0).sub(1)
        taken = new._reshaped((new.numel(),))._taken(rank.maximum(0), 0)
        return chosen.where(taken._reshaped(chosen.shape), values)

    def scatter_add(self, dim: int, index: Operand, src: Operand) -> Self:
        """self with the elements of `src` added along `dim` where `index` says."""
        return self.scatter(dim, index, src, "add")

    def argwhere(self) -> Self:
        """The same as `nonzero`."""
        return self.nonzero()
