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
from gpu.sim.lines import LINE, Lines
from gpu.sim.physical import Region
from gpu.sim.record import DebugChannel
from gpu.sim.translate import Mapping

Mode = Literal["check", "oldest", "none"]
Agent = Literal["shader", "code", "cp"]
_LEVELS: Final[dict[str, tuple[str, ...]]] = {"shader": ("UCHE",), "code": ("UCHE", "code")}
_ADVICE: Final = {
    "UCHE": "CP_EVENT_WRITE with CACHE_INVALIDATE",
    "code": "HLSQ_INVALIDATE_CMD with CS_STATE",
}
Line = tuple[Region, int]


class Caches:
    """The caches of one GPU, and the CPU's in front of what it maps write-back."""

    def __init__(self, mode: Mode, debug: DebugChannel):
        self.mode = mode
        self.cpu = CpuCaches(mode == "check", debug)
        self._debug = debug
        self._copies: dict[str, Lines[Region]] = {name: Lines() for name in _ADVICE}
        self._written: list[tuple[Region, int, int]] = []  # dirty ranges that memory has already
        self._held: dict[Line, tuple[bytearray, bytearray]] = {}  # dirty lines: data, which bytes

    def flush(self) -> None:
        """Writes UCHE's dirty lines to memory."""
        for (region, at), (data, which) in self._held.items():
            for i in range(LINE):
                if which[i]:
                    region.store(at + i, data[i : i + 1])
        self._held.clear()
        self._written.clear()

    def invalidate(self) -> None:
        """Forgets UCHE's copies; dirty lines stay."""
        self._copies["UCHE"].clear()

    def invalidate_code(self) -> None:
        """Forgets code."""
        self._copies["code"].clear()

    def drop(self, region: Region, offset: int, size: int) -> None:
        """Forgets memory that was given back."""
        for held in self._copies.values():
            held.drop(region, offset, size)
        end = offset + size
        for line in [k for k in self._held if k[0] is region and offset <= k[1] < end]:
            del self._held[line]
        self._written = [
            (of, at, count)
            for of, at, count in self._written
            if of is not region or at + count <= offset or end <= at
        ]

    def load(self, agent: Agent, mapping: Mapping, offset: int, size: int) -> bytes:
        """What an agent reads from a region."""
        region = mapping.region
        if self.mode == "none":
            return region.load(offset, size)
        if agent == "cp":
            self._settle_cpu(mapping, offset, size)
            self._check_flushed(region, offset, size)
            return region.load(offset, size)
        first, end = offset - offset % LINE, offset + size
        count = end - first + -end % LINE
        self._settle_cpu(mapping, first, count)
        seen = self._take(agent, region, first, self._with_dirty(region, first, count))
        return seen[offset - first : end - first]

    def store(
        self, agent: Agent, mapping: Mapping, offset: int, data: bytes | bytearray | memoryview
    ) -> None:
        """What an agent writes to a region."""
        region = mapping.region
        if agent == "cp" or self.mode != "oldest":
            region.store(offset, data)
            if agent == "cp":
                self._overwrite_dirty(region, offset, data)
            else:
                self.written_in_place(mapping, offset, len(data))
            return
        for at in range(offset - offset % LINE, offset + len(data), LINE):
            held, which = self._held.setdefault((region, at), (bytearray(LINE), bytearray(LINE)))
            begin, end = max(offset, at), min(offset + len(data), at + LINE)
            held[begin - at : end - at] = data[begin - offset : end - offset]
            which[begin - at : end - at] = b"\1" * (end - begin)
        self._refresh(region, offset, len(data))

    def see(self, agent: Agent, mapping: Mapping, offset: int, data: bytes) -> None:
        """Tells of whole lines that an agent has read where memory itself is what caches give."""
        if self.mode != "none":
            if self._settle_cpu(mapping, offset, len(data)):
                data = mapping.region.load(offset, len(data))
            self._take(agent, mapping.region, offset, data)

    def written_in_place(self, mapping: Mapping, offset: int, size: int) -> None:
        """What shaders wrote to memory itself, in the mode "check"."""
        if self.mode == "check":
            self._written.append((mapping.region, offset, size))
            self._refresh(mapping.region, offset, size)

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

    def _take(self, agent: Agent, region: Region, start: int, seen: bytes) -> bytes:
        for level in _LEVELS[agent]:
            copies = self._copies[level]
            for at in copies.take(region, start, seen):
                place = slice(at - start, at - start + LINE)
                if self.mode == "oldest":
                    seen = seen[: place.start] + copies[region, at] + seen[place.stop :]
                    continue
                copies[region, at] = seen[place]
                self._debug.violation(
                    f"{level} holds an old copy of {region.name} at {at:#x}: {_ADVICE[level]} must"
                    " come between the write and this read"
                )
        return seen

    def _with_dirty(self, region: Region, offset: int, size: int) -> bytes:
        """Memory as UCHE sees it."""
        data = region.load(offset, size)
        if not self._held:
            return data
        merged = bytearray(data)
        for at in range(offset - offset % LINE, offset + size, LINE):
            held = self._held.get((region, at))
            for i in range(max(offset, at), min(offset + size, at + LINE)) if held else ():
                if held and held[1][i - at]:
                    merged[i - offset] = held[0][i - at]
        return bytes(merged)

    def _overwrite_dirty(
        self, region: Region, offset: int, data: bytes | bytearray | memoryview
    ) -> None:
        for at in range(offset - offset % LINE, offset + len(data), LINE):
            if held := self._held.get((region, at)):
                begin, end = max(offset, at), min(offset + len(data), at + LINE)
                held[1][begin - at : end - at] = bytes(end - begin)

    def _refresh(self, region: Region, offset: int, size: int) -> None:
        """A write through UCHE changes its copies."""
        copies = self._copies["UCHE"]
        for at in list(copies.within(region, offset, size)):
            copies[region, at] = self._with_dirty(region, at, LINE)
