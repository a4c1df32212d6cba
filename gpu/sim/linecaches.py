"""What caches of GPUs have in common: copies of lines, and lines that memory lacks.

Each cache that is read through keeps a copy of the lines it was asked for, as they were when first
read. A read that finds a copy which memory no longer agrees with is a missing invalidate: in the
mode "check" it is recorded and gives the new value, in "oldest" it gives the old one, as hardware
may; "none" has no caches. What GPUs have which caches, who goes through them and what makes them
agree again is left to the classes that derive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar

from gpu.core.bits import align_down
from gpu.sim.lines import LINE, Lines
from gpu.sim.physical import Region
from gpu.sim.record import DebugChannel
from gpu.sim.translate import Mapping as Translation

AgentT = TypeVar("AgentT")
Mode = Literal["check", "oldest", "none"]
Data = bytes | bytearray | memoryview
Line = tuple[Region, int]
_NO_DATA: Final = (bytearray(), bytearray())


class DirtyLines:
    """Lines that were written in a cache and not written back.

    Attributes:
        lines: the bytes of each, and which of them were written; none where memory has them.
    """

    def __init__(self) -> None:
        self.lines: dict[Line, tuple[bytearray, bytearray]] = {}

    def mark(self, region: Region, offset: int, size: int) -> None:
        """A range is dirty whose bytes memory has already."""
        self.lines.update(dict.fromkeys(_lines(region, offset, size), _NO_DATA))

    def store(self, region: Region, offset: int, data: Data) -> None:
        """Bytes are written that memory does not get yet."""
        for line in _lines(region, offset, len(data)):
            held, which = self.lines.setdefault(line, (bytearray(LINE), bytearray(LINE)))
            begin, end = max(offset, line[1]), min(offset + len(data), line[1] + LINE)
            held[begin - line[1] : end - line[1]] = data[begin - offset : end - offset]
            which[begin - line[1] : end - line[1]] = b"\1" * (end - begin)

    def overwrite(self, region: Region, offset: int, size: int) -> None:
        """Memory was written by who goes past the cache: its bytes are the newer ones."""
        for line in self.within(region, offset, size):
            begin, end = max(offset, line[1]), min(offset + size, line[1] + LINE)
            self.lines[line][1][begin - line[1] : end - line[1]] = bytes(end - begin)

    def over(self, region: Region, offset: int, data: bytes) -> bytes:
        """What the cache makes of a range of which memory has `data`."""
        merged = bytearray(data)
        for line in self.within(region, offset, len(data)):
            held, which = self.lines[line]
            for i in range(max(offset, line[1]), min(offset + len(data), line[1] + LINE)):
                if which[i - line[1]]:
                    merged[i - offset] = held[i - line[1]]
        return bytes(merged)

    def write_back(self) -> None:
        """Memory gets all, and nothing is dirty any more."""
        for (region, at), (held, which) in self.lines.items():
            for i, is_written in enumerate(which):
                if is_written:
                    region.store(at + i, held[i : i + 1])
        self.lines.clear()

    def within(self, region: Region, offset: int, size: int) -> list[Line]:
        """Those with a byte of a range; as fast as the smaller of the two is small."""
        first, end = align_down(offset, LINE), offset + size
        if len(self.lines) < size // LINE:
            return [line for line in self.lines if line[0] is region and first <= line[1] < end]
        return [line for line in _lines(region, offset, size) if line in self.lines]

    def drop(self, region: Region, offset: int, size: int) -> None:
        """Forgets the lines of memory that was given back."""
        for line in self.within(region, offset, size):
            del self.lines[line]


class LineCaches(Generic[AgentT]):
    """The caches of one GPU."""

    def __init__(
        self,
        mode: Mode,
        debug: DebugChannel,
        levels: Mapping[AgentT, Sequence[str]],
        advice: Mapping[str, str],
    ):
        """Empty caches.

        Args:
            mode: see the module.
            debug: is told of missing invalidates.
            levels: the caches that agents read through, from memory on; who has none reads memory.
            advice: what makes each cache forget, for messages.
        """
        self.mode = mode
        self._debug = debug
        self._levels = self._local_levels = levels
        self._advice = advice
        self._copies: dict[str, Lines[Region]] = {name: Lines() for name in advice}
        self._dirty = DirtyLines()

    def drop(self, region: Region, offset: int, size: int) -> None:
        """Forgets memory that was given back."""
        self._dirty.drop(region, offset, size)
        for held in self._copies.values():
            held.drop(region, offset, size)

    def load(self, agent: AgentT, mapping: Translation, offset: int, size: int) -> bytes:
        """What an agent reads from a region."""
        region = mapping.region
        if self.mode == "none" or not mapping.cached:
            return region.load(offset, size)
        if agent not in self._levels:
            return self._load_past(agent, region, offset, size)
        start, end = offset - offset % LINE, offset + size
        seen = region.load(start, end - start + -end % LINE)
        if self._dirty.lines and self.mode == "oldest":
            seen = self._dirty.over(region, start, seen)
        return self.see(agent, mapping, start, seen)[offset - start : end - start]

    def see(self, agent: AgentT, mapping: Translation, offset: int, data: bytes) -> bytes:
        """What an agent reads of whole lines, of which the first cache on its way gives `data`.

        It must be told where a kernel has read memory itself.
        """
        region = mapping.region
        if self.mode != "none" and mapping.cached:
            for level in (self._local_levels if region.local else self._levels)[agent]:
                old = self._copies[level].take(region, offset, data)
                if old:
                    data = self._with_old(level, region, offset, data, old)
        return data

    def _load_past(self, agent: AgentT, region: Region, offset: int, size: int) -> bytes:
        """What an agent reads that goes through none of the caches with copies."""
        return region.load(offset, size)

    def _with_old(
        self, level: str, region: Region, start: int, current: bytes, lines: list[int]
    ) -> bytes:
        """What a cache gives of which the level below gives `current`, where copies differ."""
        copies, seen = self._copies[level], bytearray(current)
        for at in lines:
            place = slice(at - start, at - start + LINE)
            is_coherent = self._is_coherent(level, region, at)
            if self.mode == "oldest" and not is_coherent:
                seen[place] = copies[region, at]
                continue
            copies[region, at] = current[place]
            if not is_coherent:
                self._debug.violation(
                    f"{level} holds an old copy of {region.name} at {at:#x}: {self._advice[level]}"
                    " must come between the write and this read"
                )
        return bytes(seen)

    def _is_coherent(self, level: str, region: Region, at: int) -> bool:
        """Whether all who wrote a line came through a cache."""
        return False

    def _current(self, region: Region, offset: int, size: int) -> bytes:
        """Memory as the cache before it sees it."""
        data = region.load(offset, size)
        if self.mode != "oldest" or not self._dirty.lines:
            return data
        return self._dirty.over(region, offset, data)

    def _refresh(self, levels: Sequence[str], region: Region, offset: int, size: int) -> None:
        """A write through caches changes their copies."""
        for level in levels:
            copies = self._copies[level]
            for at in copies.within(region, offset, size):
                copies[region, at] = self._current(region, at, LINE)


def _lines(region: Region, offset: int, size: int) -> list[Line]:
    """The lines that have a byte of a range."""
    return [(region, at) for at in range(align_down(offset, LINE), offset + size, LINE)]
