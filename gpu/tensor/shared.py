"""Values in memory of a GPU that several processes have, without a copy in any but the first."""

from __future__ import annotations

import contextlib
import math
import os
from typing import Any, Final, Literal, Self

from gpu.compiler.ir.dims import bound
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, to_dtype
from gpu.core.errors import InvalidType, InvalidValue, Unsupported
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device
from gpu.runtime.exchange import MemoryHandle, ProcessExchange
from gpu.tensor.arguments import choice
from gpu.tensor.sharing import exchange_of, tensor_over
from gpu.tensor.strided import Strided, row_major
from gpu.tensor.tensor import Tensor

By = Literal["handle", "file"]
_WAYS: Final = ("handle", "file")


def share(x: Tensor, by: By = "handle") -> SharedTensor:
    """The value of `x` in memory that other processes of the machine can open, on CUDA.

    It is copied there once. By a "handle" memory is there as long as the result here, which is to
    be kept until all others have let go; its pickle can be sent in any way. By a "file" it is there
    until the last process lets go, also after the end of this one; its pickle goes to processes
    that `multiprocessing` started alone.

    Example:
        shared = gpu.share(weights)        # here
        queue.put(shared)
        weights = queue.get().open()       # in another process of the machine

    Raises:
        Unsupported: another device than CUDA, or a driver that cannot share memory.
        InvalidType: `x` is no Tensor.
        InvalidValue: `by` is neither of the two.
        OutOfMemory: there is no room for the copy.
    """
    choice(by, "by", _WAYS)
    if not isinstance(x, Tensor):
        raise InvalidType(f"share takes a Tensor, got {type(x).__name__}")
    exchange = exchange_of(x.device)
    if not isinstance(exchange, ProcessExchange) or not isinstance(x.device, str):
        raise Unsupported(
            f"memory of {x.device} is not shared between processes, that of CUDA is: x.to('CUDA');"
            " or send x itself, whose pickle has its values"
        )
    source, sizes = x._in_memory(True), bound(x.shape)
    address, held, handle = exchange.export(source.nbytes, by == "file")
    made = SharedTensor(handle, sizes, x.dtype)
    made._tensor = x
    if source.nbytes:
        memory, borrowed = exchange.adopt(address, source.nbytes, held)
        buffer = Buffer.over(x.device, math.prod(sizes), x.dtype, memory, borrowed, read_only=True)
        Device[x.device].allocator.copy(memory, source.memory, source.nbytes)
        made._tensor = Tensor._wrap(G.buffer(buffer, sizes, x.dtype, x.device))
        Device[x.device].synchronize()  # nothing else orders what two processes do
    return made


class SharedTensor:
    """A value in memory of a GPU that other processes of the machine can open.

    Attributes:
        handle: what they open it by; libraries such as CuPy take its `token` or `file`.
        shape: of the value, the sizes of its axes.
        dtype: of its elements.
    """

    def __init__(self, handle: MemoryHandle, shape: tuple[int, ...], dtype: DType):
        self.handle, self.shape, self.dtype = handle, shape, dtype
        self._tensor: Tensor | None = None
        self._is_open = True

    def __repr__(self) -> str:
        way = "file" if self.handle.file >= 0 else "handle"
        closed = "" if self._is_open else ", closed"
        return f"SharedTensor({self.dtype.name}, {list(self.shape)}, by {way}{closed})"

    def open(self, device: str | None = None) -> Tensor:
        """A tensor over the memory, on the GPU that has it; as often as it is asked for.

        Writing to the tensor gives it memory of its own.

        Raises:
            InvalidValue: a handle of another machine or GPU, of a process that has ended or given
                the memory back, of more bytes than there are; after `close`.
            Unsupported: `device` is not CUDA's, or its driver cannot share memory.
        """
        if not self._is_open:
            raise InvalidValue(f"{self!r} cannot be opened: it was closed")
        if self._tensor is not None:
            return self._tensor if device is None else self._tensor.to(device)
        name = Device.canonicalize(device)
        if 0 in self.shape:
            return Tensor.zeros(*self.shape, dtype=self.dtype, device=name)
        exchange = exchange_of(name)
        if not isinstance(exchange, ProcessExchange):
            raise Unsupported(
                f"memory of another process is opened on CUDA, got {name}; say device='CUDA'"
            )
        address, held = exchange.open(self.handle)
        memory = Strided(
            *(exchange.device, address, self.shape, row_major(self.shape), self.dtype, held, True)
        )
        return tensor_over(memory, name, copy=False)

    def close(self) -> None:
        """Lets go of the memory: what was opened of it here stays as long as it is used.

        Memory that was shared by a handle ends with what uses it in the process that made it.
        """
        self._tensor, self._is_open = None, False
        if self.handle.file >= 0:
            with contextlib.suppress(OSError):  # closed by someone else
                os.close(self.handle.file)
            self.handle = self.handle._replace(file=-1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        if not self._is_open:
            raise InvalidValue(f"{self!r} cannot be sent: it was closed")
        file = self.handle.file
        sent = DupFd(file) if file >= 0 else None
        return _received, (tuple(self.handle._replace(file=-1)), sent, self.shape, self.dtype.name)


def _received(
    handle: tuple[Any, ...], sent: Any, shape: tuple[int, ...], dtype: str
) -> SharedTensor:
    """What another process has sent."""
    made = MemoryHandle(*handle)
    if sent is not None:
        made = made._replace(file=sent.detach())
    return SharedTensor(made, shape, to_dtype(dtype))
