"""What channels stand on behind the kernel driver: calls of RM and of UVM.

RM places what a channel is made of; UVM maps the channel's own buffers, and owns the page tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import alloc, control
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.ce_select import CopyEngine
from gpu.drivers.nv.channel.ground import ChannelMemory, Group
from gpu.drivers.nv.channel.probes import ALLOC_FORM, CHANNEL_WINDOW
from gpu.drivers.nv.nvk.facts import list_copy_engines
from gpu.drivers.nv.nvk.memory import NvMemoryPort
from gpu.drivers.nv.nvk.objects import new_vaspace
from gpu.drivers.nv.nvk.session import NvSession
from gpu.drivers.nv.rm.object import RmObject
from gpu.drivers.questions import Variants

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class KernelGround:
    """The `gpu.drivers.nv.channel.ground.ChannelGround` of GPUs behind NVIDIA's kernel driver."""

    session: NvSession
    device: RmObject
    subdevice: RmObject
    uuid: bytes
    memory: NvMemoryPort
    variants: Variants

    def copy_engines(self) -> Sequence[CopyEngine]:
        """As `ChannelGround`."""
        return list_copy_engines(self.subdevice)

    def new_channel(
        self, name: str, group: Group, class_id: int, memory: ChannelMemory, undo: Undo
    ) -> RmObject:
        """As `ChannelGround`."""
        ring = self.memory.object_of(memory.ring)
        params = alloc.NV_CHANNEL_ALLOC_PARAMS(
            hObjectError=self.memory.object_of(memory.notifier).handle,
            hObjectBuffer=ring.handle,
            gpFifoOffset=memory.ring.address,
            gpFifoEntries=memory.entries,
            hContextShare=group.context_share.handle if group.context_share is not None else 0,
            engineType=group.engine_type,
        )
        params.hUserdMemory[0] = ring.handle
        params.userdOffset[0] = memory.userd_offset

        def allocate(form: str) -> RmObject:
            with self.session.kernel.using("NVOS21" if form == "NVOS21" else "NVOS64"):
                return group.object.alloc(class_id, params, name=name)

        channel = self.variants.attempt(ALLOC_FORM, allocate)
        undo.add(channel.free)
        return channel

    def token(self, channel: RmObject) -> int:
        """As `ChannelGround`."""
        params = channel.control(
            control.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
            control.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS(),
        )
        return int(params.workSubmitToken)

    def register(self, channel: RmObject, undo: Undo) -> None:
        """Gives UVM addresses for the channel's own buffers."""
        session = self.session

        def attempt(window: str) -> Undo:
            size = int(window.removesuffix(" MiB")) * _MIB
            with Undo() as inner:
                base = session.addresses.take(size, low=True)
                inner.add(session.addresses.give, base)
                session.uvm.register_channel(self.uuid, channel, base, size)
                inner.add(session.uvm.unregister_channel, session.branch, self.uuid, channel)
                return inner.take()

        undo.add(self.variants.attempt(CHANNEL_WINDOW, attempt).close)

    def schedule(self, group: RmObject) -> None:
        """As `ChannelGround`."""
        params = self.session.branch.schedule(bEnable=1)
        group.control(control.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, params)

    def renew_vaspace(self, old: RmObject) -> RmObject:
        """As `ChannelGround`: UVM is given the new ones."""
        uvm = self.session.uvm
        vaspace = new_vaspace(self.device)  # first: without one there is nothing to undo
        self.memory.unmap_all()
        uvm.unregister_vaspace(self.uuid)
        old.free()
        uvm.register_vaspace(self.uuid, vaspace)
        self.memory.map_all()
        return vaspace
