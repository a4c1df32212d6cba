"""Creation functions."""

from __future__ import annotations

from typing import Any, Literal

from gpu.core.dtype import Number, to_dtype
from gpu.core.errors import InvalidValue
from gpu.runtime.device import Device
from gpu.tensor.array_api.arguments import Dtype, Shape, tensor_of
from gpu.tensor.tensor import Tensor


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Dtype | None = None,
    device: str | None = None,
) -> Tensor:
    """`Tensor.arange`."""
    return Tensor.arange(start, stop, step, dtype, device)


def asarray(
    obj: Any,
    /,
    *,
    dtype: Dtype | None = None,
    device: str | None = None,
    copy: bool | None = None,
) -> Tensor:
    """A tensor of numbers, nested lists, a tensor, or what has DLPack, a buffer or `__array__`.

    A tensor that needs no change is given back itself, unless `copy` is True; what is no tensor is
    copied. Raises InvalidValue where `copy` is False and there has to be one.
    """
    wanted = None if dtype is None else to_dtype(dtype)
    if isinstance(obj, Tensor):
        place = obj.device if device is None else Device.canonicalize(device)
        changes = place != obj.device or wanted not in (None, obj.dtype)
        if not changes and not copy:
            return obj
        if copy is not False:
            moved = obj.to(place) if wanted is None else obj.to(place).cast(wanted)
            return moved.clone()
    if copy is False:
        raise InvalidValue(
            f"copy=False, but asarray of {type(obj).__name__} has to copy; from_dlpack need not"
        )
    return Tensor(obj, device, wanted)


def empty(shape: Shape, *, dtype: Dtype | None = None, device: str | None = None) -> Tensor:
    """`Tensor.empty`."""
    return Tensor.empty(shape, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: Dtype | None = None, device: str | None = None) -> Tensor:
    """`Tensor.empty_like`."""
    return tensor_of(x).empty_like(dtype, device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: Dtype | None = None,
    device: str | None = None,
) -> Tensor:
    """`Tensor.eye`, with the ones `k` columns to the right of the diagonal."""
    columns = n_rows if n_cols is None else n_cols
    if k == 0:
        return Tensor.eye(n_rows, columns, dtype, device)
    ones = Tensor.ones((n_rows, columns), dtype=dtype, device=device)
    return ones.tril(k).triu(k)


def from_dlpack(x: object, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """`Tensor.from_dlpack`."""
    return Tensor.from_dlpack(x, device, copy)


def full(
    shape: Shape,
    fill_value: Number,
    *,
    dtype: Dtype | None = None,
    device: str | None = None,
) -> Tensor:
    """`Tensor.full`."""
    return Tensor.full(shape, fill_value, dtype, device)


def full_like(
    x: Tensor,
    /,
    fill_value: Number,
    *,
    dtype: Dtype | None = None,
    device: str | None = None,
) -> Tensor:
    """`Tensor.full_like`."""
    return tensor_of(x).full_like(fill_value, dtype, device)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: Dtype | None = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`Tensor.linspace`; without `endpoint`, all but the last of one number more."""
    if endpoint:
        return Tensor.linspace(start, stop, num, dtype, device)
    return Tensor.linspace(start, stop, num + 1, dtype, device)[:-1]


def meshgrid(*arrays: Tensor, indexing: Literal["xy", "ij"] = "xy") -> tuple[Tensor, ...]:
    """`Tensor.meshgrid`."""
    return tensor_of(arrays[0]).meshgrid(*arrays[1:], indexing=indexing) if arrays else ()


def ones(shape: Shape, *, dtype: Dtype | None = None, device: str | None = None) -> Tensor:
    """`Tensor.ones`."""
    return Tensor.ones(shape, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: Dtype | None = None, device: str | None = None) -> Tensor:
    """`Tensor.ones_like`."""
    return tensor_of(x).ones_like(dtype, device)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """`Tensor.tril`."""
    return tensor_of(x).tril(k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """`Tensor.triu`."""
    return tensor_of(x).triu(k)


def zeros(shape: Shape, *, dtype: Dtype | None = None, device: str | None = None) -> Tensor:
    """`Tensor.zeros`."""
    return Tensor.zeros(shape, dtype=dtype, device=device)


def zeros_like(x: Tensor, /, *, dtype: Dtype | None = None, device: str | None = None) -> Tensor:
    """`Tensor.zeros_like`."""
    return tensor_of(x).zeros_like(dtype, device)
