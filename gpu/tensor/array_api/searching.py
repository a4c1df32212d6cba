"""Searching functions."""

from __future__ import annotations

from typing import Literal

from gpu.core.errors import ShapeError
from gpu.tensor.array_api.arguments import Axis, Operand, tensor_of
from gpu.tensor.tensor import Tensor


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """`Tensor.argmax`."""
    return tensor_of(x).argmax(axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """`Tensor.argmin`."""
    return tensor_of(x).argmin(axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """`Tensor.count_nonzero`."""
    return tensor_of(x).count_nonzero(axis, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The places of elements that are not 0, for each axis. Raises ShapeError without one."""
    if not tensor_of(x).ndim:
        raise ShapeError("nonzero needs an axis, this tensor is 0-d")
    return x.nonzero().unbind(1)


def searchsorted(
    x1: Tensor,
    x2: Operand,
    /,
    *,
    side: Literal["left", "right"] = "left",
    sorter: Tensor | None = None,
) -> Tensor:
    """`Tensor.searchsorted`."""
    return tensor_of(x1).searchsorted(x2, side=side, sorter=sorter)


def where(condition: Tensor, x1: Operand, x2: Operand, /) -> Tensor:
    """`Tensor.where`."""
    return tensor_of(condition, "condition").where(x1, x2)
