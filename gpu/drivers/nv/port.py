"""An NVIDIA GPU under its command queues: queues, memory, clock, faults.

The GPU is open already; more compute queues open when they are used.
`NvPort.close` takes the channels away before the memory that they may still read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpu.core.bits import is_power_of_two
from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.wait import PatientWaiter, Waiter
from gpu.core.window import MemoryWindow, Window
from gpu.drivers.device import Rung
from gpu.drivers.nv.channel.channel import ENTRY_SIZE, GP_PUT, GpfifoChannel
from gpu.drivers.nv.channel.create import ENTRIES
from gpu.drivers.nv.channel.probes import CHAINING
from gpu.drivers.nv.encode.compute import ComputeEncoder, CopyEncoder
from gpu.drivers.nv.encode.compute_ce import MixedEncoder
from gpu.drivers.nv.encode.launch import Target
from gpu.drivers.nv.rm.gpu import NvDevice
from gpu.hcq.allocator import CopyPlaces
from gpu.hcq.encoder import Encoder
from gpu.hcq.hostring import HostRing
from gpu.hcq.ports import MemoryKind, MemoryPort

MAX_RING: Final = ENTRIES * ENTRY_SIZE // 2
"""Bytes of entries that are in flight at most: half of the ring.

Its pointers are indices (clc86f.h): with all of it in flight it would look empty.
"""
_MIN_RING: Final = 8 * ENTRY_SIZE


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Which queues a device gets.

    Attributes:
        compute_queues: how many, at least one.
        ring: bytes of entries that are in flight at most, a power of two up to `MAX_RING`.
    """

    compute_queues: int = 2
    ring: int = MAX_RING

    def __post_init__(self) -> None:
        if self.compute_queues < 1:
            raise InvalidValue(f"{self.compute_queues} compute queues: at least one is needed")
        if not is_power_of_two(self.ring) or not _MIN_RING <= self.ring <= MAX_RING:
            raise InvalidValue(
                f"ring of {self.ring} bytes: give a power of two from {_MIN_RING} to {MAX_RING}"
            )


class NvQueue:
    """A channel as a `gpu.hcq.ports.QueuePort`.

    What it fetches beside the ring is in system memory: patches read it back, which through the BAR
    is slow. Not tried on a card yet.
    """

    ring_align: int = ENTRY_SIZE
    command_memory: MemoryKind = MemoryKind.SYSTEM

    def __init__(self, channel: GpfifoChannel, encoder: Encoder, options: QueueOptions):
        """Raises Unsupported where ring or doorbell are not mapped into this process."""
        self.channel = channel
        self.encoder = encoder
        self.ring_size = options.ring
        self.publish = publisher_of(channel)


def publisher_of(channel: GpfifoChannel) -> Callable[[int, int, int, int, int], None]:
    """What submits to a channel: `gpu.hcq.ports.QueuePort.publish`.

    Raises Unsupported where ring or doorbell are not mapped into this process.
    """
    return HostRing(
        address=_address("ring", channel, channel.ring),
        size=channel.entries * ENTRY_SIZE,
        put=_address("pointers", channel, channel.userd) + GP_PUT,
        put_width=4,
        unit=ENTRY_SIZE,
        doorbell=_address("doorbell", channel, channel.doorbell),
        doorbell_width=4,
        wraps=True,
        token=channel.token,
    ).publisher()


def _address(what: str, channel: GpfifoChannel, window: Window) -> int:
    if not isinstance(window, MemoryWindow):
        raise Unsupported(
            f"{channel.name}: its {what} must be mapped into this process, it is {window!r}"
        )
    return window.address


class NvPort:
    """The `gpu.hcq.ports.DevicePort` of NVIDIA's GPUs, made by `port_of`.

    Attributes:
        gpu: the open GPU.
        target: what code and launches for it depend on.
    """

    clock_hz: float = 1e9  # the usermode page and semaphores tell nanoseconds

    def __init__(self, gpu: NvDevice, options: QueueOptions, target: Target):
        self.gpu = gpu
        self.name = gpu.name
        self.target = target
        self.signal_bits: int = self.target.signal_bits
        self.waiter: Waiter = PatientWaiter(gpu.waiter)
        self.memory: MemoryPort = gpu.memory
        self._options = options
        self._begin()

    def _begin(self) -> None:
        """Begins to open queues; those that the GPU opens with are there."""
        self.queue_counts: dict[str, int] = {"compute": self._options.compute_queues}
        if self.gpu.copy_queues:
            self.queue_counts["copy"] = len(self.gpu.copy_queues)

    def open_queue(self, kind: str, index: int) -> NvQueue:
        """As `DevicePort.open_queue`; the first compute queue and copy queues are open already."""
        if kind == "copy":
            channel = self.gpu.copy_queues[index]
            return NvQueue(channel, CopyEncoder(self.target), self._options)
        channel = self.gpu.compute_queue
        if index:
            channel = self.gpu.open_compute()
        encoder = (MixedEncoder if self.copies_on_compute else ComputeEncoder)(self.target)
        return NvQueue(channel, encoder, self._options)

    @property
    def copy_places(self) -> CopyPlaces:
        """Which copy queue copies what."""
        return self.gpu.copy_places

    @property
    def copies_on_compute(self) -> bool:
        """Whether compute queues copy too."""
        return self.gpu.queues.copies_on_compute

    def clock(self) -> int:
        """The GPU's clock in nanoseconds."""
        return self.gpu.clock()

    def check(self) -> None:
        """As `NvDevice.check`."""
        self.gpu.check()

    def renew(self, rung: Rung) -> None:
        """Gives the channels back and opens others, in other page tables if ``rung`` says so.

        Memory stays as it is. Raises what opening raises; then there are no channels.
        """
        self.gpu.use(self.gpu.queues.renew(rung))
        self._begin()

    def close(self) -> None:
        """Gives everything back, channels first; again, or in a forked child, does nothing."""
        self.gpu.close()


def port_of(gpu: NvDevice, options: QueueOptions) -> NvPort:
    """The port of an open GPU, which is closed where it cannot have one."""
    try:
        return NvPort(
            gpu, options, Target.of(gpu.classes, gpu.units, gpu.variants.choose(CHAINING))
        )
    except BaseException:
        gpu.close()
        raise
