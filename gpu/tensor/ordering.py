"""What follows from an order: single ranks, distinct elements, and places in sorted lines.

NaN counts as larger than everything, and -0 equals 0, as in `gpu/tensor/sorting.py`; a median is
NaN where an element is.
"""

from __future__ import annotations

import math
from typing import Self

from gpu.compiler.ir.dims import upper
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import PyScalar, dtypes, promote
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import Operand, axis_of, integer
from gpu.tensor.sorting import Sorting, keys_of
from gpu.tensor.tracing import refuse_counting


class Ordering(Sorting):
    """`kthvalue`, `median`, `unique` and `searchsorted`."""

    __slots__ = ()

    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Self, Self]:
        """The element that is number `k` from 1 on in the order along `dim`, and its place.

        The place is int64, and of equal elements the first ones count first. Raises ShapeError
        where there are not so many elements.
        """
        count = integer(k, "k")
        size = self.shape[axis_of(dim, self.ndim, "dim")] if self.shape else 1
        if not 1 <= count <= size:
            raise ShapeError(f"kthvalue number {count}: there are {size} elements along dim {dim}")
        if not self.shape:
            return self.sort()
        axis = axis_of(dim, self.ndim, "dim")
        first = self._places_of_first(count, axis, descending=False)
        last = [(count - 1, 1, 1) if a == axis else (0, n, 1) for a, n in enumerate(self.shape)]
        return self._ranked(first._sliced(last), axis, keepdim)

    def median(self, dim: int | None = None, keepdim: bool = False) -> Self | tuple[Self, Self]:
        """The element in the middle of the order, the lower one of two; NaN if one is NaN.

        With `dim` those along it, and their places as int64; of NaN the first one. Raises
        ShapeError where there is no element.
        """
        self._require_elements("median", dim)
        if dim is None:
            value, _ = self._reshaped((self.numel(),))._median(0, keepdim=False)
            return value._reshaped((1,) * self.ndim) if keepdim else value
        return self._median(axis_of(dim, self.ndim, "dim"), keepdim) if self.shape else self.sort()

    def _median(self, axis: int, keepdim: bool, *, skips_nan: bool = False) -> tuple[Self, Self]:
        order = self.argsort(axis)
        count = order._filled(1)._reduce("add", axis, keepdim=True)
        rank = count.sub(1).div(2, rounding_mode="floor")
        if self.dtype.is_float:
            missing = self.detach().isnan().cast(dtypes.int64)._reduce("add", axis, keepdim=True)
            if skips_nan:
                rank = count.sub(missing).sub(1).maximum(0).div(2, rounding_mode="floor")
            else:
                rank = missing.gt(0).where(count.sub(missing), rank)
        return self._ranked(order._taken(rank, axis), axis, keepdim)

    def _ranked(self, places: Self, axis: int, keepdim: bool) -> tuple[Self, Self]:
        """The elements at `places`, of which there is one along `axis`, and these."""
        values = self._taken(places, axis)
        if keepdim:
            return values, places
        shape = tuple(n for a, n in enumerate(places.shape) if a != axis)
        return values._reshaped(shape), places._reshaped(shape)

    def unique(
        self,
        sorted_: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
        *,
        return_index: bool = False,
        size: int | None = None,
        fill_value: PyScalar = 0,
    ) -> Self | tuple[Self, ...]:
        """The different elements in order, whatever `sorted_` says; each NaN is different.

        With `dim` the different slices along it: of two the one is first that has the smaller
        element where they differ first.

        Args:
            sorted_: as torch has it.
            return_inverse: the place of each element of self among them too, int64; with `dim`, of
                each slice.
            return_counts: how often each one is there too, int64.
            dim: an axis, or None for the elements of all.
            return_index: before those, the first place of each in the flattened tensor, or along
                `dim`, int64.
            size: number of elements of the result, or of slices, cut or filled up with
                `fill_value`, which are there 0 times; without it the tensor is computed at once and
                they are counted.
            fill_value: what stands behind the elements that there are.

        Raises ShapeError where the slices along `dim` have no element.
        """
        if dim is None:
            values = keys = self.detach()._reshaped((self.numel(),))
            axis, shape = 0, self.shape
        else:
            axis = axis_of(dim, self.ndim, "dim")
            values, keys = self.detach(), self._slice_ranks(axis)
            shape = keys.shape
        order, is_first = keys._order_of_different()
        places, there = is_first._true_places(size)
        line = tuple(places.numel() if a == axis else 1 for a in range(values.ndim))
        found = [
            there._reshaped(line)
            .where(values._lines(axis, order._taken(places, 0)), fill_value)
            .cast(self.dtype)
        ]
        if return_index:
            found.append(there.where(order._taken(places, 0), 0))
        rank = is_first.cast(dtypes.int64)._scan("add", 0).sub(1)
        if return_inverse:
            inverse = self._wrap(G.reorder(rank._node, order._node, 0))
            found.append(inverse._reshaped(shape))
        if return_counts:
            none = self._wrap(G.const(0, places.shape, dtypes.int64, self.device))
            found.append(none._scattered(0, rank, rank._filled(1), "add"))
        return tuple(found) if len(found) > 1 else found[0]

    def _order_of_different(self) -> tuple[Self, Self]:
        """The places of the elements along the last axis in order, and in that order whether each
        is the first of equal ones.
        """
        axis = self.ndim - 1
        order = self.argsort(axis)
        lined = self._taken(order, axis)
        own = self._index_along(axis, self.shape)
        changed = lined.ne(lined._later(axis, min(1, self.shape[axis])))
        return order, own.eq(0).bitwise_or(changed)

    def _ranks(self) -> Self:
        """For each element how many different ones along the last axis are smaller, as int64."""
        order, is_first = self._order_of_different()
        axis = self.ndim - 1
        rank = is_first.cast(dtypes.int64)._scan("add", axis).sub(1)
        return self._wrap(G.reorder(rank._node, order._node, axis))

    def _slice_ranks(self, axis: int) -> Self:
        """The rank of each slice along `axis` among the different ones.

        Ranks of an element of the slices and of the next one make that of both, so that half as
        many are left each time.
        """
        size = self.shape[axis]
        if not (inside := math.prod(n for a, n in enumerate(self.shape) if a != axis)):
            raise ShapeError(f"unique of {self._described()} along {axis}: the slices are empty")
        others = [a for a in range(self.ndim) if a != axis]
        ranks = self.detach().permute([*others, axis])._reshaped((inside, size))._ranks()
        while (count := ranks.shape[0]) > 1:
            even = self._wrap(G.pad(ranks._node, [(0, count % 2, 0), (0, 0, 0)]))
            pairs = even.shape[0] // 2
            first, second = (even._sliced([(i, pairs, 2), (0, size, 1)]) for i in (0, 1))
            ranks = first.mul(size).add(second).cast(dtypes.of(size * size))._ranks()
        return ranks._reshaped((size,))

    def repeat_interleave(
        self, repeats: int | Operand, dim: int | None = None, *, output_size: int | None = None
    ) -> Self:
        """Each element along `dim`, or of the flattened tensor, `repeats` times in a row.

        Args:
            repeats: a number, or one for each element along `dim`.
            dim: the axis.
            output_size: how many that makes; without it counts that are a tensor are summed up at
                once.
        """
        if isinstance(repeats, int):
            return super().repeat_interleave(repeats, dim)
        x = self.flatten() if dim is None else self
        axis = 0 if dim is None else axis_of(dim, self.ndim, "dim")
        counts = x._lift(repeats)
        if counts.numel() == 1:
            counts = counts._reshaped((1,)).expand(x.shape[axis])
        if counts.shape != (x.shape[axis],) or not counts.dtype.is_int:
            raise ShapeError(
                f"repeats must be an integer for each of {x.shape[axis]} elements, got "
                f"{counts._described()}"
            )
        ends = counts.cast(dtypes.int64)._scan("add", 0)
        if output_size is None:
            refuse_counting("repeat_interleave", "output_size=")
            output_size = int(counts.sum().item())
        own = self._wrap(G.iota(integer(output_size, "output_size"), dtypes.int64, self.device))
        return x._lines(axis, ends.searchsorted(own, right=True))

    def searchsorted(
        self,
        values: Operand,
        right: bool = False,
        side: str | None = None,
        sorter: Operand | None = None,
        *,
        out_int32: bool = False,
    ) -> Self:
        """Where `values` belong in self, whose last axis is sorted, as int64.

        An element goes in front of equal ones, with `right` or side="right" behind them.

        Args:
            values: of any shape where self has one axis, else with all but the last axis as self.
            right: behind equal elements.
            side: "left" or "right", the same in other words.
            sorter: the places of the elements in order, where self is not sorted.
            out_int32: gives int32 instead.
        """
        if sorter is not None:
            places = self._lift(sorter)
            if places.shape != self.shape:
                raise ShapeError(
                    f"sorter of shape {list(places.shape)} must have that of self, "
                    f"{list(self.shape)}"
                )
            return self.gather(-1, places).searchsorted(values, right, side, out_int32=out_int32)
        if side not in (None, "left", "right") or (right and side == "left"):
            raise InvalidValue(f"side must be 'left' or 'right' and agree with right, got {side!r}")
        wanted = self._lift(values)
        front = self.shape[:-1]
        if not self.shape or (front and wanted.shape[:-1] != front):
            raise ShapeError(
                f"searchsorted of {list(wanted.shape)} in {list(self.shape)}: all axes but the last"
                " must be the same"
            )
        wide = promote(self.dtype, wanted.dtype)
        shape = wanted.shape if front else (wanted.numel(),)
        lines, own = keys_of(self.cast(wide)._node), keys_of(wanted.cast(wide)._node)
        keys, line = self._wrap(lines.node), self._wrap(own.node)._reshaped(shape)
        place = line._filled(0).cast(dtypes.int64)
        step = 1 << upper(self.shape[-1]).bit_length()
        while step := step // 2:
            behind = place.add(step)
            there = keys._taken(behind.sub(1), len(front))
            passed = there.le(line) if right or side == "right" else there.lt(line)
            place = passed.bitwise_and(behind.le(self.shape[-1])).where(behind, place)
        return place._reshaped(wanted.shape).cast(dtypes.int32 if out_int32 else dtypes.int64)
