"""A device in use: its context and queue, and the programs built for it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref, c_int32, c_uint64, c_void_p
from hashlib import blake2b
from typing import Any, Final

from gpu.autogen import opencl as cl
from gpu.backends.cl.api import OpenCL, error_of, handles
from gpu.backends.cl.objects import CLMemory
from gpu.backends.cl.order import Event, Order
from gpu.backends.cl.platforms import DeviceInfo
from gpu.core.errors import DeviceError, DeviceLost, GpuError
from gpu.core.lifetime import tell_of_forks
from gpu.runtime.recent import Recent

_DIGEST_BYTES: Final = 16
# Programs just compiled that are kept until they are loaded.
_KEPT_BUILT: Final = 256


class Built:
    """A built program, released when nothing refers to it any more.

    Attributes:
        handle: of it.
    """

    def __init__(self, context: CLContext, handle: int):
        self._context, self.handle = context, handle

    def __del__(self) -> None:
        if not self._context.is_lost:
            self._context.api.clReleaseProgram(self.handle)


class CLContext:
    """An OpenCL context with one device and one queue.

    Attributes:
        api: the library.
        info: the device.
        context: the handle of the context.
        queue: the handle of the queue; its commands are timed.
        order: says which commands wait for which; None where the queue keeps all in order.
        watch: is told of the events of commands, and how many bytes each copies; None if nobody
            wants to know.
    """

    def __init__(self, api: OpenCL, info: DeviceInfo, reorder: bool = False):
        """With `reorder` commands that do not need each other run at once, where the device can.

        Raises what OpenCL says where the device cannot be had.
        """
        self.api, self.info = api, info
        self._lost: str | None = None
        self.watch: Callable[[Event, int], None] | None = None
        self._programs: weakref.WeakValueDictionary[bytes, Built] = weakref.WeakValueDictionary()
        self._compiled: Recent[bytes, Built] = Recent(_KEPT_BUILT)
        self.context = api.make(
            *("clCreateContext", None, 1, handles(info.handle), None, None),
            what=f"make a context for {info.name}",
        )
        reorders = reorder and info.reorders
        mode = cl.CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE if reorders else 0
        self.queue = api.make(
            *("clCreateCommandQueue", self.context, info.handle),
            cl.CL_QUEUE_PROFILING_ENABLE | mode,
            what=f"make a queue for {info.name}",
        )
        self.order = Order(self) if reorders else None
        tell_of_forks(self)

    def finish(self) -> None:
        """Waits until everything that was launched is done. Raises DeviceLost, OutOfMemory."""
        if self._lost is not None:
            self.check(0, "wait for its kernels")
        code = self.api.clFinish(self.queue)
        if code:
            self.check(code, "wait for its kernels")
        if self.order is not None:
            self.order.finished()

    def run(
        self,
        name: str,
        *arguments: Any,
        reads: Sequence[CLMemory] = (),
        writes: Sequence[CLMemory] = (),
        copies: int = 0,
        what: str,
    ) -> None:
        """Calls the function `name`, which enqueues a command on memory; see `Order.run`.

        `copies` is how many bytes it copies. Raises the error of its code.
        """
        function = getattr(self.api, name)
        if self.order is None:
            code = self.enqueue(function, *arguments, copies=copies)
        else:
            code, event = self.order.run(function, arguments, reads, writes)
            if event is not None and self.watch is not None:
                self.watch(event, copies)
        self.check(code, what)

    def enqueue(self, function: Callable[..., int], *arguments: Any, copies: int = 0) -> int:
        """Calls a function that enqueues a command which waits for nothing; gives its code."""
        if self.watch is None:
            return function(*arguments, 0, None, None)
        event = c_void_p()
        code = function(*arguments, 0, None, byref(event))
        if code == 0:
            self.watch(Event(self, event.value or 0), copies)
        return code

    def event_time(self, event: int, key: int) -> int | None:
        """What the profile of a command tells, in nanoseconds; None while it is not done.

        Raises the error of a code.
        """
        nanoseconds = c_uint64()
        code = self.api.clGetEventProfilingInfo(
            event, key, ctypes.sizeof(nanoseconds), byref(nanoseconds), None
        )
        if code == cl.CL_PROFILING_INFO_NOT_AVAILABLE:
            return None
        self.check(code, "tell when a command ran")
        return nanoseconds.value

    def check(self, code: int, what: str) -> None:
        """Raises the error of a call's code; once the device is lost, always DeviceLost."""
        if self._lost is not None:
            raise DeviceLost(self._lost)
        if code:
            error = error_of(code, what)
            if isinstance(error, DeviceLost):
                self._lost = error.message
            raise error

    @property
    def is_lost(self) -> bool:
        """Whether the device cannot be used again in this process."""
        return self._lost is not None

    def lose(self, reason: str) -> None:
        """Makes every later use of the device raise DeviceLost with that reason."""
        self._lost = reason

    def forked(self) -> None:
        """Loses the device: threads that run commands do not exist in a forked child."""
        self.lose(
            f"the OpenCL device {self.info.name} was opened before this process was forked;"
            " open it in the child only (multiprocessing: use the start method spawn)"
        )

    def build(self, program: int, options: str) -> None:
        """Builds a program. Raises GpuError with OpenCL's log where that fails."""
        device = handles(self.info.handle)
        code = self.api.clBuildProgram(program, 1, device, options.encode(), None, None)
        if code == cl.CL_BUILD_PROGRAM_FAILURE:
            raise BuildError(self._build_log(program))
        self.check(code, "build a program")

    def _build_log(self, program: int) -> str:
        key = cl.CL_PROGRAM_BUILD_LOG
        return self.api.text("clGetProgramBuildInfo", program, self.info.handle, key=key)

    def remember(self, lib: bytes, program: int) -> None:
        """Keeps a built program, so that its binary need not be loaded."""
        digest = _digest(lib)
        self._programs[digest] = built = Built(self, program)
        self._compiled.keep(digest, built)

    def program(self, lib: bytes) -> Built:
        """The program of a binary, loaded at most once.

        Raises DeviceError for a binary that the device does not take.
        """
        digest = _digest(lib)
        found = self._programs.get(digest)
        if found is None:
            found = self._programs[digest] = Built(self, self._load(lib))
        return found

    def _load(self, lib: bytes) -> int:
        buffer = ctypes.create_string_buffer(lib, len(lib))
        size, status = (ctypes.c_size_t * 1)(len(lib)), c_int32()
        try:
            program = self.api.make(
                *("clCreateProgramWithBinary", self.context, 1, handles(self.info.handle), size),
                *(handles(ctypes.addressof(buffer)), byref(status)),
                what="load a compiled kernel",
            )
            self.build(program, "")
        except GpuError as error:
            raise DeviceError(
                f"{error.message}: {self.info.name} refuses a binary of {len(lib):,} bytes; if it"
                " comes from the disk cache, empty that (CACHE_DIR)"
            ) from error
        return program


class BuildError(GpuError):
    """A program does not build; the message is OpenCL's log."""


def _digest(lib: bytes) -> bytes:
    return blake2b(lib, digest_size=_DIGEST_BYTES).digest()
