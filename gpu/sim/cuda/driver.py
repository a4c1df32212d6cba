"""The driver in a process: what it knows, and what each call goes through."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from gpu.core.log import get_logger
from gpu.sim.cuda.codes import (
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_HANDLE,
    NOT_INITIALIZED,
    NOT_PERMITTED,
    SUCCESS,
    UNKNOWN,
    CudaError,
)
from gpu.sim.cuda.context import Allocation, Context, Device
from gpu.sim.cuda.entry import Export
from gpu.sim.cuda.handles import Handles
from gpu.sim.cuda.memory import AddressSpace
from gpu.sim.cuda.work import Op, Stream, Work
from gpu.sim.nv.chip.chips import Chip
from gpu.sim.simulation import Simulation
from gpu.sim.undisturbed import Whole

_log = get_logger(__name__)
LEGACY: Final = 1  # CU_STREAM_LEGACY
PER_THREAD: Final = 2  # CU_STREAM_PER_THREAD


class _Thread(threading.local):
    """What is a thread's own.

    Attributes:
        contexts: its stack; the last is current.
        in_callback: whether it runs a function for a stream.
    """

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        self.in_callback = False


class Driver:
    """One loaded libcuda.

    Attributes:
        simulation: time, chance and what was noticed.
        version: of CUDA, as cuDriverGetVersion gives it.
        recovers: whether a device works again after a fault and a reset of its primary context.
        memory, work, handles, devices: what there is.
        names: for functions that give text, which stays.
    """

    def __init__(self, chips: Sequence[Chip], seed: int, version: int, recovers: bool):
        self.simulation = Simulation(seed)
        self.version = version
        self.recovers = recovers
        self.rng = self.simulation.rng
        self.memory = AddressSpace(self.rng)
        self.work = Work(self.simulation)
        self.handles = Handles(self.simulation.debug.violation)
        self.devices = [Device(chip, index) for index, chip in enumerate(chips)]
        self.thread = _Thread()
        self.lock = threading.RLock()
        self.whole = Whole(__name__)
        self.functions: dict[str, int] = {}
        self.texts: dict[str, Any] = {}
        self.contexts = 0
        self.modules = 0
        self._process = 0

    def initialise(self) -> None:
        """The program's first call. Raises CudaError in a child of a process that had made it."""
        if self._process not in (0, os.getpid()):
            raise CudaError(NOT_INITIALIZED, "this process was forked from one that uses CUDA")
        self._process = os.getpid()

    def bind(self, export: Export, per_thread: bool) -> Callable[..., int]:
        """What answers the calls of a function, of its arguments; gives their results."""

        def call(*arguments: int) -> int:
            try:
                return self.enter(export, per_thread, arguments)
            except BaseException:  # of a handler of SIGINT, between the last steps of a call
                self.whole.send()
                return UNKNOWN

        return call

    def enter(self, export: Export, per_thread: bool, arguments: tuple[int, ...]) -> int:
        """A call from outside; gives its result."""
        with self.lock, self.whole:
            try:
                export.body(self._call(export, per_thread), *arguments)
            except CudaError as error:
                self.simulation.debug.note(f"{export.symbol}: {error}")
                _log.debug("%s: %s", export.symbol, error)
                return error.code
            except Exception:
                text = f"{export.symbol}: the model itself failed\n{traceback.format_exc()}"
                self.simulation.debug.violation(text)
                _log.exception("%s: the model itself failed", export.symbol)
                return UNKNOWN
        return SUCCESS

    def _call(self, export: Export, per_thread: bool) -> Call:
        call = Call(self, per_thread)
        if export.needs == "nothing":
            return call
        if self._process != os.getpid():
            why = "this process was forked" if self._process else "cuInit has not been called"
            raise CudaError(NOT_INITIALIZED, why)
        if self.thread.in_callback:
            raise CudaError(NOT_PERMITTED, "a function that runs in a stream makes no calls")
        if export.needs == "context":
            call.context.check()
        return call

    def device(self, ordinal: int) -> Device:
        """The device of a number. Raises CudaError."""
        if not 0 <= ordinal < len(self.devices):
            raise CudaError(INVALID_DEVICE, f"device {ordinal} of {len(self.devices)}")
        return self.devices[ordinal]

    def context(self, handle: int) -> Context:
        """The context of a handle. Raises CudaError."""
        return self.handles.get(handle, Context, INVALID_CONTEXT)

    def all_contexts(self) -> Iterable[Context]:
        """All contexts that have not ended."""
        return self.handles.of(Context)

    def new_context(self, device: Device, flags: int, is_primary: bool) -> Context:
        """Makes a context. Raises CudaError where the device does not work any more."""
        if device.lost:
            raise CudaError(device.lost, "a fault before; restart the process")
        self.contexts += 1
        made = Context(device, self.contexts, flags, is_primary)
        made.handle = self.handles.new(made)
        device.used += device.reserved
        return made

    def destroy(self, context: Context) -> None:
        """Ends a context with all that is in it. What it has queued does not run any more."""
        device = context.device
        if context.error:
            device.lost = 0 if self.recovers else context.error
        self.work.abandon(context)
        for allocation in tuple(context.allocations):
            self.free(allocation)
        for handle in sorted(context.owned):
            self.handles.drop(handle)
        context.owned.clear()
        for other in context.peers:
            other.watchers.discard(context)
        for other in context.watchers:
            other.peers.discard(context)
        device.used -= device.reserved
        context.alive = False
        self.handles.drop(context.handle)

    def keep(self, context: Context, allocation: Allocation) -> Allocation:
        """New memory belongs to a context until it is freed."""
        context.allocations.add(allocation)
        if allocation.kind == "device":
            context.device.used += allocation.size
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Memory goes back."""
        if self.memory.is_overrun(allocation):
            what = f"{allocation.size} bytes at {allocation.start:#x}"
            self.simulation.debug.violation(f"a kernel has written behind the end of {what}")
        allocation.context.allocations.discard(allocation)
        if allocation.kind == "device":
            allocation.context.device.used -= allocation.size
        self.memory.free(allocation)

    def own(self, context: Context, thing: object) -> int:
        """The handle of a new object that ends with its context."""
        handle = self.handles.new(thing)
        context.owned.add(handle)
        return handle

    def disown(self, context: Context, handle: int) -> None:
        """An object ends before its context."""
        context.owned.discard(handle)
        self.handles.drop(handle)


class Call:
    """One call of a thread.

    Attributes:
        driver: what it is made of.
        per_thread: whether the default stream is the thread's own.
    """

    def __init__(self, driver: Driver, per_thread: bool):
        self.driver = driver
        self.per_thread = per_thread

    @property
    def context(self) -> Context:
        """The thread's current context. Raises CudaError where it has none, or one that ended."""
        stack = self.driver.thread.contexts
        if not stack:
            raise CudaError(INVALID_CONTEXT, "the thread has no current context")
        if not stack[-1].alive:
            raise CudaError(INVALID_CONTEXT, "the thread's current context was destroyed")
        return stack[-1]

    @property
    def debug(self) -> Any:
        """Where what was noticed goes."""
        return self.driver.simulation.debug

    def stream(self, handle: int) -> Stream:
        """The stream of a handle; of 0, 1 and 2 a default one. Raises CudaError."""
        context = self.context
        if handle == LEGACY or (not handle and not self.per_thread):
            return context.legacy
        if handle in (0, PER_THREAD):
            thread = threading.get_ident()
            found = context.per_thread.get(thread)
            if found is None:
                found = Stream(context, "per-thread", f"the default stream of thread {thread}")
                context.per_thread[thread] = found
            return found
        return self.driver.handles.get(handle, Stream)

    def own_stream(self, handle: int) -> Stream:
        """A stream of the current context. Raises CudaError for one of another."""
        stream = self.stream(handle)
        if stream.space is not self.context:
            raise CudaError(INVALID_HANDLE, f"{stream.name} is of another context")
        return stream

    def wait(self, ops: Iterable[Op | None]) -> None:
        """Waits for work. Raises CudaError where any of the context has failed."""
        self.driver.work.wait(ops)
        self.context.check()

    def synchronize(self) -> None:
        """Waits for all work of the context. Raises CudaError where some has failed."""
        self.wait([stream.tail for stream in self.context.streams])
