"""Indexing functions."""

from __future__ import annotations

from gpu.tensor.array_api.arguments import only_axis, tensor_of
from gpu.tensor.tensor import Tensor


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The elements along `axis` at indices, which may count from the end, in their shape.

    Without `axis` those of a tensor of one axis. Raises InvalidValue where there are more.
    """
    if axis is None:
        axis = only_axis(tensor_of(x), "take")
    index = (slice(None),) * (axis % max(x.ndim, 1))
    return x[(*index, tensor_of(indices, "indices"))]


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """`Tensor.take_along_dim`."""
    return tensor_of(x).take_along_dim(tensor_of(indices, "indices"), axis)
