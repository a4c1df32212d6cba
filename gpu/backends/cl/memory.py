"""Memory of OpenCL devices, and that of others that they use in place."""

from __future__ import annotations

import ctypes
import itertools
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.autogen import opencl as cl
from gpu.backends.cl.context import CLContext
from gpu.core.available import check_memory
from gpu.core.errors import InvalidValue, OutOfMemory
from gpu.runtime.allocator import LRUAllocator

_LINE: Final = 64  # bytes: a cache line, and the widest vector register
_keys = itertools.count()


class CLMemory:
    """A buffer of OpenCL's.

    Attributes:
        handle: its `cl_mem`.
        argument: a pointer to the handle, as clSetKernelArg takes it.
        address: where the host reads and writes it, None where it cannot.
        key: a number that no other memory of this process ever has.
        borrowed: whether it is someone else's.
    """

    __slots__ = ("__weakref__", "_holder", "_owner", "address", "argument", "handle", "key")
    borrowed = False

    def __init__(self, handle: int, address: int | None = None, owner: object = None):
        """`owner` keeps what lies at `address` alive."""
        self.handle, self.address, self._owner = handle, address, owner
        self._holder = ctypes.c_void_p(handle)
        self.argument = ctypes.addressof(self._holder)
        self.key = next(_keys)


class BorrowedMemory(CLMemory):
    """Memory of someone else, given back, with its owner, when nothing refers to it any more.

    Kernels that read it have finished by then.
    """

    __slots__ = ("_context",)
    borrowed = True

    def __init__(self, context: CLContext, handle: int, address: int | None, owner: object):
        super().__init__(handle, address, owner)
        self._context = context

    def __del__(self) -> None:
        context = self._context
        if not context.is_lost:  # else it reads nothing any more
            # Codes are let go: nobody could be told of an error here.
            context.api.clFinish(context.queue)
            context.api.clReleaseMemObject(self.handle)


class CLAllocator(LRUAllocator[CLMemory]):
    """Buffers of one device. On a CPU they lie in host memory, which is used in place."""

    def __init__(self, context: CLContext):
        super().__init__()
        self._context = context
        info = context.info
        self.in_host_memory = info.kind == "CPU" and info.unified
        self._alignment = max(info.alignment, _LINE)

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
                f"cannot allocate {size:,} bytes of host memory ({self.used:,} are in use); "
                "free tensors or use smaller ones"
            ) from error

    def _buffer(self, size: int, flags: int, address: int | None) -> int:
        context = self._context
        what = f"allocate {size:,} bytes on {context.info.name} ({self.used:,} are in use)"
        return context.api.make("clCreateBuffer", context.context, flags, size, address, what=what)

    def _free(self, memory: CLMemory, nbytes: int) -> None:
        context = self._context
        if memory.address is not None:
            context.finish()  # the host memory goes with it
        context.api.check(context.api.clReleaseMemObject(memory.handle), "release a buffer")

    def host_address(self, memory: CLMemory) -> int | None:
        """Where the memory lies for the host; None on devices with memory of their own."""
        return memory.address

    def copy_in(self, memory: CLMemory, data: memoryview) -> None:
        """Copies bytes to a buffer, after everything launched before."""
        source = np.frombuffer(data, np.uint8)
        if memory.address is not None:
            self._context.finish()
            ctypes.memmove(memory.address, source.ctypes.data, source.size)
            return
        context = self._context
        code = context.api.clEnqueueWriteBuffer(
            *(context.queue, memory.handle, cl.CL_TRUE, 0, source.size, source.ctypes.data),
            *(0, None, None),
        )
        context.check(code, f"copy {source.size:,} bytes to {context.info.name}")

    def copy_out(self, data: memoryview, memory: CLMemory) -> None:
        """Copies bytes from a buffer, after everything launched before."""
        target = np.frombuffer(data, np.uint8)
        if memory.address is not None:
            self._context.finish()
            ctypes.memmove(target.ctypes.data, memory.address, target.size)
            return
        context = self._context
        code = context.api.clEnqueueReadBuffer(
            *(context.queue, memory.handle, cl.CL_TRUE, 0, target.size, target.ctypes.data),
            *(0, None, None),
        )
        context.check(code, f"copy {target.size:,} bytes from {context.info.name}")

    def copy(self, target: CLMemory, source: CLMemory, nbytes: int) -> None:
        """Copies between buffers, after everything launched before; returns at once."""
        context = self._context
        code = context.api.clEnqueueCopyBuffer(
            *(context.queue, source.handle, target.handle, 0, 0, nbytes, 0, None, None)
        )
        context.check(code, f"copy {nbytes:,} bytes on {context.info.name}")

    def borrow(self, address: int, nbytes: int, owner: object) -> CLMemory | None:
        """Host memory in place, on a CPU; it is not changed by anyone as long as it is used."""
        if not self.in_host_memory:
            return None
        flags = cl.CL_MEM_READ_WRITE | cl.CL_MEM_USE_HOST_PTR
        return BorrowedMemory(self._context, self._buffer(nbytes, flags, address), address, owner)

    def adopt(self, pointer: int, nbytes: int) -> CLMemory:
        """The buffer whose `cl_mem` is `pointer`, of this device's context and large enough.

        Raises InvalidValue for another one.
        """
        context = self._context
        api, key = context.api, cl.CL_MEM_CONTEXT
        if api.number("clGetMemObjectInfo", pointer, key=key) != context.context:
            raise InvalidValue(
                f"the cl_mem {pointer:#x} is of another context; make it in that of this device,"
                f" {context.context:#x} (Device[...].context.context)"
            )
        size = api.number("clGetMemObjectInfo", pointer, key=cl.CL_MEM_SIZE)
        if size < nbytes:
            raise InvalidValue(
                f"the cl_mem {pointer:#x} has {size:,} bytes, and the tensor needs {nbytes:,}"
            )
        api.check(api.clRetainMemObject(pointer), f"retain the cl_mem {pointer:#x}")
        return BorrowedMemory(context, pointer, None, None)
