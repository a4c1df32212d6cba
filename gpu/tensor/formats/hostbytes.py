"""Tensors over bytes in host memory, and those bytes as a file to read from."""

from __future__ import annotations

import errno
import io
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, dtypes
from gpu.runtime.buffer import Buffer
from gpu.tensor.tensor import Tensor

Bytes = npt.NDArray[np.uint8]
"""One-dimensional, contiguous."""

MAX_DIMENSIONS: Final = 32
"""As many as numpy before 2.0 has; a file that asks for more is not taken at its word."""

MAX_ELEMENTS: Final = (1 << 63) - 1
_LINE_PIECE: Final = 4096


def byte_size(shape: tuple[int, ...], dtype: DType) -> int:
    """Bytes that a tensor takes."""
    return math.prod(shape) * dtype.itemsize


def buffer_over(data: Bytes, dtype: DType, device: str) -> Buffer:
    """A buffer of the elements in `data`.

    On the CPU it is the same memory, kept alive, where the elements are aligned; the buffer is
    read-only where `data` is. Elsewhere they are copied.
    """
    if dtype is dtypes.bool and data.size and data.max() > 1:
        data = (data != 0).view(np.uint8)  # programs may rely on 0 and 1
    size = data.size // dtype.itemsize
    if device.partition(":")[0] != "CPU" or dtype.is_image:
        return Buffer(device, size, dtype).copy_in(data)
    data = aligned(data, dtype.itemsize)
    read_only = not data.flags.writeable
    return Buffer.over(device, size, dtype, data.ctypes.data, data, read_only)


def aligned(data: Bytes, itemsize: int) -> Bytes:
    """`data` at an address that is a multiple of `itemsize`: itself where it is so, or a copy."""
    return data.copy() if data.ctypes.data % itemsize else data


def tensor_of(buffer: Buffer, shape: tuple[int, ...]) -> Tensor:
    """A tensor that stands for the whole of a buffer."""
    return Tensor._wrap(G.buffer(buffer, shape, buffer.dtype, buffer.device))


def tensor_over(data: Bytes, shape: tuple[int, ...], dtype: DType, device: str) -> Tensor:
    """A tensor of the elements in `data`, of which there are as many as `shape` says."""
    if 0 in shape:
        return Tensor._wrap(G.const(0, shape, dtype, device))
    return tensor_of(buffer_over(data, dtype, device), shape)


class BytesFile(io.RawIOBase):
    """Bytes as a binary file for reading, for the parsers of the standard library.

    Unlike a real file it never allocates more than there is to read, however much is asked for:
    the sizes that parsers ask for come from the file itself.

    Attributes:
        view: all of the bytes.
    """

    def __init__(self, data: Bytes):
        super().__init__()
        self.view = data.data
        self._position = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to an offset, which may be past the end. Raises OSError for one before 0."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self.view)}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """The next `size` bytes, or fewer at the end; all for None or a negative size."""
        left = max(0, len(self.view) - self._position)
        count = left if size is None or size < 0 else min(size, left)
        piece = bytes(self.view[self._position : self._position + count])
        self._position += count
        return piece

    def readline(self, size: int | None = -1) -> bytes:
        """What comes up to the next newline, with it, or up to the end."""
        limit = len(self.view) if size is None or size < 0 else self._position + size
        end = self._position
        while end < limit:
            piece = bytes(self.view[end : min(end + _LINE_PIECE, limit)])
            if not piece:
                break
            newline = piece.find(b"\n")
            if newline >= 0:
                end += newline + 1
                break
            end += len(piece)
        return self.read(end - self._position)


def bytes_of(data: bytes) -> Bytes:
    """A `bytes` object as an array of them, without a copy."""
    array: npt.NDArray[Any] = np.frombuffer(data, np.uint8)
    return array
