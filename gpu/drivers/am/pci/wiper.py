"""Clearing video memory where the host is slow to: over USB it stores 3.6 MB/s.

A copy engine does it, the last one, whose queue has nothing else to do: so clearing waits for no
kernel, and whoever gets memory need not wait for what others do.
"""

from __future__ import annotations

import ctypes
from typing import Final

from gpu.core.wait import wait_until
from gpu.drivers.am.encode.sdma_builder import SdmaBuilder
from gpu.drivers.am.encode.sdma_packets import sdma_version
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.entries import PAGE, Access
from gpu.drivers.am.pci.memory import PciMemory
from gpu.drivers.am.queue import AmQueue
from gpu.drivers.am.target import Version

_SECONDS: Final = 10.0
_WORDS: Final = 16  # of one submission


class Wiper:
    """Clears memory with a queue of its own, of a ring of `RING` bytes."""

    RING: Final = 4096

    def __init__(self, chip: Chip, version: Version, memory: PciMemory, queue: AmQueue):
        """``queue`` is one of a copy engine of a version, which nobody else uses.

        A word for it is taken from ``memory``.
        """
        self._chip = chip
        self._version = version
        self._queue = queue
        self._most = sdma_version(version).max_fill
        self._fence = memory.hold_system(PAGE, Access.READ, "a fence")
        self._count = 0

    def clear(self, address: int, size: int) -> None:
        """As `Clearing.clear`. Raises HwTimeout where the engine does not, DeviceLost."""
        for start in range(0, size, self._most):
            self._fill(address + start, min(self._most, size - start))

    def _fill(self, address: int, size: int) -> None:
        push = SdmaBuilder(self._version)
        push.clear(address, size)
        push.fence(self._fence.address, self._count + 1)
        push.nop(_WORDS - len(push))  # so that none crosses the end of the ring
        words, last = ctypes.create_string_buffer(push.data), ctypes.c_uint64()
        position = 4 * _WORDS * self._count
        self._count += 1
        self._queue.publish(
            *(position, ctypes.addressof(words), 4 * _WORDS),
            *(ctypes.addressof(last), self._count),
        )
        wait_until(
            *(self._chip.waiter, lambda: self._fence.window.read(0, 4), self._count),
            what=f"{self._chip.name}: clearing {size:#x} bytes at {address:#x}",
            timeout=_SECONDS,
            check=self._chip.check,
        )
