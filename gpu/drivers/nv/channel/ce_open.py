"""Opening the copy queues of a GPU: one for each engine that copies get, or one beside compute."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.autogen.nv import alloc
from gpu.core.errors import Unsupported
from gpu.core.log import get_logger
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.ce_select import CopyEngine, choose_copy_engines
from gpu.drivers.nv.channel.channel import GpfifoChannel
from gpu.drivers.nv.channel.create import QueueMaker
from gpu.drivers.nv.channel.ground import Group
from gpu.drivers.nv.channel.probes import COPY_CHANNEL
from gpu.drivers.nv.rm.object import RmObject
from gpu.drivers.questions import Variants
from gpu.hcq.allocator import CopyPlaces

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class CopyQueues:
    """Channels of the copy class, none where the kernel gave none, and what each copies."""

    channels: tuple[GpfifoChannel, ...]
    places: CopyPlaces


@dataclass(frozen=True, slots=True, eq=False)
class CopyOpener:
    """Opens the copy queues of one GPU, by the first variant that its kernel takes."""

    maker: QueueMaker
    vaspace: RmObject
    compute: Group
    variants: Variants

    def open(self, undo: Undo) -> CopyQueues:
        """The queues, not scheduled. Raises what `Variants.attempt` does."""

        def attempt(variant: str) -> CopyQueues:
            with Undo() as inner:
                queues = self._by_variant(variant, inner)
                undo.add(inner.take().close)
            return queues

        return self.variants.attempt(COPY_CHANNEL, attempt)

    def schedule(self, queues: CopyQueues) -> None:
        """Lets them run; one in the group of the compute queue runs with that."""
        for channel in queues.channels:
            if channel.group is not self.compute.object:
                self.maker.ground.schedule(channel.group)

    def _by_variant(self, variant: str, undo: Undo) -> CopyQueues:
        if variant == "none":
            return CopyQueues((), CopyPlaces())
        if variant == "shared group":
            channel = self.maker.copy_channel("copy queue", self.compute, None, undo)
            return CopyQueues((channel,), CopyPlaces())
        choice = choose_copy_engines(self.maker.ground.copy_engines())
        if choice is None:
            raise Unsupported("every copy engine of this GPU is its graphics engine's")
        _log.info("%s; %s", choice, "; ".join(map(str, choice.engines)))
        channels = (
            self._on_engine(number, engine, undo) for number, engine in enumerate(choice.engines)
        )
        return CopyQueues(tuple(channels), choice.places)

    def _on_engine(self, number: int, engine: CopyEngine, undo: Undo) -> GpfifoChannel:
        """A channel in a group of its own on one engine."""
        name = f"copy queue {number}" if number else "copy queue"
        group = self.maker.group(engine.engine_type, f"group of {name}", self.vaspace)
        undo.add(group.free)
        params = alloc.NVB0B5_ALLOCATION_PARAMETERS(
            version=alloc.NVB0B5_ALLOCATION_PARAMETERS_VERSION_1, engineType=engine.engine_type
        )
        return self.maker.copy_channel(name, Group(group, engine.engine_type, None), params, undo)
