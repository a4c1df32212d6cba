"""The GPU's caches, and what makes them agree with memory.

UCHE, the second-level cache, is what shader processors read and write through: loads and stores,
state that CP_LOAD_STATE6 fetches, and code, which an instruction cache of its own holds besides.
The command processor and the CPU see memory alone. CACHE_FLUSH_TS writes UCHE's dirty lines back,
CACHE_INVALIDATE forgets its copies (turnip's tu_cmd_buffer.h, TU_CMD_FLAG_CACHE_FLUSH and
_INVALIDATE, whose users say who needs which); HLSQ_INVALIDATE_CMD with CS_STATE the code of compute
kernels.

In the mode "check" memory is always up to date, and who would not have seen that is recorded; in
"oldest" readers get the oldest bytes that hardware might give them; "none" has no caches.
"""

from __future__ import annotations

from typing import Final, Literal

from gpu.sim.kgsl.chip.cpucache import Cached, CpuCaches
from gpu.sim.linecaches import Data, LineCaches, Mode
from gpu.sim.physical import Region
from gpu.sim.record import DebugChannel
from gpu.sim.translate import Mapping

Agent = Literal["shader", "code", "cp"]
_LEVELS: Final[dict[Agent, tuple[str, ...]]] = {"shader": ("UCHE",), "code": ("UCHE", "code")}
_ADVICE: Final = {
    "UCHE": "CP_EVENT_WRITE with CACHE_INVALIDATE",
    "code": "HLSQ_INVALIDATE_CMD with CS_STATE",
}


class Caches(LineCaches[Agent]):
    """The caches of one GPU, and the CPU's in front of what it maps write-back."""

    def __init__(self, mode: Mode, debug: DebugChannel):
        super().__init__(mode, debug, _LEVELS, _ADVICE)
        self.cpu = CpuCaches(mode == "check", debug)
        self._written: list[tuple[Region, int, int]] = []  # dirty ranges that memory has already

    def flush(self) -> None:
        """Writes UCHE's dirty lines to memory."""
        self._dirty.write_back()
        self._written.clear()

    def invalidate(self) -> None:
        """Forgets UCHE's copies; dirty lines stay."""
        self._copies["UCHE"].clear()

    def invalidate_code(self) -> None:
        """Forgets code."""
        self._copies["code"].clear()

    def drop(self, region: Region, offset: int, size: int) -> None:
        """Forgets memory that was given back."""
        super().drop(region, offset, size)
        self._written = [
            (of, at, count)
            for of, at, count in self._written
            if of is not region or at + count <= offset or offset + size <= at
        ]

    def load(self, agent: Agent, mapping: Mapping, offset: int, size: int) -> bytes:
        """What an agent reads from a region."""
        if self.mode != "none" and agent == "cp":
            self._settle_cpu(mapping, offset, size)
        return super().load(agent, mapping, offset, size)

    def store(self, agent: Agent, mapping: Mapping, offset: int, data: Data) -> None:
        """What an agent writes to a region."""
        region = mapping.region
        if agent != "cp" and self.mode == "oldest":
            self._dirty.store(region, offset, data)
            self._refresh(("UCHE",), region, offset, len(data))
            return
        region.store(offset, data)
        if agent == "cp":
            self._dirty.overwrite(region, offset, len(data))
        else:
            self.written_in_place(mapping, offset, len(data))

    def see(self, agent: Agent, mapping: Mapping, offset: int, data: bytes) -> bytes:
        """What an agent reads of whole lines, which the CPU's caches may have."""
        if self.mode != "none" and self._settle_cpu(mapping, offset, len(data)):
            data = mapping.region.load(offset, len(data))
        return super().see(agent, mapping, offset, data)

    def written_in_place(self, mapping: Mapping, offset: int, size: int) -> None:
        """What shaders wrote to memory itself, in the mode "check"."""
        if self.mode == "check":
            self._written.append((mapping.region, offset, size))
            self._refresh(("UCHE",), mapping.region, offset, size)

    def _load_past(self, agent: Agent, region: Region, offset: int, size: int) -> bytes:
        self._check_flushed(region, offset, size)
        return region.load(offset, size)

    def _settle_cpu(self, mapping: Mapping, offset: int, size: int) -> bool:
        """Looks at what the CPU's caches hold of a range of a region; whether memory changed."""
        cached = mapping.owner
        if not isinstance(cached, Cached):
            return False
        first = max(offset, cached.extent.offset)
        last = min(offset + size, cached.extent.offset + cached.extent.size)
        if first >= last:
            return False
        return self.cpu.read_by_gpu(cached, first - cached.extent.offset, last - first)

    def _check_flushed(self, region: Region, offset: int, size: int) -> None:
        """The command processor reads: nothing of a range may be dirty."""
        if self.mode != "check":
            return
        for of, at, count in self._written:
            if of is region and at < offset + size and offset < at + count:
                self._debug.violation(
                    f"UCHE holds newer data of {region.name} at {max(at, offset):#x}:"
                    " CP_EVENT_WRITE with CACHE_FLUSH_TS must come before the command processor"
                    " reads it"
                )
                self._written.remove((of, at, count))
                return
