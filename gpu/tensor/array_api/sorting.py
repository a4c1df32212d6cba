"""Sorting functions. All sorting here is stable, whatever `stable` says."""

from __future__ import annotations

from gpu.tensor.array_api.arguments import tensor_of
from gpu.tensor.tensor import Tensor


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """`Tensor.argsort`."""
    return tensor_of(x).argsort(axis, descending)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """`Tensor.sort`, without the places."""
    return tensor_of(x).sort(axis, descending)[0]
