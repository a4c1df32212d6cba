"""ONNX's operators along axes. Parameters are named as the operators' inputs and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu.core.dtype import dtypes
from gpu.tensor.onnx.values import Value, ints, one
from gpu.tensor.tensor import Tensor

Axes = Value | list[int]


def _axes(data: Tensor, axes: Axes, noop: int) -> list[int] | None:
    """The axes, None where nothing is to be reduced."""
    listed = [] if axes is None else axes if isinstance(axes, list) else ints(axes, "axes")
    if not listed:
        return None if noop else list(range(data.ndim))
    return listed


def reducing(
    along: Callable[[Tensor, list[int], bool], Tensor],
    before: Callable[[Tensor], Tensor] = lambda x: x,
    after: Callable[[Tensor], Tensor] = lambda x: x,
) -> Callable[..., Tensor]:
    """An operator that reduces axes, which are an attribute or an input."""

    def operator(
        data: Tensor, axes: Axes = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        listed = _axes(data, axes, noop_with_empty_axes)
        value = before(data)
        if listed:
            value = along(value, listed, bool(keepdims))
        return after(value).cast(data.dtype)

    return operator


def _sum(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    return x.sum(axes, keepdim)


def _prod(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keepdim)
    return x


def _extreme(least: bool) -> Callable[[Tensor, list[int], bool], Tensor]:
    def along(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
        if 0 in (x.shape[axis] for axis in axes):  # of nothing it is the other end of the dtype
            dtype = x.dtype
            end = dtype.max if least else dtype.min
            return (x.cast(dtypes.int32).sum(axes, keepdim) * 0).cast(dtype) + end
        return x.amin(axes, keepdim) if least else x.amax(axes, keepdim)

    return along


reduce_sum = reducing(_sum)
reduce_mean = reducing(lambda x, axes, keepdim: x.mean(axes, keepdim))
reduce_prod = reducing(_prod)
reduce_max = reducing(_extreme(least=False))
reduce_min = reducing(_extreme(least=True))
reduce_l1 = reducing(_sum, Tensor.abs)
reduce_sum_square = reducing(_sum, Tensor.square)
reduce_l2 = reducing(_sum, Tensor.square, Tensor.sqrt)
reduce_log_sum = reducing(_sum, after=Tensor.log)
reduce_log_sum_exp = reducing(
    lambda x, axes, keepdim: x.cast(x.dtype if x.dtype.is_float else dtypes.float64).logsumexp(
        axes, keepdim
    )
)


def _arg(data: Tensor, axis: int, keepdims: int, last: int, least: bool) -> Tensor:
    if last:
        data = data.flip(axis)
    found = (data.argmin if least else data.argmax)(axis, bool(keepdims)).cast(dtypes.int64)
    return data.shape[axis] - 1 - found if last else found


def arg_max(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    """Where the largest is, the first or the last of them."""
    return _arg(data, axis, keepdims, select_last_index, least=False)


def arg_min(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    """Where the least is, the first or the last of them."""
    return _arg(data, axis, keepdims, select_last_index, least=True)


def _running(
    along: Callable[[Tensor, int], Tensor],
    x: Tensor,
    axis: Value,
    exclusive: int,
    reverse: int,
    unit: int,
) -> Tensor:
    place = one(axis, "axis") % x.ndim
    if reverse:
        x = x.flip(place)
    if exclusive:
        none = x.shrink([(0, min(1, n)) if i == place else (0, n) for i, n in enumerate(x.shape)])
        kept = x.shrink(
            [(0, max(0, n - 1)) if i == place else (0, n) for i, n in enumerate(x.shape)]
        )
        x = Tensor.cat(Tensor.full_like(none, unit), kept, dim=place)
    result = along(x, place).cast(x.dtype)
    return result.flip(place) if reverse else result


def cum_sum(x: Tensor, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Sums of all up to each place."""
    return _running(Tensor.cumsum, x, axis, exclusive, reverse, 0)


def cum_prod(x: Tensor, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Products of all up to each place."""
    return _running(Tensor.cumprod, x, axis, exclusive, reverse, 1)


def lp_normalization(input: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """Divided by its norm along an axis; what has norm 0 stays 0."""
    size = input.abs().sum(axis, True) if p == 1 else input.square().sum(axis, True).sqrt()
    return (size == 0).where(0, input / (size == 0).where(1, size)).cast(input.dtype)


def top_k(
    x: Tensor,
    k: Value = None,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,
    **attribute: Any,
) -> tuple[Tensor, Tensor]:
    """The largest or least along an axis, and where they are."""
    count = one(k, "K") if k is not None else attribute["k"]  # an attribute before version 10
    order = x.argsort(axis, descending=bool(largest), stable=True)
    order = order.shrink(
        [(0, count) if i == axis % x.ndim else (0, n) for i, n in enumerate(x.shape)]
    )
    return x.gather(axis, order), order.cast(dtypes.int64)
