"""Rows of what takes many elements together: sums, extremes, running sums, orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gpu.core.dtype import DType, dtypes
from gpu.tensor.tensor import Tensor
from gpu.torch.table import row

Axes = int | Sequence[int] | None


def _axes(dim: Axes) -> Any:
    """Torch's axes: none named are all."""
    if isinstance(dim, Sequence):
        return tuple(dim) or None
    return dim


@row("sum", "sum.dim_IntList", takes_result=True)
def total(
    x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None, *, result: Any
) -> Tensor:
    """The sum over axes, computed in the result's dtype."""
    return _counted(x, result).sum(_axes(dim), keepdim)


@row("mean", "mean.dim", takes_result=True)
def mean(
    x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None, *, result: Any
) -> Tensor:
    """The mean over axes, computed in the result's dtype."""
    return _counted(x, result).mean(_axes(dim), keepdim)


@row("prod", "prod.dim_int", takes_result=True)
def product(
    x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None, *, result: Any
) -> Tensor:
    """The product over an axis, computed in the result's dtype."""
    return _counted(x, result).prod(_axes(dim), keepdim)


def _counted(x: Tensor, result: Any) -> Tensor:
    return x if x.dtype is result.dtype else x.cast(result.dtype)


@row("cumsum", takes_result=True)
def running_sum(x: Tensor, dim: int, dtype: DType | None = None, *, result: Any) -> Tensor:
    """The sums up to each element of an axis."""
    x = x.cast(result.dtype)
    return x if not x.ndim else x.cumsum(dim)


@row("cumprod", takes_result=True)
def running_product(x: Tensor, dim: int, dtype: DType | None = None, *, result: Any) -> Tensor:
    """The products up to each element of an axis."""
    x = x.cast(result.dtype)
    return x if not x.ndim else x.cumprod(dim)


@row("logcumsumexp")
def running_logsumexp(x: Tensor, dim: int) -> Tensor:
    """The logarithms of sums of exponentials up to each element of an axis."""
    return x if not x.ndim else x.logcumsumexp(dim)


@row("amax")
def amax(x: Tensor, dim: Axes = (), keepdim: bool = False) -> Tensor:
    """The largest elements over axes."""
    return x.amax(_axes(dim), keepdim)


@row("amin")
def amin(x: Tensor, dim: Axes = (), keepdim: bool = False) -> Tensor:
    """The smallest elements over axes."""
    return x.amin(_axes(dim), keepdim)


row("max")(Tensor.amax)
row("min")(Tensor.amin)


@row("any", "any.dim", "any.dims")
def any_of(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Whether some element over axes is not 0."""
    return x.ne(0).any(_axes(dim), keepdim)


@row("all", "all.dim", "all.dims")
def all_of(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Whether no element over axes is 0."""
    return x.ne(0).all(_axes(dim), keepdim)


@row("max.dim")
def largest(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The largest elements of an axis, and where the first of them are."""
    return x.amax(dim, keepdim), x.argmax(dim, keepdim)


@row("min.dim")
def smallest(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest elements of an axis, and where the first of them are."""
    return x.amin(dim, keepdim), x.argmin(dim, keepdim)


@row("argmax")
def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the first of the largest elements is."""
    return x.argmax(dim, keepdim)


@row("argmin")
def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the first of the smallest elements is."""
    return x.argmin(dim, keepdim)


@row("var.dim", "var")
def variance_unbiased(
    x: Tensor, dim: Axes | bool = None, unbiased: bool = True, keepdim: bool = False
) -> Tensor:
    """The variance over axes, divided by one less than the number of elements, or by that."""
    if isinstance(dim, bool):
        return x.var(None, False, correction=int(dim))
    return x.var(_axes(dim), keepdim, correction=int(unbiased))


def _correction(correction: float | None) -> float:
    return 1 if correction is None else correction


@row("var.correction")
def variance(
    x: Tensor, dim: Axes = None, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """The variance over axes."""
    return x.var(_axes(dim), keepdim, correction=_correction(correction))


@row("std.correction")
def deviation(
    x: Tensor, dim: Axes = None, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """The standard deviation over axes."""
    return x.std(_axes(dim), keepdim, correction=_correction(correction))


@row("var_mean.correction")
def variance_and_mean(
    x: Tensor, dim: Axes = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The variance and the mean over axes."""
    return variance(x, dim, correction, keepdim), x.mean(_axes(dim), keepdim)


@row("logsumexp")
def logsumexp(x: Tensor, dim: Axes, keepdim: bool = False) -> Tensor:
    """The logarithm of the sum of exponentials over axes."""
    return x.logsumexp(_axes(dim), keepdim)


_ONE: Final = 1


@row("_softmax")
def softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """Exponentials over their sum along an axis."""
    return _along(x, half_to_float).softmax(dim).reshape(x.shape)


@row("_log_softmax")
def log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """The logarithm of softmax."""
    return _along(x, half_to_float).log_softmax(dim).reshape(x.shape)


def _along(x: Tensor, to_float: bool) -> Tensor:
    """`x` with an axis at least, which torch's single numbers count as having."""
    x = x.cast(dtypes.float32) if to_float else x
    return x if x.ndim else x.reshape(_ONE)


@row("sort", "sort.stable")
def ordered(
    x: Tensor, *args: Any, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """The elements of an axis in order, and where they were."""
    dim, descending = (*args, *(dim, descending)[len(args) :])[:2] if args else (dim, descending)
    if not x.ndim:
        return x, x.full_like(0, dtype=dtypes.int64)
    return x.sort(dim, descending)


@row("topk")
def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> tuple[Tensor, Tensor]:
    """The k largest or smallest elements of an axis, and where they are."""
    if not x.ndim:
        return x, x.full_like(0, dtype=dtypes.int64)
    return x.topk(k, dim, largest, ordered)
