"""Caches between the engines and memory, and what makes them agree again.

Each read cache holds copies of 128-byte lines as they were when first read. A read that finds a
copy which memory no longer agrees with is a missing invalidate: by default that is recorded and the
new value is returned; in the mode "oldest" the old value is, as hardware may do. Writes that go
through L2 are dirty until a write-back: by default memory has them at once and a reader behind L2
is recorded; in the mode "oldest" they really stay away from memory.

Who goes through what (gpu/hcq's coherency table has the driver's side; kernel: gmc_v11_0.c
`get_vm_pte` makes COHERENT, EXT_COHERENT and UNCACHED allocations UC, which no cache holds):

    scalar loads of shaders    K$, L2        the packet processor   L2 where the packet says so
    vector loads and stores    V$ (GL0,      copy engine            L2 from GFX10 on; before, memory
                               GL1), L2      the CPU                memory, by HDP for VRAM
    instructions               I$, L2
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from gpu.sim.linecaches import Data, Line, LineCaches, Mode
from gpu.sim.physical import Region
from gpu.sim.record import DebugChannel
from gpu.sim.translate import Mapping

Agent = Literal["scalar", "vector", "code", "cp", "cp_l2", "sdma"]
_LEVELS: Final[dict[Agent, tuple[str, ...]]] = {
    "scalar": ("L2", "K$"),
    "vector": ("L2", "V$"),
    "code": ("L2", "I$"),
    "cp_l2": ("L2",),
}
_ADVICE: Final = {
    "K$": "ACQUIRE_MEM with GLK_INV",
    "V$": "ACQUIRE_MEM with GLV_INV and GL1_INV",
    "I$": "ACQUIRE_MEM with GLI_INV",
    "L2": "ACQUIRE_MEM with GL2_INV",
}
_MANY: Final = 64


class CacheControl(NamedTuple):
    """What one packet does to the caches; see the GCR_CNTL field of ACQUIRE_MEM."""

    invalidate_code: bool = False
    invalidate_scalar: bool = False
    invalidate_vector: bool = False
    invalidate_l2: bool = False
    write_back_l2: bool = False


class Caches(LineCaches[Agent]):
    """The caches of one GPU.

    Args:
        mode: see the module; "none" lets everything see memory.
        sdma_through_l2: whether the copy engine sees what L2 holds.
    """

    def __init__(self, mode: Mode, sdma_through_l2: bool, debug: DebugChannel):
        super().__init__(mode, debug, _LEVELS, _ADVICE)
        self._sdma_through_l2 = sdma_through_l2
        if sdma_through_l2:  # whoever writes local memory comes through L2: no copy ever differs
            self._local_levels = {agent: names[1:] for agent, names in _LEVELS.items()}
        self._written: list[tuple[Region, int, int]] = []  # ranges that are dirty too
        self._written_behind_l2: set[Line] = set()

    def control(self, what: CacheControl) -> None:
        """Does what a packet asks for; the write-back comes first."""
        if what.write_back_l2:
            self._dirty.write_back()
            self._written.clear()
        if what.invalidate_code:
            self._copies["I$"].clear()
        if what.invalidate_scalar:
            self._copies["K$"].clear()
        if what.invalidate_vector:
            self._copies["V$"].clear()
        if what.invalidate_l2:
            self._copies["L2"].clear()
            self._written_behind_l2.clear()

    def drop(self, region: Region, offset: int, size: int) -> None:
        """Forgets memory that was given back."""
        self._mark_written()
        super().drop(region, offset, size)

    def store(self, agent: Agent, mapping: Mapping, offset: int, data: Data) -> None:
        """What an agent writes to a region."""
        region = mapping.region
        if self.mode == "none" or not mapping.cached or agent == "cp":
            region.store(offset, data)
            return
        through = agent != "sdma" or self._sdma_through_l2
        if not through:
            self._check_behind_l2("write", region, offset, len(data))
            lines = self._copies["L2"].within(region, offset, len(data))
            self._written_behind_l2.update((region, at) for at in lines)
        if agent == "sdma":  # its writes are not kept by L2 (policy BYPASS of amdgpu's sdma_v5_2.c)
            region.store(offset, data)
            if self.mode == "oldest":
                self._dirty.overwrite(region, offset, len(data))
        elif self.mode == "oldest":
            self._dirty.store(region, offset, data)
        else:
            region.store(offset, data)
            self._dirty.mark(region, offset, len(data))
        if through:
            self._refresh(("L2", "V$") if agent == "vector" else ("L2",), region, offset, len(data))

    def written_in_place(self, mapping: Mapping, offset: int, size: int) -> None:
        """What vector stores wrote to memory itself, in the mode "check"."""
        region = mapping.region
        if self.mode != "check" or not mapping.cached:
            return
        self._written.append((region, offset, size))
        if len(self._written) > _MANY:
            self._mark_written()
        if not region.local:
            self._refresh(("L2",), region, offset, size)

    def _load_past(self, agent: Agent, region: Region, offset: int, size: int) -> bytes:
        if agent == "sdma" and self._sdma_through_l2:
            return self._current(region, offset, size)
        if agent == "sdma":
            self._check_behind_l2("read", region, offset, size)
        return region.load(offset, size)

    def _is_coherent(self, level: str, region: Region, at: int) -> bool:
        # Local memory is only written around L2 by an engine; the CPU comes through it too.
        return level == "L2" and region.local and (region, at) not in self._written_behind_l2

    def _mark_written(self) -> None:
        written, self._written = self._written, []
        for each in written:
            self._dirty.mark(*each)

    def _check_behind_l2(self, what: str, region: Region, offset: int, size: int) -> None:
        self._mark_written()
        for line in self._dirty.within(region, offset, size):
            self._debug.violation(
                f"the copy engine's {what} of {region.name} at {line[1]:#x} goes behind L2,"
                " which holds newer data: RELEASE_MEM with an L2 write-back must come before"
            )
            if self.mode == "check":
                del self._dirty.lines[line]
