"""Device memory that a tensor's value lives in."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from gpu.core.arguments import count_of
from gpu.core.config import config
from gpu.core.dtype import DType, ImageDType
from gpu.core.errors import InvalidType, InvalidValue, OutOfMemory
from gpu.core.unpicklable import Unpicklable
from gpu.runtime.allocator import Allocator
from gpu.runtime.device import Device
from gpu.runtime.memory_stats import name_holders
from gpu.runtime.timeline import note_span
from gpu.runtime.users import note_thread

# The owner of memory that a buffer has no more.
_GONE: Final = object()


class Status:
    """What may be wrong with a value, which is found out when that is read."""

    def verify(self) -> None:
        """Raises an error where it is wrong."""
        raise NotImplementedError


class Buffer(Unpicklable):
    """`size` elements of `dtype` on `device`, allocated on first use and freed with the object.

    Copies by the module `copy` have memory of their own.

    Attributes:
        device: name of the device.
        dtype: element type.
        size: number of elements.
        read_only: nothing may be written here, as in a file mapped for reading.
        statuses: looked at before the contents are read.
    """

    __slots__ = (
        "__weakref__",
        "_allocator",
        "_memory",
        "_owner",
        "device",
        "dtype",
        "read_only",
        "size",
        "statuses",
    )

    def __init__(self, device: str, size: int, dtype: DType):
        """Raises InvalidType and InvalidValue for what is no number of elements or no dtype."""
        self._allocator: Allocator[Any] | None = None
        if not isinstance(dtype, DType):
            raise InvalidType(f"a buffer's dtype must be one of dtypes, as float32; got {dtype!r}")
        self.device, self.dtype = device, dtype
        known = type(size) is int and size >= 0  # asked here: most are, and calls take time
        self.size = size if known else count_of(size, "the number of a buffer's elements")
        self.read_only = False
        self.statuses: tuple[Status, ...] = ()
        self._memory: Any = None
        self._owner: object = None

    @classmethod
    def over(
        cls,
        device: str,
        size: int,
        dtype: DType,
        memory: Any,
        owner: object,
        read_only: bool = False,
    ) -> Buffer:
        """A buffer over memory that belongs to `owner`, which it keeps alive.

        `memory` is what the device's allocator would have given: on the CPU an address.
        """
        buffer = cls(device, size, dtype)
        buffer._memory, buffer._owner, buffer.read_only = memory, owner, read_only
        return buffer

    def hold(self, owner: object) -> None:
        """Keeps `owner` alive too, as long as this buffer."""
        self._owner = (self._owner, owner)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def memory(self) -> Any:
        """The allocation, of the kind this device's programs take. Raises OutOfMemory."""
        if self._memory is None:
            assert self._owner is not _GONE, "memory that was written in place was still needed"
            allocator = Device[self.device].allocator
            try:
                if self.dtype.is_image:
                    self._memory = allocator.alloc_image(cast(ImageDType, self.dtype))
                else:
                    self._memory = allocator.alloc(self.size * self.dtype.itemsize)
            except OutOfMemory as error:
                name_holders(error, self.device, self.nbytes)
                raise
            self._allocator = allocator
        return self._memory

    @property
    def is_allocated(self) -> bool:
        """Whether it has memory of its own, of the device's allocator."""
        return self._allocator is not None

    @property
    def is_writable(self) -> bool:
        """Whether it is memory of its own that was never lent."""
        return not self.read_only and self._owner is None and self._allocator is not None

    def moved(self) -> Buffer:
        """The same memory as another buffer; this one has none any more and cannot be used.

        For memory that was written in place: whoever still had the old buffer would find a value in
        it that is not his.
        """
        assert self.is_writable, "memory of others is not written to"
        result = Buffer(self.device, self.size, self.dtype)
        result._memory, result._allocator = self._memory, self._allocator
        result.statuses = self.statuses
        self._memory, self._allocator, self._owner = None, None, _GONE
        return result

    def duplicate(self) -> Buffer:
        """A buffer of its own with the same contents. Raises OutOfMemory."""
        result = Buffer(self.device, self.size, self.dtype)
        result.statuses = self.statuses
        device = Device[self.device]
        device.synchronize()
        device.allocator.copy(result.memory, self.memory, self.nbytes)
        return result

    def __copy__(self) -> Buffer:
        return self.duplicate()

    def __deepcopy__(self, memo: object) -> Buffer:
        return self.duplicate()

    def __del__(self) -> None:
        allocator = getattr(self, "_allocator", None)  # not even set where Ctrl-C came before
        if allocator is None:
            return
        if self.dtype.is_image:  # a name of this module might be gone already when Python exits
            allocator.free_image(self._memory, cast(ImageDType, self.dtype))
        else:
            allocator.free(self._memory, self.size * self.dtype.itemsize)

    def copy_in(self, data: npt.NDArray[Any]) -> Buffer:
        """Copies a numpy array of the same dtype and size into the buffer; returns the buffer.

        Raises InvalidValue for a buffer that is read-only.
        """
        if self.read_only:
            raise InvalidValue(f"{self} is read-only; copy it to memory of its own and write there")
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        began = time.perf_counter_ns() if config.GPU_PROFILE else 0
        Device[self.device].allocator.copy_in(self.memory, flat.data)
        if began:
            note_span(f"copy to {self.device}", "copy", began, bytes=flat.nbytes)
        return self

    def take_over(self, source: Buffer) -> bool:
        """Copies what another device's buffer holds without the host; whether there was a way.

        Of buffers of different sizes as many bytes as both have. Raises OutOfMemory.
        """
        if self.read_only or source.device == self.device:
            return False
        nbytes = min(self.nbytes, source.nbytes)
        owner, allocator = Device[source.device].allocator, Device[self.device].allocator
        return allocator.transfer(self.memory, source.memory, nbytes, owner)

    def verify(self) -> None:
        """Raises an error where a status says that the contents are wrong."""
        for status in self.statuses:
            status.verify()
        self.statuses = ()

    def copy_out(self) -> npt.NDArray[Any]:
        """The contents as a fresh one-dimensional numpy array; raises as `verify`."""
        note_thread()
        if self.statuses:
            self.verify()
        result = host_array((self.size,), self.dtype.np)
        device = Device[self.device]
        began = time.perf_counter_ns() if config.GPU_PROFILE else 0
        device.synchronize()
        device.allocator.copy_out(result.view(np.uint8).data, self.memory)
        if began:
            note_span(f"copy from {self.device}", "copy", began, bytes=self.nbytes)
        return result

    def host_view(self) -> npt.NDArray[Any] | None:
        """The memory itself as a one-dimensional numpy array that is read-only and keeps it alive.

        None where the host cannot read this device's memory in place. Raises as `verify`.
        """
        address = self.host_address()
        if address is None:
            return None
        return np.asarray(_HostMemory(self, address)).view(self.dtype.np)

    def host_address(self) -> int | None:
        """Where the host finds the contents, in place; else as `host_view`."""
        note_thread()
        if self.statuses:
            self.verify()
        device = Device[self.device]
        address = device.allocator.host_address(self.memory)
        if address is None:
            return None
        began = time.perf_counter_ns() if config.GPU_PROFILE else 0
        device.synchronize()
        if began:
            note_span(f"wait for {self.device}", "python", began)
        return address

    def __repr__(self) -> str:
        return f"<Buffer {self.dtype.name} x {self.size} on {self.device}>"


def host_array(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A fresh numpy array with undefined contents. Raises OutOfMemory where it does not fit."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:  # ValueError: more than numpy can address
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        raise OutOfMemory(
            f"cannot allocate {nbytes:,} bytes of host memory for a numpy array of shape "
            f"{list(shape)}; read a part of the tensor, or make it smaller"
        ) from error


def own_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A row-major copy of an array. Raises OutOfMemory where it does not fit."""
    own = host_array(array.shape, array.dtype)
    np.copyto(own, array)
    return own


def memories_of(buffers: Sequence[Buffer]) -> list[Any]:
    """What `Buffer.memory` is of each: that of most is there, and a property takes time.

    What other processes send is not there before it has been waited for, which its property does.
    """
    return [b._memory if type(b) is Buffer and b._memory is not None else b.memory for b in buffers]


class _HostMemory:
    """Memory that the host can read, as numpy's array interface describes it.

    numpy keeps this object, and with it the buffer, as long as it reads there.
    """

    __slots__ = ("__array_interface__", "buffer")

    def __init__(self, buffer: Buffer, address: int):
        self.buffer = buffer
        read_only = True
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (buffer.nbytes,),
            "data": (address, read_only),
        }
