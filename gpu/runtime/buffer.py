"""Device memory that a tensor's value lives in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.core.dtype import DType
from gpu.runtime.allocator import Allocator
from gpu.runtime.device import Device


class Buffer:
    """`size` elements of `dtype` on `device`, allocated on first use and freed with the object.

    Attributes:
        device: name of the device.
        dtype: element type.
        size: number of elements.
    """

    __slots__ = ("_allocator", "_memory", "device", "dtype", "size")

    def __init__(self, device: str, size: int, dtype: DType):
        self.device, self.size, self.dtype = device, size, dtype
        self._allocator: Allocator[Any] | None = None
        self._memory: Any = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def memory(self) -> Any:
        """The allocation, of the kind this device's programs take. Raises OutOfMemory."""
        if self._allocator is None:
            allocator = Device[self.device].allocator
            self._memory = allocator.alloc(self.nbytes)
            self._allocator = allocator
        return self._memory

    def __del__(self) -> None:
        if self._allocator is not None:
            self._allocator.free(self._memory, self.nbytes)

    def copy_in(self, data: npt.NDArray[Any]) -> Buffer:
        """Copies a numpy array of the same dtype and size into the buffer; returns the buffer."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        Device[self.device].allocator.copy_in(self.memory, flat.data)
        return self

    def copy_out(self) -> npt.NDArray[Any]:
        """The contents as a fresh one-dimensional numpy array."""
        result = np.empty(self.size, self.dtype.np)
        device = Device[self.device]
        device.synchronize()
        device.allocator.copy_out(result.view(np.uint8).data, self.memory)
        return result

    def __repr__(self) -> str:
        return f"<Buffer {self.dtype.name} x {self.size} on {self.device}>"
