"""Memory objects: buffers of our own and of others."""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING

from gpu.autogen import opencl as cl

if TYPE_CHECKING:
    from gpu.backends.cl.context import CLContext
    from gpu.backends.cl.images import CLImage
    from gpu.backends.cl.order import Touched
    from gpu.core.dtype import ImageDType

_keys = itertools.count()


class CLMemory:
    """A buffer of OpenCL's.

    Attributes:
        handle: its `cl_mem`.
        argument: a pointer to the handle, as clSetKernelArg takes it.
        address: where the host reads and writes it, None where it cannot.
        key: a number that no other memory of this process ever has.
        borrowed: whether it is someone else's.
        image: what it is where it is no buffer but an image.
        views: images that kernels read this buffer as.
        touched: which commands have used it, on a queue that reorders.
    """

    __slots__ = (
        *("__weakref__", "_holder", "_owner"),
        *("address", "argument", "handle", "image", "key", "touched", "views"),
    )
    borrowed = False

    def __init__(
        self,
        handle: int,
        address: int | None = None,
        owner: object = None,
        image: ImageDType | None = None,
    ):
        """`owner` keeps what lies at `address` alive."""
        self.handle, self.address, self._owner, self.image = handle, address, owner, image
        self._holder = ctypes.c_void_p(handle)
        self.argument = ctypes.addressof(self._holder)
        self.key = next(_keys)
        self.views: dict[ImageDType, CLImage] = {}
        self.touched: Touched | None = None

    @property
    def whole(self) -> CLMemory:
        """The memory that this is a part of: itself, unless it is a view."""
        return self


class SubMemory(CLMemory):
    """A part of a buffer, which it keeps; see `CLAllocator.view`."""

    __slots__ = ("_context", "_whole")

    def __init__(self, context: CLContext, whole: CLMemory, offset: int, nbytes: int):
        """Raises the error of clCreateSubBuffer."""
        self._context, self._whole = context, whole
        region = (ctypes.c_size_t * 2)(offset, nbytes)  # cl_buffer_region: origin, size
        handle = context.api.make(
            *("clCreateSubBuffer", whole.handle, cl.CL_MEM_READ_WRITE),
            *(cl.CL_BUFFER_CREATE_TYPE_REGION, region),
            what=f"make a view of {nbytes:,} bytes at {offset:,}",
        )
        super().__init__(handle, None if whole.address is None else whole.address + offset)

    @property
    def whole(self) -> CLMemory:
        """The buffer."""
        return self._whole

    def __del__(self) -> None:
        # What was enqueued keeps it until that has run (clReleaseMemObject).
        if hasattr(self, "handle") and not self._context.is_lost:
            self._context.api.clReleaseMemObject(self.handle)


class BorrowedMemory(CLMemory):
    """Memory of someone else, given back, with its owner, when nothing refers to it any more.

    Kernels that read it have finished by then.
    """

    __slots__ = ("_context",)
    borrowed = True

    def __init__(
        self,
        context: CLContext,
        handle: int,
        address: int | None = None,
        owner: object = None,
        image: ImageDType | None = None,
    ):
        super().__init__(handle, address, owner, image)
        self._context = context

    def __del__(self) -> None:
        context = self._context
        if not context.is_lost:  # else it reads nothing any more
            # Codes are let go: nobody could be told of an error here.
            context.api.clFinish(context.queue)
            context.api.clReleaseMemObject(self.handle)
