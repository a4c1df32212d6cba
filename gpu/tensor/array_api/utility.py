"""Utility functions."""

from __future__ import annotations

from gpu.tensor.array_api.arguments import Axis, tensor_of
from gpu.tensor.tensor import Tensor


def all(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """`Tensor.all`."""
    return tensor_of(x).all(axis, keepdims)


def any(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """`Tensor.any`."""
    return tensor_of(x).any(axis, keepdims)


def diff(
    x: Tensor,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """`Tensor.diff`."""
    return tensor_of(x).diff(n, axis, prepend, append)
