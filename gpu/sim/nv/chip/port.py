"""How an engine reads and writes a VA space."""

from __future__ import annotations

from gpu.sim.nv.chip.caches import Agent
from gpu.sim.port import AgentPort
from gpu.sim.translate import GpuSpace, PageFault


class Port(AgentPort[Agent]):
    """An `AgentPort` that can be asked what is mapped."""

    space: GpuSpace

    def is_mapped(self, address: int, size: int) -> bool:
        """Whether all of a range is mapped."""
        try:
            for _ in self.space.spans(address, size, write=False):
                pass
        except PageFault:
            return False
        return True
