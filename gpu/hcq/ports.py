"""What a vendor provides so that a device has command queues: memory, queues, clock, faults."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gpu.core.wait import Waiter
from gpu.core.window import Window
from gpu.hcq.encoder import Encoder
from gpu.hcq.symbol import GpuVA


class MemoryKind(enum.Enum):
    """Where memory lies and who reaches it; the value is the name in messages."""

    VRAM = "device memory"
    VISIBLE = "device memory that the host has mapped"
    SYSTEM = "system memory that the device has mapped"


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """One allocation: GPU address, size in bytes, kind, and a window where the host reaches it."""

    address: GpuVA
    size: int
    kind: MemoryKind
    window: Window | None


class MemoryPort(Protocol):
    """Allocates and maps memory. Calls come one at a time, under the device's lock."""

    def allocate(self, size: int, kind: MemoryKind) -> Memory:
        """Zeroed or stale memory, at least 256-byte aligned.

        Raises `OutOfMemory`, and `Unsupported` for a kind the device does not have.
        """

    def free(self, memory: Memory) -> None:
        """Give memory back; nothing on the device uses it any more."""

    def map_host(self, address: int, size: int) -> Memory:
        """Let the device reach host memory in place. Raises `Unsupported` where it cannot."""

    def map_peer(self, memory: Memory, owner: MemoryPort) -> None:
        """Let this device reach memory of another at the same GPU address, else `Unsupported`."""

    def unmap_peer(self, memory: Memory) -> None:
        """End what `map_peer` began; nothing on this device uses it any more."""


class QueuePort(Protocol):
    """One hardware queue: what it reads, and how to publish in its ring."""

    ring_size: int
    """Bytes of the ring."""
    ring_align: int
    """What the size of all that is published is a multiple of, in bytes: a packet, an entry."""
    command_memory: MemoryKind
    """Where its segments beside the ring go; the host must reach it."""

    @property
    def encoder(self) -> Encoder:
        """What makes commands into what this queue reads."""

    def publish(self, position: int, words: int, size: int, last: int, value: int, /) -> None:
        """Copy ``size`` bytes from host address ``words`` into the ring, then ring the doorbell.

        ``position`` is how many bytes were published before, over the queue's life; the bytes may
        cross the ring's end. Then ``value`` is stored as 8 bytes at host address ``last``, so that
        an exception leaves all done or nothing: on memory one native call (`gpu.hcq.hostring`).
        """


class DevicePort(Protocol):
    """A device under its command queues. Its life ends with `close`."""

    name: str
    signal_bits: int
    """How many bits of a signal's value its queues compare and write: 32 or 64."""
    clock_hz: float
    """Ticks a second of timestamps."""

    @property
    def waiter(self) -> Waiter:
        """How to wait for it."""

    @property
    def memory(self) -> MemoryPort:
        """Its memory."""

    @property
    def queue_counts(self) -> Mapping[str, int]:
        """How many queues it can open of each kind, ``compute`` and perhaps ``copy``."""

    def open_queue(self, kind: str, index: int) -> QueuePort:
        """Queue ``index`` of a kind, below its count; those before it are open.

        It is called once for each, at its first use, and again after what makes all queues anew.
        Raises `OutOfMemory` where the system has no more.
        """

    def clock(self) -> int:
        """The device's clock now, in ticks."""

    def check(self) -> None:
        """Raise `GpuFault`, `DeviceLost` or `DeviceHang` when the device has reported one."""

    def close(self) -> None:
        """Give everything back to the system."""
