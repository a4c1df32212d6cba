"""ONNX's sequences and optional values. A sequence is a list, an optional nothing None."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.core.errors import InvalidValue
from gpu.tensor.onnx.values import Array, Value, one
from gpu.tensor.tensor import Tensor


def identity(input: Value) -> Value:
    """The value itself. Raises InvalidValue for an optional one that is not there."""
    if input is None:
        raise InvalidValue("OptionalGetElement of nothing; ask OptionalHasElement first")
    return input


def optional(input: Value = None, *, type: Any = None) -> Value:
    """The value as an optional one, or nothing."""
    return input


def optional_has_element(input: Value = None) -> Array:
    """Whether there is a value."""
    return np.array(input is not None)


def sequence_construct(*inputs: Value) -> list[Any]:
    """A sequence of the inputs."""
    return list(inputs)


def sequence_empty(*, dtype: int = 1) -> list[Any]:
    """A sequence of nothing."""
    return []


def sequence_length(input_sequence: list[Any]) -> Array:
    """How many there are."""
    return np.array(len(input_sequence), np.int64)


def sequence_at(input_sequence: list[Any], position: Value) -> Value:
    """The one at a place, which may be counted from the end."""
    value: Value = input_sequence[_place(position, len(input_sequence))]
    return value


def sequence_insert(input_sequence: list[Any], tensor: Value, position: Value = None) -> list[Any]:
    """With one more in front of a place, or at the end."""
    count = len(input_sequence)
    at = count if position is None else _place(position, count, inserting=True)
    return [*input_sequence[:at], tensor, *input_sequence[at:]]


def sequence_erase(input_sequence: list[Any], position: Value = None) -> list[Any]:
    """Without the one at a place, or the last."""
    count = len(input_sequence)
    at = count - 1 if position is None else _place(position, count)
    return [*input_sequence[:at], *input_sequence[at + 1 :]]


def concat_from_sequence(input_sequence: list[Any], *, axis: int, new_axis: int = 0) -> Tensor:
    """One behind the other, or stacked along a new axis."""
    tensors = [value if isinstance(value, Tensor) else Tensor(value) for value in input_sequence]
    return Tensor.stack(*tensors, dim=axis) if new_axis else Tensor.cat(*tensors, dim=axis)


def _place(position: Value, count: int, inserting: bool = False) -> int:
    at = int(one(position, "position"))
    if not -count <= at < count + inserting:
        raise InvalidValue(f"place {at} of a sequence of {count}")
    return at + count if at < 0 else at
