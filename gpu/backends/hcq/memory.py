"""Device memory for tensors."""

from __future__ import annotations

from typing import Any

from gpu.core.arguments import host_bytes
from gpu.core.errors import Unsupported
from gpu.core.log import get_logger
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.device import HCQDevice
from gpu.runtime.allocator import Allocator

_log = get_logger(__name__)


class QueueAllocator(Allocator[HCQBuffer]):
    """Buffers in the GPU's own memory; the queues' allocator keeps freed ones for reuse."""

    def __init__(self, device: HCQDevice):
        self._device = device
        self._strangers: set[str] = set()  # devices whose memory this one does not reach

    def _alloc(self, nbytes: int) -> HCQBuffer:
        return self._device.allocator.alloc(max(nbytes, 1))

    def _free(self, memory: HCQBuffer, nbytes: int) -> None:
        memory.free()

    @property
    def cached(self) -> int:
        """Bytes kept for later."""
        return self._device.allocator.cached()

    def free_cache(self) -> None:
        """Gives what was freed back to the system, when nothing uses it any more."""
        self._device.allocator.free_cache()

    def copy_in(self, memory: HCQBuffer, data: memoryview) -> None:
        """Copies bytes from the host, behind what was launched before."""
        source = host_bytes(data, "data")
        if source.nbytes:
            self._device.allocator.copy_in(memory.view(0, source.nbytes), source)

    def copy_out(self, data: memoryview, memory: HCQBuffer) -> None:
        """Copies bytes to the host, when what was launched before is done."""
        target = host_bytes(data, "data", writable=True)
        if target.nbytes:
            target[:] = self._device.allocator.copy_out(memory.view(0, target.nbytes))

    def copy(self, target: HCQBuffer, source: HCQBuffer, nbytes: int) -> None:
        """Copies within the device, behind what was launched before."""
        if nbytes:
            self._device.allocator.copy(target.view(0, nbytes), source.view(0, nbytes))

    def transfer(
        self, target: HCQBuffer, source: object, nbytes: int, owner: Allocator[Any]
    ) -> bool:
        """As `Allocator.transfer`: between GPUs of one driver that are peers.

        The GPUs wait for each other, and the host for neither. What is copied stays mapped on this
        device, also when the memory is used again.
        """
        if not isinstance(owner, QueueAllocator) or not isinstance(source, HCQBuffer):
            return False
        if owner._device.name in self._strangers:
            return False
        if not nbytes:
            return True
        if not source.allocation.peers.get(self._device):
            try:
                source.map_to(self._device)
            except Unsupported as reason:
                self._strangers.add(owner._device.name)
                told = "copies from %s to %s go through the host: %s"
                _log.info(told, owner._device.name, self._device.name, reason.message)
                return False
        self._device.allocator.copy(target.view(0, nbytes), source.view(0, nbytes))
        return True
