"""Elements read and written where an index tensor says.

An index counts from 0. What lies outside the axis is harmless on every device: it reads 0, and
writes nowhere. Where an index is known when the call is made, as in a list or a numpy array, one
that is out of range raises InvalidIndex; the values of a tensor are looked at with ``CHECK=1``
only (`gpu/tensor/checks.py`). A 0-d tensor is a line of one element, and so is a 0-d index, as in
torch.
"""

from __future__ import annotations

import math
from typing import Final, Literal, Self, overload

import numpy as np

from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import PyScalar, accumulator, dtypes
from gpu.core.errors import DTypeError, InvalidValue, ShapeError
from gpu.tensor.arguments import Operand, axis_of, choice, integer
from gpu.tensor.base import TensorBase
from gpu.tensor.checks import Allowed, check_positions
from gpu.tensor.scanning import Scanning
from gpu.tensor.tracing import refuse_counting
from gpu.tensor.views import Reshape

_MONOIDS: Final = {"sum": "add", "prod": "mul", "mean": "add", "amax": "max", "amin": "min"}


class Gathering(Scanning):
    """`gather`, `scatter`, and selections that are made of them."""

    __slots__ = ()

    def gather(self, dim: int, index: Operand) -> Self:
        """The elements of self along `dim` that `index` names: for dim 0, self[index[i, j], j].

        `index` has as many axes as self, and is not larger than self along the others.
        """
        if not self.shape:
            shape = index.shape if isinstance(index, TensorBase) else np.shape(index)
            return self._reshaped((1,)).gather(dim, _as_line(index))._reshaped(shape)
        axis = axis_of(dim, self.ndim, "dim")
        places = self._places(index, axis, "gather")
        return self._wrap(G.gather(self._corner(places.shape, axis)._node, places._node, axis))

    def scatter(self, dim: int, index: Operand, src: Operand, reduce: str | None = None) -> Self:
        """self with the elements of `src` written along `dim` where `index` says.

        Of several written to one place the last stays.

        Args:
            dim: the axis.
            index: as many axes as self, not larger than self along the others, nor than `src`.
            src: a number, or a tensor of the dtype of self.
            reduce: "add" or "multiply" to combine with what is there, in place of writing.
        """
        choice(reduce, "reduce", (None, "add", "multiply"))
        if not self.shape:
            line = self._reshaped((1,))
            return line.scatter(dim, _as_line(index), _as_line(src), reduce)._reshaped(())
        monoid = "set" if reduce is None else {"add": "add", "multiply": "mul"}[reduce]
        axis, places, updates = self._scattering(dim, index, src, "scatter")
        return self._scattered(axis, places, updates, monoid)

    def scatter_reduce(
        self, dim: int, index: Operand, src: Operand, reduce: str, include_self: bool = True
    ) -> Self:
        """As `scatter`, with what is written to one place combined.

        `reduce` is "sum", "prod", "mean", "amax" or "amin". With include_self=False an element
        that something is written to does not take part itself. Means of integers round down.
        """
        choice(reduce, "reduce", tuple(_MONOIDS))
        if not self.shape:
            line, at, new = self._reshaped((1,)), _as_line(index), _as_line(src)
            return line.scatter_reduce(dim, at, new, reduce, include_self)._reshaped(())
        axis, places, updates = self._scattering(dim, index, src, "scatter_reduce")
        monoid = _MONOIDS[reduce]
        start = self
        if not include_self:
            start = self._scattered(axis, places, updates._neutral(monoid), "set")
        if reduce in ("amax", "amin") and not include_self:
            return self._replaced_by_extreme(axis, places, updates, start, monoid)
        if reduce != "mean":
            return start._scattered(axis, places, updates, monoid)
        wide = accumulator(self.dtype)
        total = start.cast(wide)._scattered(axis, places, updates.cast(wide), monoid)
        return total._mean_of(self._written(axis, places, include_self)).cast(self.dtype)

    def index_select(self, dim: int, index: Operand) -> Self:
        """The elements along `dim` that `index`, of one axis, names."""
        axis = axis_of(dim, self.ndim, "dim")
        places = self._places_in(index, axis, "index_select")
        if places.ndim != 1:
            raise ShapeError(f"index must have one axis, got shape {list(places.shape)}")
        return self._lines(axis, places)

    def _lines(self, axis: int, places: Self) -> Self:
        """What `places`, of one axis, name along `axis`."""
        count = places.numel()
        line = tuple(count if a == axis else 1 for a in range(self.ndim))
        shape = tuple(count if a == axis else n for a, n in enumerate(self.shape))
        return self._taken(places._reshaped(line).expand(shape), axis)

    def embedding(self, index: Operand) -> Self:
        """The rows of self that `index` names: of shape ``(*index.shape, *self.shape[1:])``."""
        if not self.shape:
            raise ShapeError("embedding needs a tensor with rows, this one is 0-d")
        places = self._places_in(index, 0, "embedding")
        rows = self._lines(0, places._reshaped((places.numel(),)))
        return rows._reshaped((*places.shape, *self.shape[1:]))

    def one_hot(self, num_classes: int = -1) -> Self:
        """1 at the place along a new last axis that self names, else 0; int32.

        -1 stands for one more than the largest element, which is computed for it. An element that
        is no class makes zeros only.
        """
        if not self.dtype.is_int:
            raise DTypeError(f"one_hot needs integers, this tensor is {self.dtype.name}")
        count = integer(num_classes, "num_classes")
        if count == -1:
            count = int(self.max().item()) + 1 if self.numel() else 0
        if count < 0:
            raise InvalidValue(f"num_classes must be -1 or not negative, got {num_classes}")
        check_positions(self, Allowed("one_hot", count, "{} classes", "class"))
        shape = (*self.shape, count)
        # No other integer than uint64 holds all of its own; with it, int64 would meet as a float.
        counter = self.dtype if self.dtype is dtypes.uint64 else dtypes.int64
        place = self._wrap(G.cast(G.iota(count, dtypes.int64, self.device), counter))
        return self._reshaped((*self.shape, 1)).eq(place.expand(shape)).cast(dtypes.int32)

    def masked_select(
        self, mask: Operand, size: int | None = None, fill_value: PyScalar = 0
    ) -> Self:
        """The elements where `mask` is true, in row-major order, along one axis.

        Args:
            mask: bool; it and self broadcast to one shape.
            size: number of elements of the result, cut or filled up with `fill_value`; without it
                the mask is computed at once and counted.
            fill_value: what stands behind the elements that there are.
        """
        chosen = self._lift(mask)
        if chosen.dtype is not dtypes.bool:
            raise DTypeError(f"mask must be bool, got {chosen.dtype.name}; write mask != 0")
        values, chosen = self._broadcast_with(chosen)
        places, there = chosen._true_places(size)
        flat = values._reshaped((values.numel(),))
        return there.where(flat._taken(places, 0), fill_value).cast(self.dtype)

    @overload
    def nonzero(
        self,
        size: int | None = None,
        fill_value: PyScalar = 0,
        *,
        as_tuple: Literal[False] = False,
    ) -> Self: ...

    @overload
    def nonzero(
        self, size: int | None = None, fill_value: PyScalar = 0, *, as_tuple: Literal[True]
    ) -> tuple[Self, ...]: ...

    def nonzero(
        self, size: int | None = None, fill_value: PyScalar = 0, *, as_tuple: bool = False
    ) -> Self | tuple[Self, ...]:
        """The places of elements that are not 0, a row for each; of shape (count, ndim), int64.

        With `size` that many rows, cut or filled up with `fill_value`; without it the tensor is
        computed at once and counted. `as_tuple` gives a vector for each axis, of a number one.
        """
        if as_tuple:
            line = self if self.ndim else self._reshaped((1,))
            rows = line.nonzero(size, fill_value)
            count = rows.shape[0]
            each = (rows._sliced([(0, count, 1), (axis, 1, 1)]) for axis in range(line.ndim))
            return tuple(column._reshaped((count,)) for column in each)
        places, there = self.ne(0)._true_places(size)
        sizes = [max(n, 1) for n in self.shape]
        below = [math.prod(sizes[axis + 1 :]) for axis in range(self.ndim)]
        steps, ends = (self._lift(np.array(n, places.dtype.np)) for n in (below, sizes))
        line = places._reshaped((places.numel(), 1))
        columns = line.div(steps, rounding_mode="floor").mod(ends).cast(dtypes.int64)
        return there._reshaped((places.numel(), 1)).where(columns, fill_value)

    def _true_places(self, size: int | None) -> tuple[Self, Self]:
        """Where self, a bool, is true, in row-major order, and which of `size` places there are.

        The places are those of the flattened tensor, as int32 while it is small enough.
        """
        flat = self._reshaped((self.numel(),))
        counter = dtypes.of(self.numel())
        running = flat.cast(counter)._scan("add", 0)
        total = flat.cast(counter)._reduce("add", 0, keepdim=True)
        if size is None:
            refuse_counting("counting what is true")
            size = int(total.item()) if self.numel() else 0
        elif integer(size, "size") < 0:
            raise InvalidValue(f"size must not be negative, got {size}")
        rank = flat.where(running.sub(1), -1)
        own = self._wrap(G.iota(self.numel(), counter, self.device))
        blank = self._wrap(G.const(0, (size,), counter, self.device))
        places = blank._scattered(0, rank, own, "set") if size else blank
        return places, self._wrap(G.iota(size, counter, self.device)).lt(total)

    def _scattering(
        self, dim: int, index: Operand, src: Operand, operation: str
    ) -> tuple[int, Self, Self]:
        """The axis, the places and what is written there, checked."""
        axis = axis_of(dim, self.ndim, "dim")
        places = self._places(index, axis, operation)
        updates = self._lift(src)
        if not isinstance(src, TensorBase) and not updates.shape:
            updates = updates.cast(self.dtype).expand(places.shape)
        if updates.dtype is not self.dtype:
            raise DTypeError(
                f"src is {updates.dtype.name}, the tensor {self.dtype.name}; cast one of them"
            )
        if updates.ndim != self.ndim or any(
            n > m for n, m in zip(places.shape, updates.shape, strict=True)
        ):
            raise ShapeError(
                f"index of shape {list(places.shape)} is larger than src, {list(updates.shape)}"
            )
        return axis, places, updates._front(places.shape)

    def _scattered(self, axis: int, places: Self, updates: Self, monoid: str) -> Self:
        """self with updates combined in; they may cover a corner of the other axes only."""
        corner = self._corner(places.shape, axis)
        return self._with_corner(G.scatter(corner._node, places._node, updates._node, axis, monoid))

    def _replaced_by_extreme(
        self, axis: int, places: Self, updates: Self, start: Self, monoid: str
    ) -> Self:
        """self with a max or min of updates where any are written; `start` is neutral there."""
        index = places._node
        node = G.scatter(start._corner(index.shape, axis)._node, index, updates._node, axis, monoid)
        operands = (self._corner(index.shape, axis)._node, index, updates._node)
        return self._with_corner(G.custom_grad("replacing_extreme", node, operands, axis))

    def _with_corner(self, corner: Node) -> Self:
        """self with `corner` in place of its first elements along each axis."""
        if corner.shape == self.shape:
            return self._wrap(corner)
        return self._wrap(G.write(self._node, corner, [(0, 1)] * self.ndim))

    def _neutral(self, monoid: str) -> Self:
        """What changes nothing when it is combined, in the shape of self."""
        kind = self.dtype
        low: PyScalar = -math.inf if kind.is_float else kind.min
        high: PyScalar = math.inf if kind.is_float else kind.max
        return self._filled({"add": 0, "mul": 1, "max": low, "min": high}[monoid])

    def _written(self, axis: int, places: Self, include_self: bool) -> Self:
        """How many elements take part in each place; where none does, self alone: 1."""
        blank = self._filled(1 if include_self else 0).cast(dtypes.int32)
        one = places._filled(1).cast(dtypes.int32)
        return blank._scattered(axis, places, one, "add").maximum(1)

    def _mean_of(self, count: Self) -> Self:
        """self, a sum, over `count`."""
        if self.dtype.is_float:
            return self.div(count.cast(self.dtype))
        return self.div(count.cast(self.dtype), rounding_mode="floor")

    def _taken(self, places: Self, axis: int) -> Self:
        return self._wrap(G.gather(self._node, places._node, axis))

    def _corner(self, shape: Shape, axis: int) -> Self:
        """The elements of self that an index of `shape` can reach: all along `axis`."""
        return self._front(tuple(self.shape[a] if a == axis else n for a, n in enumerate(shape)))

    def _front(self, shape: Shape) -> Self:
        return self._sliced([(0, n, 1) for n in shape])

    def _broadcast_with(self, other: Self) -> tuple[Self, Self]:
        """Both in the shape they broadcast to, each of its own dtype."""
        shape = self._filled(0).cast(dtypes.bool)._pair(other.cast(dtypes.bool))[0].shape
        return self.expand(shape), other.expand(shape)

    def _places(self, index: Operand, axis: int, operation: str) -> Self:
        """`index` checked against the shape of self."""
        places = self._places_in(index, axis, operation)
        fits = places.ndim == self.ndim and all(
            a == axis or n <= m
            for a, (n, m) in enumerate(zip(places.shape, self.shape, strict=True))
        )
        if not fits:
            raise ShapeError(
                f"index of shape {list(places.shape)} does not fit {list(self.shape)}: it needs as "
                f"many axes, and no larger sizes but along axis {axis}"
            )
        return places

    def _places_in(self, index: Operand, axis: int, operation: str) -> Self:
        """`index` as a tensor, checked as far as its values are."""
        places = self._lift(index)
        if not places.numel():
            return places.cast(dtypes.int32)
        if not places.dtype.is_int:
            raise DTypeError(f"an index must be of integers, got {places.dtype.name}")
        check_positions(index, Allowed(operation, self.shape[axis], f"axis {axis} of size {{}}"))
        return places


def _as_line(value: Operand) -> Operand:
    """A 0-d tensor or array as one of one axis; numbers, and what has axes, as they are."""
    if isinstance(value, TensorBase):
        return value._viewed(Reshape((1,))) if not value.shape else value
    return np.reshape(value, (1,)) if isinstance(value, np.ndarray) and not value.ndim else value
