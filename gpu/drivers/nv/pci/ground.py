"""What channels stand on, on a card that we booted: memory that we place, numbers that we draw.

Sources: kernel_channel.c (_kchannelSendChannelAllocRpc), kernel_fifo_{ga100,gb202}.c (tokens) of
open-gpu-kernel-modules at tag 570.144. That RAMFC is the beginning of the instance block: nouveau,
gsp/rm/r535/fifo.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

from gpu.autogen.nv import alloc, control, gsp, gspcalls
from gpu.autogen.nv import classes as ids
from gpu.core.errors import DeviceError
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.ce_select import FIRST_COPY, CopyEngine
from gpu.drivers.nv.channel.channel import NOTIFICATION_SIZE, NOTIFICATIONS, USERD_SIZE
from gpu.drivers.nv.channel.ground import ChannelMemory, Group
from gpu.drivers.nv.pci.contexts import Contexts
from gpu.drivers.nv.pci.memory import CardMemory, Held
from gpu.drivers.nv.pci.rpc import GspPort
from gpu.drivers.nv.pci.wiper import Wiper
from gpu.drivers.nv.rm.object import RmObject

VA_SIZE: Final = 1 << 47
VA_BASE: Final = 0x1000
_INSTANCE_SIZE: Final = 0x1000
_RAMFC_SIZE: Final = 0x200
_CHANNELS: Final = 2048
_RUNLIST_SHIFT: Final = 16
_RUNLIST_DOORBELL: Final = 1 << 30


class CardGround:
    """The `gpu.drivers.nv.channel.ground.ChannelGround` of bare cards.

    Attributes:
        wiper: what clears memory with a channel in its page tables, once there is one.
    """

    def __init__(
        self,
        port: GspPort,
        device: RmObject,
        subdevice: RmObject,
        memory: CardMemory,
        *,
        has_runlist_doorbell: bool,
    ):
        self._port = port
        self._device = device
        self._subdevice = subdevice
        self._memory = memory
        self._mark = _RUNLIST_DOORBELL * has_runlist_doorbell
        self._runlists: Mapping[int, int] = read_runlists(subdevice)
        self._contexts = Contexts(subdevice, memory)
        self.wiper: Wiper | None = None
        self._numbers: dict[RmObject, tuple[int, int]] = {}  # runlist, and number on it
        self._method_buffer = subdevice.control(
            gspcalls.NV2080_CTRL_CMD_CE_GET_FAULT_METHOD_BUFFER_SIZE,
            gspcalls.NV2080_CTRL_CE_GET_FAULT_METHOD_BUFFER_SIZE_PARAMS(),
        ).size

    def close(self) -> None:
        """Gives back what channels had in common; they are gone before."""
        self._contexts.close()

    def copy_engines(self) -> Sequence[CopyEngine]:
        """As `ChannelGround`."""
        engines = []
        for engine in sorted(self._runlists):
            if not FIRST_COPY <= engine < FIRST_COPY + alloc.COPY_ENGINES:
                continue
            caps = self._subdevice.control(
                gspcalls.NV2080_CTRL_CMD_CE_GET_PHYSICAL_CAPS,
                control.NV2080_CTRL_CE_GET_CAPS_V2_PARAMS(ceEngineType=engine),
            )
            units = self._subdevice.control(
                control.NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK,
                control.NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS(ceEngineType=engine),
            )
            engines.append(CopyEngine(engine, caps.capsTbl[0], int(units.pceMask).bit_count()))
        return engines

    def new_channel(
        self, name: str, group: Group, class_id: int, memory: ChannelMemory, undo: Undo
    ) -> RmObject:
        """As `ChannelGround`: all that it is made of is placed, its context too."""
        instance = self._hold(_INSTANCE_SIZE, undo)
        methods = self._hold(self._method_buffer, undo)
        runlist, number = self._draw(group.engine_type)
        ring, notifier = self._memory.held(memory.ring), self._memory.held(memory.notifier)
        index, page = number % 8, number // 8  # 512 bytes of USERD each, eight a page
        flags = (
            gspcalls.NVOS04_FLAGS_CHANNEL_USERD_INDEX_PAGE_FIXED
            | index << gspcalls.NVOS04_FLAGS_CHANNEL_USERD_INDEX_VALUE_SHIFT
            | page << gspcalls.NVOS04_FLAGS_CHANNEL_USERD_INDEX_PAGE_VALUE_SHIFT
        )
        params = alloc.NV_CHANNEL_ALLOC_PARAMS(
            gpFifoOffset=memory.ring.address,
            gpFifoEntries=memory.entries,
            flags=flags,
            hContextShare=group.context_share.handle if group.context_share is not None else 0,
            engineType=group.engine_type,
            instanceMem=_describe(instance, _INSTANCE_SIZE),
            ramfcMem=_describe(instance, _RAMFC_SIZE),
            userdMem=_describe(ring, USERD_SIZE, memory.userd_offset),
            mthdbufMem=_describe(methods, self._method_buffer),
            errorNotifierMem=_describe(notifier, NOTIFICATIONS * NOTIFICATION_SIZE),
        )
        params.userdOffset[0] = memory.userd_offset
        channel = group.object.alloc(class_id, params, name=name)
        self._numbers[channel] = runlist, number
        undo.add(self._numbers.pop, channel)
        with Undo() as buffers:
            buffers.add(channel.free)
            if group.engine_type == alloc.NV2080_ENGINE_TYPE_GRAPHICS:
                room = Undo()
                undo.add(room.close)  # behind the channel
                self._contexts.promote(channel, room)
            buffers.take()
        undo.add(channel.free)
        return channel

    def _hold(self, size: int, undo: Undo) -> Held:
        held = self._memory.hold_video(size)
        undo.add(held.undo.close)
        return held

    def _draw(self, engine: int) -> tuple[int, int]:
        """The runlist of an engine, and a number on it that is free. Raises DeviceError."""
        if engine not in self._runlists:
            raise DeviceError(f"engine {engine} has no runlist: there are {sorted(self._runlists)}")
        runlist, used = self._runlists[engine], set(self._numbers.values())
        number = next(each for each in count(1) if (runlist, each) not in used)
        if number >= _CHANNELS:
            raise DeviceError(f"runlist {runlist} has {_CHANNELS} channels already")
        return runlist, number

    def token(self, channel: RmObject) -> int:
        """As `ChannelGround`: by its runlist and number."""
        runlist, number = self._numbers[channel]
        return self._mark | runlist << _RUNLIST_SHIFT | number

    def register(self, channel: RmObject, undo: Undo) -> None:
        """As `ChannelGround`: it has all that it must have."""

    def schedule(self, group: RmObject) -> None:
        """As `ChannelGround`."""
        params = control.NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS_535(bEnable=1)
        group.control(control.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, params)

    # Page tables

    def new_vaspace(self) -> RmObject:
        """Addresses by our page tables."""
        flags = alloc.NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED
        params = gspcalls.NV_VASPACE_ALLOCATION_PARAMETERS_570(
            flags=flags, vaBase=VA_BASE, vaSize=VA_SIZE
        )
        vaspace = self._device.alloc(ids.FERMI_VASPACE_A, params, name="address space")
        with Undo() as undo:
            undo.add(vaspace.free)
            call = gspcalls.rpc_set_page_directory_v1E_05(
                hClient=vaspace.client.handle,
                hDevice=self._device.handle,
                params=gspcalls.NV0080_CTRL_DMA_SET_PAGE_DIRECTORY_PARAMS_v1E_05(
                    physAddress=self._memory.table.root,
                    numEntries=self._memory.root_entries,
                    hVASpace=vaspace.handle,
                ),
            )
            self._port.call(gsp.NV_VGPU_MSG_FUNCTION_SET_PAGE_DIRECTORY, call)
            undo.take()
        return vaspace

    def end_vaspace(self, vaspace: RmObject) -> None:
        """The tables are ours alone again."""
        call = gspcalls.rpc_unset_page_directory_v1E_05(
            hClient=vaspace.client.handle, hDevice=self._device.handle, hVASpace=vaspace.handle
        )
        self._port.call(gspcalls.NV_VGPU_MSG_FUNCTION_UNSET_PAGE_DIRECTORY, call)
        vaspace.free()

    def renew_vaspace(self, old: RmObject) -> RmObject:
        """As `ChannelGround`; the tables themselves are ours, and stay."""
        vaspace = self.new_vaspace()
        if self.wiper is not None:
            self.wiper.close()
            self.wiper.vaspace = vaspace
        self.end_vaspace(old)
        self._memory.invalidate()
        return vaspace


def _describe(held: Held, size: int, offset: int = 0) -> alloc.NV_MEMORY_DESC_PARAMS:
    where = gspcalls.ADDR_SYSMEM if held.is_system else gspcalls.ADDR_FBMEM
    return alloc.NV_MEMORY_DESC_PARAMS(base=held.place + offset, size=size, addressSpace=where)


def read_runlists(subdevice: RmObject) -> dict[int, int]:
    """The runlist of each engine, by its type. Raises as `RmObject.control`."""
    found: dict[int, int] = {}
    base, more = 0, True
    while more:
        table = subdevice.control(
            gspcalls.NV2080_CTRL_CMD_FIFO_GET_DEVICE_INFO_TABLE,
            gspcalls.NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS(baseIndex=base),
        )
        for entry in table.entries[: table.numEntries]:
            data = entry.engineData
            runlist = data[gspcalls.ENGINE_INFO_TYPE_RUNLIST]
            found[data[gspcalls.ENGINE_INFO_TYPE_RM_ENGINE_TYPE]] = runlist
        base += len(table.entries)
        more = bool(table.bMore) and base < 1024
    return found
