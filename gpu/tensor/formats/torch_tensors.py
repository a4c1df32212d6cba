"""Tensors over the storages of a torch checkpoint: views by offset, sizes and strides."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType
from gpu.core.errors import FormatError
from gpu.runtime.buffer import Buffer
from gpu.tensor.formats.hostbytes import (
    MAX_DIMENSIONS,
    MAX_ELEMENTS,
    Bytes,
    buffer_over,
    tensor_of,
)
from gpu.tensor.tensor import Tensor

_TENSOR_BYTES: Final = 512
"""What a tensor takes itself: less than the limit grows by with what is written for one, some 70
bytes."""


class Global(NamedTuple):
    """What stands for a class or function that a checkpoint names.

    Attributes:
        name: its dotted name in torch.
        storage: dtype of the elements, for a class of storages.
    """

    name: str
    storage: DType | None = None


class Storage(NamedTuple):
    """Memory of a checkpoint that tensors are views of.

    Attributes:
        key: its name in the file.
        dtype: of the elements.
        data: the elements as bytes, in the file's byte order.
    """

    key: str
    dtype: DType
    data: Bytes


class TensorMaker:
    """Makes tensors of storages, within a limit of what may be copied."""

    def __init__(self, device: str, limit: int, swapped: bool):
        """Tensors are made on `device`; building values may copy `limit` bytes.

        `swapped` says that the storages have the other byte order than this machine.
        """
        self._device, self._swapped = device, swapped
        self._left = self._limit = limit
        self._buffers: dict[tuple[object, ...], Buffer] = {}

    def spend(self, nbytes: int) -> None:
        """Counts bytes that a value takes beside the file's. Raises FormatError over the limit."""
        self._left -= nbytes
        if self._left < 0:
            raise FormatError(
                f"building the values takes more than {self._limit:,} bytes, out of proportion to"
                " the file; refused"
            )

    def tensor(
        self, storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
    ) -> Tensor:
        """A tensor of a storage's elements, `offset` and `stride` in elements as in torch.

        Raises FormatError for one that reaches out of its storage or has more elements than it.
        """
        self.spend(_TENSOR_BYTES)
        place = f"a tensor of size {shown(list(size))} in storage {storage.key!r}"
        if len(size) != len(stride) or len(size) > MAX_DIMENSIONS:
            raise FormatError(
                f"{place} has {len(stride)} strides; it needs one for each of at most"
                f" {MAX_DIMENSIONS} dimensions"
            )
        if math.prod(extent for extent in size if extent) > MAX_ELEMENTS // 8:
            raise FormatError(f"{place} is larger than any memory")
        if 0 in size:
            return Tensor._wrap(G.const(0, size, storage.dtype, self._device))
        itemsize = storage.dtype.itemsize
        count = storage.data.size // itemsize
        last = offset + sum((d - 1) * s for d, s in zip(size, stride, strict=True))
        if last >= count:
            raise FormatError(
                f"{place} reaches element {last:,} with offset {offset:,} and strides"
                f" {shown(list(stride))}; the storage has {count:,}"
            )
        # Repeated dimensions take no memory: the file has them once, and so has the tensor.
        kept = tuple(1 if step == 0 else extent for extent, step in zip(size, stride, strict=True))
        if math.prod(kept) > count:
            raise FormatError(
                f"{place} is {math.prod(kept):,} overlapping views of {count:,} elements, which is"
                " not supported; save a .clone() of it"
            )
        tensor = tensor_of(self._buffer(storage, offset, kept, stride), kept)
        return tensor if kept == size else Tensor._wrap(G.expand(tensor._node, size))

    def _buffer(
        self, storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
    ) -> Buffer:
        """The elements of a view in row-major order; for equal views, the same memory."""
        key = (storage.key, storage.dtype, offset, size, stride)
        first = self._buffers.get(key)
        if first is not None:
            # A buffer of its own, as each tensor is its own leaf when gradients are asked for.
            return Buffer.over(
                first.device, first.size, first.dtype, first.memory, first, first.read_only
            )
        data = self._gathered(storage, offset, size, stride)
        if self._swapped and storage.dtype.itemsize > 1:
            self.spend(data.size)
            data = data.view(f"u{storage.dtype.real.itemsize}").byteswap().view(np.uint8)
        buffer = self._buffers[key] = buffer_over(data, storage.dtype, self._device)
        return buffer

    def _gathered(
        self, storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
    ) -> Bytes:
        """The bytes of a view in row-major order, without a copy where they are so already."""
        itemsize = storage.dtype.itemsize
        start, nbytes = offset * itemsize, math.prod(size) * itemsize
        if _is_row_major(size, stride):
            return storage.data[start : start + nbytes]
        self.spend(nbytes)
        whole = storage.data.size // itemsize * itemsize
        elements = storage.data[:whole].view(f"V{itemsize}")[offset:]
        # Strides that are never taken may be anything, which numpy need not bear.
        steps = [s * itemsize if d > 1 else 0 for d, s in zip(size, stride, strict=True)]
        view = np.lib.stride_tricks.as_strided(elements, size, steps, writeable=False)
        return np.ascontiguousarray(view).reshape(-1).view(np.uint8)


def _is_row_major(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for extent, step in zip(reversed(size), reversed(stride), strict=True):
        if extent != 1 and step != expected:
            return False
        expected *= extent
    return True


def natural(value: object, what: str) -> int:
    """`value`, where it is an integer from 0 to 2^63 - 1. Raises FormatError otherwise."""
    if type(value) is not int or not 0 <= value <= MAX_ELEMENTS:
        raise FormatError(f"{what} is {shown(value)}; it has to be an integer from 0 to 2^63 - 1")
    return value


def naturals(values: object, what: str) -> tuple[int, ...]:
    """`values`, where they are a tuple or list of such integers. Raises FormatError otherwise."""
    if not isinstance(values, list | tuple):
        raise FormatError(f"{what} is {shown(values)}; it has to be a tuple")
    if len(values) > MAX_DIMENSIONS:
        raise FormatError(f"{what} has {len(values)} dimensions, more than {MAX_DIMENSIONS}")
    return tuple(natural(value, what) for value in values)


def shown(value: object) -> str:
    """A value for an error message: containers by their type, as they may be of any size."""
    if isinstance(value, Global):
        return value.name
    if isinstance(value, str | int | float | bytes | type(None)):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    if isinstance(value, list | tuple) and len(value) <= MAX_DIMENSIONS:
        return f"[{', '.join(_kind(item) for item in value)}]"
    return f"a {type(value).__name__}"


def _kind(item: object) -> str:
    return repr(item) if type(item) is int else type(item).__name__
