"""An NVIDIA GPU under its command queues, through RM and UVM: queues, memory, clock, faults.

Opening is that of `gpu.drivers.nv.device`, and then compute queues beyond the first, each in a
channel group of its own, and the copy class on the channels of all compute queues. `NvPort.close`
takes the channels away before the memory that they may still read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import alloc
from gpu.core import hostmem
from gpu.core.bits import align_up, is_power_of_two
from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.wait import Waiter
from gpu.core.window import MemoryWindow, Window
from gpu.drivers.nv.calls import CallLog
from gpu.drivers.nv.channel import ENTRY_SIZE, GP_PUT, Channel
from gpu.drivers.nv.device import STEPS, NvDevice, OpenReport
from gpu.drivers.nv.encoder import ComputeEncoder, CopyEncoder
from gpu.drivers.nv.launch import Target
from gpu.drivers.nv.memory import NvMemoryPort
from gpu.drivers.nv.mixed_encoder import MixedEncoder
from gpu.drivers.nv.opening import GpuMemory, GpuObjects, open_memory, open_objects, open_queues
from gpu.drivers.nv.patience import PatientWaiter
from gpu.drivers.nv.queues import ENTRIES, Group, QueueMaker
from gpu.drivers.nv.session import open_session
from gpu.drivers.nv.steps import Step, Trail
from gpu.drivers.nv.undo import Undo
from gpu.drivers.nv.variants import Question, Variants
from gpu.hcq.encoder import Encoder
from gpu.hcq.hostring import HostRing
from gpu.hcq.ports import Memory, MemoryKind, MemoryPort
from gpu.hcq.symbol import GpuVA
from gpu.transport.world import World

MAX_RING: Final = ENTRIES * ENTRY_SIZE // 2
"""Bytes of entries that are in flight at most: half of the ring.

Its pointers are indices (clc86f.h): with all of it in flight it would look empty.
"""
_MIN_RING: Final = 8 * ENTRY_SIZE

MORE_QUEUES: Final = Step("more queues", "more compute queues, and copies on all of them")
COMPUTE_COPIES: Final = Question(
    "copies on compute queues",
    "whether the channel of a compute queue takes the copy class too",
    ("taken", "none"),
)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Which queues a device gets.

    Attributes:
        compute_queues: how many, at least one.
        ring: bytes of entries that are in flight at most, a power of two up to `MAX_RING`.
        compute_copies: whether compute queues shall copy too, where the kernel lets them.
    """

    compute_queues: int = 2
    ring: int = MAX_RING
    compute_copies: bool = True

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

    def __init__(self, channel: Channel, encoder: Encoder, ring_size: int):
        """Raises Unsupported where ring or doorbell are not mapped into this process."""
        self.channel = channel
        self.encoder = encoder
        self.ring_size = ring_size
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


def _address(what: str, channel: Channel, window: Window) -> int:
    if not isinstance(window, MemoryWindow):
        raise Unsupported(
            f"{channel.name}: its {what} must be mapped into this process, it is {window!r}"
        )
    return window.address


class QueueMemory:
    """Memory of one GPU as its queues want it: of the size that was asked for, not whole pages.

    What is allocated of it has the `Memory` of the inner port as its handle.
    """

    def __init__(self, inner: NvMemoryPort):
        self._inner = inner

    def allocate(self, size: int, kind: MemoryKind) -> Memory:
        """As `NvMemoryPort.allocate`."""
        whole = self._inner.allocate(size, kind)
        window = whole.window.sub(0, size) if whole.window is not None else None
        return Memory(whole.address, size, kind, window, whole)

    def free(self, memory: Memory) -> None:
        """As `NvMemoryPort.free`."""
        assert isinstance(memory.handle, Memory), "memory comes back to the port that gave it"
        self._inner.free(memory.handle)

    def map_host(self, address: int, size: int) -> Memory:
        """The GPU reaches the pages around it, at the host's address.

        Pages that are mapped already cannot be mapped again: raises RmError for those.
        """
        page = hostmem.page_size
        start = address & ~(page - 1)
        whole = self._inner.map_host(start, align_up(address + size, page) - start)
        window = MemoryWindow(address, size)
        return Memory(GpuVA(address), size, MemoryKind.SYSTEM, window, whole)

    def map_peer(self, memory: Memory, owner: MemoryPort) -> None:
        """As `NvMemoryPort.map_peer`."""
        self._inner.map_peer(memory, owner)

    def unmap_peer(self, memory: Memory) -> None:
        """As `NvMemoryPort.unmap_peer`."""
        self._inner.unmap_peer(memory)


