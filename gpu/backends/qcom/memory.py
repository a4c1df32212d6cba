"""Memory of an Adreno GPU for tensors, also such as other users of it have."""

from __future__ import annotations

from typing import Final

from gpu.backends.hcq.memory import QueueAllocator
from gpu.core.errors import InvalidValue
from gpu.drivers.kgsl.device import KgslDevice
from gpu.hcq.buffer import HCQBuffer

ALIGNMENT: Final = 16
"""Bytes that one instruction reads or writes at most (`gpu/compiler/targets/adreno.py`)."""


class AdrenoAllocator(QueueAllocator):
    """As every `QueueAllocator`; all memory is the system's, so that the host's is used too."""

    def __init__(self, device: KgslDevice):
        super().__init__(device)
        self._port = device.port

    def adopt(self, pointer: int, nbytes: int, offset: int = 0) -> HCQBuffer:
        """Memory at an address of the GPU, as OpenCL's or Vulkan's driver has it, or of the host.

        Raises InvalidValue for one that is no multiple of 16, that is in no object of this process
        and no memory of it, or that is in an object with fewer bytes behind it.
        """
        address = pointer + offset
        if address % ALIGNMENT:
            raise InvalidValue(
                f"memory at {address:#x}: kernels read up to {ALIGNMENT} bytes at once, so that it"
                f" must begin at a multiple of {ALIGNMENT}; copy it"
            )
        return self._device.allocator.adopt(self._port.memory.adopt, address, nbytes)
