"""Memory shared with other users of Metal in the process: torch on MPS, MLX.

Theirs is named by the MTLBuffer, an object, and bytes from its begin; or by the address that its
contents have. Which of the two a number is, malloc_size tells, before anything is sent to it:
objects are blocks of malloc's, and what begins with none of the runtime's classes is no object.

Metal knows no streams that libraries name to each other: what made a value has ended before it is
handed over. So do lending, which waits, and every use of memory of others here.
"""

from __future__ import annotations

from array import array
from typing import Final

from gpu.autogen import metal as mtl
from gpu.backends.metal.context import MetalContext
from gpu.backends.metal.memory import MetalMemory, wrap_pages
from gpu.backends.metal.objc import Handle
from gpu.compiler.targets.apple import MAC
from gpu.core.bits import align_down
from gpu.core.errors import InvalidValue, Unsupported
from gpu.runtime.exchange import Exchange

DLPACK_METAL: Final = 8
"""kDLMetal of dlpack.h."""
ALIGNMENT: Final = 16
"""Bytes that one instruction reads or writes at most; where blocks of malloc's begin, too
(malloc(3) of macOS)."""
_SEARCHED: Final = 16 << 10
"""Bytes before an address in which a block of malloc's is looked for that it is in."""
_BUFFER: Final = ("contents", "device", "length", "storageMode")
"""What is sent to a buffer; no other class of Apple's has them all."""
_WAYS: Final = (
    "give from_blob the MTLBuffer (data_ptr() of a tensor of torch's on MPS that is no view) with"
    " offset= for a view of it, or the whole tensor to Tensor.from_dlpack"
)


class MetalExchange(Exchange[MetalMemory]):
    """Memory of one GPU, lent and adopted."""

    alignment = ALIGNMENT
    stream = None

    def __init__(self, context: MetalContext, index: int):
        """`index` is the number of the device, as in METAL:1."""
        self._context = context
        self.device = (DLPACK_METAL, index)

    def lend(self, memory: MetalMemory, stream: int | None, owner: object) -> tuple[int, object]:
        """As of every `Exchange`. The memory is not used again: what others have given their GPU
        to do with it keeps the buffer, and nobody tells when that has ended."""
        del stream
        self._context.wait_for(memory.ticket)
        memory.is_lent = True
        return memory.id, owner

    def offset(self, memory: MetalMemory) -> int:
        """As of every `Exchange`."""
        return memory.offset

    def adopt(
        self, address: int, nbytes: int, owner: object, offset: int = 0
    ) -> tuple[MetalMemory, object]:
        """As of every `Exchange`. Raises Unsupported too, for memory that is the GPU's alone."""
        objc, size = self._context.objc, self._context.objc.malloc_size(address)
        with self._context.in_pool():
            kind = self._class_of(address) if size else 0
            if not kind:
                return self._at(address + offset, nbytes, owner), owner
            selectors = (objc.sel_registerName(name.encode()) for name in _BUFFER)
            if not all(objc.class_respondsToSelector(kind, each) for each in selectors):
                raise InvalidValue(f"the object at {address:#x} is no MTLBuffer: {_WAYS}")
            return self._buffer(address, nbytes, offset), owner

    def home(self, address: int) -> tuple[int, int]:
        """As of every `Exchange`: Metal alone tells of objects, and whose they are."""
        del address
        return self.device

    def follow(self, stream: int | None) -> None:
        """As of every `Exchange`: whoever hands memory over has waited."""

    def _class_of(self, address: int) -> int:
        """The class of an object; 0 for a block of malloc's that is none.

        object_getClass reads what the block begins with, and follows it nowhere.
        """
        objc = self._context.objc
        found: int = objc.object_getClass(address)
        known = array("Q", bytes(8 * objc.objc_getClassList(0, 0)))
        objc.objc_getClassList(known.buffer_info()[0], len(known))
        return found if found in known else 0

    def _buffer(self, address: int, nbytes: int, offset: int) -> MetalMemory:
        """Memory of an MTLBuffer; a pool is open."""
        objc, context = self._context.objc, self._context
        theirs = objc.registryID(objc.device(address))
        if theirs != objc.registryID(context.device.id):
            raise InvalidValue(
                f"the buffer at {address:#x} is of another GPU than {context.info.name}; name that"
            )
        if objc.storageMode(address) != mtl.MTLStorageModeShared:
            raise Unsupported(
                f"the buffer at {address:#x} is not in memory that the host shares; torch's are"
                " from 2.12 on, else make it with MTLResourceStorageModeShared"
            )
        length = objc.length(address)
        if offset + nbytes > length:
            raise InvalidValue(
                f"the buffer at {address:#x} has {length:,} bytes, and {nbytes:,} from {offset:,}"
                " on are needed"
            )
        handle = Handle(objc, objc.objc_retain(address))
        place = objc.contents(address) + offset
        return MetalMemory(handle, place, nbytes, borrowed=True, offset=offset)

    def _at(self, address: int, nbytes: int, owner: object) -> MetalMemory:
        """Memory at an address of the host's; a pool is open."""
        context, what = self._context, f"{nbytes:,} bytes at {address:#x}"
        if context.info.family == MAC:
            raise Unsupported(
                f"{context.info.name} cannot use {what} in place, as its memory or pages may be"
                f" others than the host's; {_WAYS}"
            )
        self._check_block(address, nbytes)
        made = wrap_pages(context, address, nbytes, owner)
        if made is None:
            raise InvalidValue(f"{what} are no memory that Metal can use in place; {_WAYS}")
        return made

    def _check_block(self, address: int, nbytes: int) -> None:
        """Raises InvalidValue for what is in malloc's memory, but in no block that has it all."""
        objc, nearest = self._context.objc, align_down(address, ALIGNMENT)
        for begin in range(nearest, max(nearest - _SEARCHED, 0), -ALIGNMENT):
            size = objc.malloc_size(begin)
            if not size:
                continue
            if address + nbytes > begin + size or self._class_of(begin):
                raise InvalidValue(
                    f"{nbytes:,} bytes at {address:#x} are not memory for data: {begin:#x} begins"
                    f" an object or a block of {size:,} bytes, as when an offset is added to a"
                    f" buffer's object; {_WAYS}"
                )
            return
