"""What the functions of all chapters share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from gpu.core.dtype import DType, Number
from gpu.core.errors import InvalidType, InvalidValue
from gpu.tensor.tensor import Tensor

Operand: TypeAlias = Tensor | Number
Axis: TypeAlias = int | tuple[int, ...] | None
Dtype: TypeAlias = DType | str
Shape: TypeAlias = int | tuple[int, ...]


def tensor_of(x: object, name: str = "x") -> Tensor:
    """`x`, which has to be a tensor. Raises InvalidType."""
    if not isinstance(x, Tensor):
        raise InvalidType(f"{name} must be a Tensor, got {type(x).__name__} {x!r}; use asarray")
    return x


def pair_of(x1: Operand, x2: Operand) -> tuple[Tensor, Operand]:
    """Two operands, the first as a tensor; one of them has to be one. Raises InvalidType."""
    if isinstance(x1, Tensor):
        return x1, x2
    if isinstance(x2, Tensor):
        return x2._lift(x1), x2
    raise InvalidType(f"one operand must be a Tensor, got {x1!r} and {x2!r}")


def tensors_of(arrays: Sequence[Tensor], name: str = "arrays") -> tuple[Tensor, ...]:
    """One tensor or more. Raises InvalidType."""
    if not arrays:
        raise InvalidType(f"{name} must have a Tensor, there is none")
    return tuple(tensor_of(x, "each of the " + name) for x in arrays)


def only_axis(x: Tensor, name: str) -> int:
    """The axis of a tensor that has one. Raises InvalidValue where it has not."""
    if x.ndim != 1:
        raise InvalidValue(f"{name} needs axis= for a tensor of shape {list(x.shape)}")
    return 0
