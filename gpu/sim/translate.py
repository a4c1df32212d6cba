"""Virtual addresses of a GPU: mappings, and the cached translations that outlive them.

An access looks into the TLB first. What is there stays valid, also after the mapping behind it is
gone, until someone flushes the TLB: a missing flush gives stale data, as on hardware.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpu.sim.physical import Region

PAGE_SHIFT: Final = 12
PAGE_SIZE: Final = 1 << PAGE_SHIFT


@dataclass(frozen=True, slots=True)
class Mapping:
    """Addresses `start` to `end` (not included) that lead to a region from `offset` on.

    Attributes:
        writable, executable: what the page tables allow besides reading.
        cached: whether the caches of the GPU may hold it (memory types other than UC).
        owner: the allocation that is mapped; only compared by identity.
    """

    start: int
    end: int
    region: Region
    offset: int
    writable: bool = True
    executable: bool = True
    cached: bool = True
    owner: object = None


class PageFault(Exception):
    """An access that the page tables do not allow.

    Attributes:
        address: what was accessed, exactly; drivers are told the page only.
        write: whether it was a write.
        present: whether something is mapped there.
        execute: whether it was code that was to be run.
    """

    def __init__(self, address: int, write: bool, present: bool, execute: bool = False):
        self.address = address
        self.write = write
        self.present = present
        self.execute = execute
        what = "execution" if execute else "write" if write else "read"
        refused = "without execution" if execute else "read-only"
        why = f"mapped {refused}" if present else "not mapped"
        super().__init__(f"{what} at {address:#x}, which is {why}")


class Translation(ABC):
    """Virtual to physical, as engines see it: mappings that are kept, or a walk of page tables.

    Attributes:
        generation: changes whenever what an address leads to may have changed.
        kept: what others keep for as long as it lasts, by who does.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.kept: dict[object, object] = {}

    @abstractmethod
    def translate(self, address: int, write: bool) -> Mapping:
        """What one access leads to, the same object until that changes. Raises PageFault."""

    def spans(self, address: int, size: int, write: bool) -> Iterator[tuple[Mapping, int, int]]:
        """(mapping, offset in its region, bytes) of each piece of a range. Raises PageFault.

        Pieces end where mappings do; within one the first page's translation serves, as one large
        TLB entry would.
        """
        while size > 0:
            mapping = self.translate(address, write)
            count = min(size, mapping.end - address)
            yield mapping, mapping.offset + address - mapping.start, count
            address += count
            size -= count


def first_hole(space: Translation, address: int) -> int:
    """The first page from that of a mapped address on that nothing is mapped at."""
    try:
        while True:
            address = space.translate(address, write=False).end
    except PageFault as fault:
        return fault.address & ~(PAGE_SIZE - 1)


class GpuSpace(Translation):
    """Addresses whose translations a TLB keeps until it is flushed."""

    @abstractmethod
    def flush_tlb(self) -> None:
        """Forgets all cached translations."""

    @abstractmethod
    def overlapping(self, start: int, end: int) -> Mapping | None:
        """A mapping that has an address of a range, by the page tables themselves."""


class AddressSpace(GpuSpace):
    """One process's addresses on one GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._starts: list[int] = []
        self._mappings: dict[int, Mapping] = {}
        self._tlb: dict[int, Mapping] = {}

    def overlapping(self, start: int, end: int) -> Mapping | None:
        """A mapping that has an address of a range."""
        found = self.find(start)
        if found:
            return found
        at = bisect_right(self._starts, start)
        if at < len(self._starts) and self._starts[at] < end:
            return self._mappings[self._starts[at]]
        return None

    def find(self, address: int) -> Mapping | None:
        """What is mapped at an address, by the page tables themselves."""
        at = bisect_right(self._starts, address) - 1
        if at >= 0:
            mapping = self._mappings[self._starts[at]]
            if address < mapping.end:
                return mapping
        return None

    def all(self) -> list[Mapping]:
        """All mappings of the page tables, in order."""
        return [self._mappings[start] for start in self._starts]

    def map(self, mapping: Mapping) -> None:
        """Adds a mapping, which must not overlap another."""
        assert not self.overlapping(mapping.start, mapping.end), "the caller checks overlap"
        insort(self._starts, mapping.start)
        self._mappings[mapping.start] = mapping

    def unmap(self, start: int) -> Mapping:
        """Removes a mapping from the page tables, not from the TLB."""
        self.generation += 1
        self._starts.remove(start)
        return self._mappings.pop(start)

    def flush_tlb(self) -> None:
        """Forgets all cached translations."""
        self.generation += 1
        self._tlb.clear()

    def translate(self, address: int, write: bool) -> Mapping:
        """What one access leads to. Raises PageFault."""
        page = address >> PAGE_SHIFT
        mapping = self._tlb.get(page)
        if mapping is None:
            mapping = self.find(address)
            if mapping is None:
                raise PageFault(address, write, present=False)
            self._tlb[page] = mapping
        if write and not mapping.writable:
            raise PageFault(address, write, present=True)
        return mapping
