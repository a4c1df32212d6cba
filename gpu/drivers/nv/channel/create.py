"""Making channels: groups, rings, engine objects, and their registration with UVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import alloc, control
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
from gpu.drivers.nv.channel.probes import ALLOC_FORM, CHANNEL_WINDOW
from gpu.drivers.nv.memory import NvMemoryPort
from gpu.drivers.nv.rm.classes import Generation
from gpu.drivers.nv.rm.client import NvSession
from gpu.drivers.nv.rm.object import RmObject
from gpu.drivers.questions import Variants
from gpu.hcq.ports import Memory, MemoryKind
from gpu.hcq.symbol import GpuVA

ENTRIES: Final = 8192  # of a ring, 64 KiB
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A channel group; its channels share a fate, an engine and, if any, the context share."""

    object: RmObject
    engine_type: int
    context_share: RmObject | None


@dataclass(frozen=True, slots=True, eq=False)
class ChannelMemory:
    """The memory of a channel: ring and USERD on the card, the notifier in system memory."""

    entries: int
    ring: Memory
    userd_offset: int
    notifier: Memory


class QueueMaker:
    """Makes the channels of one device. What it makes is undone by the stacks it is given."""

    def __init__(
        self,
        session: NvSession,
        device: RmObject,
        uuid: bytes,
        row: Generation,
        memory: NvMemoryPort,
        variants: Variants,
        doorbell: Window,
    ):
        self._session = session
        self._device = device
        self._uuid = uuid
        self._row = row
        self._memory = memory
        self._variants = variants
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

    def channel_object(self, name: str, group: Group, memory: ChannelMemory) -> RmObject:
        """The channel itself, below its group; not scheduled yet."""
        ring = self._memory.object_of(memory.ring)
        params = alloc.NV_CHANNEL_ALLOC_PARAMS(
            hObjectError=self._memory.object_of(memory.notifier).handle,
            hObjectBuffer=ring.handle,
            gpFifoOffset=memory.ring.address,
            gpFifoEntries=memory.entries,
            hContextShare=group.context_share.handle if group.context_share is not None else 0,
            engineType=group.engine_type,
        )
        params.hUserdMemory[0] = ring.handle
        params.userdOffset[0] = memory.userd_offset

        def allocate(form: str) -> RmObject:
            with self._session.kernel.using("NVOS21" if form == "NVOS21" else "NVOS64"):
                return group.object.alloc(self._row.gpfifo, params, name=name)

        return self._variants.attempt(ALLOC_FORM, allocate)

    def token(self, channel: RmObject) -> int:
        """What the doorbell takes for a channel."""
        params = channel.control(
            control.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
            control.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS(),
        )
        return int(params.workSubmitToken)

    def register(self, channel: RmObject, undo: Undo) -> None:
        """Gives UVM addresses for the channel's own buffers; before the group is scheduled."""
        session = self._session

        def attempt(window: str) -> Undo:
            size = int(window.removesuffix(" MiB")) * _MIB
            with Undo() as inner:
                base = session.addresses.take(size, low=True)
                inner.add(session.addresses.give, base)
                session.uvm.register_channel(self._uuid, channel, base, size)
                inner.add(session.uvm.unregister_channel, session.branch, self._uuid, channel)
                return inner.take()

        undo.add(self._variants.attempt(CHANNEL_WINDOW, attempt).close)

    def schedule(self, group: RmObject) -> None:
        """Lets the channels of a group run."""
        params = self._session.branch.schedule(bEnable=1)
        group.control(control.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, params)

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
        channel = self.channel_object(name, group, memory)
        undo.add(channel.free)
        engine = channel.alloc(self._row.dma, params, name=f"object of {name}")
        token = self.token(channel)
        self.register(channel, undo)
        return self.finished(name, channel, engine, memory, token)


def _window(memory: Memory) -> Window:
    assert memory.window is not None, "memory of this kind is mapped for the host"
    return memory.window
