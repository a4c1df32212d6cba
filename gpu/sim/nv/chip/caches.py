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

from gpu.sim.linecaches import Data, LineCaches, Mode
from gpu.sim.record import DebugChannel
from gpu.sim.translate import Mapping

Agent = Literal["code", "constant", "data", "sked", "host", "copy"]
_LEVELS: Final[dict[Agent, tuple[str, ...]]] = {
    "code": ("code",),
    "constant": ("constant",),
    "data": ("data",),
    "sked": ("sked",),
}
_ADVICE: Final = {
    "code": "INVALIDATE_INSTRUCTION_CACHE",
    "constant": "INVALIDATE_SHADER_CONSTANT_CACHE",
    "data": "INVALIDATE_SHADER_DATA_CACHE",
    "sked": "INVALIDATE_SKED_CACHES",
}


class Caches(LineCaches[Agent]):
    """The caches of one GPU; all that is written goes to L2, and is memory's at once."""

    def __init__(self, mode: Mode, debug: DebugChannel):
        super().__init__(mode, debug, _LEVELS, _ADVICE)

    def invalidate(self, *names: str) -> None:
        """Forgets all that some caches hold."""
        for name in names:
            self._copies[name].clear()

    def invalidate_range(self, name: str, mapping: Mapping, offset: int, size: int) -> None:
        """Forgets the lines of a range of a mapping's region."""
        self._copies[name].drop(mapping.region, offset, size)

    def store(self, agent: Agent, mapping: Mapping, offset: int, data: Data) -> None:
        """What an agent writes; the cache in front of it takes part."""
        mapping.region.store(offset, data)
        if agent == "data":
            self.written_in_place(mapping, offset, len(data))

    def written_in_place(self, mapping: Mapping, offset: int, size: int) -> None:
        """Memory was written through the cache of data, whose copies are not old."""
        if self.mode != "none":
            self._refresh(("data",), mapping.region, offset, size)
