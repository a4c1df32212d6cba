"""The memory of a process as a running kernel sees it, for an engine that takes host pointers.

The engine asks for what it misses, and gets it in chunks. Where memory and caches agree by design
a chunk is the memory itself; the caches are told of it once, when it is given out. Where they may
not (the mode "oldest" of the caches), and for memory of the process, which may go away, a chunk is
a copy of what the caches give, and what the kernel changed in it is stored when its turn ends.

So a missing invalidate is noticed for whole chunks, not for the lines that were touched, and once
in a kernel. What a GPU's own caches and ports are like is left to the classes that derive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.bits import align_down, align_up
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.physical import Pool
from gpu.sim.translate import Mapping, PageFault, Translation

STORES: Final = layout.WRITE | layout.ATOMIC
LOADS: Final = layout.READ | layout.ATOMIC
Span = tuple[int, int, int, int]
"""As `MemoryMap.replace` takes it: address, size, address here, flags."""


@dataclass(slots=True)
class Chunk:
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


class ChunkedMemory(ABC):
    """Fills a `MemoryMap` from a process's memory while a kernel runs.

    Attributes:
        map: what the engine sees.
    """

    def __init__(self, space: Translation, mode: str):
        """`mode` is that of the caches before the memory."""
        self._space = space
        self._mode = mode
        self._chunks: dict[int, Chunk] = {}
        self.map = MemoryMap()

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
            elif last and chunk.flags & STORES:
                self._written_in_place(chunk)
        if copies:
            self._update()

    @abstractmethod
    def _step(self, in_place: bool) -> int:
        """Bytes of a chunk, a power of two of at least a page; of one that is the memory itself."""

    @abstractmethod
    def _load(self, chunk: Chunk, access: int) -> None:
        """Tells the caches that memory itself is given out to be read, as `access` asks for now."""

    @abstractmethod
    def _copy(self, chunk: Chunk, access: int) -> None:
        """Gives a chunk a copy for what `access` asks for now, and flags that say so."""

    @abstractmethod
    def _write(self, address: int, data: bytes) -> None:
        """Stores what a kernel changed in a copy. Raises PageFault."""

    @abstractmethod
    def _written_in_place(self, chunk: Chunk) -> None:
        """Tells the caches that a kernel may have written to memory itself."""

    def _shown(self) -> list[Chunk]:
        """All chunks that the engine sees."""
        return list(self._chunks.values())

    def _own(self) -> Sequence[Span]:
        """Memory that the kernel brings along."""
        return ()

    def _is_current(self, chunk: Chunk) -> bool:
        try:
            found = self._space.translate(chunk.start, bool(chunk.flags & STORES))
        except PageFault:
            return False
        return found is chunk.mapping

    def _is_in_place(self, mapping: Mapping) -> bool:
        safe = self._mode != "oldest" or not mapping.cached
        return safe and isinstance(mapping.region, Pool)

    def _chunk(self, address: int, write: bool) -> Chunk:
        """The chunk of an address, which may not be given out yet. Raises PageFault."""
        mapping = self._space.translate(address, write)
        step = self._step(self._is_in_place(mapping))
        start = max(mapping.start, align_down(address, step))
        end = min(mapping.end, align_up(address + 1, step))
        for chunk in self._chunks.values():
            if chunk.start <= address < chunk.end:
                return chunk
            if chunk.end <= address:
                start = max(start, chunk.end)
            else:
                end = min(end, chunk.start)
        return Chunk(mapping, start, end - start)

    def _give(self, chunk: Chunk, access: int) -> None:
        missing = access & ~chunk.flags
        region = chunk.mapping.region
        if self._is_in_place(chunk.mapping) and isinstance(region, Pool):
            chunk.host = region.host_address(chunk.offset)
            self._load(chunk, missing)
            chunk.flags |= access
        elif missing:
            self._store_changes(chunk)
            self._copy(chunk, access)
        self._chunks[chunk.start] = chunk

    def _store_changes(self, chunk: Chunk) -> None:
        if chunk.copy is None or not chunk.flags & STORES:
            return
        before = np.frombuffer(chunk.before, np.uint8)
        changed = np.flatnonzero(chunk.copy != before)
        if not len(changed):
            return
        breaks = np.flatnonzero(np.diff(changed) != 1) + 1
        for run in np.split(changed, breaks):
            first, last = int(run[0]), int(run[-1])
            self._write(chunk.start + first, chunk.copy[first : last + 1].tobytes())

    def _update(self) -> None:
        """Makes ranges of the chunks; neighbours of one kind are one range."""
        ranges: list[Span] = []
        for chunk in sorted(self._shown(), key=_start_of):
            if ranges:
                before, size, host, flags = ranges[-1]
                joins = before + size == chunk.start and host + size == chunk.host
                if joins and flags == chunk.flags:
                    ranges[-1] = (before, size + chunk.size, host, flags)
                    continue
            ranges.append((chunk.start, chunk.size, chunk.host, chunk.flags))
        self.map.replace(sorted([*ranges, *self._own()]))


def fill_copy(chunk: Chunk, data: bytes) -> None:
    """Makes a copy of what the caches gave the bytes of a chunk."""
    chunk.before = data
    chunk.copy = np.frombuffer(bytearray(data), np.uint8)
    chunk.host = chunk.copy.ctypes.data


def _start_of(chunk: Chunk) -> int:
    return chunk.start
