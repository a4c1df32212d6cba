"""What flows through a graph of ONNX: tensors, arrays on the host, sequences, and nothing.

Shapes, axes and the like are computed in the graph by the same operators as everything else. They
stay arrays of numpy, so that a graph is a fixed program of tensors without reading any back: what
is computed of such arrays alone is computed on the device PYTHON and is one again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu.core.dtype import DType, dtypes
from gpu.core.errors import InvalidType, Unsupported
from gpu.tensor.tensor import Tensor

Array = npt.NDArray[Any]
Value = Tensor | Array | list[Any] | None

HOST_ELEMENTS: Final = 1024
"""Larger results of host arrays, as of a mask made of a shape, become tensors."""

_DTYPES: Final = {
    1: dtypes.float32, 2: dtypes.uint8, 3: dtypes.int8, 4: dtypes.uint16, 5: dtypes.int16,
    6: dtypes.int32, 7: dtypes.int64, 9: dtypes.bool, 10: dtypes.float16, 11: dtypes.float64,
    12: dtypes.uint32, 13: dtypes.uint64, 14: dtypes.complex64, 15: dtypes.complex128,
    16: dtypes.bfloat16, 17: dtypes.fp8e4m3, 19: dtypes.fp8e5m2,
}  # fmt: skip
_NUMBERS: Final = {dtype: number for number, dtype in _DTYPES.items()}
_OTHERS: Final = {
    0: "UNDEFINED", 8: "STRING", 18: "FLOAT8E4M3FNUZ", 20: "FLOAT8E5M2FNUZ", 21: "UINT4",
    22: "INT4", 23: "FLOAT4E2M1", 24: "FLOAT8E8M0", 25: "UINT2", 26: "INT2",
}  # fmt: skip


def dtype_of(number: int) -> DType:
    """The dtype that a number of `TensorProto.DataType` stands for. Raises Unsupported."""
    if number not in _DTYPES:
        raise Unsupported(
            f"elements of ONNX's type {_OTHERS.get(number, number)} are not computed with here;"
            " convert the model to another type"
        )
    return _DTYPES[number]


def number_of(value: Tensor | Array) -> int:
    """The number of `TensorProto.DataType` for a value's elements."""
    if isinstance(value, Tensor):
        return _NUMBERS[value.dtype]
    return _NUMBERS[dtypes.from_numpy(value.dtype)] if value.dtype != object else 8


def ints(value: Value, what: str) -> list[int]:
    """The integers in a value, which are read from the device if they are there."""
    if isinstance(value, Tensor):
        value = value.numpy()
    if not isinstance(value, np.ndarray):
        raise InvalidType(f"{what} is a tensor of integers, got {type(value).__name__}")
    return [int(item) for item in value.reshape(-1)]


def one(value: Value | float, what: str) -> Any:
    """The one number in a value, or itself, as an attribute is."""
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, (int, float)):
        return value
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise InvalidType(f"{what} is one number, got {value!r}")
    return value.reshape(()).item()


def axes_of(axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from the front, in order."""
    return sorted(axis % rank if rank else 0 for axis in axes)
