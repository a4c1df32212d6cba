"""Giving work to a channel by hand, waiting for it, and telling all that is known if it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue
from gpu.core.hoststore import fence
from gpu.core.wait import wait_until
from gpu.core.window import Window
from gpu.drivers.nv.channel.channel import ENTRY_SIZE, GpfifoChannel
from gpu.drivers.nv.encode.pushbuf import Pushbuffer, gp_entry
from gpu.drivers.nv.rm.gpu import NvDevice
from gpu.hcq.ports import Memory, MemoryKind
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladder.opening import open_device
from tools.hw_acceptance.state import DUMP, describe_state
from tools.hw_acceptance.steplog import StepLog

TIMEOUT: Final = 3.0
"""Seconds that work of this ladder may take; it takes microseconds."""
_ARENA: Final = 1 << 20
_SEMAPHORE: Final = 16


class Arena:
    """Memory that the host sees, handed out piece by piece and never taken back."""

    def __init__(self, gpu: NvDevice, kind: MemoryKind, size: int = _ARENA):
        self.memory: Memory = gpu.alloc(size, kind, name=f"arena in {kind.value}")
        assert self.memory.window is not None, "memory of this kind is mapped for the host"
        self._window: Window = self.memory.window
        self._used = 0
        self._window.store(0, bytes(self.memory.size))

    def take(self, size: int, align: int = 256) -> tuple[int, Window]:
        """Address and window of cleared bytes. Raises InvalidValue when it is full."""
        start = align_up(self._used, align)
        if start + size > self.memory.size:
            raise InvalidValue(f"{size} bytes do not fit an arena of {self.memory.size}")
        self._used = start + size
        return self.memory.address + start, self._window.sub(start, size)

    def put(self, data: bytes, align: int = 256) -> int:
        """The address of a copy of some bytes."""
        address, window = self.take(len(data), align)
        window.store(0, data)
        return address


class Semaphore:
    """A word that the GPU writes, with the nanoseconds of its clock at 8."""

    def __init__(self, arena: Arena):
        self.address, self.window = arena.take(_SEMAPHORE, _SEMAPHORE)

    @property
    def value(self) -> int:
        """The payload that was written last."""
        return self.window.read(0, 8)

    @property
    def timestamp(self) -> int:
        """When, on the GPU's clock."""
        return self.window.read(8, 8)


class Bench:
    """A device with what steps need to feed it.

    Attributes:
        gpu: the device.
        arena: system memory for semaphores and results.
        pushes: memory for pushbuffers.
        near: device memory that the host sees, for code and what launches read.
    """

    def __init__(self, gpu: NvDevice, log: StepLog, pushes: MemoryKind = MemoryKind.SYSTEM):
        self.gpu = gpu
        self.log = log
        self.arena = Arena(gpu, MemoryKind.SYSTEM)
        self.near = Arena(gpu, MemoryKind.VISIBLE)
        self.pushes = self.near if pushes is MemoryKind.VISIBLE else self.arena
        self._semaphores: list[Semaphore] = []

    def semaphore(self) -> Semaphore:
        """A new one, which dumps will show."""
        found = Semaphore(self.arena)
        self._semaphores.append(found)
        return found

    def submit(self, channel: GpfifoChannel, push: Pushbuffer) -> None:
        """Puts a pushbuffer into memory and its entry into the ring, and rings the doorbell."""
        address = self.pushes.put(bytes(push.data))
        put = channel.put()
        channel.ring.write(put * ENTRY_SIZE, 8, gp_entry(address, len(push.data) // 4))
        fence()
        channel.set_put((put + 1) % channel.entries)
        fence()
        channel.ring_doorbell()

    def wait(self, semaphore: Semaphore, value: int, what: str) -> None:
        """Waits until a semaphore has a value. Raises HwTimeout, GpuFault."""
        wait_until(
            self.gpu.waiter,
            lambda: semaphore.value,
            value,
            what=what,
            timeout=TIMEOUT,
            check=self.gpu.check,
        )

    def describe(self) -> Iterator[str]:
        """Lines about all channels, semaphores and faults, as they are now."""
        for semaphore in self._semaphores:
            place = f"semaphore at {semaphore.address:#x}"
            yield f"{place}: {semaphore.value:#x}, timestamp {semaphore.timestamp}"
        yield from describe_state(self.gpu, self.gpu.channels, self.log)


@contextmanager
def opened(context: Context) -> Iterator[Bench]:
    """A device to work with, opened with the variants of a step.

    Where it ends in an error or with a wrong check, all that is known goes into a file.
    """
    with open_device(context) as gpu:
        pushes = MemoryKind[context.options.get("pushbuffers", "SYSTEM")]
        found = Bench(gpu, context.log, pushes)
        failed = True
        try:
            yield found
            gpu.check()
            failed = context.log.has_wrong
        finally:
            if failed:
                context.log.dump(DUMP, "\n".join(found.describe()) + "\n")
