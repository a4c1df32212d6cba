"""The memory of a process as a running kernel sees it, for an engine that takes host pointers.

The engine asks for what it misses, and gets it in chunks, which grow with their number. A chunk is
the memory itself wherever memory and caches agree: memory that no cache holds, and all memory in
the modes "check" and "none" of the caches. In the mode "oldest", and for memory of the process,
which may go away, it is a copy of what the caches give, and what the kernel changed in it is
stored when its turn ends. So a missing invalidate is noticed for the lines of a chunk, not only
for those that were touched, and once in a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.bits import align_down, align_up
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.nv.launch import KernelMemory
from gpu.sim.physical import Pool
from gpu.sim.translate import PAGE_SIZE, Mapping, PageFault

_STORES: Final = layout.WRITE | layout.ATOMIC
_LOADS: Final = layout.READ | layout.ATOMIC
_MANY: Final = 16  # chunks after which the next ones are twice as large
_LARGEST: Final = 8  # times that they double
Span = tuple[int, int, int, int]


@dataclass(slots=True)
class _Chunk:
    """A range of addresses within one mapping that the engine may access.

    Attributes:
        host: address of its bytes here.
        flags: what it is given for; bits of `layout`.
        copy: its bytes, where they are not the memory's own.
        before: what they were when they were loaded.
    """

    mapping: Mapping
    start: int
    size: int
    host: int = 0
    flags: int = 0
    copy: npt.NDArray[np.uint8] | None = None
    before: bytes = b""

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.start + self.size

    @property
    def offset(self) -> int:
        """In the region of its mapping."""
        return self.mapping.offset + self.start - self.mapping.start


class LaneMemory:
    """Fills a `MemoryMap` from a process's memory while a kernel runs.

    Attributes:
        map: what the engine sees.
    """

    def __init__(self, memory: KernelMemory, own: Span):
        """`own` is memory that the kernel brings along, as `MemoryMap.replace` takes it."""
        self._memory = memory
        self._own = own
        self._chunks: dict[int, _Chunk] = {}
        self.map = MemoryMap()
        self._update()

    def fill(self, address: int, size: int, access: int) -> None:
        """Gives the engine what it misses. Raises PageFault."""
        self._give(self._chunk(address, bool(access & _STORES)), access)
        self._update()

    def begin_turn(self) -> None:
        """Takes back what is mapped differently by now."""
        gone = [start for start, chunk in self._chunks.items() if not self._is_current(chunk)]
        for start in gone:
            del self._chunks[start]
        if gone:
            self._update()

    def end_turn(self, last: bool) -> None:
        """Lets others see what the kernel wrote; `last` when it has ended. Raises PageFault."""
        copies = False
        for start, chunk in list(self._chunks.items()):
            if chunk.copy is not None:
                self._store_changes(chunk)
                del self._chunks[start]
                copies = True
            elif last and chunk.flags & _STORES and self._memory.caches.mode != "none":
                # The cache takes part in stores: copies of these lines are not old.
                data = chunk.mapping.region.load(chunk.offset, chunk.size)
                self._memory.caches.store("data", chunk.mapping, chunk.offset, data)
        if copies:
            self._update()

    def _is_current(self, chunk: _Chunk) -> bool:
        try:
            found = self._memory.space.translate(chunk.start, bool(chunk.flags & _STORES))
        except PageFault:
            return False
        return found is chunk.mapping

    def _chunk(self, address: int, write: bool) -> _Chunk:
        """The chunk of an address, which may not be given out yet."""
        mapping = self._memory.space.translate(address, write)
        doubled = min(_LARGEST, len(self._chunks) // _MANY)
        step = PAGE_SIZE << (doubled if self._is_in_place(mapping) else 0)
        start = max(mapping.start, align_down(address, step))
        end = min(mapping.end, align_up(address + 1, step))
        for chunk in self._chunks.values():
            if chunk.start <= address < chunk.end:
                return chunk
            if chunk.end <= address:
                start = max(start, chunk.end)
            else:
                end = min(end, chunk.start)
        return _Chunk(mapping, start, end - start)

    def _is_in_place(self, mapping: Mapping) -> bool:
        safe = self._memory.caches.mode != "oldest" or not mapping.cached
        return safe and isinstance(mapping.region, Pool)

    def _give(self, chunk: _Chunk, access: int) -> None:
        region = chunk.mapping.region
        missing = access & ~chunk.flags
        if self._is_in_place(chunk.mapping) and isinstance(region, Pool):
            chunk.host = region.host_address(chunk.offset)
            if missing & _LOADS and not chunk.flags & _LOADS:
                self._memory.caches.load("data", chunk.mapping, chunk.offset, chunk.size)
            chunk.flags |= access
        elif missing:
            self._copy(chunk, access)
        self._chunks[chunk.start] = chunk

    def _copy(self, chunk: _Chunk, access: int) -> None:
        self._store_changes(chunk)
        chunk.before = self._memory.data.read(chunk.start, chunk.size)
        chunk.copy = np.frombuffer(bytearray(chunk.before), np.uint8)
        chunk.host = chunk.copy.ctypes.data
        chunk.flags |= access | layout.READ

    def _store_changes(self, chunk: _Chunk) -> None:
        if chunk.copy is None or not chunk.flags & _STORES:
            return
        before = np.frombuffer(chunk.before, np.uint8)
        changed = np.flatnonzero(chunk.copy != before)
        if not len(changed):
            return
        breaks = np.flatnonzero(np.diff(changed) != 1) + 1
        for run in np.split(changed, breaks):
            first, last = int(run[0]), int(run[-1])
            self._memory.data.write(chunk.start + first, chunk.copy[first : last + 1].tobytes())

    def _update(self) -> None:
        """Makes ranges of the chunks; neighbours of one kind are one range."""
        ranges: list[Span] = []
        for chunk in sorted(self._chunks.values(), key=_start_of):
            if ranges:
                before, size, host, flags = ranges[-1]
                joins = before + size == chunk.start and host + size == chunk.host
                if joins and flags == chunk.flags:
                    ranges[-1] = (before, size + chunk.size, host, flags)
                    continue
            ranges.append((chunk.start, chunk.size, chunk.host, chunk.flags))
        self.map.replace(sorted([*ranges, self._own]))


def _start_of(chunk: _Chunk) -> int:
    return chunk.start
