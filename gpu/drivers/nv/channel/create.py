"""Making channels: groups, rings, engine objects, and what they are made of."""

from __future__ import annotations

from typing import Final

from gpu.autogen.nv import alloc
from gpu.autogen.nv import classes as ids
from gpu.core.bits import align_up, is_power_of_two
from gpu.core.errors import InvalidValue
from gpu.core.window import Window
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.channel import (
    ENTRY_SIZE,
    NOTIFICATION_SIZE,
    NOTIFICATIONS,
    USERD_SIZE,
    GpfifoChannel,
)
from gpu.drivers.nv.channel.ground import ChannelGround, ChannelMemory, Group
from gpu.drivers.nv.memory import NvMemory
from gpu.drivers.nv.rm.classes import Generation
from gpu.drivers.nv.rm.object import RmObject
from gpu.hcq.ports import Memory, MemoryKind
from gpu.hcq.symbol import GpuVA

ENTRIES: Final = 8192  # of a ring, 64 KiB


class QueueMaker:
    """Makes the channels of one device. What it makes is undone by the stacks it is given."""

    def __init__(
        self,
        ground: ChannelGround,
        device: RmObject,
        row: Generation,
        memory: NvMemory,
        doorbell: Window,
    ):
        self.ground = ground
        self._device = device
        self._row = row
        self._memory = memory
        self._doorbell = doorbell

    def group(self, engine_type: int, name: str, vaspace: RmObject | None = None) -> RmObject:
        """A channel group; ``vaspace`` where no context share will carry it."""
        params = alloc.NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS(
            engineType=engine_type, hVASpace=vaspace.handle if vaspace is not None else 0
        )
        return self._device.alloc(ids.KEPLER_CHANNEL_GROUP_A, params, name=name)

    def context_share(self, group: RmObject, vaspace: RmObject) -> RmObject:
        """What channels of a graphics group run in: a VA space, beside others of the group."""
        params = alloc.NV_CTXSHARE_ALLOCATION_PARAMETERS(
            hVASpace=vaspace.handle, flags=alloc.NV_CTXSHARE_ALLOCATION_FLAGS_SUBCONTEXT_ASYNC
        )
        return group.alloc(ids.FERMI_CONTEXT_SHARE_A, params, name="context share")

    def channel_memory(self, name: str, undo: Undo, entries: int = ENTRIES) -> ChannelMemory:
        """Cleared memory for a channel. Raises InvalidValue for a ring of no power of two."""
        if not is_power_of_two(entries):
            raise InvalidValue(f"{entries} entries for the ring of {name}: give a power of two")
        userd_offset = align_up(entries * ENTRY_SIZE, USERD_SIZE)
        size = userd_offset + USERD_SIZE
        ring = self._memory.allocate(
            size, MemoryKind.VISIBLE, contiguous=True, name=f"ring of {name}"
        )
        undo.add(self._memory.free, ring)
        notifier = self._memory.allocate(
            NOTIFICATIONS * NOTIFICATION_SIZE, MemoryKind.SYSTEM, name=f"notifier of {name}"
        )
        undo.add(self._memory.free, notifier)
        _window(ring).store(0, bytes(size))
        _window(notifier).store(0, bytes(NOTIFICATIONS * NOTIFICATION_SIZE))
        return ChannelMemory(entries, ring, userd_offset, notifier)

    def channel_object(
        self, name: str, group: Group, memory: ChannelMemory, undo: Undo
    ) -> RmObject:
        """The channel itself, below its group; not scheduled yet."""
        return self.ground.new_channel(name, group, self._row.gpfifo, memory, undo)

    def finished(
        self, name: str, channel: RmObject, engine: RmObject, memory: ChannelMemory, token: int
    ) -> GpfifoChannel:
        """All that submitting to a channel needs."""
        ring = _window(memory.ring)
        return GpfifoChannel(
            name,
            channel,
            engine,
            entries=memory.entries,
            ring=ring.sub(0, memory.entries * ENTRY_SIZE),
            ring_address=GpuVA(memory.ring.address),
            userd=ring.sub(memory.userd_offset, USERD_SIZE),
            notifier=_window(memory.notifier),
            token=token,
            doorbell=self._doorbell,
        )

    def copy_channel(
        self, name: str, group: Group, params: alloc.NVB0B5_ALLOCATION_PARAMETERS | None, undo: Undo
    ) -> GpfifoChannel:
        """A channel of the copy class, not scheduled; ``params`` name the engine of the group."""
        memory = self.channel_memory(name, undo)
        channel = self.channel_object(name, group, memory, undo)
        engine = channel.alloc(self._row.dma, params, name=f"object of {name}")
        token = self.ground.token(channel)
        self.ground.register(channel, undo)
        return self.finished(name, channel, engine, memory, token)


def _window(memory: Memory) -> Window:
    assert memory.window is not None, "memory of this kind is mapped for the host"
    return memory.window
