"""Performance counters as profilers see them: commands around a launch, and what they leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpu.core.errors import Unsupported
from gpu.hcq.allocator import Stamps


class Counting(Protocol):
    """What a device's performance counters count of each launch; vendors know how.

    Attributes:
        size: bytes of memory that a launch's counts take.
    """

    size: int

    def around(self, address: int) -> Stamps:
        """What is submitted before and after a launch; its counts go to an address."""

    def counts(self, data: bytes) -> dict[str, int]:
        """What the memory holds after the launch, by name."""


def no_counters(names: Sequence[str], device: str) -> Unsupported:
    """The error of devices that count nothing here."""
    return Unsupported(
        f"counters {', '.join(names)} of {device}: those of AMD's GFX11 and GFX12 are known; of"
        " other GPUs no public document says how user queues reach them"
    )
