"""Values between tensors and messages: bytes that are sent, and memory that they arrive in."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.core.dtype import DType
from gpu.distributed.exchange import Bytes
from gpu.runtime.buffer import Buffer, host_array
from gpu.runtime.collectives import Waitable, host_window
from gpu.runtime.device import Device


class Arriving(Buffer):
    """Memory that other processes send the contents of; whoever uses it waits for them.

    Attributes:
        incoming: the bytes that are received, for the thread that does so. They are in the memory
            itself where the host can write there, else copied by who waits.
    """

    __slots__ = ("_call", "_is_staged", "incoming")

    def __init__(self, device: str, size: int, dtype: DType):
        """Raises OutOfMemory."""
        super().__init__(device, size, dtype)
        self._call: Waitable | None = None
        Device[device].synchronize()  # what used the memory before may still be writing there
        inside = window(self)
        self._is_staged = inside is None
        self.incoming: Bytes | None = (
            host_array((self.nbytes,), np.uint8) if inside is None else inside
        )

    def comes_with(self, call: Waitable) -> None:
        """`call` fills `incoming`."""
        self._call = call

    @property
    def memory(self) -> Any:
        """The allocation, when what is sent is in it. Raises OutOfMemory, and what a call does."""
        if self._call is not None:
            self._settle(self._call)
        return super().memory

    def _settle(self, call: Waitable) -> None:
        call.wait()
        if self._is_staged and self.incoming is not None:
            Device[self.device].allocator.copy_in(super().memory, self.incoming.data)
        self._call = self.incoming = None


def window(buffer: Buffer) -> Bytes | None:
    """A buffer's memory as bytes that the host may write; None where it cannot.

    It is the caller's to keep the buffer, and to write when no launch uses the memory.
    """
    return host_window(buffer.device, buffer.memory, buffer.nbytes)


def as_bytes(array: np.ndarray[Any, Any]) -> Bytes:
    """The elements of an array in row-major order, as bytes; a view where they lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
