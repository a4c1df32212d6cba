"""An NVIDIA GPU with command queues, through its kernel driver: opening, programs, closing.

A first look::

    from gpu.drivers.nv.hcqdevice import RmDevice
    from gpu.transport.world import real_world

    with RmDevice.open(real_world()) as gpu:
        buffer = gpu.allocator.alloc(5)
        gpu.allocator.copy_in(buffer, b"hello")
        print(gpu.allocator.copy_out(buffer))
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gpu.core.errors import DeviceError, DeviceHang, DeviceLost
from gpu.core.log import get_logger
from gpu.drivers.nv.copyengine import set_up_copy
from gpu.drivers.nv.cubin import Cubin
from gpu.drivers.nv.encoder import check_arguments
from gpu.drivers.nv.launch import (
    LoadedKernel,
    LocalMemory,
    Target,
    set_local_memory,
    set_up_compute,
    size_local_memory,
)
from gpu.drivers.nv.port import NvPort, QueueOptions, open_port
from gpu.drivers.nv.pushbuf import Pushbuffer
from gpu.drivers.nv.semaphores import release
from gpu.hcq.allocator import STAGING
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.buffer import Allocation, HCQBuffer
from gpu.hcq.channel import Channel, Template
from gpu.hcq.device import HCQDevice
from gpu.hcq.encoder import Encoded, Segment
from gpu.hcq.link import link
from gpu.hcq.ports import MemoryKind
from gpu.hcq.program import HCQProgram
from gpu.hcq.symbol import TIMELINE_ADDRESS, TIMELINE_VALUE
from gpu.transport.world import World

_log = get_logger(__name__)


class RmDevice(HCQDevice):
    """Queues, memory and programs of one GPU; everything else is `HCQDevice`'s."""

    port: NvPort

    def __init__(
        self,
        port: NvPort,
        *,
        timeline_start: int = 0,
        timeout: float = 30.0,
        command_memory: int = 1 << 20,
        staging: int = STAGING,
    ):
        """As `HCQDevice`; use `open`."""
        self._local: LocalMemory | None = None
        super().__init__(
            port,
            timeline_start=timeline_start,
            timeout=timeout,
            command_memory=command_memory,
            staging=staging,
        )
        try:
            self._set_up()
        except BaseException:
            port.close()
            raise

    @classmethod
    def open(
        cls,
        world: World,
        index: int = 0,
        *,
        options: QueueOptions | None = None,
        force: Mapping[str, str] | None = None,
        timeline_start: int = 0,
        timeout: float = 30.0,
        command_memory: int = 1 << 20,
        staging: int = STAGING,
    ) -> RmDevice:
        """Opens a GPU by its place in the driver's list; on an error nothing of it stays open.

        ``force`` and errors are those of `NvDevice.open`; raises DeviceHang and GpuFault too, where
        a queue does not run what sets it up.
        """
        return cls(
            open_port(world, index, options or QueueOptions(), force=force),
            timeline_start=timeline_start,
            timeout=timeout,
            command_memory=command_memory,
            staging=staging,
        )

    @property
    def target(self) -> Target:
        """What code and launches for it depend on."""
        return self.port.target

    def _set_up(self) -> None:
        """Gives all channels what they get before anything else: their classes, the windows."""
        copy_class = self.target.generation.dma
        for channel in self.queues["compute"]:
            push = set_up_compute(self.target)
            if self.port.copies_on_compute:
                push.data += set_up_copy(copy_class).data
            self._run(channel, push)
        for channel in self.queues.get("copy", ()):
            self._run(channel, set_up_copy(copy_class))

    def _run(self, channel: Channel, push: Pushbuffer) -> None:
        """Runs methods that no command stands for, and waits for their end."""
        push.write(*release(TIMELINE_ADDRESS, TIMELINE_VALUE, bits=self.target.signal_bits))
        segment = Segment("pushbuf", 4, "memory", bytes(push.data))
        template = Template(link(Encoded((segment,), tuple(push.patches)), channel.port.encoder))
        self.wait(self.exclusively(self._send, channel, template))

    # Programs

    def load(
        self,
        cubin: Cubin,
        name: str,
        layout: ArgumentLayout,
        *,
        dynamic_shared: int = 0,
        stack: int = 0,
        written: Sequence[int] | None = None,
    ) -> HCQProgram:
        """A kernel of a cubin, in memory of its own, ready to be launched.

        ``dynamic_shared`` is bytes of a block beside what it declares, ``stack`` of a thread for
        recursion. Raises InvalidIndex for a name that it does not have, InvalidValue for a layout
        that is not its parameters', OutOfMemory.
        """
        kernel = cubin.kernel(name)
        check_arguments(kernel, layout)
        size = len(cubin.link(0))
        memory = self.exclusively(self.allocate, size, MemoryKind.VISIBLE)
        buffer = HCQBuffer(Allocation(memory, self, reusable=False), 0, memory.size)
        assert memory.window is not None, "code is written by the host"
        memory.window.store(0, cubin.link(memory.address))
        loaded = LoadedKernel(kernel, memory.address, dynamic_shared, stack)
        if loaded.local:
            self._need_local(loaded.local)
        return HCQProgram(
            *(self, name, buffer, layout),
            group_size=loaded.shared,
            private_size=loaded.local,
            written=written,
            info=loaded,
        )

    def _need_local(self, per_thread: int) -> None:
        """Sees to it that threads have so many bytes of local memory; only ever grows.

        Each compute queue has its own: those of different groups may be switched at any time.
        What was got before stays, for launches that were submitted with it.
        """
        if self._local is not None and self._local.per_thread >= per_thread:
            return
        local = size_local_memory(per_thread, self.port.gpu.units)
        for channel in self.queues["compute"]:
            memory = self.exclusively(self.allocate, local.total, MemoryKind.VRAM)
            self._run(channel, set_local_memory(self.target, local, memory.address))
        self._local = local

    # Life

    def close(self) -> None:
        """As `HCQDevice.close`, but memory goes after the channels, which may still read it.

        Raises DeviceHang where a queue did not come to its end; all is given back even so.
        """
        if self._closed or os.getpid() != self._pid:
            return
        hang = self._hang()
        self._error = self._error or DeviceLost("it is closed")
        self._memories.clear()  # the port frees what is left, once its channels are gone
        super().close()
        if hang is not None:
            raise hang

    def _hang(self) -> DeviceHang | None:
        """Why the queues do not come to their end, if they do not."""
        try:
            self.synchronize()
        except DeviceHang as hang:
            return hang
        except DeviceError as error:
            _log.info("closing %s, which cannot be waited for: %s", self.name, error)
        return None

    def __enter__(self) -> RmDevice:
        return self
