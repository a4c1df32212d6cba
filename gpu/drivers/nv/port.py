"""An NVIDIA GPU under its command queues, through RM and UVM: queues, memory, clock, faults.

Opening is that of `gpu.drivers.nv.rm.gpu`, and then what `gpu.drivers.nv.channel.all` adds.
`NvPort.close` takes the channels away before the memory that they may still read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpu.core.bits import is_power_of_two
from gpu.core.errors import GpuFault, InvalidValue, Unsupported
from gpu.core.wait import PatientWaiter, Waiter
from gpu.core.window import MemoryWindow, Window
from gpu.drivers.bringup import Trail
from gpu.drivers.cleanup import Undo
from gpu.drivers.device import Rung
from gpu.drivers.nv.channel.all import COPIES_STEP, QueueOpener
from gpu.drivers.nv.channel.channel import ENTRY_SIZE, GP_PUT, ChannelFault, GpfifoChannel
from gpu.drivers.nv.channel.create import ENTRIES
from gpu.drivers.nv.channel.open import GpuQueues, open_memory, open_objects
from gpu.drivers.nv.channel.probes import CHAINING, Variants
from gpu.drivers.nv.channel.recover import Renewal
from gpu.drivers.nv.encode.compute import ComputeEncoder, CopyEncoder
from gpu.drivers.nv.encode.compute_ce import MixedEncoder
from gpu.drivers.nv.encode.launch import Target
from gpu.drivers.nv.fault.sm_errors import FaultDetails
from gpu.drivers.nv.rm.client import open_session
from gpu.drivers.nv.rm.gpu import STEPS, NvDevice, OpenReport
from gpu.drivers.nv.rm.status import CallLog
from gpu.hcq.allocator import CopyPlaces
from gpu.hcq.encoder import Encoder
from gpu.hcq.hostring import HostRing
from gpu.hcq.ports import MemoryKind, MemoryPort
from gpu.transport.world import World

MAX_RING: Final = ENTRIES * ENTRY_SIZE // 2
"""Bytes of entries that are in flight at most: half of the ring.

Its pointers are indices (clc86f.h): with all of it in flight it would look empty.
"""
_MIN_RING: Final = 8 * ENTRY_SIZE


Explain = Callable[[Sequence[GpfifoChannel], FaultDetails | None], str]


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
        self.publish = HostRing(
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
    """The `gpu.hcq.ports.DevicePort` of GPUs behind NVIDIA's kernel driver, made by `open_port`.

    Attributes:
        gpu: the open GPU.
        target: what code and launches for it depend on.
        explain: says what more is known of a fault of these channels, for its message.
    """

    clock_hz: float = 1e9  # the usermode page and semaphores tell nanoseconds

    def __init__(
        self,
        gpu: NvDevice,
        renewal: Renewal,
        queues: GpuQueues,
        options: QueueOptions,
        target: Target,
    ):
        self.gpu = gpu
        self.name = gpu.name
        self.target = target
        self.signal_bits: int = self.target.signal_bits
        self.waiter: Waiter = PatientWaiter(gpu.waiter)
        self.memory: MemoryPort = gpu.memory
        self.explain: Explain = lambda channels, details: ""
        self._renewal = renewal
        self._options = options
        self._use(queues)

    def _use(self, queues: GpuQueues) -> None:
        self.gpu.use(queues)
        self._queues = queues
        self._more: list[GpfifoChannel] = []
        self.queue_counts: dict[str, int] = {"compute": self._options.compute_queues}
        if queues.copies.channels:
            self.queue_counts["copy"] = len(queues.copies.channels)

    def open_queue(self, kind: str, index: int) -> NvQueue:
        """As `DevicePort.open_queue`; the first compute queue and copy queues are open already."""
        if kind == "copy":
            channel = self._queues.copies.channels[index]
            return NvQueue(channel, CopyEncoder(self.target), self._options)
        channel = self._queues.compute
        if index:
            channel = self._renewal.open_compute(index)
            self._more.append(channel)
        encoder = (MixedEncoder if self.copies_on_compute else ComputeEncoder)(self.target)
        return NvQueue(channel, encoder, self._options)

    @property
    def copy_places(self) -> CopyPlaces:
        """Which copy queue copies what."""
        return self._queues.copies.places

    @property
    def copies_on_compute(self) -> bool:
        """Whether compute queues copy too."""
        return self._renewal.copies_on_compute

    @property
    def channels(self) -> tuple[GpfifoChannel, ...]:
        """Those of all queues that are open."""
        return (*self.gpu.channels, *self._more)

    def clock(self) -> int:
        """The GPU's clock in nanoseconds."""
        return self.gpu.clock()

    def check(self) -> None:
        """Raises GpuFault for a failed channel, DeviceLost in a forked child."""
        failed = self.failed()
        if failed:
            text, details = self.gpu.tell(list(failed.values()))
            address = details.address if details is not None else None
            why = self.explain(list(failed), details)
            raise GpuFault(f"{self.name}: {'; '.join(filter(None, (text, why)))}", address)

    def failed(self) -> dict[GpfifoChannel, ChannelFault]:
        """Channels that failed, with what RM wrote. Raises DeviceLost in a forked child."""
        self.gpu.check_process()
        found = {channel: channel.fault() for channel in self.channels}
        return {channel: fault for channel, fault in found.items() if fault is not None}

    def renew(self, rung: Rung) -> None:
        """Gives the channels back and opens others, in other page tables if ``rung`` says so.

        Memory stays as it is. Raises what opening raises; then there are no channels.
        """
        self._use(self._renewal.renew(rung))

    def close(self) -> None:
        """Gives everything back, channels first; again, or in a forked child, does nothing."""
        self.gpu.close()


def open_port(
    world: World, index: int, options: QueueOptions, *, force: Mapping[str, str] | None = None
) -> NvPort:
    """Opens a GPU by its place in `NvSession.cards`; on an error nothing of it stays open.

    ``force`` and errors are those of `NvDevice.open`.
    """
    trail, variants = Trail((*STEPS, COPIES_STEP), CallLog()), Variants(force)
    with Undo() as undo:
        session = open_session(world, trail, index)
        undo.add(session.close)
        card = session.card(index)
        gpu = open_objects(session, card, variants, trail, undo)
        memory = open_memory(session, gpu, variants, trail, undo)
        opener = QueueOpener(session, gpu, variants)
        renewal = Renewal(opener, memory)
        undo.add(renewal.close)
        queues = renewal.open(trail)
        report = OpenReport(tuple(trail.reports), tuple(variants.outcomes))
        device = NvDevice(session, card, gpu, memory, queues, report, undo.take())
    try:
        target = Target.of(gpu.classes, gpu.units, variants.choose(CHAINING))
        return NvPort(device, renewal, queues, options, target)
    except BaseException:
        device.close()
        raise
