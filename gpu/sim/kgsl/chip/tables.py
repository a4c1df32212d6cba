"""A process's addresses on the GPU, and what an access that they do not allow leads to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.kgsl.chip.caches import Agent
from gpu.sim.physical import Pool
from gpu.sim.port import AgentPort
from gpu.sim.translate import PAGE_SIZE, AddressSpace, Mapping, PageFault


class Hole:
    """What stands for memory that there is not: reads give 0, writes are dropped.

    So the SMMU ends transactions where faults do not stall it (kgsl_iommu.c,
    `kgsl_iommu_configure_gpu_sctlr`: HUPCF without CFCFG).
    """

    name = "nothing"
    local = False

    def load(self, offset: int, size: int) -> bytes:
        """Zeros."""
        return bytes(size)

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Nothing."""


_HOLE: Final = Hole()


class PageTables(AddressSpace):
    """One process's address space.

    Attributes:
        report: is told of each fault; whether the GPU halts at it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.report: Callable[[PageFault], bool] = _halts
        self._holes: dict[int, Mapping] = {}

    def translate(self, address: int, write: bool) -> Mapping:
        """What one access leads to. Raises PageFault where a fault halts the GPU."""
        try:
            return super().translate(address, write)
        except PageFault as fault:
            start = address - address % PAGE_SIZE
            if start in self._holes:  # told of already
                return self._holes[start]
            if self.report(fault):
                raise
            hole = self._holes[start] = Mapping(start, start + PAGE_SIZE, _HOLE, 0)
            return hole

    def is_mapped(self, address: int, size: int, write: bool = False) -> bool:
        """Whether all of a range is mapped; nobody is told."""
        end = address + size
        while address < end:
            mapping = self.find(address)
            if mapping is None or (write and not mapping.writable):
                return False
            address = mapping.end
        return True

    def forget_holes(self) -> None:
        """Faults are told of again: something was mapped, or another command runs."""
        if self._holes:
            self._holes.clear()
            self.generation += 1


def _halts(fault: PageFault) -> bool:
    return True


class Port(AgentPort[Agent]):
    """An `AgentPort`; the command processor's words are read and written in a single access."""

    def read_word(self, address: int, width: int) -> int:
        """One aligned word of 4 or 8 bytes."""
        mapping = self.space.translate(address, False)
        if self.agent != "cp" or not isinstance(mapping.region, Pool):
            return super().read_word(address, width)
        offset = mapping.offset + address - mapping.start
        self.caches.load(self.agent, mapping, offset, width)  # so that missing flushes are seen
        return mapping.region.read_word(offset, width)

    def write_word(self, address: int, width: int, value: int) -> None:
        """Writes one aligned word of 4 or 8 bytes."""
        value &= (1 << 8 * width) - 1
        mapping = self.space.translate(address, True)
        if self.agent != "cp" or not isinstance(mapping.region, Pool):
            super().write_word(address, width, value)
        else:
            offset = mapping.offset + address - mapping.start
            mapping.region.write_word(offset, width, value)
