"""Memory that several processes have: by a handle of 64 bytes, or by a file descriptor.

A handle can be sent anywhere, and is good as long as the process that made it has the memory
("CUDA Driver API", cuIpcGetMemHandle). A file stands for physical memory (cuMemCreate), which each
process maps by itself, and which is there until the last of them lets go. What two processes do
with one memory is in no order but that which they agree on.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from functools import partial
from typing import Final, Self

from gpu.backends.cuda.codes import Result
from gpu.backends.cuda.context import CudaContext
from gpu.backends.cuda.library import IpcHandle, Library, Words
from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue, Unsupported
from gpu.runtime.exchange import MemoryHandle
from gpu.transport.files import boot_id

BLOCK: Final = 2 << 20
"""Bytes that a handle shares at least: smaller allocations may lie in a block with others, which
would be shared too (CUDA C++ Programming Guide, Interprocess Communication)."""
_TOKEN_BYTES: Final = 64
_LAZY_PEER_ACCESS: Final = 1
_DESCRIPTOR: Final = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_GONE: Final = (
    *(Result.INVALID_VALUE, Result.MAP_FAILED, Result.INVALID_HANDLE, Result.INVALID_CONTEXT),
    *(Result.INVALID_DEVICE, Result.NOT_PERMITTED),
)
"""What libcuda may say to a handle that is right but of no memory that is there for us."""


class Sharing:
    """What a context shares with other processes."""

    def __init__(self, context: CudaContext):
        self._context = context

    def export(self, nbytes: int, as_file: bool) -> tuple[int, object, MemoryHandle]:
        """As `Exchange.export`."""
        context = self._context
        with context.lock:
            context.enter()
            context.give_back_ended()
            handle = MemoryHandle(boot_id(), self._uuid(), os.getpid(), nbytes, b"")
            return self._export_file(handle) if as_file else self._export_block(handle)

    def open(self, handle: MemoryHandle) -> tuple[int, object]:
        """As `Exchange.open`."""
        context = self._context
        with context.lock:
            context.enter()
            context.give_back_ended()
            if handle.machine != boot_id():
                raise InvalidValue(
                    f"a handle of {handle.nbytes:,} bytes is of another machine, or of this one"
                    " before it was started again: memory is shared within one; send the values"
                )
            if handle.device != (ours := self._uuid()):
                raise InvalidValue(
                    f"a handle of {handle.nbytes:,} bytes is of the GPU {_name(handle.device)}, and"
                    f" {context.info.name} here is {_name(ours)}: open it on that device"
                )
            return self._open_file(handle) if handle.file >= 0 else self._open_block(handle)

    def _uuid(self) -> bytes:
        words, context = Words(2), self._context
        told = context.library.cuDeviceGetUuid_v2(words.address, context.info.handle)
        context.check(told, "tell the UUID of a GPU")
        return bytes(words.memory)

    def _check(self, code: int, what: str) -> None:
        if code == Result.NOT_SUPPORTED:
            raise Unsupported(
                f"{self._context.info.name} cannot {what}: its driver or system has no such"
                " sharing; try the other of by='handle' and by='file', or send the values"
            )
        self._context.check(code, what)

    # By a handle of 64 bytes.

    def _export_block(self, handle: MemoryHandle) -> tuple[int, object, MemoryHandle]:
        library, words = self._context.library, Words()
        size = align_up(max(handle.nbytes, 1), BLOCK)
        self._check(library.cuMemAlloc_v2(words.address, size), f"allocate {size:,} bytes")
        with Mapped(self._context, words[0], library.cuMemFree_v2) as held:
            token = ctypes.create_string_buffer(_TOKEN_BYTES)
            told = library.cuIpcGetMemHandle(ctypes.addressof(token), words[0])
            self._check(told, "make a handle of memory")
        return words[0], held, handle._replace(token=token.raw)

    def _open_block(self, handle: MemoryHandle) -> tuple[int, object]:
        if len(handle.token) != _TOKEN_BYTES:
            raise InvalidValue(
                f"a handle has {_TOKEN_BYTES} bytes of libcuda's, got {len(handle.token)}"
            )
        if handle.process == os.getpid():
            raise InvalidValue(
                f"a handle of {handle.nbytes:,} bytes is of this process, which has the memory:"
                " use the tensor that it was made of"
            )
        library, words = self._context.library, Words()
        token = IpcHandle.from_buffer_copy(handle.token)
        code = library.cuIpcOpenMemHandle_v2(words.address, token, _LAZY_PEER_ACCESS)
        self._check_there(code, handle)
        with Mapped(self._context, words[0], library.cuIpcCloseMemHandle) as held:
            base, size = Words(), Words()
            told = library.cuMemGetAddressRange_v2(base.address, size.address, words[0])
            self._check(told, "tell how much memory a handle is of")
            if handle.nbytes > (there := base[0] + size[0] - words[0]):
                raise InvalidValue(
                    f"a handle is said to be of {handle.nbytes:,} bytes, and there are {there:,}:"
                    " it was changed on its way"
                )
        return words[0], held

    # By a file.

    def _export_file(self, handle: MemoryHandle) -> tuple[int, object, MemoryHandle]:
        library, words = self._context.library, Words()
        prop = self._properties()
        size = self._granules(handle.nbytes, prop)
        made = library.cuMemCreate(words.address, size, prop.address, 0)
        self._check(made, f"allocate {size:,} bytes that a file stands for")
        physical, file = words[0], Words()
        try:
            address, held = self._map(physical, size)
            with held:
                exported = library.cuMemExportToShareableHandle(
                    file.address, physical, _DESCRIPTOR, 0
                )
                self._check(exported, "make a file of memory")
        finally:
            library.cuMemRelease(physical)  # what is mapped stays
        return address, held, handle._replace(file=memoryview(file.memory).cast("i")[0])

    def _open_file(self, handle: MemoryHandle) -> tuple[int, object]:
        library, words = self._context.library, Words()
        imported = library.cuMemImportFromShareableHandle(words.address, handle.file, _DESCRIPTOR)
        self._check_there(imported, handle)
        physical = words[0]
        try:
            return self._map(physical, self._granules(handle.nbytes, self._properties()))
        finally:
            library.cuMemRelease(physical)

    def _properties(self) -> Words:
        """CUmemAllocationProp: pinned, for file descriptors, on a device, this one."""
        words = Words(4)
        struct.pack_into("<4i", words.memory, 0, 1, _DESCRIPTOR, 1, self._context.info.handle)
        return words

    def _granules(self, nbytes: int, properties: Words) -> int:
        words, library = Words(), self._context.library
        told = library.cuMemGetAllocationGranularity(words.address, properties.address, 0)
        self._check(told, "make memory that a file stands for")
        return align_up(max(nbytes, 1), words[0])

    def _map(self, physical: int, size: int) -> tuple[int, Mapped]:
        """Physical memory at an address, where the GPU may read and write it."""
        library, words = self._context.library, Words()
        reserved = library.cuMemAddressReserve(words.address, size, 0, 0, 0)
        self._check(reserved, f"reserve {size:,} bytes of addresses")
        address = words[0]
        try:
            code = library.cuMemMap(address, size, 0, physical, 0)
            if code == Result.INVALID_VALUE:  # all else is as the reference asks for it
                raise InvalidValue(
                    f"a handle is said to be of {size:,} bytes, and its file is of fewer: it was"
                    " changed on its way"
                )
            self._check(code, f"map {size:,} bytes")
        except BaseException:
            library.cuMemAddressFree(address, size)
            raise
        with Mapped(self._context, address, partial(_unmap, library, size)) as held:
            access = Words(2)
            struct.pack_into("<3i", access.memory, 0, 1, self._context.info.handle, 3)
            allowed = library.cuMemSetAccess(address, size, access.address, 1)
            self._check(allowed, "let the GPU use what was mapped")
        return address, held

    def _check_there(self, code: int, handle: MemoryHandle) -> None:
        if code in _GONE:
            raise InvalidValue(
                f"a handle of {handle.nbytes:,} bytes of the process {handle.process} cannot be"
                f" opened: {self._context.library.error_name(code)}. That process has ended or has"
                " given the memory back; keep what gpu.share() returned there until all have it"
            )
        self._check(code, "open memory of another process")


def _unmap(library: Library, size: int, address: int) -> int:
    code: int = library.cuMemUnmap(address, size) or library.cuMemAddressFree(address, size)
    return code


class Mapped:
    """Memory at an address that is given back when this is dropped, by a function of its own.

    Who uses it keeps this until that is done. The lock of the context is held while it is made, and
    in a block of it, at whose end it stays if that ends well.
    """

    def __init__(self, context: CudaContext, address: int, give_back: Callable[[int], int]):
        self._context, self._address, self._give_back = context, address, give_back
        context.note(self)

    def lose(self) -> None:
        """The context was made anew, and took it."""
        self._address = 0

    def close(self) -> None:
        """The context is about to be given back."""
        if address := self._address:
            self._address = 0
            self._context.check(self._give_back(address), "give shared memory back")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_address", 0) and not self._context.is_lost:
            self._context.retire(self._give_back, self._address, 0)


def _name(uuid: bytes) -> str:
    """As nvidia-smi writes it, all of it."""
    text = uuid.hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
