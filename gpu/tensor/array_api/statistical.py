"""Statistical functions."""

from __future__ import annotations

from gpu.core.dtype import DType, dtypes, to_dtype
from gpu.tensor.array_api.arguments import Axis, Dtype, only_axis, tensor_of
from gpu.tensor.tensor import Tensor


def cumulative_prod(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: Dtype | None = None,
    include_initial: bool = False,
) -> Tensor:
    """`Tensor.cumprod`, behind a 1 with `include_initial`."""
    along = only_axis(tensor_of(x), "cumulative_prod") if axis is None else axis
    running = x.cumprod(along, _total(x, dtype))
    return _behind(running, along, 1) if include_initial else running


def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: Dtype | None = None,
    include_initial: bool = False,
) -> Tensor:
    """`Tensor.cumsum`, behind a 0 with `include_initial`."""
    along = only_axis(tensor_of(x), "cumulative_sum") if axis is None else axis
    running = x.cumsum(along, _total(x, dtype))
    return _behind(running, along, 0) if include_initial else running


def max(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """`Tensor.max`."""
    return tensor_of(x).max(axis, keepdims)


def mean(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """`Tensor.mean`."""
    return tensor_of(x).mean(axis, keepdims)


def min(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """`Tensor.min`."""
    return tensor_of(x).min(axis, keepdims)


def prod(
    x: Tensor, /, *, axis: Axis = None, dtype: Dtype | None = None, keepdims: bool = False
) -> Tensor:
    """`Tensor.prod`; narrow integers in 32 bits."""
    return tensor_of(x).prod(axis, keepdims, _total(x, dtype))


def std(
    x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """`Tensor.std`, without correction if none is given."""
    return tensor_of(x).std(axis, keepdims, correction)


def sum(
    x: Tensor, /, *, axis: Axis = None, dtype: Dtype | None = None, keepdims: bool = False
) -> Tensor:
    """`Tensor.sum`; narrow integers in 32 bits."""
    return tensor_of(x).sum(axis, keepdims, _total(x, dtype))


def var(
    x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """`Tensor.var`, without correction if none is given."""
    return tensor_of(x).var(axis, keepdims, correction)


def _total(x: Tensor, dtype: Dtype | None) -> DType:
    """The dtype of a sum or product: integers have 32 bits or more."""
    if dtype is not None:
        return to_dtype(dtype)
    if x.dtype.is_float or x.dtype.bits >= dtypes.default_int.bits:
        return x.dtype
    return dtypes.uint32 if x.dtype.kind == "uint" else dtypes.default_int


def _behind(running: Tensor, axis: int, first: int) -> Tensor:
    """`running` behind one element more along an axis."""
    before = [(int(a == axis % running.ndim), 0) for a in range(running.ndim)]
    return running.pad(before, value=first)
