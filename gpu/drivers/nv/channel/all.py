"""All queues of a device: a compute queue, copy queues, more compute queues, and copies on those.

Compute queues beyond the first are each in a channel group of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import alloc
from gpu.drivers.bringup import Step, Trail
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.channel import DOORBELL as DOORBELL_OFFSET
from gpu.drivers.nv.channel.channel import GpfifoChannel
from gpu.drivers.nv.channel.create import Group, QueueMaker
from gpu.drivers.nv.channel.open import (
    QUEUE_STEPS,
    GpuMemory,
    GpuObjects,
    GpuQueues,
    open_queues,
)
from gpu.drivers.nv.channel.probes import COMPUTE_COPIES, Variants
from gpu.drivers.nv.rm.client import NvSession

MORE_QUEUES: Final = Step("more queues", "more compute queues, and copies on all of them")
ALL_QUEUE_STEPS: Final = (*QUEUE_STEPS, MORE_QUEUES)


@dataclass(frozen=True, slots=True, eq=False)
class AllQueues:
    """Channels, scheduled: the first compute queue and the copy queues, and more compute queues.

    ``copies_on_compute`` is whether compute queues copy too.
    """

    first: GpuQueues
    more: tuple[GpfifoChannel, ...]
    copies_on_compute: bool

    @property
    def compute(self) -> tuple[GpfifoChannel, ...]:
        """All compute queues."""
        return (self.first.compute, *self.more)


@dataclass(frozen=True, slots=True, eq=False)
class QueueOpener:
    """Opens the queues of one GPU: so many of compute."""

    session: NvSession
    gpu: GpuObjects
    variants: Variants
    compute_queues: int

    def open(self, memory: GpuMemory, trail: Trail, undo: Undo) -> AllQueues:
        """All queues, by `ALL_QUEUE_STEPS`; ``undo`` gives them back. Raises as opening does."""
        session, gpu, variants = self.session, self.gpu, self.variants
        first = open_queues(session, gpu, memory, variants, trail, undo)
        with trail.step(MORE_QUEUES.name):
            doorbell = gpu.usermode.sub(DOORBELL_OFFSET, 4)
            maker = QueueMaker(
                *(session, gpu.device, memory.uuid, gpu.classes, memory.port, variants, doorbell)
            )
            more = tuple(
                self._open_compute(f"compute queue {number}", maker, memory, undo)
                for number in range(1, self.compute_queues)
            )
            copies = self._take_copies((first.compute, *more), bool(first.copies.channels))
        return AllQueues(first, more, copies)

    def _open_compute(
        self, name: str, maker: QueueMaker, memory: GpuMemory, undo: Undo
    ) -> GpfifoChannel:
        """A compute channel in a group of its own, scheduled."""
        engine_type = alloc.NV2080_ENGINE_TYPE_GRAPHICS
        group = maker.group(engine_type, f"group of {name}")
        undo.add(group.free)
        share = Group(group, engine_type, maker.context_share(group, memory.vaspace))
        ring = maker.channel_memory(name, undo)
        channel = maker.channel_object(name, share, ring)
        undo.add(channel.free)
        engine = channel.alloc(self.gpu.classes.compute, name=f"compute object of {name}")
        token = maker.token(channel)
        maker.register(channel, undo)
        maker.schedule(group)
        return maker.finished(name, channel, engine, ring, token)

    def _take_copies(self, channels: Sequence[GpfifoChannel], can_choose: bool) -> bool:
        """Allocates the copy class on compute channels if they shall have it, or must."""

        def attempt(variant: str) -> bool:
            if variant == "none":
                return False
            with Undo() as undo:
                for channel in channels:
                    name = f"copies of {channel.name}"
                    undo.add(channel.object.alloc(self.gpu.classes.dma, name=name).free)
                undo.take()
            return True

        only = () if can_choose else ("taken",)
        return self.variants.attempt(COMPUTE_COPIES, attempt, only)
