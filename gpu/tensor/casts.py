"""Conversions: to another dtype by its short name, and of one element to a Python number."""

from __future__ import annotations

import builtins
import math
from typing import Self

from gpu.compiler.ir.dims import bound
from gpu.core.dtype import dtypes
from gpu.core.errors import DTypeError, InvalidType, ShapeError
from gpu.tensor.base import TensorBase


class Casts(TensorBase):
    """Methods here are called as types of Python are; `builtins` names those."""

    __slots__ = ()

    def bool(self) -> Self:
        """Where self is not zero."""
        return self.cast(dtypes.bool)

    def byte(self) -> Self:
        """self as uint8."""
        return self.cast(dtypes.uint8)

    def char(self) -> Self:
        """self as int8."""
        return self.cast(dtypes.int8)

    def short(self) -> Self:
        """self as int16."""
        return self.cast(dtypes.int16)

    def int(self) -> Self:
        """self as int32."""
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """self as int64."""
        return self.cast(dtypes.int64)

    def half(self) -> Self:
        """self as float16."""
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """self as bfloat16."""
        return self.cast(dtypes.bfloat16)

    def float(self) -> Self:
        """self as float32."""
        return self.cast(dtypes.float32)

    def double(self) -> Self:
        """self as float64."""
        return self.cast(dtypes.float64)

    def __bool__(self) -> builtins.bool:
        if math.prod(bound(self.shape)) != 1:
            raise ShapeError(
                f"the truth of a tensor of shape {list(self.shape)} is ambiguous; "
                "use .any() or .all()"
            )
        return builtins.bool(self.item())

    def __int__(self) -> builtins.int:
        return builtins.int(self._real_item())

    def __float__(self) -> builtins.float:
        return builtins.float(self._real_item())

    def _real_item(self) -> builtins.float:
        if self.dtype.is_complex:
            raise DTypeError(f"{self._described()} is no real number: take .real, or complex(x)")
        value: builtins.float = self.item()
        return value

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> builtins.int:
        if not self.dtype.is_int:
            raise InvalidType(f"only integer tensors can be an index, this one is {self.dtype}")
        return builtins.int(self.item())
