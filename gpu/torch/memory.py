"""Memory of torch's tensors as ours, and ours as torch's.

On devices that use the host's memory, torch's is used where it is, if its elements lie close
together in whatever order of axes; what lies otherwise is copied by torch. On others tensors are
copied there: one with a version counter once, until that moves or its memory is another's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gpu.core.dtype import DType
from gpu.core.errors import Unsupported
from gpu.runtime.allocator import Allocator
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device
from gpu.torch.types import TORCHS, ours


class Layout(NamedTuple):
    """How a tensor of torch's lies in memory.

    Attributes:
        order: its axes, the one whose elements are furthest apart first.
        repeated: those of them that show one element again and again.
        is_dense: whether nothing lies between the elements.
    """

    order: tuple[int, ...]
    repeated: tuple[int, ...]
    is_dense: bool

    @property
    def is_plain(self) -> bool:
        """Whether it is row-major."""
        return self.is_dense and not self.repeated and self.order == tuple(range(len(self.order)))


def layout_of(shape: Sequence[int], strides: Sequence[int]) -> Layout:
    """How elements of a shape with these strides lie. Sizes are plain numbers."""
    axes = range(len(shape))
    repeated = tuple(a for a in axes if strides[a] == 0 and shape[a] > 1)
    order = tuple(sorted(axes, key=lambda axis: -strides[axis]))
    expected = 1
    for axis in reversed(order):
        if axis in repeated or shape[axis] == 1:
            continue
        if strides[axis] != expected:
            return Layout(tuple(axes), (), False)
        expected *= shape[axis]
    return Layout(order, repeated, True)


def packed(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The tensor in the order in which it lies, row-major, repeated axes once."""
    if not layout.is_dense:
        return tensor.contiguous()
    for axis in layout.repeated:
        tensor = tensor.narrow(axis, 0, 1)
    tensor = tensor.permute(layout.order)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


class _Copy(NamedTuple):
    """What a device has of a tensor: of which memory, as of which version."""

    storage: StorageWeakRef
    offset: int
    version: int
    buffer: Buffer


class Inputs:
    """The buffers of one program's inputs, by their number."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._copies: dict[int, _Copy] = {}

    def buffers(self, tensors: Sequence[torch.Tensor]) -> list[Buffer]:
        """Buffers of the elements of row-major tensors."""
        allocator = Device[self.device].allocator
        return [self._buffer(allocator, *each) for each in enumerate(tensors)]

    def _buffer(self, allocator: Allocator[Any], number: int, tensor: torch.Tensor) -> Buffer:
        size, dtype = tensor.numel(), ours(tensor.dtype)
        address = tensor.data_ptr()
        if size and address % dtype.itemsize == 0:
            memory = allocator.borrow(address, size * dtype.itemsize, tensor)
            if memory is not None:
                return Buffer.over(self.device, size, dtype, memory, tensor, True)
        return self._copied(number, tensor)

    def _copied(self, number: int, tensor: torch.Tensor) -> Buffer:
        version = None if tensor.is_inference() else tensor._version
        known = self._copies.get(number)
        storage = tensor.untyped_storage()
        if (
            known is not None
            and known.version == version
            and known.offset == tensor.storage_offset()
            and known.buffer.size == tensor.numel()
            and known.storage.cdata == storage._cdata
            and not known.storage.expired()
        ):
            return known.buffer
        buffer = Buffer(self.device, tensor.numel(), ours(tensor.dtype))
        if buffer.size:
            buffer.copy_in(array_of(tensor).reshape(-1))
        if version is not None:
            offset = tensor.storage_offset()
            self._copies[number] = _Copy(StorageWeakRef(storage), offset, version, buffer)
        return buffer


def check_place(tensor: torch.Tensor) -> None:
    """Raises Unsupported for a tensor that is not in the host's memory."""
    if tensor.device.type != "cpu":
        raise Unsupported(
            f"a tensor of torch's on {tensor.device}: the backend takes those on cpu; move the "
            "model there, and name the device to run on in options={'device': ...}"
        )


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A row-major tensor's elements in a row, as a numpy array of our dtype over its memory."""
    flat = tensor.detach().reshape(-1)
    array: np.ndarray[Any, Any] = flat.view(torch.uint8).numpy().view(ours(tensor.dtype).np)
    return array


def empty(shape: Sequence[int], dtype: DType) -> torch.Tensor:
    """A tensor without elements."""
    return torch.empty(tuple(shape), dtype=TORCHS[dtype])


def tensor_over(
    buffer: Buffer, shape: tuple[int, ...], upper: tuple[int, ...], dtype: DType
) -> torch.Tensor:
    """A tensor of torch's with the contents of a buffer: over it where the host can use it.

    Args:
        buffer: memory that is laid out for `upper`.
        shape: the sizes that there are.
        upper: the sizes that there may be.
        dtype: of the elements.
    """
    address = buffer.host_address()
    lent: Any
    if address is None:
        lent = bytearray(buffer.copy_out().view(np.uint8).data)
    else:
        lent = (ctypes.c_uint8 * buffer.nbytes).from_address(address)
        lent.owner = buffer
    whole = torch.frombuffer(lent, dtype=TORCHS[dtype], count=buffer.size).view(upper)
    if shape == upper:
        return whole
    for axis, size in enumerate(shape):
        whole = whole.narrow(axis, 0, size)
    return whole.contiguous()
