"""Functions of numpy that are methods of what they are given: of a tensor they give tensors.

numpy itself hands these over to a method of the same name, but tensors have torch's names and
defaults. So each has an entry here: numpy's signature, and a call of tensor methods. Where a
call asks for more, as for `where` or an array to write to, it is answered in arrays as by all other
functions of numpy's (`gpu/tensor/interop.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpu.core.errors import ShapeError
from gpu.tensor.arguments import Axis, Operand, axes_of

if TYPE_CHECKING:
    from gpu.tensor.creation import Dtype
    from gpu.tensor.tensor import Tensor

Entry = Callable[..., Any]


def forwarded(function: Callable[..., Any]) -> Entry | None:
    """What gives tensors for a function of numpy's, if something does."""
    return ENTRIES.get(function)


def takes(entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an entry is for such a call: the first argument is a tensor, nothing is written."""
    from gpu.tensor.tensor import Tensor

    if not args or not isinstance(args[0], Tensor):
        return False
    try:
        call = inspect.signature(entry).bind(*args, **kwargs)
    except TypeError:
        return False
    return call.arguments.get("out") is None


def _sum(
    a: Tensor,
    axis: Axis = None,
    dtype: Dtype | None = None,
    out: None = None,
    keepdims: bool = False,
) -> Tensor:
    return a.sum(axis, keepdims, dtype)


def _prod(
    a: Tensor,
    axis: Axis = None,
    dtype: Dtype | None = None,
    out: None = None,
    keepdims: bool = False,
) -> Tensor:
    return a.prod(axis, keepdims, dtype)


def _mean(
    a: Tensor,
    axis: Axis = None,
    dtype: Dtype | None = None,
    out: None = None,
    keepdims: bool = False,
) -> Tensor:
    return (a if dtype is None else a.cast(dtype)).mean(axis, keepdims)


def _std(
    a: Tensor,
    axis: Axis = None,
    dtype: Dtype | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> Tensor:
    return (a if dtype is None else a.cast(dtype)).std(axis, keepdims, ddof)


def _var(
    a: Tensor,
    axis: Axis = None,
    dtype: Dtype | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> Tensor:
    return (a if dtype is None else a.cast(dtype)).var(axis, keepdims, ddof)


def _max(a: Tensor, axis: Axis = None, out: None = None, keepdims: bool = False) -> Tensor:
    return a.max(axis, keepdims)


def _min(a: Tensor, axis: Axis = None, out: None = None, keepdims: bool = False) -> Tensor:
    return a.min(axis, keepdims)


def _ptp(a: Tensor, axis: Axis = None, out: None = None, keepdims: bool = False) -> Tensor:
    return a.max(axis, keepdims).sub(a.min(axis, keepdims))


def _all(a: Tensor, axis: Axis = None, out: None = None, keepdims: bool = False) -> Tensor:
    return a.all(axis, keepdims)


def _any(a: Tensor, axis: Axis = None, out: None = None, keepdims: bool = False) -> Tensor:
    return a.any(axis, keepdims)


def _argmax(
    a: Tensor, axis: int | None = None, out: None = None, *, keepdims: bool = False
) -> Tensor:
    return a.argmax(axis, keepdims)


def _argmin(
    a: Tensor, axis: int | None = None, out: None = None, *, keepdims: bool = False
) -> Tensor:
    return a.argmin(axis, keepdims)


def _cumsum(
    a: Tensor, axis: int | None = None, dtype: Dtype | None = None, out: None = None
) -> Tensor:
    return a.ravel().cumsum(0, dtype) if axis is None else a.cumsum(axis, dtype)


def _cumprod(
    a: Tensor, axis: int | None = None, dtype: Dtype | None = None, out: None = None
) -> Tensor:
    return a.ravel().cumprod(0, dtype) if axis is None else a.cumprod(axis, dtype)


def _clip(
    a: Tensor, a_min: Operand | None = None, a_max: Operand | None = None, out: None = None
) -> Tensor:
    return a.clone() if a_min is None and a_max is None else a.clamp(a_min, a_max)


def _round(a: Tensor, decimals: int = 0, out: None = None) -> Tensor:
    return a.round(decimals=decimals)


def _repeat(a: Tensor, repeats: int | Operand, axis: int | None = None) -> Tensor:
    return a.repeat_interleave(repeats, axis)


def _transpose(a: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    return a.T if axes is None else a.permute(tuple(axes))


def _reshape(a: Tensor, /, shape: int | Sequence[int]) -> Tensor:
    return a.reshape(shape)


def _squeeze(a: Tensor, axis: Axis = None) -> Tensor:
    if axis is not None and any(a.shape[place] != 1 for place in axes_of(axis, a.ndim)):
        raise ShapeError(f"an axis {axis} of shape {list(a.shape)} has not the size 1")
    return a.squeeze(axis)


def _swapaxes(a: Tensor, axis1: int, axis2: int) -> Tensor:
    return a.transpose(axis1, axis2)


def _searchsorted(
    a: Tensor, v: Operand, side: str = "left", sorter: Operand | None = None
) -> Tensor:
    return a.searchsorted(v, side=side, sorter=sorter)


def _argsort(a: Tensor, axis: int | None = -1, kind: str | None = None) -> Tensor:
    return a.ravel().argsort(0) if axis is None else a.argsort(axis)


def _nonzero(a: Tensor) -> tuple[Tensor, ...]:
    return a.nonzero().unbind(1)


def _take(a: Tensor, indices: Operand, axis: int | None = None, out: None = None) -> Tensor:
    line, along = (a.ravel(), 0) if axis is None else (a, axis % max(a.ndim, 1))
    return line[(*(slice(None),) * along, indices)]


ENTRIES: Final[Mapping[Callable[..., Any], Entry]] = {
    np.sum: _sum, np.prod: _prod, np.mean: _mean, np.std: _std, np.var: _var,
    np.max: _max, np.amax: _max, np.min: _min, np.amin: _min, np.ptp: _ptp,
    np.all: _all, np.any: _any, np.argmax: _argmax, np.argmin: _argmin,
    np.cumsum: _cumsum, np.cumprod: _cumprod, np.clip: _clip, np.round: _round,
    np.around: _round, np.repeat: _repeat, np.transpose: _transpose, np.reshape: _reshape,
    np.squeeze: _squeeze, np.swapaxes: _swapaxes, np.searchsorted: _searchsorted,
    np.argsort: _argsort, np.nonzero: _nonzero, np.take: _take,
}  # fmt: skip
