"""Memory of torch's tensors as ours, and ours as torch's.

On devices that use the host's memory, torch's is used where it is, if its elements lie close
together in whatever order of axes; what lies otherwise is copied by torch. On others tensors are
copied there: one with a version counter once, until that moves or its memory is another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gpu.core.dtype import DType
from gpu.core.errors import Unsupported
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

    def buffer(self, number: int, tensor: torch.Tensor, size: int) -> Buffer:
        """A buffer of `size` elements that begins with those of a row-major tensor.

        Where there are more, as for sizes that vary, it is a copy: programs may read all of them.
        """
        allocator = Device[self.device].allocator
        nbytes = size * tensor.dtype.itemsize
        if size and size == tensor.numel():
            address = tensor.data_ptr()
            if address % tensor.dtype.itemsize == 0:
                memory = allocator.borrow(address, nbytes, tensor)
                if memory is not None:
                    return Buffer.over(self.device, size, ours(tensor.dtype), memory, tensor, True)
        return self._copied(number, tensor, size)

    def _copied(self, number: int, tensor: torch.Tensor, size: int) -> Buffer:
        version = None if tensor.is_inference() else tensor._version
        known = self._copies.get(number)
        storage = tensor.untyped_storage()
        if (
            known is not None
            and known.version == version
            and known.offset == tensor.storage_offset()
            and known.buffer.size == size
            and known.storage.cdata == storage._cdata
            and not known.storage.expired()
        ):
            return known.buffer
        buffer = Buffer(self.device, size, ours(tensor.dtype))
        if size:
            filled = np.zeros(size, buffer.dtype.np)
            filled[: tensor.numel()] = array_of(tensor).reshape(-1)
            buffer.copy_in(filled)
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
    buffer: Buffer, shape: Sequence[int], upper: Sequence[int], dtype: DType
) -> torch.Tensor:
    """A tensor of torch's with the contents of a buffer: over it where the host can use it.

    Args:
        buffer: memory that is laid out for `upper`.
        shape: the sizes that there are.
        upper: the sizes that there may be.
        dtype: of the elements.
    """
    theirs = TORCHS[dtype]
    view = buffer.host_view()
    array = buffer.copy_out() if view is None else view
    array = np.asarray(array).view(np.uint8)
    array = _writable(array, buffer) if not array.flags.writeable else array
    whole = torch.from_numpy(array).view(theirs).view(tuple(upper))
    if tuple(shape) == tuple(upper):
        return whole
    for axis, size in enumerate(shape):
        whole = whole.narrow(axis, 0, size)
    return whole.contiguous()


class _Lent:
    """Memory of a buffer as numpy's array interface describes it, to be written to by torch."""

    __slots__ = ("__array_interface__", "buffer")

    def __init__(self, array: np.ndarray[Any, Any], buffer: Buffer):
        self.buffer = buffer
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _writable(array: np.ndarray[Any, Any], buffer: Buffer) -> np.ndarray[Any, Any]:
    """The same memory for writing: nobody but torch has it."""
    return np.asarray(_Lent(array, buffer))
