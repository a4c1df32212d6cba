"""The queues of a device: those that it opens with, and more compute queues when they are used.

Compute queues beyond the first are each in a channel group of their own.
"""

from __future__ import annotations

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

COPIES_STEP: Final = Step("compute copies", "let the compute queue copy too, if it shall or must")
ALL_QUEUE_STEPS: Final = (*QUEUE_STEPS, COPIES_STEP)


@dataclass(frozen=True, slots=True, eq=False)
class QueueOpener:
    """Opens the queues of one GPU."""

    session: NvSession
    gpu: GpuObjects
    variants: Variants

    @property
    def copies_on_compute(self) -> bool:
        """Whether compute queues copy too."""
        return self.variants.answer(COMPUTE_COPIES) == "taken"

    def open(self, memory: GpuMemory, trail: Trail, undo: Undo) -> GpuQueues:
        """The first ones, by `ALL_QUEUE_STEPS`; ``undo`` gives them back. Raises as those do."""
        queues = open_queues(self.session, self.gpu, memory, self.variants, trail, undo)
        with trail.step(COPIES_STEP.name):
            only = () if queues.copies.channels else ("taken",)
            self.variants.attempt(
                COMPUTE_COPIES,
                lambda variant: self._take_copies(queues.compute) if variant == "taken" else None,
                only,
            )
        return queues

    def open_compute(self, number: int, memory: GpuMemory, undo: Undo) -> GpfifoChannel:
        """Another compute queue, scheduled. Raises as opening does."""
        gpu, variants = self.gpu, self.variants
        doorbell = gpu.usermode.sub(DOORBELL_OFFSET, 4)
        maker = QueueMaker(
            *(self.session, gpu.device, memory.uuid, gpu.classes, memory.port, variants, doorbell)
        )
        name, engine_type = f"compute queue {number}", alloc.NV2080_ENGINE_TYPE_GRAPHICS
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
        made = maker.finished(name, channel, engine, ring, token)
        if self.copies_on_compute:
            self._take_copies(made)
        return made

    def _take_copies(self, channel: GpfifoChannel) -> None:
        """Gives a compute channel the copy class, which goes with the channel."""
        channel.object.alloc(self.gpu.classes.dma, name=f"copies of {channel.name}")
