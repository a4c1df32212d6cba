"""A device that does nothing, for what a submission costs on the host: it takes any encoder.

Rings, put pointers and doorbells are real memory and are published natively. All that was
submitted counts as done as soon as somebody waits.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu.core.errors import HwTimeout
from gpu.hcq.device import HCQDevice
from gpu.hcq.encoder import Encoder
from gpu.hcq.hostdevice import HostMemory
from gpu.hcq.hostring import HostRing
from gpu.hcq.ports import MemoryKind


class NullQueue:
    """A `QueuePort` of dwords, whose doorbell nobody hears."""

    def __init__(self, encoder: Encoder, memory: HostMemory, ring_size: int):
        self.encoder = encoder
        self.ring_size = ring_size
        self.ring_align = 4
        self.command_memory = MemoryKind.SYSTEM
        self.memory = memory.allocate(ring_size + 16, MemoryKind.SYSTEM)
        ring = self.memory.address
        put, doorbell = ring + ring_size, ring + ring_size + 8
        self.publish = HostRing(ring, ring_size, put, 8, 4, doorbell, 8).publisher()


class NullPort:
    """The `DevicePort` of null devices, which is its own `Waiter`."""

    spin_ns: int = 0
    name = "NULL"
    signal_bits = 64
    clock_hz = 1e9

    def __init__(self, encoders: Mapping[str, Encoder], ring_size: int, capacity: int):
        self.waiter = self
        self.memory = HostMemory(capacity)
        self.queue_counts: Mapping[str, int] = dict.fromkeys(encoders, 1)
        self.device: HCQDevice | None = None
        self._encoders, self._ring_size = encoders, ring_size
        self._queues: list[NullQueue] = []

    def open_queue(self, kind: str, index: int) -> NullQueue:
        """As `DevicePort.open_queue`."""
        self._queues.append(NullQueue(self._encoders[kind], self.memory, self._ring_size))
        return self._queues[-1]

    def now_ns(self) -> int:
        """Time does not pass."""
        return 0

    def idle(self, timeout_ns: int) -> None:
        """Declare all that was submitted done; `HwTimeout` when it already is."""
        assert self.device is not None
        lines = [channel.timeline for channel in self.device.channels()]
        if all(line.passed(line.submitted) for line in lines):
            raise HwTimeout("null device", None, "anything to do", 0)
        for line in lines:
            line.signal.set(line.payload(line.submitted))

    def clock(self) -> int:
        """Always 0."""
        return 0

    def check(self) -> None:
        """Nothing can go wrong."""

    def close(self) -> None:
        """Free the rings."""
        for queue in self._queues:
            self.memory.free(queue.memory)


def open_null(
    encoders: Mapping[str, Encoder], *, ring_size: int = 1 << 20, capacity: int = 1 << 30
) -> HCQDevice:
    """A null device with one queue for each kind, by its encoder."""
    port = NullPort(encoders, ring_size, capacity)
    device = HCQDevice(port)
    port.device = device
    return device
