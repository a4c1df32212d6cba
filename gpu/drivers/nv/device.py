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
from collections.abc import Mapping, Sequence
from typing import Unpack
from weakref import WeakSet

from gpu.core.errors import DeviceError, DeviceLost, OutOfMemory, TransportError
from gpu.core.log import get_logger
from gpu.drivers.device import DriverDevice, Rung
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
from gpu.drivers.nv.encode.semaphore import release
from gpu.drivers.nv.fault.scene import NvScene
from gpu.drivers.nv.nvk.gpu import open_gpu
from gpu.drivers.nv.port import NvPort, QueueOptions, port_of
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.channel import Channel, Template
from gpu.hcq.device import DeviceOptions
from gpu.hcq.encoder import Encoded, Segment
from gpu.hcq.link import link
from gpu.hcq.ports import Memory, MemoryKind
from gpu.hcq.program import HCQProgram
from gpu.hcq.symbol import TIMELINE_ADDRESS, TIMELINE_VALUE
from gpu.transport.world import World

_log = get_logger(__name__)


class RmDevice(DriverDevice[LoadedKernel]):
    """Queues, memory and programs of one GPU; everything else is `DriverDevice`'s."""

    port: NvPort

    def __init__(self, port: NvPort, **options: Unpack[DeviceOptions]):
        """As `HCQDevice`; use `open`."""
        self._local: LocalMemory | None = None
        self._local_memory: dict[Channel, Memory] = {}
        self.kernels, self.programs = {}, WeakSet()
        self.scene = NvScene(port, self.kernels)
        super().__init__(port, **options)
        self.allocator.places = port.copy_places

    @classmethod
    def open(
        cls,
        world: World,
        index: int = 0,
        *,
        options: QueueOptions | None = None,
        force: Mapping[str, str] | None = None,
        **device: Unpack[DeviceOptions],
    ) -> RmDevice:
        """Opens a GPU by its place in `NvSession.cards`; on an error nothing of it stays open.

        ``force`` and errors are those of `gpu.drivers.nv.nvk.gpu.open_gpu`; raises DeviceHang and
        GpuFault too, where a queue does not run what sets it up.
        """
        gpu = open_gpu(world, index, force=force)
        return cls(port_of(gpu, options or QueueOptions()), **device)

    @property
    def target(self) -> Target:
        """What code and launches for it depend on."""
        return self.port.target

    def set_up(self, kind: str, channel: Channel) -> None:
        """As `HCQDevice.set_up`: its classes, the windows, local memory if any kernel needs it."""
        copy_class = self.target.generation.dma
        if kind == "copy":
            self._run(channel, set_up_copy(copy_class))
            return
        push = set_up_compute(self.target)
        if self.port.copies_on_compute:
            push.data += set_up_copy(copy_class).data
        self._run(channel, push)
        if self._local is not None:
            if channel not in self._local_memory:
                self._local_memory[channel] = self._new_local(self._local)
            self._use_local(channel, self._local, self._local_memory[channel])

    def _new_local(self, local: LocalMemory) -> Memory:
        return self.exclusively(self.allocate, local.total, MemoryKind.VRAM)

    def _use_local(self, channel: Channel, local: LocalMemory, memory: Memory) -> None:
        self._run(channel, set_local_memory(self.target, local, memory.address))

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
        loaded = LoadedKernel(kernel, memory.address, dynamic_shared, stack)
        buffer = self.put_code(memory, cubin.link(memory.address).ljust(size, b"\0"), loaded)
        if loaded.local:
            self._need_local(loaded.local)
        program = HCQProgram(
            *(self, name, buffer, layout),
            group_size=loaded.shared,
            private_size=loaded.local,
            written=written,
            info=loaded,
        )
        return self.loaded(program)

    def _need_local(self, per_thread: int) -> None:
        """Sees to it that threads have so many bytes of local memory; only ever grows.

        Each compute queue has its own: those of different groups may be switched at any time.
        What was got before goes when all launches that were submitted with it are done.
        """
        with self._opening:
            if self._local is not None and self._local.per_thread >= per_thread:
                return
            local = size_local_memory(per_thread, self.port.gpu.units)
            memories = {}
            for channel in self.queues["compute"]:
                memories[channel] = self._new_local(local)
                self._use_local(channel, local, memories[channel])
            before, self._local, self._local_memory = self._local_memory, local, memories
            for memory in before.values():
                self.exclusively(self.release, memory)

    # Faults

    def allocate(self, size: int, kind: MemoryKind) -> Memory:
        """As `HCQDevice.allocate`. Raises DeviceLost where the GPU is gone."""
        try:
            return super().allocate(size, kind)
        except TransportError:
            self._check_not_lost()
            raise

    def failed(self, error: DeviceError) -> None:
        """As `DriverDevice.failed`; what a loss was met by is told too, where it can be read."""
        if isinstance(error, DeviceLost) and self.scene.is_there:
            error.add(self.under_way())
        super().failed(error)

    def _check_not_lost(self) -> None:
        try:
            self.port.gpu.check_not_lost()
        except DeviceLost as lost:
            self._error = lost
            raise

    def _recover(self) -> Rung | None:
        """As `recover`; what does not help leaves opening the device anew, without its memory."""
        if not self.port.gpu.failed() and self._has_ended():
            return None
        self._check_not_lost()
        reasons = []
        for rung in Rung:
            try:
                self.port.renew(rung)
                self.restart()
            except (DeviceError, OutOfMemory) as error:
                reasons.append(f"{rung.value}: {error.message}")
                _log.warning("recovering %s with other %s: %s", self.name, rung.value, error)
            else:
                return rung
        self._error = DeviceLost(f"other queues do not help ({'; '.join(reasons)})")
        self.check_usable()
        raise AssertionError("a lost device is not usable")

    # Life

    def close(self) -> None:
        """As `HCQDevice.close`, but memory goes after the channels, which may still read it.

        Raises DeviceHang where a queue did not come to its end, and what the kernel refuses to
        take back; all else is given back even so.
        """
        if self._closed or os.getpid() != self._pid:
            return
        told = self._ended()
        was_lost = isinstance(self._error, DeviceLost)
        self._error = self._error or DeviceLost("it is closed")
        self._memories.clear()  # the port frees what is left, once its channels are gone
        try:
            super().close()
        except DeviceError as error:
            if not was_lost:
                raise
            _log.info("closing %s, which was lost: %s", self.name, error.message)
        if told is not None:
            raise told

    def __enter__(self) -> RmDevice:
        return self
