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

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from gpu.sim.lines import LINE, Lines
from gpu.sim.physical import Region
from gpu.sim.record import DebugChannel
from gpu.sim.translate import Mapping as Translation

Mode = Literal["check", "oldest", "none"]
Agent = Literal["scalar", "vector", "code", "cp", "cp_l2", "sdma"]
_LEVELS: Final[dict[str, tuple[str, ...]]] = {
    "scalar": ("L2", "K$"),
    "vector": ("L2", "V$"),
    "code": ("L2", "I$"),
    "cp_l2": ("L2",),
}
"""What agents read through, from memory on."""
_ADVICE: Final = {
    "K$": "ACQUIRE_MEM with GLK_INV",
    "V$": "ACQUIRE_MEM with GLV_INV and GL1_INV",
    "I$": "ACQUIRE_MEM with GLI_INV",
    "L2": "ACQUIRE_MEM with GL2_INV",
}
Line = tuple[Region, int]
_MANY: Final = 64
_NO_DATA: Final = (bytearray(), bytearray())  # in the mode "check", where memory has it


class CacheControl(NamedTuple):
    """What one packet does to the caches; see the GCR_CNTL field of ACQUIRE_MEM."""

    invalidate_code: bool = False
    invalidate_scalar: bool = False
    invalidate_vector: bool = False
    invalidate_l2: bool = False
    write_back_l2: bool = False


