"""Memory objects: buffers of our own and of others."""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING

from gpu.backends.cl.context import CLContext

if TYPE_CHECKING:
    from gpu.backends.cl.images import CLImage
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
    """

    __slots__ = (
        *("__weakref__", "_holder", "_owner"),
        *("address", "argument", "handle", "image", "key", "views"),
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
