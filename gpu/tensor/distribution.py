"""How values are distributed: membership, runs, quantiles, counts by value and by bin.

NaN counts as larger than everything, as in `gpu/tensor/sorting.py`, and is in no bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Self

from gpu.compiler.ir.dims import bound
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes, promote, total_dtype
from gpu.core.errors import DTypeError, InvalidValue, ShapeError
from gpu.tensor.arguments import Operand, axis_of, check_number, choice, integer, items_of
from gpu.tensor.arrangement import Arrangement
from gpu.tensor.ordering import Ordering
from gpu.tensor.totals import Totals
from gpu.tensor.tracing import refuse_counting

_INTERPOLATIONS: Final = ("linear", "lower", "higher", "midpoint", "nearest")


class Distribution(Ordering, Arrangement, Totals):
    """`isin`, `quantile`, `mode`, `bincount`, histograms and their relatives."""

    __slots__ = ()

    def cumulative_trapezoid(
        self, x: Operand | None = None, *, dx: float = 1, dim: int = -1
    ) -> Self:
        """The running integral along `dim`, as `trapezoid`; one element less."""
        axis = axis_of(dim, self.ndim, "dim")
        sums = self._pair_sums(axis)
        return sums.mul(dx if x is None else self._widths(x, axis)).cumsum(axis).div(2)

    def isin(
        self, test_elements: Operand, *, assume_unique: bool = False, invert: bool = False
    ) -> Self:
        """Where self equals one of `test_elements`, or with `invert` none; NaN equals nothing.

        `assume_unique` changes nothing.
        """
        others = self._lift(test_elements)
        wide = promote(self.dtype, others.dtype)
        line = others.cast(wide)._reshaped((others.numel(),))
        if not line.numel():
            return self._filled(0).cast(dtypes.bool)._filled(invert)
        line, _ = line.sort()
        x = self.detach().cast(wide)
        place = line.searchsorted(x).minimum(line.numel() - 1)
        there = line._taken(place._reshaped((place.numel(),)), 0)._reshaped(self.shape)
        return x.ne(there) if invert else x.eq(there)

    def msort(self) -> Self:
        """The elements in order along axis 0."""
        return self.sort(0)[0]

    def bucketize(
        self, boundaries: Operand, *, right: bool = False, out_int32: bool = False
    ) -> Self:
        """The place of each element among sorted `boundaries`, of one axis: `searchsorted`."""
        edges = self._lift(boundaries)
        if edges.ndim != 1:
            raise ShapeError(f"boundaries must have one axis, got shape {list(edges.shape)}")
        return edges.searchsorted(self, right, out_int32=out_int32)

    def unique_consecutive(
        self,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
        *,
        size: int | None = None,
    ) -> Self | tuple[Self, ...]:
        """The first of each run of equal elements, or of equal parts along `dim`.

        Args:
            return_inverse: the number of each element's run too, int64.
            return_counts: how long each run is too, int64.
            dim: the axis; None for the flattened tensor.
            size: how many runs the result has room for; without it they are counted at once.
        """
        x = self._reshaped((self.numel(),)) if dim is None else self
        axis = 0 if dim is None else axis_of(dim, self.ndim, "dim")
        count = x.shape[axis]
        lines = x.detach().movedim(axis, 0).reshape(count, x.numel() // max(count, 1))
        changes = lines._along(0, min(1, count), max(0, count - 1)).ne(
            lines._along(0, 0, max(0, count - 1))
        )
        first = changes.any(1).pad([(min(1, count), 0)], value=True)
        places, there = first._true_places(size)
        found = [x._lines(axis, places)]
        run = first.cast(dtypes.int64)._scan("add", 0).sub(1)
        if return_inverse:
            found.append(run._reshaped(self.shape) if dim is None else run)
        if return_counts:
            none = there._filled(False).cast(dtypes.int64)
            found.append(none._scattered(0, run, run._filled(1), "add"))
        return tuple(found) if len(found) > 1 else found[0]

    def nanmedian(self, dim: int | None = None, keepdim: bool = False) -> Self | tuple[Self, Self]:
        """`median` of what is not NaN; NaN where nothing is."""
        self._require_elements("nanmedian", dim)
        if dim is None:
            value, _ = self._reshaped((self.numel(),))._median(0, False, skips_nan=True)
            return value._reshaped((1,) * self.ndim) if keepdim else value
        if not self.shape:
            return self.sort()
        return self._median(axis_of(dim, self.ndim, "dim"), keepdim, skips_nan=True)

    def quantile(
        self,
        q: Operand,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
    ) -> Self:
        """The values below which the shares `q` of the elements lie; NaN where one is NaN.

        The axes of `q`, one or none, come first in the result. Between two elements
        `interpolation` chooses: "linear", "lower", "higher", "midpoint" or "nearest".
        """
        return self._quantile(q, dim, keepdim, interpolation, skips_nan=False)

    def nanquantile(
        self,
        q: Operand,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
    ) -> Self:
        """`quantile` of what is not NaN; NaN where nothing is."""
        return self._quantile(q, dim, keepdim, interpolation, skips_nan=True)

    def _quantile(
        self, q: Operand, dim: int | None, keepdim: bool, interpolation: str, *, skips_nan: bool
    ) -> Self:
        choice(interpolation, "interpolation", _INTERPOLATIONS)
        if not self.dtype.is_float:
            raise DTypeError(f"quantile needs floats, got {self.dtype.name}")
        shares = self._lift(q).cast(promote(self.dtype, dtypes.float32))
        if shares.ndim > 1:
            raise ShapeError(f"q must have one axis or none, got shape {list(shares.shape)}")
        if isinstance(q, int | float) and not 0 <= q <= 1:
            raise InvalidValue(f"q must be in 0..1, got {q}")
        x = self._reshaped((self.numel(),)) if dim is None else self.atleast_1d()
        axis = 0 if dim is None else axis_of(dim, max(self.ndim, 1), "dim")
        self._require_elements("quantile", dim)
        values, _ = x.sort(axis)
        missing = x.detach().isnan().cast(dtypes.int64)._reduce("add", axis, keepdim=True)
        last = missing.sub(x.shape[axis] - 1, reverse=True)
        if not skips_nan:  # where one is missing, the last element is a NaN
            last = missing.gt(0).where(x.shape[axis] - 1, last)
        share = shares._reshaped((shares.numel(), *(1,) * x.ndim))
        if not skips_nan:
            share = missing.gt(0).where(1, share)
        found = values._between(share.mul(last.maximum(0).cast(share.dtype)), axis, interpolation)
        found = found.cast(self.dtype)
        kept = [n if a != axis else 1 for a, n in enumerate(x.shape)]
        if dim is None:
            kept = [1] * self.ndim
        if not keepdim:
            kept = [] if dim is None else [n for a, n in enumerate(kept) if a != axis]
        return found.reshape([*shares.shape, *(kept if self.ndim else [])])

    def _between(self, place: Self, axis: int, interpolation: str) -> Self:
        """The values of sorted lines at fractional places, which have one axis more in front."""
        if interpolation == "nearest":
            place = place.round()
        low, high = place.floor(), place.ceil()
        lines = self.unsqueeze(0).expand(place.shape[0], *self.shape)
        below, above = (lines._taken(p.cast(dtypes.int64), axis + 1) for p in (low, high))
        match interpolation:
            case "lower" | "nearest":
                return below
            case "higher":
                return above
            case "midpoint":
                return below.lerp(above, place.ne(low).where(0.5, 0.0))
        return below.lerp(above, place.sub(low))

    def mode(self, dim: int = -1, keepdim: bool = False) -> tuple[Self, Self]:
        """The most frequent value along `dim`, of equally frequent ones the smallest.

        And the last place that has it, int64.
        """
        if not self.shape:
            return self.sort()
        self._require_elements("mode", dim)
        axis = axis_of(dim, self.ndim, "dim")
        values, order = self.detach().movedim(axis, -1).sort()
        size = values.shape[-1]
        place = values._index_along(values.ndim - 1, values.shape)
        first = place.eq(0).bitwise_or(values.ne(values._later(values.ndim - 1, min(1, size))))
        start = first.where(place, 0)._scan("max", values.ndim - 1)
        length = place.sub(start)
        last = length.argmax(-1, keepdim=True)
        places = order._taken(last, values.ndim - 1).movedim(-1, axis)
        return self._ranked(places, axis, keepdim)

    def bincount(
        self, weights: Operand | None = None, minlength: int = 0, *, size: int | None = None
    ) -> Self:
        """How often each number 0, 1, ... is in self, of one axis: int64, or sums of `weights`.

        With `size` so many counts; without it `minlength` at least, and the largest number is
        computed at once. Raises InvalidValue for a negative number, where the values are looked at.
        """
        if self.ndim != 1 or not self.dtype.is_int:
            raise ShapeError(f"bincount needs integers of one axis, got {self._described()}")
        length = integer(minlength, "minlength")
        if size is not None:
            length = integer(size, "size")
        elif self.numel():
            refuse_counting("bincount")
            low, high = self.min().stack(self.max()).tolist()
            if low < 0:
                raise InvalidValue(f"bincount needs numbers from 0 on, got {low}")
            length = max(length, high + 1)
        share = self._filled(1).cast(dtypes.int64) if weights is None else self._lift(weights)
        if share.shape != self.shape:
            raise ShapeError(f"weights of shape {list(share.shape)} for {list(self.shape)}")
        if not share.dtype.is_float:
            share = share.cast(total_dtype(share.dtype))
        none = self._wrap(G.const(0, (length,), share.dtype, self.device))
        return none._scattered(0, self.cast(dtypes.int64), share, "add") if length else none

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Self:
        """How many elements are in each of `bins` of equal width from `min` to `max`.

        Where those are equal, from the smallest element to the largest. Counts are of the dtype of
        self; what is outside is not counted.
        """
        counts, _ = self._histogram(bins, None if min == max == 0 else (min, max), None, 1)
        return counts.cast(self.dtype)

    def histogram(
        self,
        bins: int | Operand,
        *,
        range: tuple[float, float] | None = None,
        weight: Operand | None = None,
        density: bool = False,
    ) -> tuple[Self, Self]:
        """Counts, or sums of `weight`, in bins, and the edges of those.

        Args:
            bins: how many of equal width, or their sorted edges.
            range: from where to where; from the smallest element to the largest if None.
            weight: what each element counts.
            density: divides so that the integral is 1.
        """
        if isinstance(bins, int):
            counts, edges = self._histogram(bins, range, weight, 0.5)
        else:
            edges = self._lift(bins)
            counts = self._counted(edges, weight)
        if density:
            counts = counts.div(counts.sum()).div(edges.diff())
        return counts, edges

    def histogramdd(
        self,
        bins: int | Sequence[int | Operand],
        *,
        range: Sequence[float] | None = None,
        weight: Operand | None = None,
        density: bool = False,
    ) -> tuple[Self, tuple[Self, ...]]:
        """Counts, or sums of `weight`, of points in boxes, and the edges in each dimension.

        The last axis of self has the coordinates of a point.

        Args:
            bins: how many of equal width, in all dimensions or in each; or the sorted edges in
                each.
            range: from where to where, in each dimension; from the smallest to the largest if None.
            weight: what each point counts.
            density: divides so that the integral is 1.
        """
        count = bound(self.shape)[-1] if self.ndim else 0
        several = bins if isinstance(bins, Sequence) else ()
        each = [bins] * count if isinstance(bins, int) else several
        ends = range if range is None or isinstance(range, Sequence) else ()
        if not count or len(each) != count or (ends is not None and len(ends) != 2 * count):
            raise ShapeError(
                "histogramdd needs points along the last axis, for each dimension bins and, if any,"
                f" two ends of a range; got {self._described()}, bins {bins!r} and range {range!r}"
            )
        points = self.detach().reshape(-1, count)
        flat = points[:, 0]._filled(0).cast(dtypes.int32)
        inside = flat.eq(0)
        edges, sizes = [], []
        for axis, given in enumerate(each):
            along, pair = points[:, axis], None if ends is None else ends[2 * axis : 2 * axis + 2]
            edge = along._edges(given, pair, 0.5) if isinstance(given, int) else self._lift(given)
            place, size = along._bin(edge), bound(edge.shape)[0] - 1
            inside = inside.bitwise_and(place.ge(0)).bitwise_and(place.lt(size))
            flat = flat.mul(size).add(place)
            edges.append(edge)
            sizes.append(size)
        boxes = math.prod(sizes)
        counts = points[:, 0]._tallied(inside.where(flat, boxes), boxes, weight).reshape(sizes)
        if density:
            counts = counts.div(counts.sum())
            for axis, edge in enumerate(edges):
                counts = counts.div(edge.diff().reshape(-1, *(1,) * (count - 1 - axis)))
        return counts, tuple(edges)

    def _histogram(
        self, bins: int, ends: tuple[float, float] | None, weight: Operand | None, around: float
    ) -> tuple[Self, Self]:
        """Counts in bins of equal width, and their edges: `around` a range that is one number."""
        edges = self._edges(bins, ends, around)
        return self._counted(edges, weight), edges

    def _edges(self, bins: int, ends: Sequence[float] | None, around: float) -> Self:
        """The edges of bins of equal width; from the smallest element to the largest if None."""
        if integer(bins, "bins") < 1:
            raise InvalidValue(f"bins must be at least 1, got {bins}")
        if not self.dtype.is_float:
            raise DTypeError(f"a histogram needs floats, got {self.dtype.name}")
        if ends is None:
            found = self.detach()
            low, high = (found.min(), found.max()) if self.numel() else map(self._lift, (0.0, 1.0))
        else:
            for end in items_of(ends, ()):
                check_number(end, "an end of the range")
            low, high = (self._lift(float(end)) for end in ends)
            if ends[0] > ends[1]:
                raise InvalidValue(f"the range {ends} falls")
        same = low.eq(high)
        low, high = same.where(low.sub(around), low), same.where(high.add(around), high)
        step = self._wrap(G.iota(bins + 1, dtypes.int32, self.device)).cast(self.dtype).div(bins)
        return low.lerp(high, step)

    def _counted(self, edges: Self, weight: Operand | None) -> Self:
        """How many elements are from each edge to the next; the last edge belongs to its bin."""
        x = self.detach()._reshaped((self.numel(),))
        return x._tallied(x._bin(edges), bound(edges.shape)[0] - 1, weight)

    def _bin(self, edges: Self) -> Self:
        """The number of the bin of each element, -1 or that of bins where it is in none."""
        if edges.ndim != 1 or edges.shape[0] < 2:
            raise ShapeError(f"bins must be two edges or more, got shape {list(edges.shape)}")
        place = edges.searchsorted(self, right=True).sub(1)
        return self.eq(edges[-1]).where(bound(edges.shape)[0] - 2, place)

    def _tallied(self, place: Self, count: int, weight: Operand | None) -> Self:
        """For each of `count` places how many there are, or the sum of their weights."""
        share = self._filled(1) if weight is None else self._lift(weight)._reshaped(place.shape)
        none = self._wrap(G.const(0, (count,), share.dtype, self.device))
        return none._scattered(0, place, share, "add")
