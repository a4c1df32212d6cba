"""Memory shared with other users of the primary context: torch, CuPy, JAX, numba.

Streams are named as in the Array API's `__dlpack__`: 1 is the legacy default stream, 2 that of the
thread, -1 one that is not told, and all else a CUstream.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

from gpu.backends.cuda import codes
from gpu.backends.cuda.codes import PointerAttribute, Result
from gpu.backends.cuda.context import CudaContext
from gpu.backends.cuda.library import Words
from gpu.backends.cuda.memory import UNTOLD, CudaMemory
from gpu.backends.cuda.share import Sharing
from gpu.backends.cuda.streams import Event
from gpu.core.errors import InvalidValue
from gpu.core.interrupts import put_off
from gpu.runtime.exchange import MemoryHandle, ProcessExchange

DLPACK_CUDA: Final = 2
"""kDLCUDA of dlpack.h."""
_PER_THREAD: Final = 2
ALIGNMENT: Final = 16
"""Bytes that one instruction reads or writes at most, whose address is a multiple of as many."""
_UNTRACKED: Final = (None, UNTOLD, _PER_THREAD)
"""Streams of which nobody can tell later what is in them: 2 is another one in another thread."""
_ASKED: Final = (
    PointerAttribute.CONTEXT,
    PointerAttribute.MEMORY_TYPE,
    PointerAttribute.DEVICE_ORDINAL,
    PointerAttribute.RANGE_START,
    PointerAttribute.RANGE_SIZE,
)
_DEVICE_MEMORY, _HOST_MEMORY = 2, 1  # CUmemorytype


class CudaExchange(ProcessExchange[CudaMemory]):
    """Memory of one GPU, lent and adopted."""

    alignment = ALIGNMENT

    def __init__(self, context: CudaContext):
        self._context = context
        self.device = (DLPACK_CUDA, context.info.handle)
        self._sharing = Sharing(context)

    @property
    def stream(self) -> int:
        """The stream of launches."""
        with self._context.lock:
            self._context.enter()
            return self._context.streams.launches

    def lend(self, memory: CudaMemory, stream: int | None, owner: object) -> tuple[int, object]:
        """As of every `Exchange`."""
        context = self._context
        if stream is None:
            context.synchronize()
        with context.lock:
            context.enter()
            address = memory.place()
            if stream not in (None, UNTOLD):
                self._check_stream(stream, context.streams.let_follow(stream))
            if stream in _UNTRACKED:
                memory.users[UNTOLD] = None
                return address, owner
            if stream not in memory.users:
                with put_off():
                    memory.users[stream] = Event(context.library, context.check)
            return address, _Lent(context, memory.users, stream, owner)

    def adopt(
        self, address: int, nbytes: int, owner: object, offset: int = 0
    ) -> tuple[CudaMemory, object]:
        """As of every `Exchange`."""
        context, address = self._context, address + offset
        with context.lock:
            context.enter()
            context.give_back_ended()
            self._check(address, nbytes)
            memory = AdoptedMemory(context, address, nbytes)
        return memory, _Borrowed(context, memory, owner)

    def home(self, address: int) -> tuple[int, int]:
        """As of every `Exchange`."""
        with self._context.lock:
            self._context.enter()
            return DLPACK_CUDA, self._told(address)[PointerAttribute.DEVICE_ORDINAL]

    def follow(self, stream: int | None) -> None:
        """As of every `Exchange`."""
        context = self._context
        if stream in (None, UNTOLD):
            context.synchronize_all()
            return
        assert stream is not None
        with context.lock:
            context.enter()
            self._check_stream(stream, context.streams.follow(stream))

    def export(self, nbytes: int, as_file: bool) -> tuple[int, object, MemoryHandle]:
        """As of every `Exchange`."""
        made: list[tuple[int, object, MemoryHandle]] = []
        try:
            with put_off():  # half of it would stay
                made.append(self._sharing.export(nbytes, as_file))
            return made[0]
        except KeyboardInterrupt:
            for *_, handle in made:
                if handle.file >= 0:
                    os.close(handle.file)
            raise

    def open(self, handle: MemoryHandle) -> tuple[int, object]:
        """As of every `Exchange`."""
        with put_off():
            return self._sharing.open(handle)

    def _check_stream(self, stream: int, code: int) -> None:
        if code == Result.INVALID_HANDLE:
            raise InvalidValue(
                f"{stream:#x} is no stream of the primary context of {self._context.info.name}:"
                " give one that is there, and not one that was destroyed"
            )
        self._context.check(code, f"let work of the stream {stream:#x} and ours wait")

    def _check(self, address: int, nbytes: int) -> None:
        """Raises InvalidValue where the bytes are not all memory of this GPU and context."""
        told, info = self._told(address), self._context.info
        what = self._unusable(address)
        if (other := told[PointerAttribute.DEVICE_ORDINAL]) != info.handle:
            raise InvalidValue(f"{what}: it is memory of CUDA:{other}; name that device")
        if told[PointerAttribute.CONTEXT] not in (0, self._context.handle):  # 0: of no one context
            raise InvalidValue(
                f"{what}: it is of another context than the primary one of the GPU; allocate it"
                " in that, as the CUDA runtime does"
            )
        left = told[PointerAttribute.RANGE_START] + told[PointerAttribute.RANGE_SIZE] - address
        if nbytes > left:
            raise InvalidValue(f"{what}: {nbytes:,} bytes are needed there, and it has {left:,}")

    def _unusable(self, address: int) -> str:
        info = self._context.info
        return f"{address:#x} cannot be used on {info.name} (CUDA:{info.handle})"

    def _told(self, address: int) -> dict[PointerAttribute, int]:
        """What libcuda knows. Raises InvalidValue where that is no memory of a GPU."""
        count = len(_ASKED)
        asked, values = ctypes.create_string_buffer(struct.pack(f"{count}i", *_ASKED)), Words(count)
        places = Words.of(*(values.address + 8 * i for i in range(count)))
        code = self._context.library.cuPointerGetAttributes(
            count, ctypes.addressof(asked), places.address, address
        )
        self._context.check(code, f"tell what {address:#x} is")
        told = dict(zip(_ASKED, values.values, strict=True))
        kind, what = told[PointerAttribute.MEMORY_TYPE], self._unusable(address)
        if kind == _HOST_MEMORY:
            raise InvalidValue(f"{what}: it is pinned memory of the host; copy it to the GPU")
        if kind != _DEVICE_MEMORY:
            raise InvalidValue(
                f"{what}: CUDA knows no memory there. It is of the host, or was freed; give the"
                " address of memory of the GPU that is kept alive"
            )
        return told


class AdoptedMemory(CudaMemory):
    """Memory of someone else, whom `_Borrowed` keeps; it frees nothing.

    The lock of the context is held while it is made.
    """

    __slots__ = ()
    is_borrowed = True

    def __init__(self, context: CudaContext, address: int, nbytes: int):
        self._hold(context, address, nbytes)
        # What the launches wait for now, copies to the host wait for too.
        self.ticket = context.streams.next_ticket()

    def close(self) -> None:
        """Nothing is its own."""
        self.address = None


class _Borrowed:
    """Held while memory of someone else is used here; its owner is let go when nothing runs on it.

    The memory itself does not keep the owner: launches and graphs remember memory for longer.
    """

    def __init__(self, context: CudaContext, memory: AdoptedMemory, owner: object):
        self._context, self._memory, self._owner = context, memory, owner

    def __del__(self) -> None:
        memory = self._memory
        if memory.address is not None and memory.last_use() > self._context.streams.finished:
            self._context.retire(_Keeper(self._owner), 0, memory.last_use())


class _Keeper:
    """Holds an object until it is called, as `CudaContext.retire` calls what gives things back."""

    __slots__ = ("_owner",)

    def __init__(self, owner: object):
        self._owner = owner

    def __call__(self, _: int) -> int:
        self._owner = None
        return codes.SUCCESS


class _Lent:
    """Held while a library uses memory of ours in a stream; when it is dropped they are done.

    What they have enqueued by then still runs, and the memory's event is recorded behind it. That
    may be at any moment of any thread, so it takes no lock, and leaves the thread's context as it
    is. What fails here is found again where all of the context is waited for instead.
    """

    def __init__(
        self, context: CudaContext, users: dict[int, Event | None], stream: int, owner: object
    ):
        self._context, self._handle = context, context.handle
        self._users, self._stream, self._owner = users, stream, owner

    def __del__(self) -> None:
        context = self._context
        if context.is_lost or context.handle != self._handle:
            return
        event = self._users.get(self._stream)  # none where a reset took the memory
        if event is None or not self._recorded(event.handle):
            self._users[UNTOLD] = None

    def _recorded(self, event: int) -> bool:
        library, popped = self._context.library, Words()
        if library.cuCtxPushCurrent_v2(self._handle):
            return False
        code: int = library.cuEventRecord(event, self._stream)
        return not library.cuCtxPopCurrent_v2(popped.address) and not code