class Caches:
    """The caches of one GPU.

    Args:
        mode: see the module; "none" lets everything see memory.
        sdma_through_l2: whether the copy engine sees what L2 holds.
    """

    def __init__(self, mode: Mode, sdma_through_l2: bool, debug: DebugChannel):
        self.mode = mode
        self._sdma_through_l2 = sdma_through_l2
        self._debug = debug
        self._copies: dict[str, Lines[Region]] = {name: Lines() for name in _ADVICE}
        self._dirty: dict[Line, tuple[bytearray, bytearray]] = {}  # data, and which bytes of it
        self._written: list[tuple[Region, int, int]] = []  # ranges that are dirty too
        self._written_behind_l2: set[Line] = set()

    def control(self, what: CacheControl) -> None:
        """Does what a packet asks for; the write-back comes first."""
        if what.write_back_l2:
            self._write_back()
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
        for line in _within(self._dirty_lines(), region, offset, size):
            del self._dirty[line]
        for held in self._copies.values():
            held.drop(region, offset, size)

    def load(self, agent: Agent, mapping: Translation, offset: int, size: int) -> bytes:
        """What an agent reads from a region."""
        region = mapping.region
        if self.mode == "none" or not mapping.cached or agent == "cp":
            return region.load(offset, size)
        if agent == "sdma":
            if not self._sdma_through_l2:
                self._check_behind_l2("read", region, offset, size)
                return region.load(offset, size)
            return self._with_dirty(region, offset, size)
        return self._load_cached(agent, region, offset, size)

    def store(
        self, agent: Agent, mapping: Translation, offset: int, data: bytes | bytearray | memoryview
    ) -> None:
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
            self._overwrite_dirty(region, offset, data)
        else:
            self._store_l2(region, offset, data)
        if through:
            self._refresh(("L2", "V$") if agent == "vector" else ("L2",), region, offset, len(data))

    def written_in_place(self, mapping: Translation, offset: int, size: int) -> None:
        """What vector stores wrote to memory itself, in the mode "check"."""
        region = mapping.region
        if self.mode != "check" or not mapping.cached:
            return
        self._written.append((region, offset, size))
        if len(self._written) > _MANY:
            self._dirty_lines()
        if not region.local:
            self._refresh(("L2",), region, offset, size)

    def see(self, agent: Agent, mapping: Translation, offset: int, data: bytes) -> None:
        """Tells of whole lines that an agent has read where memory itself is what caches give."""
        if self.mode != "none" and mapping.cached:
            self._take(agent, mapping.region, offset, data)

    def _dirty_lines(self) -> dict[Line, tuple[bytearray, bytearray]]:
        written, self._written = self._written, []
        for each in written:
            self._dirty.update(dict.fromkeys(_lines(*each), _NO_DATA))
        return self._dirty

    def _load_cached(self, agent: Agent, region: Region, offset: int, size: int) -> bytes:
        start = offset - offset % LINE
        seen = self._with_dirty(region, start, offset + size - start + -(offset + size) % LINE)
        seen = self._take(agent, region, start, seen)
        return seen[offset - start : offset - start + size]

    def _take(self, agent: Agent, region: Region, start: int, seen: bytes) -> bytes:
        """What is read of whole lines, through L2 and a cache before it, of which L2 has `seen`."""
        for level in _LEVELS[agent]:
            if level == "L2" and region.local and self._sdma_through_l2:
                continue  # whoever writes local memory comes through it: its copies never differ
            old = self._copies[level].take(region, start, seen)
            if old:
                seen = self._with_old(level, region, start, seen, old)
        return seen

    def _with_old(
        self, level: str, region: Region, start: int, current: bytes, lines: list[int]
    ) -> bytes:
        """What a cache gives of which the level below gives `current`, where copies differ."""
        copies, seen = self._copies[level], bytearray(current)
        for at in lines:
            place = slice(at - start, at - start + LINE)
            # Local memory is only written around L2 by an engine; the CPU comes through it too.
            local = level == "L2" and region.local and (region, at) not in self._written_behind_l2
            if self.mode == "oldest" and not local:
                seen[place] = copies[region, at]
                continue
            copies[region, at] = current[place]
            if not local:
                self._debug.violation(
                    f"{level} holds an old copy of {region.name} at {at:#x}: {_ADVICE[level]} must"
                    " come between the write and this read"
                )
        return bytes(seen)

    def _store_l2(self, region: Region, offset: int, data: bytes | bytearray | memoryview) -> None:
        if self.mode == "check":
            region.store(offset, data)
            self._dirty.update(dict.fromkeys(_lines(region, offset, len(data)), _NO_DATA))
            return
        for line in _lines(region, offset, len(data)):
            held, which = self._dirty.setdefault(line, (bytearray(LINE), bytearray(LINE)))
            begin, end = max(offset, line[1]), min(offset + len(data), line[1] + LINE)
            held[begin - line[1] : end - line[1]] = data[begin - offset : end - offset]
            which[begin - line[1] : end - line[1]] = b"\1" * (end - begin)

    def _overwrite_dirty(
        self, region: Region, offset: int, data: bytes | bytearray | memoryview
    ) -> None:
        if self.mode != "oldest":
            return
        for line in _within(self._dirty, region, offset, len(data)):
            begin, end = max(offset, line[1]), min(offset + len(data), line[1] + LINE)
            self._dirty[line][1][begin - line[1] : end - line[1]] = bytes(end - begin)

    def _with_dirty(self, region: Region, offset: int, size: int) -> bytes:
        """Memory as L2 sees it."""
        data = region.load(offset, size)
        if self.mode != "oldest" or not self._dirty:
            return data
        merged = bytearray(data)
        for line in _within(self._dirty, region, offset, size):
            held, which = self._dirty[line]
            for i in range(max(offset, line[1]), min(offset + size, line[1] + LINE)):
                if which[i - line[1]]:
                    merged[i - offset] = held[i - line[1]]
        return bytes(merged)

    def _write_back(self) -> None:
        if self.mode == "oldest":
            for (region, at), (held, which) in self._dirty.items():
                for i in range(LINE):
                    if which[i]:
                        region.store(at + i, held[i : i + 1])
        self._dirty.clear()
        self._written.clear()

    def _refresh(self, levels: tuple[str, ...], region: Region, offset: int, size: int) -> None:
        """A write through a cache changes the copies there."""
        for level in levels:
            for at in self._copies[level].within(region, offset, size):
                self._copies[level][region, at] = self._with_dirty(region, at, LINE)

    def _check_behind_l2(self, what: str, region: Region, offset: int, size: int) -> None:
        for line in _within(self._dirty_lines(), region, offset, size):
            self._debug.violation(
                f"the copy engine's {what} of {region.name} at {line[1]:#x} goes behind L2,"
                " which holds newer data: RELEASE_MEM with an L2 write-back must come before"
            )
            if self.mode == "check":
                del self._dirty[line]


def _lines(region: Region, offset: int, size: int) -> list[Line]:
    """The lines that have a byte of a range."""
    return [(region, at) for at in range(offset - offset % LINE, offset + size, LINE)]


def _within(held: Mapping[Line, object], region: Region, offset: int, size: int) -> list[Line]:
    """Those of them that a cache holds; as fast as the smaller of the two is small."""
    first, end = offset - offset % LINE, offset + size
    if len(held) < size // LINE:
        return [line for line in held if line[0] is region and first <= line[1] < end]
    return [line for line in _lines(region, offset, size) if line in held]
