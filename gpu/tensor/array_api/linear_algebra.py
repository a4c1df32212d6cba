"""Linear algebra functions of the main namespace."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.core.errors import InvalidValue
from gpu.tensor.array_api.arguments import tensor_of
from gpu.tensor.tensor import Tensor


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """`Tensor.matmul`."""
    return tensor_of(x1).matmul(tensor_of(x2))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """`Tensor.mT`."""
    return tensor_of(x).mT


def tensordot(
    x1: Tensor,
    x2: Tensor,
    /,
    *,
    axes: int | tuple[Sequence[int], Sequence[int]] = 2,
) -> Tensor:
    """`Tensor.tensordot`."""
    return tensor_of(x1).tensordot(tensor_of(x2), axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """`Tensor.vecdot`, along an axis that counts from the end. Raises InvalidValue for others."""
    if axis >= 0:
        raise InvalidValue(f"vecdot needs an axis that counts from the end, got {axis}")
    return tensor_of(x1).vecdot(tensor_of(x2), axis)
