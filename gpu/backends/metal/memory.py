"""Memory that the host and the GPU share, and that of others which the GPU uses in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.autogen import metal as mtl
from gpu.backends.cpu.native import read_memory, write_memory
from gpu.backends.metal.context import MetalContext
from gpu.backends.metal.objc import Handle
from gpu.compiler.targets.apple import MAC
from gpu.core.arguments import host_bytes
from gpu.core.available import check_memory
from gpu.core.bits import align_down, align_up
from gpu.core.errors import InvalidType, OutOfMemory
from gpu.runtime.allocator import LRUAllocator

PAGE: Final = 16 << 10
"""Bytes of a page on Apple silicon ("Addressing architectural differences in your macOS code",
Apple)."""
_WORD: Final = 4
"""Bytes of which what is copied is a multiple on macOS, but on Apple silicon
(copyFromBuffer:sourceOffset:... of MTLBlitCommandEncoder, Apple)."""
_SHARED: Final = mtl.MTLResourceStorageModeShared


class MetalMemory:
    """A buffer in the host's memory. Commands that use it keep it until they are done.

    Attributes:
        id: of the MTLBuffer.
        address: where the host has it.
        nbytes: how many it has.
        ticket: of the commands that used it last.
        offset: bytes from the begin of the buffer to it.
        is_borrowed: whether it is someone else's memory.
        is_lent: whether someone else may use it, even when it is not needed here any more.
    """

    __slots__ = (
        *(
            "__weakref__",
            "_handle",
            "_owner",
            "address",
            "id",
            "is_borrowed",
            "is_lent",
            "nbytes",
            "offset",
        ),
        "ticket",
    )

    def __init__(
        self,
        handle: Handle,
        address: int,
        nbytes: int,
        owner: object = None,
        borrowed: bool = False,
        offset: int = 0,
    ):
        """`owner` keeps what lies at `address` alive."""
        self._handle, self._owner = handle, owner
        self.id, self.address, self.nbytes, self.offset = handle.id, address, nbytes, offset
        self.ticket, self.is_borrowed, self.is_lent = 0, borrowed, False


def shared_memory(context: MetalContext, nbytes: int) -> MetalMemory | None:
    """A new buffer of so many bytes; None where there is no room."""
    objc = context.objc
    with context.in_pool():
        made = objc.newBufferWithLength_options_(context.device.id, max(nbytes, 1), _SHARED)
        return MetalMemory(Handle(objc, made), objc.contents(made), nbytes) if made else None


def wrap_pages(
    context: MetalContext, address: int, nbytes: int, owner: object
) -> MetalMemory | None:
    """Host memory, by the whole pages that it is in; None where Metal does not take them.

    They must be of one mapping (newBufferWithBytesNoCopy of MTLDevice.h). A pool is open.
    """
    begin, end = align_down(address, PAGE), align_up(address + nbytes, PAGE)
    if not 0 < begin < end <= begin + context.info.most_memory:
        return None
    objc = context.objc
    made = objc.newBufferWithBytesNoCopy_length_options_deallocator_(
        context.device.id, begin, end - begin, _SHARED, 0
    )
    if not made:
        return None
    handle = Handle(objc, made)
    return MetalMemory(handle, address, nbytes, owner, borrowed=True, offset=address - begin)


class MetalAllocator(LRUAllocator[MetalMemory]):
    """Buffers of one GPU, in shared storage."""

    def __init__(self, context: MetalContext):
        super().__init__()
        self._context = context
        # Else the garbage collector would finish memory together with a tensor of a cycle, whose
        # own finalizer has it kept here for the next one.
        self._held: set[MetalMemory] = set()

    def _alloc(self, nbytes: int) -> MetalMemory:
        context, size = self._context, max(nbytes, 1)
        most = context.info.most_memory
        if size > most:
            raise OutOfMemory(
                f"cannot allocate {nbytes:,} bytes: {context.info.name} has buffers of at most"
                f" {most:,} bytes (maxBufferLength); use smaller tensors"
            )
        check_memory(size)
        made = shared_memory(context, nbytes)
        if made is None:
            raise OutOfMemory(
                f"cannot allocate {nbytes:,} bytes on {context.info.name}: {self.live:,} are in"
                f" use and {self.cached:,} kept; free tensors or use smaller ones"
            )
        self._held.add(made)
        return made

    def _free(self, memory: MetalMemory, nbytes: int) -> None:
        """It goes when nothing refers to it: the last reference is the caller's."""
        self._held.discard(memory)

    def _keep(self, memory: MetalMemory, nbytes: int) -> None:
        """As `LRUAllocator` does; what was lent is not used again."""
        if memory.is_lent:
            self._free(memory, nbytes)
        else:
            super()._keep(memory, nbytes)

    def borrow(self, address: int, nbytes: int, owner: object) -> MetalMemory | None:
        """Host memory that begins with a page, up to the end of its last one; on Apple silicon."""
        # A Mac's GPU of another kind has its own memory, or pages of another size.
        if address % PAGE or self._context.info.family == MAC:
            return None
        with self._context.in_pool():
            return wrap_pages(self._context, address, nbytes, owner)

    def host_address(self, memory: MetalMemory) -> int | None:
        """Where the host has it, whose memory it is."""
        return memory.address

    def copy_in(self, memory: MetalMemory, data: memoryview) -> None:
        """Copies bytes from the host, when what used the memory is done."""
        source = host_bytes(data, "data")
        self._wait_for(memory)
        if source.nbytes:
            write_memory(memory.address, source)

    def copy_out(self, data: memoryview, memory: MetalMemory) -> None:
        """Copies bytes to the host, when what was launched on the memory before is done."""
        target = host_bytes(data, "data", writable=True)
        self._wait_for(memory)
        if target.nbytes:
            read_memory(target, memory.address)

    def copy(self, target: MetalMemory, source: MetalMemory, nbytes: int) -> None:
        """Copies on the GPU, behind what was launched before; returns at once.

        Through the host where a Mac's GPU of another kind would not copy whole words.
        """
        context, both = self._context, (_ours(target), _ours(source))
        if not nbytes:
            return
        if context.info.family == MAC and (target.offset | source.offset | nbytes) % _WORD:
            super().copy(target, source, nbytes)
            return

        def encode(encoder: int) -> None:
            context.objc.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
                encoder, source.id, source.offset, target.id, target.offset, nbytes
            )

        commands = context.run(encode, _COPY, (target, source, nbytes), both, copies=True)
        if target.is_borrowed or source.is_borrowed:
            context.wait_for(commands.ticket)

    def _wait_for(self, memory: MetalMemory) -> None:
        self._context.wait_for(_ours(memory).ticket)


class _Copy:
    """A copy, for errors."""

    def describe(self, arguments: Sequence[object]) -> str:
        """What is copied."""
        return f"a copy of {arguments[2]:,} bytes"


_COPY: Final = _Copy()


def _ours(memory: object) -> MetalMemory:
    if not isinstance(memory, MetalMemory):
        raise InvalidType(
            f"memory of a METAL device is what its allocator gives, got"
            f" {type(memory).__name__} {memory!r}"
        )
    return memory
