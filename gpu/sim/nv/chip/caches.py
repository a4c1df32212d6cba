"""Caches of an NVIDIA GPU that software must invalidate, and what they check.

L2 is where all engines meet, and what the CPU writes over the PCI window goes through it; snooped
system memory is coherent with it. So only what lies before L2 can be stale: each cache here keeps a
copy of the 128-byte lines it was asked for, as they were when first read. A read that finds a copy
which memory no longer agrees with is a missing invalidate.

| cache | holds | forgets by |
|---|---|---|
| `code` | instructions | INVALIDATE_SHADER_CACHES.INSTRUCTION, INVALIDATE_INSTRUCTION_CACHE |
| `constant` | constant banks | .CONSTANT, INVALIDATE_SHADER_CONSTANT_CACHE, a bank's own bit |
| `data` | loads of shaders (L1) | .GLOBAL_DATA, INVALIDATE_SHADER_DATA_CACHE |
| `sked` | QMDs | a PCAS action with INVALIDATE, INVALIDATE_SKED_CACHES |
"""

from __future__ import annotations

from typing import Final, Literal

from gpu.sim.lines import LINE, Lines
from gpu.sim.physical import Region
from gpu.sim.record import DebugChannel
from gpu.sim.translate import Mapping

Mode = Literal["check", "oldest", "none"]
Agent = Literal["code", "constant", "data", "sked", "host", "copy"]
CACHES: Final = ("code", "constant", "data", "sked")


class Caches:
    """The caches of one GPU.

    Args:
        mode: what a read of a changed line gives: "check" a violation and the new value, "oldest"
            the old value, as hardware may, "none" the new value.
    """

    def __init__(self, mode: Mode, debug: DebugChannel):
        self.mode = mode
        self._debug = debug
        self._copies: dict[str, Lines[Region]] = {name: Lines() for name in CACHES}

    def invalidate(self, *names: str) -> None:
        """Forgets all that some caches hold."""
        for name in names:
            self._copies[name].clear()

    def invalidate_range(self, name: str, mapping: Mapping, offset: int, size: int) -> None:
        """Forgets the lines of a range of a mapping's region."""
        self._copies[name].drop(mapping.region, offset, size)

    def drop(self, region: Region, offset: int, size: int) -> None:
        """Forgets memory that was given back."""
        for held in self._copies.values():
            held.drop(region, offset, size)

    def load(self, agent: Agent, mapping: Mapping, offset: int, size: int) -> bytes:
        """What an agent reads from a region."""
        region = mapping.region
        if self.mode == "none" or agent not in self._copies or not mapping.cached:
            return region.load(offset, size)
        first, end = offset - offset % LINE, offset + size
        current = region.load(first, end - first + -end % LINE)
        return self._take(agent, region, first, current)[offset - first : end - first]

    def see(self, agent: Agent, mapping: Mapping, offset: int, data: bytes) -> None:
        """Tells of whole lines that an agent has read where memory itself is what caches give."""
        if self.mode != "none" and mapping.cached:
            self._take(agent, mapping.region, offset, data)

    def _take(self, agent: Agent, region: Region, first: int, current: bytes) -> bytes:
        """What is read of whole lines, of which memory has `current`."""
        held = self._copies[agent]
        old = held.take(region, first, current)
        if not old:
            return current
        seen = bytearray(current)
        for at in old:
            place = slice(at - first, at - first + LINE)
            if self.mode == "oldest":
                seen[place] = held[region, at]
                continue
            held[region, at] = current[place]
            self._debug.violation(
                f"the {agent} cache holds an old copy of {region.name} at {at:#x}: an invalidate"
                " must come before this read"
            )
        return bytes(seen)

    def store(
        self, agent: Agent, mapping: Mapping, offset: int, data: bytes | bytearray | memoryview
    ) -> None:
        """What an agent writes; the cache in front of it takes part."""
        mapping.region.store(offset, data)
        if agent == "data":
            self.written_in_place(mapping, offset, len(data))

    def written_in_place(self, mapping: Mapping, offset: int, size: int) -> None:
        """Memory was written through the cache of data, whose copies are not old."""
        held, region = self._copies["data"], mapping.region
        for line in held.within(region, offset, size):
            held[region, line] = region.load(line, LINE)
