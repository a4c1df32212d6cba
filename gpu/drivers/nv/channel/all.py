"""The channels of a GPU: those that it opens with, more compute queues, all anew after a fault.

Compute queues beyond the first are each in a channel group of their own. A fault ends a channel
group, with all channels in it. What is made anew is a ladder: first the groups, then the page
tables that they run in too. Above is only the client, that is, opening the device anew, without the
memory.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Final

from gpu.autogen.nv import alloc
from gpu.core.errors import RmError
from gpu.drivers.bringup import Step, Trail
from gpu.drivers.cleanup import Undo
from gpu.drivers.device import Rung
from gpu.drivers.nv.channel.ce_open import CopyOpener, CopyQueues
from gpu.drivers.nv.channel.channel import DOORBELL as DOORBELL_OFFSET
from gpu.drivers.nv.channel.channel import GpfifoChannel
from gpu.drivers.nv.channel.create import QueueMaker
from gpu.drivers.nv.channel.ground import ChannelGround, GpuMemory, GpuObjects, Group
from gpu.drivers.nv.channel.probes import COMPUTE_COPIES, DEBUGGER
from gpu.drivers.nv.fault.sm_errors import attach_debugger
from gpu.drivers.nv.rm.object import RmObject
from gpu.drivers.nv.rm.status import CallLog
from gpu.drivers.questions import Variants

QUEUE_STEPS: Final = (
    Step("channel group", "allocate the group of the compute queue"),
    Step("context share", "allocate what ties the group's channels to the page tables"),
    Step("compute memory", "allocate ring, pointers and notifier of the compute queue"),
    Step("compute channel", "allocate the channel of the compute queue"),
    Step("compute object", "allocate the compute engine on it"),
    Step("debugger", "attach what can read the errors of SMs after a fault"),
    Step("compute token", "ask what its doorbell takes"),
    Step("register compute", "give UVM addresses for the channel's own buffers"),
    Step("copy channel", "allocate and register the copy queues likewise"),
    Step("schedule", "let the channels run"),
    Step("compute copies", "let the compute queue copy too, if it shall or must"),
)
_OF_THE_FIRST: Final = ("debugger", "copy channel", "compute copies")
_MORE_STEPS: Final = tuple(step for step in QUEUE_STEPS if step.name not in _OF_THE_FIRST)


@dataclass(frozen=True, slots=True, eq=False)
class GpuQueues:
    """The channels that a GPU opens with, and the debugger of the compute queue if there is one."""

    compute: GpfifoChannel
    copies: CopyQueues
    debugger: RmObject | None


class GpuChannels:
    """The channels of one GPU, opened once and then again after faults. Raises as RM refuses."""

    def __init__(
        self,
        log: CallLog,
        gpu: GpuObjects,
        memory: GpuMemory,
        ground: ChannelGround,
        variants: Variants,
    ):
        self._log = log
        self._ground = ground
        self._gpu = gpu
        self._memory = memory
        self._variants = variants
        self._undo = Undo()

    @property
    def copies_on_compute(self) -> bool:
        """Whether compute queues copy too."""
        return self._variants.answer(COMPUTE_COPIES) == "taken"

    def open(self, trail: Trail) -> GpuQueues:
        """The first compute queue and, unless the kernel takes no such variant, copy queues.

        By `QUEUE_STEPS`; on an error none stays open.
        """
        maker, variants = self._maker(), self._variants
        with Undo() as undo:
            compute, group, debugger = self._compute(
                "compute queue", maker, trail, undo, is_first=True
            )
            with trail.step("copy channel"):
                opener = CopyOpener(maker, self._memory.vaspace, group, variants)
                copies = opener.open(undo)
            with trail.step("schedule"):
                self._ground.schedule(group.object)
                opener.schedule(copies)
            with trail.step("compute copies"):
                self._ask_for_copies(compute, bool(copies.channels))
            self._undo = undo.take()
        return GpuQueues(compute, copies, debugger)

    def open_compute(self, number: int) -> GpfifoChannel:
        """Another compute queue."""
        maker, trail = self._maker(), Trail(_MORE_STEPS, self._log)
        with Undo() as undo:
            name = f"compute queue {number}"
            made, group, _ = self._compute(name, maker, trail, undo, is_first=False)
            with trail.step("schedule"):
                self._ground.schedule(group.object)
            if self.copies_on_compute:
                self._take_copies(made)
            self._undo.add(undo.take().close)
        return made

    def renew(self, rung: Rung) -> GpuQueues:
        """Closes all channels and opens the first anew; on an error none is open."""
        self.close()
        if rung is Rung.ADDRESS_SPACE:
            vaspace = self._ground.renew_vaspace(self._memory.vaspace)
            self._memory = replace(self._memory, vaspace=vaspace)
        return self.open(Trail(QUEUE_STEPS, self._log))

    def close(self) -> None:
        """Gives the channels back; again does nothing."""
        self._undo.close()

    def _maker(self) -> QueueMaker:
        gpu, memory = self._gpu, self._memory
        doorbell = gpu.usermode.sub(DOORBELL_OFFSET, 4)
        return QueueMaker(self._ground, gpu.device, gpu.classes, memory.port, doorbell)

    def _compute(
        self, name: str, maker: QueueMaker, trail: Trail, undo: Undo, *, is_first: bool
    ) -> tuple[GpfifoChannel, Group, RmObject | None]:
        """A compute queue that is not scheduled, its group, and the debugger of the first one."""
        gpu, engine_type, debugger = self._gpu, alloc.NV2080_ENGINE_TYPE_GRAPHICS, None
        with trail.step("channel group"):
            group = maker.group(engine_type, "compute group" if is_first else f"group of {name}")
            undo.add(group.free)
        with trail.step("context share"):
            share = Group(group, engine_type, maker.context_share(group, self._memory.vaspace))
        with trail.step("compute memory"):
            ring = maker.channel_memory(name, undo)
        with trail.step("compute channel"):
            channel = maker.channel_object(name, share, ring, undo)
        with trail.step("compute object"):
            what = "compute object" if is_first else f"compute object of {name}"
            engine = channel.alloc(gpu.classes.compute, name=what)
        if is_first:
            with trail.step("debugger"):
                debugger = self._variants.attempt(
                    DEBUGGER,
                    lambda variant: (
                        attach_debugger(gpu.device, engine) if variant == "attached" else None
                    ),
                )
                if debugger is not None:
                    undo.add(debugger.free)
        with trail.step("compute token"):
            token = self._ground.token(channel)
        with trail.step("register compute"):
            self._ground.register(channel, undo)
        return maker.finished(name, channel, engine, ring, token), share, debugger

    def _ask_for_copies(self, channel: GpfifoChannel, are_there: bool) -> None:
        """Has the first compute queue copy if it shall, or tries to if nothing else does.

        Where that is refused nothing copies, which the outcomes tell.
        """
        must = not are_there and self._variants.answer(COMPUTE_COPIES) is None
        with suppress(RmError) if must else nullcontext():
            self._variants.attempt(
                COMPUTE_COPIES,
                lambda variant: None if variant == "none" else self._take_copies(channel),
                only=("taken",) if must else (),
            )

    def _take_copies(self, channel: GpfifoChannel) -> None:
        """Gives a compute channel the copy class, which goes with the channel."""
        channel.object.alloc(self._gpu.classes.dma, name=f"copies of {channel.name}")
