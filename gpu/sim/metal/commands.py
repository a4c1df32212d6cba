"""Command queues, command buffers and events.

MTLCommandQueue, MTLCommandBuffer, MTLEvent and MTLSharedEvent (Apple, "Metal"). What Metal's API
validation stops a program for is a `Misuse` here.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from typing import Final

from gpu.sim.metal.base import Gpu, Owned
from gpu.sim.metal.blits import BlitEncoder
from gpu.sim.metal.compute import CONCURRENT, SERIAL, ComputeEncoder
from gpu.sim.metal.encoders import Encoder, Recorder
from gpu.sim.metal.engine import Engine
from gpu.sim.metal.foundation import NSError
from gpu.sim.metal.methods import Misuse, method
from gpu.sim.metal.objc import NSObject
from gpu.sim.metal.work import TIMEOUT, GpuFault, Line, Step
from gpu.sim.races import Knowledge

NOT_ENQUEUED: Final = 0
ENQUEUED: Final = 1
COMMITTED: Final = 2
SCHEDULED: Final = 3
COMPLETED: Final = 4
FAILED: Final = 5
ERROR_DOMAIN: Final = "MTLCommandBufferErrorDomain"
_MOST_BUFFERS: Final = 64


class CommandQueue(Owned):
    """A queue.

    Attributes:
        line: its work.
        most: command buffers that may be there without having ended.
    """

    def __init__(self, device: Gpu, engine: Engine, most: int = _MOST_BUFFERS):
        super().__init__(device, device)
        self.engine = engine
        self.line = device.scheduler.new_line()
        self.most = most
        self.buffers: set[CommandBuffer] = set()

    @method("commandBuffer", "@")
    def command_buffer(self) -> CommandBuffer:
        """A new one, which keeps what it uses."""
        return self._new(True)

    @method("commandBufferWithUnretainedReferences", "@")
    def unretained(self) -> CommandBuffer:
        """A new one, whose resources the program keeps until it has ended."""
        return self._new(False)

    def _new(self, keeps: bool) -> CommandBuffer:
        """Waits where there are too many."""
        if not self.device.scheduler.run_while(lambda: len(self.buffers) >= self.most):
            raise Misuse(
                "too-many-command-buffers",
                f"{self.most} have not ended, and none of them can: this call never returns",
            )
        made = CommandBuffer(self, keeps)
        self.buffers.add(made)
        return made


class CommandBuffer(Recorder):
    """Work that is sent to a queue as one.

    Attributes:
        queue: where it goes; line: the work of that.
        keeps: whether it retains what it uses.
        status: as MTLCommandBufferStatus.
        started: when it began, in seconds, 0 before that.
    """

    def __init__(self, queue: CommandQueue, keeps: bool):
        super().__init__(queue.device, queue)
        self.queue = queue
        self.line = queue.line
        self.keeps = keeps
        self.status = NOT_ENQUEUED
        self.started = 0.0
        self._ended = 0.0
        self._error: NSError | None = None
        self._steps: deque[Step] = deque()
        self._used: list[NSObject] = []
        self._encoder: Encoder | None = None
        self._handlers: list[int] = []
        self._step = 0

    def ending(self) -> None:
        """It lets go what it holds; work that was not committed is dropped."""
        self.queue.buffers.discard(self)
        if self.status < COMMITTED:
            self._let_go()
            if self in self.line.order:
                self.line.order.remove(self)
        if self._error is not None:
            self.runtime.release(self._error)
        super().ending()

    def use(self, thing: NSObject) -> None:
        """It uses an object until it ends."""
        if self.keeps:
            self.runtime.retain(thing)
            self._used.append(thing)

    @property
    def is_pending(self) -> bool:
        """Whether it was committed and has not ended."""
        return self.status == COMMITTED

    def encoder_ended(self, encoder: Encoder) -> None:
        """The encoder that was open is done."""
        self._encoder = None
        self._steps.append(encoder)

    def end(self, fault: GpuFault | None) -> None:
        """All of it has run, or some of it has failed."""
        self._ended = time.perf_counter()
        self.started = self.started or self._ended
        self._step = self.line.step
        self.status = COMPLETED if fault is None else FAILED
        if fault is not None:
            self._error = NSError(self.runtime, ERROR_DOMAIN, fault.code, str(fault))
            self.runtime.retain(self._error)
        self.queue.buffers.discard(self)
        self._let_go()
        for block in self._handlers:
            # A block's function is its third word ("Block Implementation Specification", clang).
            function = ctypes.c_uint64.from_address(block + 16).value
            ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t)(function)(block, self.address)
        self.runtime.release(self)

    def _let_go(self) -> None:
        for thing in self._used:
            self.runtime.release(thing)
        self._used.clear()

    def _encode(self, what: str) -> None:
        """Raises Misuse where nothing can be added to it."""
        if self.status >= COMMITTED:
            raise Misuse("encode-after-commit", f"{what} on {self.told}, which was committed")
        if self._encoder is not None:
            raise Misuse("encoder-open", f"{what} while {self._encoder.told} has not ended")

    def _open(self, encoder: Encoder) -> Encoder:
        self._encoder = encoder
        return encoder

    @method("commandQueue", "@")
    def of_queue(self) -> CommandQueue:
        """The queue that it is of."""
        return self.queue

    @method("retainedReferences", "B")
    def retained_references(self) -> bool:
        """Whether it retains what it uses."""
        return self.keeps

    @method("computeCommandEncoder", "@")
    def compute_encoder(self) -> Encoder:
        """For kernels that run one after the other."""
        self._encode("computeCommandEncoder")
        return self._open(ComputeEncoder(self, SERIAL, self.queue.engine))

    @method("computeCommandEncoderWithDispatchType:", "@", "Q")
    def compute_encoder_of_type(self, kind: int) -> Encoder:
        """For kernels that run one after the other, or (1) at once but for barriers."""
        self._encode("computeCommandEncoderWithDispatchType:")
        if kind not in (SERIAL, CONCURRENT):
            raise Misuse("dispatch-type", f"{kind} is no MTLDispatchType")
        return self._open(ComputeEncoder(self, kind, self.queue.engine))

    @method("blitCommandEncoder", "@")
    def blit_encoder(self) -> Encoder:
        """For copies and fills."""
        self._encode("blitCommandEncoder")
        return self._open(BlitEncoder(self))

    @method("encodeSignalEvent:value:", "v", "Event", "Q")
    def signal(self, event: Event, value: int) -> None:
        """An event gets a value when all before has run."""
        self._encode("encodeSignalEvent:value:")
        self.use(event)
        self._steps.append(Signal(event, value))

    @method("encodeWaitForEvent:value:", "v", "Event", "Q")
    def wait_for(self, event: Event, value: int) -> None:
        """What comes runs when an event has at least a value."""
        self._encode("encodeWaitForEvent:value:")
        self.use(event)
        self._steps.append(Wait(event, value))

    @method("enqueue")
    def enqueue(self) -> None:
        """Takes its place in the queue."""
        if self.status != NOT_ENQUEUED:
            raise Misuse("enqueued-twice", f"{self.told} has its place in the queue")
        self.status = ENQUEUED
        self.line.order.append(self)

    @method("commit")
    def commit(self) -> None:
        """It may run from now on."""
        if self.status >= COMMITTED:
            raise Misuse("committed-twice", f"{self.told} was committed before")
        if self._encoder is not None:
            raise Misuse("encoder-open", f"commit while {self._encoder.told} has not ended")
        if self.status == NOT_ENQUEUED:
            self.line.order.append(self)
        self.status = COMMITTED
        self.runtime.retain(self)  # until it has run
        self.device.scheduler.commit(self.line, self, self._steps)

    @method("addCompletedHandler:", "v", "^")
    def add_completed_handler(self, block: int) -> None:
        """A function runs when it has ended."""
        if self.status >= COMMITTED:
            raise Misuse("handler-after-commit", f"addCompletedHandler: on {self.told}")
        if not block:
            raise Misuse("nil-argument", "addCompletedHandler: of nil")
        self._handlers.append(block)

    @method("waitUntilScheduled")
    def wait_until_scheduled(self) -> None:
        """Waits until it has its place on the GPU."""
        self._check_committed("waitUntilScheduled")

    @method("waitUntilCompleted")
    def wait_until_completed(self) -> None:
        """Waits until it has ended."""
        self._check_committed("waitUntilCompleted")
        scheduler = self.device.scheduler
        if not scheduler.run_while(lambda: self.status < COMPLETED):
            blocked = "; ".join(scheduler.blocked()) or "one before it was not committed"
            if self not in self.line.committed:
                return
            self.runtime.debug.violation(f"endless-wait: {self.told} never ends: {blocked}")
            scheduler.fail(self, GpuFault(TIMEOUT, f"it never ends: {blocked}"))
        self._learn()

    def _check_committed(self, what: str) -> None:
        if self.status < COMMITTED:
            raise Misuse("wait-before-commit", f"{what} of {self.told}: it never returns")

    def _learn(self) -> None:
        """The program knows that it has ended."""
        host = self.device.scheduler.host
        host.add(self.line.knows)
        host.note(self.line.number, self._step)

    @method("status", "Q")
    def get_status(self) -> int:
        """How far it is."""
        if self.status == COMMITTED:
            self.device.scheduler.look()
        if self.status >= COMPLETED:
            self._learn()
        elif self.status == COMMITTED and self.started:
            return SCHEDULED
        return self.status

    @method("error", "@")
    def error(self) -> NSError | None:
        """Why it has failed; nil where it has not."""
        return self._error

    @method("GPUStartTime", "d")
    def gpu_start_time(self) -> float:
        """When the GPU began, in seconds of the host; 0 before it has ended."""
        return self.started if self._ended else 0.0

    @method("GPUEndTime", "d")
    def gpu_end_time(self) -> float:
        """When the GPU ended."""
        return self._ended

    @method("kernelStartTime", "d")
    def kernel_start_time(self) -> float:
        """When the CPU began to prepare it."""
        return self.gpu_start_time()

    @method("kernelEndTime", "d")
    def kernel_end_time(self) -> float:
        """When the CPU had prepared it."""
        return self.gpu_start_time()


class Event(Owned):
    """A number that command buffers set and wait for.

    Attributes:
        value: what it is now.
        knows: what has happened when it became that.
    """

    def __init__(self, device: Gpu):
        super().__init__(device, device)
        self.value = 0
        self.knows = Knowledge()

    def set(self, value: int, knows: Knowledge) -> None:
        """Gives it a value, which is never less than before."""
        if value < self.value:
            self.runtime.debug.violation(
                f"event-backwards: {self.told} gets {value} where it has {self.value}"
            )
        self.value = value
        self.knows.add(knows)


class SharedEvent(Event):
    """One that the program sets and reads too."""

    @method("signaledValue", "Q")
    def signaled_value(self) -> int:
        """What it is now."""
        scheduler = self.device.scheduler
        scheduler.look()
        scheduler.host.add(self.knows)
        return self.value

    @method("setSignaledValue:", "v", "Q")
    def set_signaled_value(self, value: int) -> None:
        """The program gives it a value."""
        self.set(value, self.device.scheduler.host)

    @method("waitUntilSignaledValue:timeoutMS:", "B", "Q", "Q")
    def wait_until(self, value: int, milliseconds: int) -> bool:
        """Waits until it has at least a value; False where the time has gone by."""
        scheduler = self.device.scheduler
        if not scheduler.run_while(lambda: self.value < value):
            return False
        scheduler.host.add(self.knows)
        return True


class Signal:
    """A step that gives an event a value."""

    def __init__(self, event: Event, value: int):
        self._event = event
        self._value = value

    def is_ready(self) -> bool:
        """It waits for nothing."""
        return True

    def run(self, line: Line) -> None:
        """Does it."""
        self._event.set(self._value, line.knows)

    def why(self) -> str:
        """What it waits for: nothing."""
        return f"it signals {self._value}"


class Wait:
    """A step that waits until an event has a value."""

    def __init__(self, event: Event, value: int):
        self._event = event
        self._value = value

    def is_ready(self) -> bool:
        """Whether it has."""
        return self._event.value >= self._value

    def run(self, line: Line) -> None:
        """What was before the value is before what comes."""
        line.knows.add(self._event.knows)

    def why(self) -> str:
        """What it waits for."""
        return f"it waits for {self._value} of an event that has {self._event.value}"


CLASSES = (CommandQueue, CommandBuffer, Event, SharedEvent)
