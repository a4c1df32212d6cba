"""Device memory for tensors."""

from __future__ import annotations

from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.device import HCQDevice
from gpu.runtime.allocator import Allocator


class QueueAllocator(Allocator[HCQBuffer]):
    """Buffers in the GPU's own memory; the queues' allocator keeps freed ones for reuse."""

    def __init__(self, device: HCQDevice):
        self._device = device

    def _alloc(self, nbytes: int) -> HCQBuffer:
        return self._device.allocator.alloc(max(nbytes, 1))

    def _free(self, memory: HCQBuffer, nbytes: int) -> None:
        memory.free()

    def copy_in(self, memory: HCQBuffer, data: memoryview) -> None:
        """Copies bytes from the host, behind what was launched before."""
        if data.nbytes:
            self._device.allocator.copy_in(memory.view(0, data.nbytes), data)

    def copy_out(self, data: memoryview, memory: HCQBuffer) -> None:
        """Copies bytes to the host, when what was launched before is done."""
        if data.nbytes:
            data.cast("B")[:] = self._device.allocator.copy_out(memory.view(0, data.nbytes))
