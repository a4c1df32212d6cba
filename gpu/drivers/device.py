"""What devices of all drivers share: kernels by where they lie, and going on after faults."""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

from gpu.core.errors import DeviceError, DeviceHang, DeviceLost
from gpu.core.log import get_logger
from gpu.hcq.allocation import Allocation
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.device import HCQDevice
from gpu.hcq.ports import Memory

_log = get_logger(__name__)
K = TypeVar("K")


class Rung(enum.Enum):
    """What is made anew to go on after a fault or a hang; the value is what messages call it."""

    QUEUES = "queues"
    ADDRESS_SPACE = "queues and page tables"


class DriverDevice(HCQDevice, Generic[K]):
    """An `HCQDevice` that knows its kernels, each as a ``K``, and can be recovered."""

    kernels: dict[Memory, K]
    """By the memory of their code; made before queues are opened."""

    def put_code(self, memory: Memory, image: bytes, kernel: K) -> HCQBuffer:
        """Store code in memory that the host reaches, which goes when the buffer does."""
        buffer = HCQBuffer(Allocation(memory, self, reusable=False), 0, memory.size)
        assert memory.window is not None, "code is written by the host"
        memory.window.store(0, image)
        self.kernels[memory] = kernel
        return buffer

    def release(self, memory: Memory) -> None:
        """As `HCQDevice.release`."""
        self.kernels.pop(memory, None)
        super().release(memory)

    def recover(self) -> Rung | None:
        """Makes the device usable again after a fault or a hang; None where there was none.

        What was submitted and not done is dropped, and what it would have written is undefined;
        otherwise memory, programs, graphs and signals are as before. No other thread may use the
        device meanwhile. Returns what was made anew. Raises DeviceLost where that does not help.
        """
        self.forked()
        if self._closed or isinstance(self._error, DeviceLost):
            self.check_usable()
        return self._recover()

    def _recover(self) -> Rung | None:
        """`recover` of a device that is not lost; vendors know how."""
        raise NotImplementedError

    def _hang(self) -> DeviceHang | None:
        """Why the queues do not come to their end, if they do not for want of something."""
        try:
            self.synchronize()
        except DeviceHang as hang:
            return hang
        except DeviceError as error:
            _log.info("closing %s, which cannot be waited for: %s", self.name, error)
        return None
