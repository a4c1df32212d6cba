"""Clearing video memory that the host does not see, by a copy engine.

Its channel is of a group of its own: clearing waits for no kernel, and a fault of somebody else's
leaves it be. What fails is closed, and the next one opened anew.
"""

from __future__ import annotations

import ctypes
from typing import Final

from gpu.autogen.nv import alloc
from gpu.core.errors import Unsupported
from gpu.core.wait import wait_until
from gpu.core.window import Window
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.ce_select import CopyEngine, choose_copy_engines
from gpu.drivers.nv.channel.channel import DOORBELL, ENTRY_SIZE, GpfifoChannel
from gpu.drivers.nv.channel.create import QueueMaker
from gpu.drivers.nv.channel.ground import ChannelGround, GpuObjects, Group
from gpu.drivers.nv.encode.ce import MAX_LINE, fill, semaphore, set_up_copy
from gpu.drivers.nv.encode.pushbuf import Pushbuffer, gp_entry
from gpu.drivers.nv.pci.boot import BootCard
from gpu.drivers.nv.pci.chip import PAGE
from gpu.drivers.nv.pci.memory import CardMemory, Held
from gpu.drivers.nv.port import publisher_of
from gpu.drivers.nv.rm.object import RmObject

_SECONDS: Final = 10.0
_PIXEL: Final = 4
_METHODS: Final = 64  # where they are in the page whose first word is the fence


class Wiper:
    """Clears memory of one card with a channel that it opens when it first has to.

    Attributes:
        vaspace: whose page tables it runs in.
    """

    def __init__(
        self,
        card: BootCard,
        ground: ChannelGround,
        gpu: GpuObjects,
        memory: CardMemory,
        vaspace: RmObject,
    ):
        self.vaspace = vaspace
        self._card = card
        self._ground = ground
        self._gpu = gpu
        self._memory = memory
        self._undo = Undo()
        self._channel: GpfifoChannel | None = None
        self._count = 0

    def clear(self, address: int, size: int) -> None:
        """Zeros whole words at an address of engines. Raises HwTimeout, DeviceError, as RM does."""
        most = MAX_LINE * _PIXEL
        with Undo() as undo:
            undo.add(self.close)
            for start in range(0, size, most):
                push = Pushbuffer(copy=self._gpu.classes.dma)
                push.write(*fill(address + start, 0, _PIXEL, min(most, size - start)))
                self._run(push)
            undo.take()

    def close(self) -> None:
        """Gives the channel back; again does nothing."""
        self._channel = None
        self._undo.close()

    def _run(self, push: Pushbuffer) -> None:
        channel = self._channel or self._open()
        self._count += 1
        push.write(*semaphore(self._room.address, self._count, bits=32))
        self._window.store(_METHODS, bytes(push.data))
        entry = gp_entry(self._room.address + _METHODS, len(push.data) // 4)
        words, last = ctypes.c_uint64(entry), ctypes.c_uint64()
        self._publish(
            *((self._count - 1) * ENTRY_SIZE, ctypes.addressof(words), ENTRY_SIZE),
            *(ctypes.addressof(last), self._count),
        )

        def check() -> None:
            self._card.function.check()
            channel.check()

        wait_until(
            *(self._card.waiter, lambda: self._window.read(0, 4), self._count),
            what=f"{self._card.name}: clearing video memory",
            timeout=_SECONDS,
            check=check,
        )

    def _open(self) -> GpfifoChannel:
        """The channel, ready to run. Raises Unsupported where no engine may be used."""
        gpu, name = self._gpu, "queue that clears"
        doorbell = gpu.usermode.sub(DOORBELL, 4)
        maker = QueueMaker(self._ground, gpu.device, gpu.classes, self._memory, doorbell)
        engine = self._engine().engine_type
        with Undo() as undo:
            self._room: Held = self._memory.hold_system(PAGE)
            undo.add(self._room.undo.close)
            self._window: Window = self._room.window_of_host()
            group = maker.group(engine, f"group of the {name}", self.vaspace)
            undo.add(group.free)
            params = alloc.NVB0B5_ALLOCATION_PARAMETERS(
                version=alloc.NVB0B5_ALLOCATION_PARAMETERS_VERSION_1, engineType=engine
            )
            channel = maker.copy_channel(name, Group(group, engine, None), params, undo)
            self._ground.schedule(group)
            self._publish, self._count = publisher_of(channel), 0
            self._undo = undo.take()
        self._channel = channel
        self._run(set_up_copy(gpu.classes.dma))
        return channel

    def _engine(self) -> CopyEngine:
        choice = choose_copy_engines(self._ground.copy_engines())
        if choice is None:
            raise Unsupported("every copy engine of this GPU is its graphics engine's")
        return choice.within
