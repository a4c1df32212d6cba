"""Torch's further reductions, and differences along an axis.

`dim` is one axis, several, or None for all; `keepdim` keeps reduced axes with size 1.
"""

from __future__ import annotations

import math
from typing import Any, Self

from gpu.compiler.ir.dims import bound
from gpu.core.dtype import DType, accumulator, dtypes, to_dtype
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import Axis, Operand, axis_of, check_number, integer, shape_of
from gpu.tensor.joining import Joining
from gpu.tensor.reduction import Reduction


class Totals(Joining, Reduction):
    """Counts, extremes, sums without NaN, norms, differences."""

    __slots__ = ()

    def amax(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """The same as `max`."""
        return self.max(dim, keepdim)

    def amin(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """The same as `min`."""
        return self.min(dim, keepdim)

    def aminmax(self, *, dim: int | None = None, keepdim: bool = False) -> tuple[Self, Self]:
        """`amin` and `amax`."""
        return self.min(dim, keepdim), self.max(dim, keepdim)

    def count_nonzero(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """How many elements are not zero, int64."""
        return self.cast(dtypes.bool).sum(dim, keepdim)

    def sum_to_size(self, *size: Any) -> Self:
        """Sums over what broadcasting added: the axes in front, and those that are 1 in `size`.

        Raises ShapeError unless `size` broadcasts to the shape of self.
        """
        shape = shape_of(size[0], size[1:]) if size else ()
        front = self.ndim - len(shape)
        kept = (1,) * front + shape
        if front < 0 or any(m not in (1, n) for m, n in zip(kept, self.shape, strict=True)):
            raise ShapeError(f"size {list(shape)} does not broadcast to {list(self.shape)}")
        axes = tuple(
            axis
            for axis, (m, n) in enumerate(zip(kept, self.shape, strict=True))
            if axis < front or m != n
        )
        return self.sum(axes, keepdim=True).reshape(shape) if axes else self._same()

    def nansum(
        self, dim: Axis = None, keepdim: bool = False, *, dtype: DType | str | None = None
    ) -> Self:
        """The sum of all that is not NaN."""
        return self.isnan().where(0, self).sum(dim, keepdim, dtype)

    def nanmean(
        self, dim: Axis = None, keepdim: bool = False, *, dtype: DType | str | None = None
    ) -> Self:
        """The mean of all that is not NaN; NaN where nothing is."""
        x = self._as_float() if dtype is None else self.cast(dtype)
        wide = x.cast(accumulator(x.dtype))
        count = wide.isnan().logical_not().sum(dim, keepdim)
        return wide.nansum(dim, keepdim).div(count.cast(wide.dtype)).cast(x.dtype)

    def norm(
        self,
        p: float | str | None = "fro",
        dim: Axis = None,
        keepdim: bool = False,
        dtype: DType | str | None = None,
    ) -> Self:
        """The p-norm of the elements: (sum(|self|**p))**(1/p).

        Infinities give the largest and the smallest magnitude, 0 the count of what is not zero;
        "fro" and None are 2. Raises InvalidValue for another name.
        """
        if isinstance(p, str) and p != "fro":
            raise InvalidValue(f"p must be a number or 'fro', got {p!r}")
        power = 2.0 if p is None or isinstance(p, str) else p
        check_number(power, "p")
        x = self._as_float() if dtype is None else self.cast(to_dtype(dtype))
        x = x.abs() if x.dtype.is_complex else x
        wide = x.cast(accumulator(x.dtype))
        return wide._p_norm(power, dim, keepdim).cast(x.dtype)

    def _p_norm(self, p: float, dim: Axis, keepdim: bool) -> Self:
        size = self.abs()
        if p == math.inf:
            return size.max(dim, keepdim)
        if p == -math.inf:
            return size.min(dim, keepdim)
        if p == 0:
            return self.count_nonzero(dim, keepdim).cast(self.dtype)
        if p == 1:
            return size.sum(dim, keepdim)
        total = (self.square() if p == 2 else size.pow(p)).sum(dim, keepdim)
        none = total.eq(0) if p > 0 else total.isnan()  # where the root has no slope
        root = none.where(1, total)
        return none.where(total, root.sqrt() if p == 2 else root.pow(1 / p))

    def renorm(self, p: float, dim: int, maxnorm: float) -> Self:
        """self with each part along `dim` whose p-norm is over `maxnorm` shrunk to that."""
        axis = axis_of(dim, self.ndim, "dim")
        others = tuple(a for a in range(self.ndim) if a != axis)
        norm = self.norm(p, others, keepdim=True)
        factor = norm.add(1e-7).reciprocal().mul(maxnorm)
        return self.mul(norm.gt(maxnorm).where(factor, 1))

    def dist(self, other: Operand, p: float = 2) -> Self:
        """The p-norm of self less `other`."""
        return self.sub(other).norm(p)

    def diff(
        self,
        n: int = 1,
        dim: int = -1,
        prepend: Operand | None = None,
        append: Operand | None = None,
    ) -> Self:
        """Each element less the one before it along `dim`, `n` times; of bools, where they differ.

        `prepend` and `append` are put in front and behind first; of 0 times nothing is.
        """
        axis = axis_of(dim, self.ndim, "dim")
        if integer(n, "n") < 0:
            raise InvalidValue(f"n must not be negative, got {n}")
        if not n:
            return self._same()
        ends = [None if end is None else self._lift(end) for end in (prepend, append)]
        parts = [part for part in (ends[0], self, ends[1]) if part is not None]
        line = parts[0].cat(*parts[1:], dim=axis) if len(parts) > 1 else self
        for _ in range(min(n, bound(line.shape)[axis])):
            count = line.shape[axis] - 1
            later, earlier = line._along(axis, 1, count), line._along(axis, 0, count)
            line = later.ne(earlier) if line.dtype is dtypes.bool else later.sub(earlier)
        return line._same()

    def trapezoid(self, x: Operand | None = None, *, dx: float = 1, dim: int = -1) -> Self:
        """The integral along `dim` by trapezoids, `dx` wide or between the places `x`."""
        axis = axis_of(dim, self.ndim, "dim")
        if x is None:
            return self._pair_sums(axis).sum(axis).mul(dx).div(2)
        return self._pair_sums(axis).mul(self._widths(x, axis)).sum(axis).div(2)

    def _pair_sums(self, axis: int) -> Self:
        """Each element plus the one behind it."""
        count = max(0, self.shape[axis] - 1)
        return self._along(axis, min(1, self.shape[axis]), count).add(self._along(axis, 0, count))

    def _widths(self, x: Operand, axis: int) -> Self:
        places = self._lift(x)
        if places.ndim == 1:
            places = places._reshaped((places.numel(), *(1,) * (self.ndim - 1 - axis)))
        elif places.ndim != self.ndim:
            raise ShapeError(f"x has shape {list(places.shape)}, the values {list(self.shape)}")
        return places.diff(dim=axis - self.ndim)
