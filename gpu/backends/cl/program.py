"""Kernels of built programs, and launching them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from ctypes import byref, c_int64, c_void_p
from typing import Final

from gpu.autogen import opencl as cl
from gpu.backends.cl.api import handles
from gpu.backends.cl.compiler import Binary
from gpu.backends.cl.context import CLContext
from gpu.backends.cl.images import image_argument
from gpu.backends.cl.memory import CLAllocator, CLMemory
from gpu.backends.cl.order import Event
from gpu.compiler.render.cstyle.opencl_images import images_of
from gpu.core.errors import InvalidValue
from gpu.runtime.device import LaunchData
from gpu.runtime.program import LaunchSize, Program, check_memory_of, check_values

_DIMENSIONS: Final = 3
_POINTER: Final = ctypes.sizeof(c_void_p)
_VALUE: Final = ctypes.sizeof(c_int64)


class Scratch:
    """Memory that kernels use while they run, shared by all: a queue runs one after another.

    Attributes:
        lock: held from asking for memory until the launch on it is in the queue: another thread
            that needs more gives back what there was.
    """

    def __init__(self, allocator: CLAllocator):
        self._allocator = allocator
        self.lock = threading.RLock()
        self._size = 0
        self._memory: CLMemory | None = None

    def at_least(self, nbytes: int) -> CLMemory:
        """Memory of that many bytes or more. Raises OutOfMemory."""
        if self._memory is None or self._size < nbytes:
            memory = self._allocator.alloc(nbytes)
            if self._memory is not None:
                self._allocator.free(self._memory, self._size)
            self._memory, self._size = memory, nbytes
        return self._memory


class Launcher:
    """A kernel object with its sizes; it remembers the arguments it was given last.

    Kernel objects are not to be used by two threads at once (clSetKernelArg).
    """

    def __init__(self, context: CLContext, program: CLProgram):
        self._context = context
        self._program = program
        self.kernel = context.api.make(
            *("clCreateKernel", program.program.handle, program.symbol.encode()),
            what=f"find the kernel {program.symbol} in its binary",
        )
        self._keys: dict[int, int] = {}

    def __del__(self) -> None:
        # What was enqueued keeps it until that has run (clReleaseKernel).
        if hasattr(self, "kernel") and not self._context.is_lost:
            self._context.api.clReleaseKernel(self.kernel)

    def set_memory(self, position: int, memory: CLMemory) -> None:
        """Passes memory at a position, unless it was passed there before."""
        if self._keys.get(position) == memory.key:
            return
        code = self._context.api.clSetKernelArg(self.kernel, position, _POINTER, memory.argument)
        if code:
            self._context.check(code, f"pass argument {position} to {self._program.name}")
        self._keys[position] = memory.key

    def set_value(self, position: int, value: int) -> None:
        """Passes an integer at a position."""
        holder = c_int64(value)
        code = self._context.api.clSetKernelArg(self.kernel, position, _VALUE, byref(holder))
        self._context.check(code, f"pass argument {position} to {self._program.name}")

    def enqueue(self) -> None:
        """Launches the kernel."""
        program, context = self._program, self._context
        if context.is_lost:
            context.check(0, f"launch {program.name}")
        code = context.enqueue(
            *(context.api.clEnqueueNDRangeKernel, context.queue, self.kernel, _DIMENSIONS, None),
            *(program.items, program.group),
        )
        if code:
            context.check(code, f"launch {program.name}")

    def enqueue_timed(self) -> Event:
        """Launches the kernel; gives its event."""
        program, context, event = self._program, self._context, c_void_p()
        code = context.api.clEnqueueNDRangeKernel(
            *(context.queue, self.kernel, _DIMENSIONS, None, program.items, program.group),
            *(0, None, byref(event)),
        )
        context.check(code, f"launch {program.name}")
        return Event(context, event.value or 0)

    def enqueue_after(self, reads: Sequence[CLMemory], writes: Sequence[CLMemory]) -> None:
        """Launches the kernel after those that it needs, on a queue that reorders."""
        program, context = self._program, self._context
        context.run(
            *("clEnqueueNDRangeKernel", context.queue, self.kernel, _DIMENSIONS, None),
            *(program.items, program.group),
            reads=reads,
            writes=writes,
            what=f"launch {program.name}",
        )


class CLProgram(Program):
    """A loaded kernel.

    Attributes:
        name: of the kernel.
        context: of its device.
        symbol: what its program calls it.
        program: that program.
        items, group: work items of a launch and of a group in each dimension.
    """

    weight = 16

    def __init__(
        self, context: CLContext, scratch: Scratch, name: str, lib: bytes, data: LaunchData
    ):
        """Raises DeviceError for a binary that the device does not take or without that kernel."""
        self.name = name
        binary = Binary.unpack(lib)
        self.program, self.symbol = context.program(binary.program), binary.symbol(name)
        sizes = ctypes.c_size_t * _DIMENSIONS
        self.items = sizes(*(data[f"items{i}"] for i in range(_DIMENSIONS)))
        self.group = sizes(*(data[f"group{i}"] for i in range(_DIMENSIONS)))
        self._images = images_of(data)
        # The scratch memory, which is passed after the parameters, is written as well.
        self._written = data["written"] | -1 << data["parameters"]
        self.context, self._scratch, self._scratch_bytes = context, scratch, data["scratch"]
        self._launcher = self.launcher()
        self._lock = threading.Lock()

    @property
    def launch_size(self) -> LaunchSize:
        """As `Program.launch_size`."""
        block = tuple(self.group)
        groups = zip(self.items, block, strict=True)
        return LaunchSize(tuple(items // group for items, group in groups), block)

    def launcher(self) -> Launcher:
        """A kernel object of its own."""
        return Launcher(self.context, self)

    def __call__(
        self, *bufs: CLMemory, vals: Sequence[int] = (), wait: bool = False
    ) -> float | None:
        """Launches the kernel; returns at once, unless memory is borrowed.

        With `wait` it returns the seconds that the device took, when it has finished. Raises
        DeviceLost, OutOfMemory, DeviceError, InvalidType, InvalidValue.
        """
        check_memory_of(self.name, bufs, CLMemory)
        vals = check_values(self.name, vals)
        with self._lock:
            if wait:
                with self._scratch.lock:
                    self.pass_arguments(self._launcher, bufs, vals)
                    return self._timed()
            self.launch(self._launcher, bufs, vals)
        for memory in bufs:
            if memory.borrowed:  # its owner may change it as soon as this is computed
                self.context.finish()
                break
        return None

    def launch(self, launcher: Launcher, bufs: Sequence[CLMemory], vals: Sequence[int]) -> None:
        """Passes the arguments and launches."""
        if not self._scratch_bytes:
            self._launch(launcher, bufs, vals)
            return
        with self._scratch.lock:
            self._launch(launcher, bufs, vals)

    def _launch(self, launcher: Launcher, bufs: Sequence[CLMemory], vals: Sequence[int]) -> None:
        passed = self.pass_arguments(launcher, bufs, vals)
        if self.context.order is None:
            launcher.enqueue()
            return
        written = self._written
        reads = [memory for i, memory in enumerate(passed) if not written >> i & 1]
        writes = [memory for i, memory in enumerate(passed) if written >> i & 1]
        launcher.enqueue_after([*reads, *(bufs[i] for i in self._images)], writes)

    def pass_arguments(
        self, launcher: Launcher, bufs: Sequence[CLMemory], vals: Sequence[int]
    ) -> Sequence[CLMemory]:
        """Passes the arguments of a launch: memory, scratch memory, values; returns the memory."""
        passed = self._with_images(bufs) if self._images else bufs
        if self._scratch_bytes:
            passed = [*passed, self._scratch.at_least(self._scratch_bytes)]
        position = 0
        for memory in passed:
            launcher.set_memory(position, memory)
            position += 1
        for value in vals:
            launcher.set_value(position, value)
            position += 1
        return passed

    def _with_images(self, bufs: Sequence[CLMemory]) -> list[CLMemory]:
        """The memory of a launch, as the images that the kernel takes."""
        found = list(bufs)
        for position, image in self._images.items():
            found[position] = image_argument(self.context, found[position], image)
        return found

    def _timed(self) -> float:
        context = self.context
        if context.order is not None:
            context.finish()
        event = self._launcher.enqueue_timed()
        waited = context.api.clWaitForEvents(1, handles(event.handle))
        context.check(waited, f"run {self.name}")
        start, end = (
            context.event_time(event.handle, key) or 0
            for key in (cl.CL_PROFILING_COMMAND_START, cl.CL_PROFILING_COMMAND_END)
        )
        return (end - start) * 1e-9


class CLGraph:
    """Launches that are always run together, in order.

    Each has a kernel object of its own, so that arguments that stay the same are passed once.
    """

    def __init__(
        self,
        launches: Sequence[tuple[CLProgram, tuple[int, ...], tuple[int, ...]]],
        slots: int,
    ):
        """`launches` are programs with the slots they run on, of which there are `slots`, and with
        which of the values they take. Raises InvalidValue for a slot that there is not.
        """
        if any(slot >= slots for _, used, _ in launches for slot in used):
            raise InvalidValue(f"a graph of {slots} slots has a launch on one beyond them")
        self._launches = [
            (program, program.launcher(), used, vals) for program, used, vals in launches
        ]
        self._context = launches[0][0].context
        self._lock = threading.Lock()

    def __call__(self, memories: Sequence[CLMemory], vals: Sequence[int] = ()) -> None:
        """Runs all launches on the memories, one for each slot."""
        with self._lock:
            for program, launcher, used, taken in self._launches:
                program.launch(
                    launcher, [memories[slot] for slot in used], [vals[i] for i in taken]
                )
        if any(memory.borrowed for memory in memories):
            self._context.finish()
