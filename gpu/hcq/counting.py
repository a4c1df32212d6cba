"""Performance counters as profilers see them: commands around a launch, and what they leave."""

from __future__ import annotations

from typing import Protocol

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
