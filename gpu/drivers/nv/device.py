"""An NVIDIA GPU with command queues, through its kernel driver: opening, programs, closing.

A first look::

    from gpu.drivers.nv.device import RmDevice
    from gpu.transport.world import real_world

    with RmDevice.open(real_world()) as gpu:
        buffer = gpu.allocator.alloc(5)
        gpu.allocator.copy_in(buffer, b"hello")
        print(gpu.allocator.copy_out(buffer))
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from gpu.core.errors import DeviceError, DeviceHang, DeviceLost, OutOfMemory
from gpu.core.log import get_logger
from gpu.drivers.nv.channel.channel import GpfifoChannel
from gpu.drivers.nv.channel.recover import Rung
from gpu.drivers.nv.code.cubin import Cubin
from gpu.drivers.nv.code.sass import BareCode
from gpu.drivers.nv.encode.ce import set_up_copy
from gpu.drivers.nv.encode.compute import check_arguments
from gpu.drivers.nv.encode.launch import (
    LoadedKernel,
    LocalMemory,
    Target,
    set_local_memory,
    set_up_compute,
    size_local_memory,
)
from gpu.drivers.nv.encode.pushbuf import Pushbuffer
from gpu.drivers.nv.encode.qmd_layout import qmd_layout
from gpu.drivers.nv.encode.semaphore import release
from gpu.drivers.nv.fault.inflight import SentLaunch, launches_in_flight
from gpu.drivers.nv.fault.report import blame
from gpu.drivers.nv.fault.sm_errors import FaultDetails
from gpu.drivers.nv.port import NvPort, QueueOptions, open_port
from gpu.hcq.allocation import Allocation
from gpu.hcq.allocator import STAGING
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.channel import Channel, Template
from gpu.hcq.device import HCQDevice
from gpu.hcq.encoder import Encoded, Segment
from gpu.hcq.link import link
from gpu.hcq.ports import Memory, MemoryKind
from gpu.hcq.program import HCQProgram
from gpu.hcq.recovery import restart
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
        self._local_memory: dict[Channel, Memory] = {}
        self._kernels: dict[Memory, LoadedKernel] = {}
        port.explain = self._explain
        super().__init__(
            port,
            timeline_start=timeline_start,
            timeout=timeout,
            command_memory=command_memory,
            staging=staging,
        )
        self.allocator.places = port.copy_places
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
        """Opens a GPU by its place in `NvSession.cards`; on an error nothing of it stays open.

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
        cubin: Cubin | BareCode,
        name: str,
        layout: ArgumentLayout,
        *,
        dynamic_shared: int = 0,
        stack: int = 0,
        written: Sequence[int] | None = None,
    ) -> HCQProgram:
        """A kernel of a cubin or bare code, in memory of its own, ready to be launched.

        ``dynamic_shared`` is bytes of a block beside what it declares, ``stack`` of a thread for
        recursion. Raises InvalidIndex for a name that it does not have, InvalidValue for a layout
        that is not its parameters', OutOfMemory.
        """
        kernel = cubin.kernel(name)
        check_arguments(kernel, layout)
        size = cubin.size
        memory = self.exclusively(self.allocate, size, MemoryKind.VISIBLE)
        buffer = HCQBuffer(Allocation(memory, self, reusable=False), 0, memory.size)
        assert memory.window is not None, "code is written by the host"
        memory.window.store(0, cubin.link(memory.address).ljust(size, b"\0"))
        loaded = LoadedKernel(kernel, memory.address, dynamic_shared, stack)
        self._kernels[memory] = loaded
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
        What was got before goes when all launches that were submitted with it are done.
        """
        if self._local is not None and self._local.per_thread >= per_thread:
            return
        local = size_local_memory(per_thread, self.port.gpu.units)
        memories = {}
        for channel in self.queues["compute"]:
            memory = self.exclusively(self.allocate, local.total, MemoryKind.VRAM)
            memories[channel] = memory
            self._run(channel, set_local_memory(self.target, local, memory.address))
        before, self._local, self._local_memory = self._local_memory, local, memories
        for memory in before.values():
            self.exclusively(self.release, memory)

    def release(self, memory: Memory) -> None:
        """As `HCQDevice.release`."""
        self._kernels.pop(memory, None)
        super().release(memory)

    # Faults

    def _explain(self, channels: Sequence[GpfifoChannel], details: FaultDetails | None) -> str:
        """What `NvPort.check` adds to a fault of these channels: kernels and arguments."""
        address = details.address if details is not None else None
        extent = self.port.gpu.memory.nearest(address) if address is not None else None
        why = blame(self._kernels.values(), self._launches(channels), details, extent)
        return "; ".join(filter(None, (why, "recover() makes the device usable again")))

    def under_way(self) -> str:
        """Launches that have not ended, the oldest first."""
        return blame(self._kernels.values(), self._launches(self.port.gpu.channels), None, None)

    def _launches(self, channels: Iterable[GpfifoChannel]) -> list[SentLaunch]:
        layout, read = qmd_layout(self.target.generation.qmd_major), self.port.gpu.memory.read
        return [each for c in channels for each in launches_in_flight(c, layout, read)]

    def recover(self) -> Rung | None:
        """Makes the device usable again after a fault; None where there was none.

        What was submitted and not done is dropped, and what it would have written is undefined;
        otherwise memory, programs and graphs are as before. No other thread may use the device
        meanwhile. Returns what was made anew. Raises DeviceLost where that does not help: the
        device is to be closed and opened anew then, without its memory.
        """
        self.forked()
        if self._closed or isinstance(self._error, DeviceLost):
            self.check_usable()
        if not self.port.failed():
            return None
        reasons = []
        for rung in Rung:
            try:
                self._renew(rung)
            except (DeviceError, OutOfMemory) as error:
                reasons.append(f"{rung.value}: {error.message}")
                _log.warning("recovering %s with other %s: %s", self.name, rung.value, error)
            else:
                return rung
        self._error = DeviceLost(f"other channels do not help ({'; '.join(reasons)})")
        self.check_usable()
        raise AssertionError("a lost device is not usable")

    def _renew(self, rung: Rung) -> None:
        """Other channels under the same queues, set up like those before."""
        restart(self, lambda: self.port.renew(rung))
        self._set_up()
        for channel, memory in self._local_memory.items():
            assert self._local is not None, "its size is known where there is any"
            self._run(channel, set_local_memory(self.target, self._local, memory.address))

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
