"""What a device of AMD's stands on, whoever opened it: KFD today, its PCI function or a USB bridge.

A port opens the GPU, gives memory and queues, and knows of faults. Nothing above it names what its
kernel driver is asked, or which registers it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gpu.drivers.am.queue import AmQueue
from gpu.drivers.am.target import Target
from gpu.drivers.device import Rung
from gpu.hcq.ports import DevicePort, Memory, MemoryPort


class Extent(Protocol):
    """An allocation, as far as an address may be in it."""

    address: int
    size: int

    @property
    def label(self) -> str:
        """What it is for."""

    def __contains__(self, address: int, /) -> bool:
        """Whether it has the byte at an address."""


class AmMemory(MemoryPort, Protocol):
    """Memory of a GPU, with what code and reports of faults want of it."""

    def allocate_code(self, size: int) -> Memory:
        """Memory that kernels can run and not write, with a window to store them."""

    def read(self, address: int, size: int) -> bytes | None:
        """Bytes at an address of the GPU, None where the host does not see them."""

    def nearest(self, address: int) -> Extent | None:
        """The allocation that an address is in, was in before it was freed, or is behind."""

    def describe(self, address: int) -> str:
        """That allocation in words, and where in or behind it the address is."""

    def translation(self, address: int) -> Sequence[str]:
        """How page tables lead to an address, in words; nothing where they are not ours."""

    def extents(self) -> Sequence[Extent]:
        """All allocations."""


class AmPort(DevicePort, Protocol):
    """An open GPU under its command queues.

    Attributes:
        target: what packets and launches depend on.
        explain: says what more is known of a fault at an address, for its message.
    """

    target: Target
    explain: Callable[[int], str]

    @property
    def memory(self) -> AmMemory:
        """Its memory."""

    def open_queue(self, kind: str, index: int) -> AmQueue:
        """As `DevicePort.open_queue`."""

    def begin_wait(self) -> None:
        """A wait of this thread begins."""

    def host_wrote(self) -> None:
        """Have queues read what the host wrote to device memory before."""

    def look(self) -> None:
        """Learn of faults and resets that happened by now, for `check`."""

    def let_run_out(self) -> bool:
        """Wait a moment for queues to read what they still have; whether they have."""

    def stop(self) -> Rung | None:
        """Take all queues off the hardware, whatever they do; a fault or a reset may be the end.

        Returns what had to be made anew for that, besides the queues.
        """

    def renew(self, rung: Rung) -> None:
        """After `stop`, have no queue open, in the address space as it was or in another.

        Memory stays where it is. Raises DeviceLost where there is no other address space to be had,
        Unsupported for memory that cannot go there, and what opening raises; then all is as before.
        """
