"""The memory of a process as a running kernel sees it, for an engine that takes host pointers.

The engine asks for what it misses, and gets it in chunks. Where memory and caches agree by design
(memory that no cache holds, and the mode "check" of the caches, in which memory is up to date) a
chunk is the memory itself; the caches are told of it once, when it is given out. Where they may
not (the mode "oldest"), and for memory of the process, which may go away, a chunk is a copy of what
the caches give, and what the kernel changed in it is stored when its turn ends.

So a missing invalidate is noticed for whole chunks, not for the lines that were touched, and once
in a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from gpu.core.bits import align_down, align_up
from gpu.sim.amd.dispatch import KernelMemory
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.physical import Pool
from gpu.sim.translate import PAGE_SIZE, Mapping, PageFault

IN_PLACE: Final = 64 << 10
"""Bytes of a chunk that is the memory itself."""
_STORES: Final = layout.WRITE | layout.ATOMIC
_VECTOR: Final = layout.READ | _STORES


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

    def __init__(self, memory: KernelMemory):
        self._memory = memory
        self._chunks: dict[int, _Chunk] = {}
        self._held: _Chunk | None = None
        self.map = MemoryMap()

    def fetch(self, address: int, size: int) -> bytes:
        """Code bytes, fewer where its mapping ends."""
        mapping = self._memory.space.translate(address, write=False)
        return self._memory.code.read(address, min(size, mapping.end - address))

    def fill(self, address: int, size: int, access: int) -> None:
        """Gives the engine what it misses. Raises PageFault."""
        at, touched = address, []
        while at < address + size:
            touched.append(self._chunk(at, bool(access & _STORES)))
            at = touched[-1].end
        if len(touched) > 1:  # an access must lie in one range; chunks of one kind join
            for chunk in touched:
                access |= chunk.flags
            if not self._is_in_place(touched[0].mapping):
                touched = [self._joined(touched)]
        for chunk in touched:
            self._give(chunk, access)
        self._update()

    def _joined(self, chunks: list[_Chunk]) -> _Chunk:
        """One chunk for several, whose copies lie apart."""
        for chunk in chunks:
            self._store_changes(chunk)
            self._chunks.pop(chunk.start, None)
        first = chunks[0]
        return _Chunk(
            first.mapping, first.start, min(chunks[-1].end, first.mapping.end) - first.start
        )

    def hold(self, address: int, size: int) -> bool:
        """Gives a range that only this kernel uses, for reading and writing, as one.

        False where it is not one piece of memory that can be given in place. Raises PageFault.
        """
        mapping = self._memory.space.translate(address, write=True)
        region = mapping.region
        if address + size > mapping.end:
            self._memory.space.translate(mapping.end, write=True)
            return False
        if not self._is_in_place(mapping) or not isinstance(region, Pool):
            return False
        chunk = _Chunk(mapping, address, size, flags=_VECTOR)
        chunk.host = region.host_address(chunk.offset)
        self._held = chunk
        self._update()
        return True

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
            elif last and chunk.flags & _STORES:
                self._memory.caches.written_in_place(chunk.mapping, chunk.offset, chunk.size)
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
        step = IN_PLACE if self._is_in_place(mapping) else PAGE_SIZE
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
        missing = access & ~chunk.flags
        region = chunk.mapping.region
        if self._is_in_place(chunk.mapping) and isinstance(region, Pool):
            chunk.host = region.host_address(chunk.offset)
            for agent in _readers(missing):
                self._memory.caches.load(agent, chunk.mapping, chunk.offset, chunk.size)
            chunk.flags |= access
        elif missing:
            self._copy(chunk, access)
        self._chunks[chunk.start] = chunk

    def _copy(self, chunk: _Chunk, access: int) -> None:
        """Loads a copy, of what the scalar or the vector cache has: not both at a time."""
        self._store_changes(chunk)
        scalar = access == layout.SCALAR
        port = self._memory.scalar if scalar else self._memory.vector
        chunk.before = port.read(chunk.start, chunk.size)
        chunk.copy = np.frombuffer(bytearray(chunk.before), np.uint8)
        chunk.host = chunk.copy.ctypes.data
        chunk.flags = layout.SCALAR if scalar else (chunk.flags | access) & _VECTOR | layout.READ

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
            self._memory.vector.write(chunk.start + first, chunk.copy[first : last + 1].tobytes())

    def _update(self) -> None:
        """Makes ranges of the chunks; neighbours of one kind are one range."""
        ranges: list[tuple[int, int, int, int]] = []
        chunks = [*self._chunks.values(), *([self._held] if self._held else [])]
        for chunk in sorted(chunks, key=_start_of):
            start = chunk.start
            if ranges:
                before, size, host, flags = ranges[-1]
                joins = before + size == start and host + size == chunk.host
                if joins and flags == chunk.flags:
                    ranges[-1] = (before, size + chunk.size, host, flags)
                    continue
            ranges.append((start, chunk.size, chunk.host, chunk.flags))
        self.map.replace(ranges)


def _start_of(chunk: _Chunk) -> int:
    return chunk.start


def _readers(access: int) -> list[Literal["scalar", "vector"]]:
    """Whose caches an access goes through that reads."""
    readers: list[Literal["scalar", "vector"]] = []
    if access & layout.SCALAR:
        readers.append("scalar")
    if access & (layout.READ | layout.ATOMIC):
        readers.append("vector")
    return readers
