"""A GPU in use: its command queue, and the command buffers that are perhaps not done.

Each launch, replay and copy is a command buffer. Those of a queue run in the order in which they
were committed, where they touch the same buffers (Metal tracks those). Committed ones have numbers,
tickets; memory remembers that of the last which used it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gpu.autogen import metal as mtl
from gpu.backends.metal.codes import command_error
from gpu.backends.metal.objc import Handle, ObjC, Pool
from gpu.core.errors import DeviceError, DeviceLost
from gpu.core.interrupts import put_off
from gpu.core.lifetime import close_at_exit, tell_of_forks
from gpu.core.log import get_logger
from gpu.runtime.origins import line_of, users_place

if TYPE_CHECKING:
    from types import CodeType

log = get_logger(__name__)

MOST_RUNNING: Final = 48
"""Command buffers that are not done: a queue has 64 and makes whoever wants more wait
(newCommandQueue of MTLDevice.h)."""


class GpuInfo(NamedTuple):
    """A GPU, as Metal tells of it.

    Attributes:
        name: of it.
        family: the name of the newest known family that it supports.
        memory: bytes that a process should use at most, for it to be fast.
        most_memory: bytes of the largest buffer.
    """

    name: str
    family: str
    memory: int
    most_memory: int


class Used(Protocol):
    """What commands use.

    Attributes:
        ticket: of those that used it last.
    """

    ticket: int


class Describes(Protocol):
    """What can be committed, in words."""

    def describe(self, arguments: Sequence[object]) -> str:
        """What a launch of it with these arguments is."""


class Commands:
    """A command buffer with all there is to know of it.

    Attributes:
        ticket: its number.
        handle: it.
    """

    __slots__ = ("_arguments", "_place", "_what", "handle", "ticket")

    def __init__(
        self,
        ticket: int,
        handle: Handle,
        what: Describes,
        arguments: Sequence[object],
        place: tuple[CodeType, int] | None,
    ):
        self.ticket, self.handle = ticket, handle
        self._what, self._arguments, self._place = what, arguments, place

    def __str__(self) -> str:
        told = self._what.describe(self._arguments)
        site = line_of(self._place) if self._place else None
        return f"{told}, launched at {site}" if site else told


class MetalContext:
    """One GPU with one command queue.

    Attributes:
        objc: the runtime of Objective-C.
        info: the GPU.
        device: its MTLDevice.
        lock: held by who encodes commands.
        finished: all commands up to this ticket are done.
    """

    def __init__(self, objc: ObjC, device: Handle, info: GpuInfo):
        """Raises DeviceError where the GPU gives no queue."""
        self.objc, self.device, self.info = objc, device, info
        self.lock = threading.RLock()
        self.finished = 0
        self._tickets = count(1)
        self._running: deque[Commands] = deque()
        self._lost: str | None = None
        queue = objc.newCommandQueue(device.id)
        if not queue:
            raise DeviceError(f"{info.name} gives no command queue")
        self._queue = Handle(objc, queue)
        tell_of_forks(self)
        close_at_exit(self)

    def run(
        self,
        encode: Callable[[int], None],
        what: Describes,
        arguments: Sequence[object],
        touched: Sequence[Used],
        copies: bool = False,
    ) -> Commands:
        """Commits what `encode` puts into an encoder, of copies or of kernels; returns at once.

        `what` and `arguments` are for errors; `touched` is what is used. Raises
        DeviceLost, DeviceError, what `encode` does, and errors of commands that are long done.
        """
        with self.lock, self.in_pool():
            if len(self._running) >= MOST_RUNNING:
                self._finish(self._running[0])
            # An encoder that nobody knows cannot be ended.
            with put_off():
                return self._run(encode, what, arguments, touched, copies)

    def _run(
        self,
        encode: Callable[[int], None],
        what: Describes,
        arguments: Sequence[object],
        touched: Sequence[Used],
        copies: bool,
    ) -> Commands:
        objc = self.objc
        buffer = objc.commandBuffer(self._queue.id)
        begin = objc.blitCommandEncoder if copies else objc.computeCommandEncoder
        encoder = begin(buffer) if buffer else 0
        if not encoder:
            raise DeviceError(f"{self.info.name} gives no command buffer")
        try:
            encode(encoder)
        finally:  # an encoder that is open when it goes is a mistake that ends the process
            objc.endEncoding(encoder)
        owned = Handle(objc, objc.objc_retain(buffer))
        commands = Commands(next(self._tickets), owned, what, arguments, users_place())
        self._running.append(commands)
        for memory in touched:
            memory.ticket = commands.ticket
        objc.commit(buffer)
        return commands

    def in_pool(self) -> Pool:
        """A block for messages. Raises DeviceLost."""
        if self._lost is not None:
            raise DeviceLost(self._lost)
        return self.objc.pool()

    def wait_for(self, ticket: int) -> None:
        """Waits until all commands up to a ticket are done.

        Raises GpuFault, OutOfMemory, DeviceLost for the first of them that went wrong.
        """
        if self._lost is not None:
            raise DeviceLost(self._lost)
        while self.finished < ticket:
            try:
                first = self._running[0]
            except IndexError:  # another thread has seen the end of them
                return
            self._finish(first)

    def synchronize(self) -> None:
        """Waits until all is done. Raises as `wait_for`."""
        with self.lock:
            ticket = self._running[-1].ticket if self._running else 0
        self.wait_for(ticket)

    def _finish(self, first: Commands) -> None:
        """Waits for the first of those that run, and forgets it."""
        objc, buffer = self.objc, first.handle.id
        with self.in_pool():
            status = objc.status(buffer)
            was_committed = status != mtl.MTLCommandBufferStatusNotEnqueued
            if was_committed and status < mtl.MTLCommandBufferStatusCompleted:
                objc.waitUntilCompleted(buffer)
                status = objc.status(buffer)
            with self.lock:
                if not self._running or self._running[0] is not first:
                    return  # another thread has told of it
                self._running.popleft()
                self.finished = first.ticket
            if status == mtl.MTLCommandBufferStatusError:
                self._raise(first)

    def _raise(self, failed: Commands) -> None:
        error = command_error(self.objc, self.objc.error(failed.handle.id), f"run {failed}")
        if isinstance(error, DeviceLost):
            self._lost = error.message
        raise error

    def times(self, commands: Commands) -> tuple[float, float]:
        """When the GPU began commands that are done, and when it ended, in seconds of the host's
        clock (GPUStartTime of MTLCommandBuffer.h)."""
        objc, buffer = self.objc, commands.handle.id
        return objc.GPUStartTime(buffer), objc.GPUEndTime(buffer)

    def is_done(self, commands: Commands) -> bool:
        """Whether commands are done, well or not."""
        status: int = self.objc.status(commands.handle.id)
        return status >= mtl.MTLCommandBufferStatusCompleted

    def forked(self) -> None:
        """Makes every later use in this process, a forked child, raise DeviceLost."""
        self.lock = threading.RLock()  # who held it is not here
        self._lose(
            f"the METAL device {self.info.name} was opened before this process was forked, and"
            " Metal does not work after that; open it in the child only (multiprocessing: use the"
            " start method spawn)"
        )

    def close(self) -> None:
        """Waits for what was committed; the process is about to end. Raises GpuFault."""
        try:
            if self._lost is None:
                self.synchronize()
        finally:
            self._lose(f"the METAL device {self.info.name} was closed: the process ends")

    def _lose(self, reason: str) -> None:
        self._lost = reason
        self.objc.is_lost = True
