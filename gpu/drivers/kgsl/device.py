"""An Adreno GPU with a command queue: programs, private memory, faults, closing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple, Unpack
from weakref import WeakSet

from gpu.core.errors import DeviceError, DeviceLost, OutOfMemory
from gpu.core.ir3binary import Ir3Binary
from gpu.drivers.device import DriverDevice, Rung
from gpu.drivers.kgsl.calls import ContextLost
from gpu.drivers.kgsl.contexts import DEPTH
from gpu.drivers.kgsl.faults import KgslScene
from gpu.drivers.kgsl.port import RING, KgslPort, KgslQueue
from gpu.drivers.kgsl.program import (
    NO_PRIVATE,
    LoadedKernel,
    PrivateMemory,
    check_kernel,
    private_size,
)
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.channel import Channel
from gpu.hcq.device import DeviceOptions
from gpu.hcq.ports import Memory, MemoryKind
from gpu.hcq.program import HCQProgram
from gpu.transport.world import World

T = TypeVar("T")
Args = TypeVarTuple("Args")


class KgslChannel(Channel):
    """A queue that is given no more than KGSL takes at once."""

    def next_value(self, count: int = 1) -> int:
        """As `Channel.next_value`. Raises `MustWait` while too much is under way."""
        assert isinstance(self.port, KgslQueue), "its queue is KGSL's"
        self.port.settle()  # again, where a second interrupt came
        value = super().next_value(count)
        self.must_pass(value - DEPTH)
        return value


class KgslDevice(DriverDevice[LoadedKernel]):
    """The queue, memory and programs of the GPU; everything else is `DriverDevice`'s."""

    port: KgslPort
    channel_type = KgslChannel
    # The host polls it: no window that asks the kernel for each look.
    signal_memory = MemoryKind.VISIBLE

    def __init__(self, port: KgslPort, **options: Unpack[DeviceOptions]):
        """As `HCQDevice`; use `open`."""
        self.kernels, self.programs = {}, WeakSet()
        self.scene = KgslScene(port, self.kernels, self.channels)
        self._private = NO_PRIVATE
        super().__init__(port, **options)

    @classmethod
    def open(
        cls, world: World, index: int = 0, *, ring: int = RING, **options: Unpack[DeviceOptions]
    ) -> KgslDevice:
        """Opens the GPU. Errors as of `KgslPort`."""
        return cls(KgslPort(world, index, ring), **options)

    # Programs

    def load(
        self, kernel: Ir3Binary, layout: ArgumentLayout, *, written: Sequence[int] | None = None
    ) -> HCQProgram:
        """A kernel in memory of its own, ready to be launched. Errors as of `check_kernel`.

        Raises OutOfMemory.
        """
        check_kernel(self.port.chip, kernel, layout)
        private = self.private(kernel.private) if kernel.private else NO_PRIVATE
        memory = self.exclusively(self._take_code, len(kernel.code))
        loaded = LoadedKernel(kernel, memory.address, private)
        buffer = self.put_code(memory, kernel.code, loaded)
        program = HCQProgram(
            *(self, kernel.name, buffer, layout),
            group_size=kernel.shared,
            private_size=kernel.private,
            written=written,
            info=loaded,
        )
        return self.loaded(program)

    def _take_code(self, size: int) -> Memory:
        memory = self.port.memory.allocate_code(size)
        self.adopt(memory)
        return memory

    def private(self, per_fiber: int) -> PrivateMemory:
        """Private memory for as many bytes of each thread; only ever grows.

        What was got before stays where it is, for programs that were loaded with it. Raises
        OutOfMemory.
        """
        size = private_size(self.port.chip, per_fiber)
        with self._opening:
            if self._private.size.per_fiber < size.per_fiber:
                memory = self.exclusively(self.allocate, size.total, MemoryKind.VRAM)
                self._private = PrivateMemory(memory.address, size)
            return self._private

    # Faults

    def exclusively(self, action: Callable[[*Args], T], *args: *Args) -> T:
        """As `HCQDevice.exclusively`. Raises GpuFault where the GPU has failed meanwhile."""
        try:
            return super().exclusively(action, *args)
        except ContextLost:
            self._check()
            raise

    def _recover(self) -> Rung | None:
        """As `recover`: another context, on the memory that there is."""
        self.port.look()
        if not self.port.is_lost and self._error is None and self._has_ended():
            return None
        try:
            self.port.renew()
            self.restart()
        except (DeviceError, OutOfMemory) as error:
            self._error = DeviceLost(f"another context does not help ({error.message})")
            self.check_usable()
        return Rung.QUEUES

    # Life

    def close(self) -> None:
        """As `HCQDevice.close`, but memory goes after the context, which may still use it.

        Raises DeviceHang where the queue did not come to its end, and what the kernel refuses to
        take back; all else is given back even so.
        """
        if self._closed or os.getpid() != self._pid:
            return
        told = self._ended()
        self._error = self._error or DeviceLost("it is closed")
        self._memories.clear()  # the port frees what is left, once its context is gone
        super().close()
        if told is not None:
            raise told

    def __enter__(self) -> KgslDevice:
        return self
