"""Timelines, and fences as descriptors (kgsl_timeline.c, kgsl_sync.c)."""

from __future__ import annotations

from collections.abc import Callable

from gpu.sim.process import SimFile


class Timeline:
    """A number that only grows, which users raise.

    Attributes:
        file: the open file that it belongs to.
        value: how far it is.
    """

    def __init__(self, file: object, value: int):
        self.file = file
        self.value = value
        self._is_gone = False

    def signal(self, value: int) -> None:
        """Raises it; a lower value does nothing."""
        self.value = max(self.value, value)

    def has_reached(self, value: int) -> bool:
        """Whether a fence at a value is signalled; those of one that is gone all are."""
        return self._is_gone or self.value >= value

    def destroy(self) -> None:
        """It is gone."""
        self._is_gone = True


class Fence(SimFile):
    """A descriptor that can be read once something is so: a sync_file."""

    def __init__(self, is_signalled: Callable[[], bool]):
        self.is_signalled = is_signalled

    def can_be_read(self) -> bool:
        """Whether it is signalled."""
        return self.is_signalled()