class NvPort:
    """The `gpu.hcq.ports.DevicePort` of GPUs behind NVIDIA's kernel driver, made by `open_port`.

    Attributes:
        gpu: the open GPU.
        target: what code and launches for it depend on.
        copies_on_compute: whether compute queues copy too.
    """

    clock_hz: float = 1e9  # the usermode page and semaphores tell nanoseconds

    def __init__(
        self, gpu: NvDevice, more: Sequence[Channel], copies_on_compute: bool, ring_size: int
    ):
        self.gpu = gpu
        self.name = gpu.name
        self.target = Target.of(gpu.classes, gpu.units)
        self.signal_bits: int = self.target.signal_bits
        self.waiter: Waiter = PatientWaiter(gpu.waiter)
        self.memory: MemoryPort = QueueMemory(gpu.memory)
        self.copies_on_compute = copies_on_compute
        self._more = more
        mixed = MixedEncoder(self.target)
        encoder: Encoder = mixed if copies_on_compute else ComputeEncoder(self.target)
        compute = (gpu.compute_queue, *more)
        self.queues: Mapping[str, Sequence[NvQueue]] = {
            "compute": [NvQueue(each, encoder, ring_size) for each in compute]
        }
        if gpu.copy_queue is not None:
            copier = CopyEncoder(self.target)
            self.queues = {**self.queues, "copy": [NvQueue(gpu.copy_queue, copier, ring_size)]}

    def clock(self) -> int:
        """The GPU's clock in nanoseconds."""
        return self.gpu.clock()

    def check(self) -> None:
        """Raises GpuFault for a failed channel, DeviceLost in a forked child."""
        self.gpu.check()
        for channel in self._more:
            channel.check()

    def close(self) -> None:
        """Gives everything back, channels first; again, or in a forked child, does nothing."""
        self.gpu.close()


def open_port(
    world: World, index: int, options: QueueOptions, *, force: Mapping[str, str] | None = None
) -> NvPort:
    """Opens a GPU by its place in the driver's list; on an error nothing of it stays open.

    ``force`` and errors are those of `NvDevice.open`.
    """
    trail, variants = Trail((*STEPS, MORE_QUEUES), CallLog()), Variants(force)
    with Undo() as undo:
        session = open_session(world, trail)
        undo.add(session.close)
        card = session.card(index)
        gpu = open_objects(session, card, variants, trail, undo)
        memory = open_memory(session, gpu, variants, trail, undo)
        queues = open_queues(session, gpu, memory, variants, trail, undo)
        with trail.step(MORE_QUEUES.name):
            maker = QueueMaker(
                *(session, gpu.device, memory.uuid, gpu.classes, memory.port, variants),
                queues.compute.doorbell,
            )
            more = [
                _open_compute(f"compute queue {number}", maker, gpu, memory, undo)
                for number in range(1, options.compute_queues)
            ]
            wanted = () if options.compute_copies else ("none",)
            copies = _take_copies([queues.compute, *more], gpu, variants, wanted)
        report = OpenReport(tuple(trail.reports), tuple(variants.outcomes))
        device = NvDevice(session, card, gpu, memory, queues, report, undo.take())
    try:
        return NvPort(device, more, copies, options.ring)
    except BaseException:
        device.close()
        raise


def _open_compute(
    name: str, maker: QueueMaker, gpu: GpuObjects, memory: GpuMemory, undo: Undo
) -> Channel:
    """A compute channel in a group of its own, scheduled."""
    engine_type = alloc.NV2080_ENGINE_TYPE_GRAPHICS
    group = maker.group(engine_type, f"group of {name}")
    undo.add(group.free)
    share = Group(group, engine_type, maker.context_share(group, memory.vaspace))
    ring = maker.channel_memory(name, undo)
    channel = maker.channel_object(name, share, ring)
    undo.add(channel.free)
    engine = channel.alloc(gpu.classes.compute, name=f"compute object of {name}")
    token = maker.token(channel)
    maker.register(channel, undo)
    maker.schedule(group)
    return maker.finished(name, channel, engine, ring, token)


def _take_copies(
    channels: Sequence[Channel], gpu: GpuObjects, variants: Variants, only: Sequence[str]
) -> bool:
    """Allocates the copy class on compute channels; whether the kernel let all have it."""

    def attempt(variant: str) -> bool:
        if variant == "none":
            return False
        with Undo() as undo:
            for channel in channels:
                made = channel.object.alloc(gpu.classes.dma, name=f"copies of {channel.name}")
                undo.add(made.free)
            undo.take()
        return True

    return variants.attempt(COMPUTE_COPIES, attempt, only)
