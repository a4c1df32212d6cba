"""Memory of OpenCL devices, and that of others that they use in place."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.autogen import opencl as cl
from gpu.backends.cl import images
from gpu.backends.cl.context import CLContext
from gpu.backends.cl.images import CLImage
from gpu.backends.cl.objects import BorrowedMemory, CLMemory, SubMemory
from gpu.core.arguments import host_bytes
from gpu.core.available import check_memory
from gpu.core.dtype import ImageDType
from gpu.core.errors import InvalidValue, OutOfMemory, Unsupported
from gpu.runtime.allocator import LRUAllocator, popped

__all__ = ["BorrowedMemory", "CLAllocator", "CLMemory"]

_LINE: Final = 64  # bytes: a cache line, and the widest vector register


class CLAllocator(LRUAllocator[CLMemory]):
    """Buffers of one device. On a CPU they lie in host memory, which is used in place."""

    def __init__(self, context: CLContext):
        super().__init__()
        self._context = context
        info = context.info
        self.in_host_memory = info.kind == "CPU" and info.unified
        self._alignment = max(info.alignment, info.image_alignment, _LINE)
        self._kept_images: defaultdict[ImageDType, list[CLImage]] = defaultdict(list)
        # Else the garbage collector would finish an image together with a tensor of a cycle, whose
        # own finalizer has it kept here for the next one.
        self._images: set[CLMemory] = set()

    def _alloc(self, nbytes: int) -> CLMemory:
        size = max(nbytes, 1)
        most = self._context.info.most_memory
        if size > most:
            raise OutOfMemory(
                f"cannot allocate {nbytes:,} bytes: {self._context.info.name} has buffers of at"
                f" most {most:,} bytes (CL_DEVICE_MAX_MEM_ALLOC_SIZE); use smaller tensors"
            )
        if not self.in_host_memory:
            return CLMemory(self._buffer(size, cl.CL_MEM_READ_WRITE, None))
        check_memory(size)
        owner = self._host_memory(size)
        address = -(-owner.ctypes.data // self._alignment) * self._alignment
        flags = cl.CL_MEM_READ_WRITE | cl.CL_MEM_USE_HOST_PTR
        return CLMemory(self._buffer(size, flags, address), address, owner)

    def _host_memory(self, size: int) -> npt.NDArray[np.uint8]:
        try:
            return np.empty(size + self._alignment, np.uint8)
        except (MemoryError, ValueError) as error:  # ValueError: more than numpy can address
            raise OutOfMemory(
                f"cannot allocate {size:,} bytes of host memory ({self.live:,} are in use); "
                "free tensors or use smaller ones"
            ) from error

    def _buffer(self, size: int, flags: int, address: int | None) -> int:
        context = self._context
        what = f"allocate {size:,} bytes on {context.info.name} ({self.live:,} are in use)"
        return context.api.make("clCreateBuffer", context.context, flags, size, address, what=what)

    def _free(self, memory: CLMemory, nbytes: int) -> None:
        context = self._context
        if memory.address is not None:
            context.finish()  # the host memory goes with it
        context.api.check(context.api.clReleaseMemObject(memory.handle), "release a buffer")

    def free(self, memory: CLMemory, nbytes: int) -> None:
        """Keeps `memory` for the next request of `nbytes`, without the images it was read as."""
        memory.views.clear()
        super().free(memory, nbytes)

    def view(self, memory: CLMemory, offset: int, nbytes: int) -> CLMemory:
        """`nbytes` bytes of a buffer from `offset` on, as memory that kernels take: no copy.

        It must not be used any more when the buffer has been freed. Views that overlap are not to
        be written by one kernel and used by another that runs at the same time. Raises InvalidValue
        for an offset that is no multiple of the device's alignment, or a region that is not inside.
        """
        context = self._context
        alignment = context.info.alignment
        if memory.image is not None or isinstance(memory, SubMemory):
            raise InvalidValue(
                "a view is of a buffer, not of an image or of another view; take it of the whole"
            )
        size = context.api.number("clGetMemObjectInfo", memory.handle, key=cl.CL_MEM_SIZE)
        if not (offset >= 0 and 0 < nbytes <= size - offset):
            raise InvalidValue(
                f"{nbytes:,} bytes at {offset:,} are not inside of a buffer of {size:,} bytes"
            )
        if offset % alignment:
            raise InvalidValue(
                f"a view starts at a multiple of {alignment} bytes (CL_DEVICE_MEM_BASE_ADDR_ALIGN"
                f" of {context.info.name}), not at {offset:,}; copy the part, or align it"
            )
        return SubMemory(context, memory, offset, nbytes)

    def alloc_image(self, image: ImageDType) -> CLMemory:
        """An image, perhaps one that was freed. Raises OutOfMemory, Unsupported."""
        nbytes = image.size * image.itemsize
        kept = popped(self._kept_images[image])
        if kept is not None:
            self._cached -= nbytes
        else:
            images.check_image(self._context, image)
        memory = kept or self._fresh(nbytes, lambda: CLImage(self._context, image))
        self._images.add(memory)
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        return memory

    def free_image(self, memory: CLMemory, image: ImageDType) -> None:
        """Keeps the image for the next request of one like it."""
        assert isinstance(memory, CLImage)
        nbytes = image.size * image.itemsize
        self.live -= nbytes
        self._cached += nbytes
        self._kept_images[image].append(memory)

    def free_cache(self) -> None:
        """Gives everything kept back to the device."""
        super().free_cache()
        for image, kept in list(self._kept_images.items()):
            while (unused := popped(kept)) is not None:
                self._images.discard(unused)  # which releases it
                self._cached -= image.size * image.itemsize

    def adopt_image(self, pointer: int, image: ImageDType) -> CLMemory:
        """The image whose `cl_mem` is `pointer`, of this device's context.

        Raises InvalidValue for another one, Unsupported on devices without images.
        """
        images.check_image(self._context, image)
        self._check_context(pointer)
        return images.adopt_image(self._context, pointer, image)

    def host_address(self, memory: CLMemory) -> int | None:
        """Where the memory lies for the host; None on devices with memory of their own."""
        return memory.address

    def copy_in(self, memory: CLMemory, data: memoryview) -> None:
        """Copies bytes to a buffer, after everything launched before."""
        source = np.frombuffer(host_bytes(data, "data"), np.uint8)
        if memory.image is not None:
            images.write_image(self._context, memory, source.ctypes.data)
            return
        if memory.address is not None:
            self._context.finish()
            ctypes.memmove(memory.address, source.ctypes.data, source.size)
            return
        context = self._context
        context.run(
            *("clEnqueueWriteBuffer", context.queue, memory.handle, cl.CL_TRUE),
            *(0, source.size, source.ctypes.data),
            writes=[memory],
            copies=source.size,
            what=f"copy {source.size:,} bytes to {context.info.name}",
        )

    def copy_out(self, data: memoryview, memory: CLMemory) -> None:
        """Copies bytes from a buffer, after everything launched before."""
        target = np.frombuffer(host_bytes(data, "data", writable=True), np.uint8)
        if memory.image is not None:
            images.read_image(self._context, target.ctypes.data, memory)
            return
        if memory.address is not None:
            self._context.finish()
            ctypes.memmove(target.ctypes.data, memory.address, target.size)
            return
        context = self._context
        context.run(
            *("clEnqueueReadBuffer", context.queue, memory.handle, cl.CL_TRUE),
            *(0, target.size, target.ctypes.data),
            reads=[memory],
            copies=target.size,
            what=f"copy {target.size:,} bytes from {context.info.name}",
        )

    def copy(self, target: CLMemory, source: CLMemory, nbytes: int) -> None:
        """Copies between memory, after everything launched before; returns at once."""
        context = self._context
        if target.image or source.image:
            images.copy_image(context, target, source)
            return
        context.run(
            *("clEnqueueCopyBuffer", context.queue, source.handle, target.handle, 0, 0, nbytes),
            reads=[source],
            writes=[target],
            copies=nbytes,
            what=f"copy {nbytes:,} bytes on {context.info.name}",
        )

    def borrow(self, address: int, nbytes: int, owner: object) -> CLMemory | None:
        """Host memory in place, on a CPU; it is not changed by anyone as long as it is used."""
        if not self.in_host_memory:
            return None
        flags = cl.CL_MEM_READ_WRITE | cl.CL_MEM_USE_HOST_PTR
        return BorrowedMemory(self._context, self._buffer(nbytes, flags, address), address, owner)

    def adopt(self, pointer: int, nbytes: int, offset: int = 0) -> CLMemory:
        """The buffer whose `cl_mem` is `pointer`, of this device's context and large enough.

        Raises InvalidValue for another one, Unsupported for an offset.
        """
        if offset:
            raise Unsupported(
                f"offset={offset}: a cl_mem is used from its begin; make one that begins there by"
                " clCreateSubBuffer"
            )
        context, api = self._context, self._context.api
        self._check_context(pointer)
        if api.number("clGetMemObjectInfo", pointer, key=cl.CL_MEM_TYPE) != cl.CL_MEM_OBJECT_BUFFER:
            raise InvalidValue(
                f"the cl_mem {pointer:#x} is no buffer; give an image of two dimensions the dtype"
                " dtypes.imageh((height, width)) or dtypes.imagef((height, width))"
            )
        size = api.number("clGetMemObjectInfo", pointer, key=cl.CL_MEM_SIZE)
        if size < nbytes:
            raise InvalidValue(
                f"the cl_mem {pointer:#x} has {size:,} bytes, and the tensor needs {nbytes:,}"
            )
        api.check(api.clRetainMemObject(pointer), f"retain the cl_mem {pointer:#x}")
        return BorrowedMemory(context, pointer)

    def _check_context(self, pointer: int) -> None:
        """Raises InvalidValue for a `cl_mem` of another context."""
        context, key = self._context, cl.CL_MEM_CONTEXT
        if context.api.number("clGetMemObjectInfo", pointer, key=key) != context.context:
            raise InvalidValue(
                f"the cl_mem {pointer:#x} is of another context; make it in that of this device,"
                f" {context.context:#x} (Device[...].context.context)"
            )
