"""Sums, extremes, means and what is made of them.

`axis` is one axis, several, or None for all; `keepdim` keeps reduced axes with size 1. Sums and
products of bools and of integers are formed in int64, as in torch, which is the dtype of the
result; those of uint64 in uint64. Narrow floats are summed in float32 and rounded once. Positions
are int64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from gpu.compiler.ir.dims import Dim, bound, has_symbols, product
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, accumulator, dtypes, promote, total_dtype
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor import customgrad
from gpu.tensor.activation import Activation
from gpu.tensor.arguments import Axis, axes_of, axis_of, check_number


class Reduction(Activation):
    """Combines the elements along axes."""

    __slots__ = ()

    def sum(
        self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None
    ) -> Self:
        """The sum, formed in `dtype` if one is given; 0 of nothing."""
        return self._widened(dtype)._reduce("add", axis, keepdim)

    def prod(
        self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None
    ) -> Self:
        """The product, formed in `dtype` if one is given; 1 of nothing."""
        return self._widened(dtype)._reduce("mul", axis, keepdim)

    def max(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """The largest element, NaN if there is one. Raises ShapeError where there is none.

        Elements that share the maximum share its gradient.
        """
        self._require_elements("max", axis)
        return self._reduce("max", axis, keepdim)

    def min(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """The smallest element, NaN if there is one. Raises ShapeError where there is none."""
        self._require_elements("min", axis)
        return self._reduce("min", axis, keepdim)

    def any(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Whether any element is not zero."""
        return self.cast(dtypes.bool)._reduce("or", axis, keepdim)

    def all(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Whether no element is zero."""
        return self.cast(dtypes.bool)._reduce("and", axis, keepdim)

    def mean(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """The mean, of integers in float32; NaN of nothing."""
        x = self._as_float()
        total = x.cast(accumulator(x.dtype))._reduce("add", axis, keepdim)
        for count in self._counts(axis):
            total = total.div(count)
        return total.cast(x.dtype)

    def var(self, axis: Axis = None, keepdim: bool = False, correction: float | None = 1) -> Self:
        """The sum of squared distances from the mean over (elements - correction).

        Of complex numbers a float. A correction of None is 1.
        """
        correction = 1 if correction is None else correction
        check_number(correction, "correction")
        if self.dtype.is_complex:
            re, im = (self._wrap(part(self._node)) for part in (G.real, G.imag))
            over = (axis, keepdim, correction)
            return re.var(*over).add(im.var(*over))
        x = self._as_float()
        wide = x.cast(accumulator(x.dtype))
        centred = wide.sub(wide.mean(axis, keepdim=True))._node
        axes = axes_of(axis, self.ndim)
        total = self._wrap(customgrad.deviations(wide._node, centred, axes))._dropped(axis, keepdim)
        if has_symbols(count := product(self._counts(axis))):
            free = self._wrap(G.index(count, dtypes.int64, self.device)).cast(total.dtype)
            return total.div(free.sub(correction).clamp(min_=0)).cast(x.dtype)
        return total.div(float(max(0, count - correction))).cast(x.dtype)

    def std(self, axis: Axis = None, keepdim: bool = False, correction: float | None = 1) -> Self:
        """The square root of `var`. Where it is 0 its gradient is 0, as in torch."""
        variance = self.var(axis, keepdim, correction)
        still = variance.eq(0)
        return still.where(0, still.where(1, variance).sqrt())

    def var_mean(
        self, axis: Axis = None, keepdim: bool = False, correction: float | None = 1
    ) -> tuple[Self, Self]:
        """`var` and `mean`."""
        return self.var(axis, keepdim, correction), self.mean(axis, keepdim)

    def std_mean(
        self, axis: Axis = None, keepdim: bool = False, correction: float | None = 1
    ) -> tuple[Self, Self]:
        """`std` and `mean`."""
        return self.std(axis, keepdim, correction), self.mean(axis, keepdim)

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The position of the first largest element along `axis`, or in the flattened tensor.

        The result is int64. NaN counts as the largest. Raises ShapeError where there is none.
        """
        return self._first("max", axis, keepdim)

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The position of the first smallest element, as int64; NaN counts as the smallest."""
        return self._first("min", axis, keepdim)

    def logsumexp(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """log(sum(exp(self))), finite wherever the result is; -inf of nothing."""
        x = self._as_float()
        wide = x.cast(accumulator(x.dtype))
        top = wide._reduce("max", axis, keepdim=True).detach()
        top = top.isfinite().where(top, 0)
        logarithm = wide.sub(top).exp()._reduce("add", axis, keepdim=True).log()
        return logarithm.add(top)._dropped(axis, keepdim).cast(x.dtype)

    def softmax(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """exp(self) over its sum along `axis`, formed in float32 at least."""
        x = self._as_float() if dtype is None else self.cast(dtype)
        grown = x._below_top(axis).exp()
        total = grown._reduce("add", axis, keepdim=True)
        return grown.mul(total.reciprocal()).cast(x.dtype)  # one division for each sum

    def softmin(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """`softmax` of -self."""
        return self.neg().softmax(axis, dtype)

    def log_softmax(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """The logarithm of `softmax`."""
        x = self._as_float() if dtype is None else self.cast(dtype)
        below = x._below_top(axis)
        total = below.exp()._reduce("add", axis, keepdim=True)
        return below.sub(total.log()).cast(x.dtype)

    def layernorm(self, axis: Axis = -1, eps: float = 1e-05) -> Self:
        """self less its mean, over the root of its variance (without correction) plus `eps`."""
        self._require_real("layernorm")
        x = self._as_float()
        wide = x.cast(accumulator(x.dtype))
        centred = wide.sub(wide.mean(axis, keepdim=True))
        variance = centred.square().mean(axis, keepdim=True)
        return centred.mul(variance.add(eps).rsqrt()).cast(x.dtype)

    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Self:
        """self over its p-norm along `dim`, or over `eps` where that is larger."""
        x = self._as_float()
        wide = x.cast(accumulator(x.dtype))
        return wide.div(wide._norm(p, dim).clamp(min_=eps)).cast(x.dtype)

    def _norm(self, p: float, axis: int) -> Self:
        check_number(p, "p")
        if not p > 0:
            raise InvalidValue(f"p must be positive, got {p!r}")
        if self.dtype.is_complex:
            return self.abs()._norm(p, axis)
        if p == 2:
            return self.square()._reduce("add", axis, keepdim=True).sqrt()
        magnitude = self.abs()
        if p == math.inf:
            return magnitude._reduce("max", axis, keepdim=True)
        if p == 1:
            return magnitude._reduce("add", axis, keepdim=True)
        return magnitude.pow(p)._reduce("add", axis, keepdim=True).pow(1 / p)

    def _below_top(self, axis: int) -> Self:
        """self less its maximum along `axis`, in float32 at least; 0-d tensors have one axis."""
        axes_of(axis, self.ndim)
        wide = self.cast(promote(self.dtype, dtypes.float32))
        return wide.sub(wide._reduce("max", axis, keepdim=True).detach())

    def _reduce(self, monoid: str, axis: Axis, keepdim: bool) -> Self:
        axes = axes_of(axis, self.ndim)
        return self._wrap(G.reduce(monoid, self._node, axes))._dropped(axis, keepdim)

    def _dropped(self, axis: Axis, keepdim: bool) -> Self:
        """self, whose `axis` was reduced to size 1, without it unless `keepdim`."""
        if keepdim:
            return self
        axes = axes_of(axis, self.ndim)
        left = tuple(size for a, size in enumerate(self.shape) if a not in axes)
        return self._wrap(G.reshape(self._node, left))

    def _widened(self, dtype: DType | str | None) -> Self:
        """self in the dtype that sums are formed in."""
        wanted = total_dtype(self.dtype) if dtype is None else dtype
        return self if wanted is self.dtype else self.cast(wanted)

    def _counts(self, axis: Axis) -> tuple[Dim, ...]:
        """Numbers whose product is how many elements are combined into one."""
        sizes = [self.shape[a] for a in axes_of(axis, self.ndim)]
        symbolic = [size for size in sizes if has_symbols(size)]
        return (math.prod(size for size in sizes if not has_symbols(size)), *symbolic)

    def _require_elements(self, name: str, axis: Axis) -> None:
        named: Sequence[int] = axes_of(axis, self.ndim)
        if any(bound(self.shape[a]) == 0 for a in named):
            raise ShapeError(
                f"{name} over axes {list(named)} of shape {list(self.shape)} has no element"
            )

    def _first(self, monoid: str, axis: int | None, keepdim: bool) -> Self:
        self._require_elements(f"arg{monoid}", axis)
        rank = self.ndim
        if axis is None or rank == 0:
            axes_of(axis, rank)
            line = self._wrap(G.reshape(self._node, (self.numel(),)))
            return line._first_along(monoid, 0)._shaped((1,) * rank if keepdim else ())
        along = axis_of(axis, rank)
        return self._first_along(monoid, along)._dropped(along, keepdim)

    def _first_along(self, monoid: str, axis: int) -> Self:
        size = self.shape[axis]
        best = self._reduce(monoid, axis, keepdim=True)
        chosen = self.eq(best).bitwise_or(self.isnan())
        position = chosen.where(self._index_along(axis, self.shape), size)
        return position._reduce("min", axis, keepdim=True).cast(dtypes.int64)

    def _shaped(self, shape: tuple[int, ...]) -> Self:
        return self._wrap(G.reshape(self._node, shape))
