"""What allocates memory of an NVIDIA GPU, and where each allocation is or was, for messages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from gpu.hcq.ports import Memory, MemoryKind, MemoryPort

_REMEMBERED: Final = 64  # allocations that were freed, for messages


@dataclass(frozen=True, slots=True)
class Extent:
    """Where an allocation is or was, and its name."""

    address: int
    size: int
    name: str
    freed: bool = False

    def __contains__(self, address: int) -> bool:
        return self.address <= address < self.address + self.size

    def place_of(self, address: int) -> str:
        """Where an address is relative to it, in words."""
        what = f"{self.name} at {self.address:#x}" + (", which was freed" if self.freed else "")
        if address in self:
            return f"{address - self.address:#x} into {what}"
        return f"{address - self.address - self.size:#x} bytes behind {what}"


class Extents:
    """All allocations of a GPU, and the latest that were freed."""

    def __init__(self) -> None:
        self._live: dict[Memory, Extent] = {}
        self._freed: deque[Extent] = deque(maxlen=_REMEMBERED)

    def add(self, memory: Memory, extent: Extent) -> None:
        """Memory is allocated."""
        self._live[memory] = extent

    def remove(self, memory: Memory) -> None:
        """It is freed."""
        found = self._live.pop(memory)
        self._freed.append(Extent(found.address, found.size, found.name, freed=True))

    @property
    def live(self) -> tuple[Memory, ...]:
        """What is allocated and not freed, the oldest first."""
        return tuple(self._live)

    def all(self) -> list[Extent]:
        """All allocations."""
        return list(self._live.values())  # at once: other threads may allocate

    def nearest(self, address: int) -> Extent | None:
        """The allocation that an address is in, was in before it was freed, or is behind."""
        live = self.all()
        for extent in (*live, *reversed(self._freed)):
            if address in extent:
                return extent
        before = [extent for extent in live if extent.address <= address]
        return max(before, key=lambda extent: extent.address, default=None)

    def describe(self, address: int) -> str:
        """That allocation in words, and where in or behind it the address is."""
        near = self.nearest(address)
        return "before all buffers" if near is None else near.place_of(address)

    def read(self, address: int, size: int) -> bytes | None:
        """Bytes at an address of the GPU; None where the host does not see all of them."""
        for memory in self._live:
            at = address - memory.address
            if at >= 0 and at + size <= memory.size and memory.window is not None:
                return memory.window.load(at, size)
        return None


class NvMemory(MemoryPort, Protocol):
    """Memory of one GPU, with what is known of each piece for messages.

    Attributes:
        extents: of all allocations.
    """

    extents: Extents

    def allocate(
        self, size: int, kind: MemoryKind, *, contiguous: bool = False, name: str = "buffer"
    ) -> Memory:
        """As `MemoryPort.allocate`; ``contiguous`` is of one piece, ``name`` for messages."""
        ...

    def close(self) -> None:
        """Frees what is left; all is tried before an error is raised."""
        ...
