"""How an engine reads and writes a process's memory."""

from __future__ import annotations

from gpu.sim.amd.chip.caches import Agent
from gpu.sim.physical import Pool
from gpu.sim.port import AgentPort


class Port(AgentPort[Agent]):
    """An `AgentPort`; the packet processor's words are read and written in a single access."""

    def read_word(self, address: int, width: int) -> int:
        """One aligned word of 4 or 8 bytes."""
        mapping = self.space.translate(address, False)
        if self.agent == "cp" and isinstance(mapping.region, Pool):
            return mapping.region.read_word(mapping.offset + address - mapping.start, width)
        return super().read_word(address, width)

    def write_word(self, address: int, width: int, value: int) -> None:
        """Writes one aligned word of 4 or 8 bytes."""
        mapping = self.space.translate(address, True)
        if self.agent == "cp" and isinstance(mapping.region, Pool):
            value &= (1 << 8 * width) - 1
            mapping.region.write_word(mapping.offset + address - mapping.start, width, value)
        else:
            super().write_word(address, width, value)
