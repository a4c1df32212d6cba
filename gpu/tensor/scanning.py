"""Running combinations along an axis: `cumsum` and its relatives.

Element i of the result combines elements 0..i. A 0-d tensor has one axis, as in torch.
"""

from __future__ import annotations

from typing import Self

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, accumulator, dtypes
from gpu.tensor.arguments import axes_of
from gpu.tensor.movement import Movement
from gpu.tensor.reduction import Reduction


class Scanning(Movement, Reduction):
    """Running sums, products, extremes and logarithms of sums."""

    __slots__ = ()

    def cumsum(self, axis: int = 0, dtype: DType | str | None = None) -> Self:
        """Running sums, formed in `dtype` if one is given, else in that of `sum`."""
        return self._widened(dtype)._scan("add", axis)

    def cumprod(self, axis: int, dtype: DType | str | None = None) -> Self:
        """Running products, formed in `dtype` if one is given, else in that of `prod`."""
        return self._widened(dtype)._scan("mul", axis)

    def cummax(self, axis: int = 0) -> tuple[Self, Self]:
        """Running maxima, and where each was found, as int64.

        Of equal elements the last counts, and NaN counts as larger than everything.
        """
        return self._running_extreme("max", axis)

    def cummin(self, axis: int = 0) -> tuple[Self, Self]:
        """Running minima, and where each was found, as int64; NaN counts as smallest."""
        return self._running_extreme("min", axis)

    def logcumsumexp(self, axis: int = 0) -> Self:
        """log(cumsum(exp(self))), finite wherever the result is.

        Sums are formed of exponentials over that of the running maximum, which is what a step
        rescales. Each step doubles how many elements a sum holds (W. D. Hillis and G. L. Steele,
        "Data parallel algorithms", 1986).
        """
        x = self._as_float()
        along = self._line_axis(axis)
        if along is None:
            return x
        wide = x.cast(accumulator(x.dtype))
        top = wide.detach()._scan("max", along)
        top = top.isfinite().where(top, 0)
        total = wide.sub(top).exp()
        distance = 1
        while distance < self.shape[along]:
            # Among infinities the running maximum, which was made 0, may seem to fall.
            scale = top._later(along, distance).sub(top).minimum(0).exp()
            total = total.add(total._later(along, distance).mul(scale))
            distance *= 2
        return total.log().add(top).cast(x.dtype)

    def _scan(self, monoid: str, axis: int) -> Self:
        along = self._line_axis(axis)
        return self if along is None else self._wrap(G.scan(monoid, self._node, along))

    def _running_extreme(self, monoid: str, axis: int) -> tuple[Self, Self]:
        best = self._scan(monoid, axis)
        along = self._line_axis(axis)
        if along is None:
            return best, self._wrap(G.const(0, (), dtypes.int64, self.device))
        found = self.eq(best).bitwise_or(self.isnan())
        position = found.where(self._index_along(along, self.shape), 0)
        return best, position._scan("max", along).cast(dtypes.int64)

    def _line_axis(self, axis: int) -> int | None:
        """The axis that `axis` names; None for a 0-d tensor, whose one line has no axis."""
        axes = axes_of((axis,), self.ndim)
        return axes[0] if axes else None

    def _later(self, axis: int, distance: int) -> Self:
        """Elements moved towards the end of `axis`; zeros take the freed places."""
        size = self.shape[axis]
        kept = [(0, size - distance if a == axis else n, 1) for a, n in enumerate(self.shape)]
        around = [(distance if a == axis else 0, 0, 0) for a in range(self.ndim)]
        return self._wrap(G.pad(self._sliced(kept)._node, around))
