"""The memory of a process as a running kernel sees it, for an engine that takes host pointers.

The engine asks for what it misses, and gets it in chunks. Where memory and caches agree by design
a chunk is the memory itself; the caches are told of it once, when it is given out. Where they may
not (the mode "oldest" of the caches), and for memory of the process, which may go away, a chunk is
a copy of what the caches give, and what the kernel changed in it is stored when its turn ends.

So a missing invalidate is noticed for whole chunks, not for the lines that were touched, and once
in a kernel. What a kernel was given in place is offered to the next one like it: native code then
gives itself a chunk when it misses it, copies it first where it is read, and the caches are told of
that copy when the turn ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.core.bits import align_down, align_up
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap, Offer
from gpu.sim.physical import Pool
from gpu.sim.port import AgentPort, Caching
from gpu.sim.translate import PAGE_SIZE, Mapping, PageFault

STORES: Final = layout.WRITE | layout.ATOMIC
IN_PLACE: Final = 64 << 10
"""Bytes of a chunk that is the memory itself."""
LOADS: Final = layout.READ | layout.ATOMIC
_KINDS: Final = (LOADS, layout.SCALAR)
_MANY: Final = 16  # chunks after which the next ones are twice as large
_MOST_DOUBLED: Final = 8
_MOST_OFFERED: Final = 64
_MOST_COPIED: Final = 4 << 20  # bytes that may be read, beyond which a kernel takes its time
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
        offered: what native code may give it for by itself.
        offset: in the region of its mapping.
    """

    mapping: Mapping
    start: int
    size: int
    host: int = 0
    flags: int = 0
    copy: npt.NDArray[np.uint8] | None = None
    before: bytes = b""
    offered: int = 0
    offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.offset = self.mapping.offset + self.start - self.mapping.start

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.start + self.size


class Copy(NamedTuple):
    """What a chunk was when native code first read it, by loads of one kind.

    Attributes:
        kind: the bits of `layout` that such loads ask for.
        agent: who reads by them.
        data: the bytes; the next kernel's are copied there.
    """

    kind: int
    agent: Any
    data: memoryview


class Offers:
    """Memory itself that native code gives a kernel when it misses it."""

    def __init__(
        self,
        map: MemoryMap,
        chunks: list[Chunk],
        own: Sequence[Span],
        caches: Caching[Any],
        agents: Sequence[object],
    ):
        """Makes a map one of chunks that are offered, and of what a kernel brings along.

        `agents` are those that the caches know for loads of each kind.
        """
        self._caches = caches
        spans = {c.start: ((c.start, c.size, c.host, 0), Offer(c.offered)) for c in chunks}
        spans |= {span[0]: (span, Offer()) for span in own}
        starts = sorted(spans)
        map.replace([spans[at][0] for at in starts], [spans[at][1] for at in starts])
        table = map.table()
        self._words = table.rows.reshape(-1).data
        self._blank = table.rows.reshape(-1).copy().data
        self._given: list[tuple[Chunk, int, list[Copy]]] = []
        for chunk in chunks:
            place, made = starts.index(chunk.start), []
            for number, (kind, agent) in enumerate(zip(_KINDS, agents, strict=True), 1):
                if caches.mode != "none" and chunk.mapping.cached and chunk.offered & kind:
                    data = np.empty(chunk.size, np.uint8)
                    table.offered[place, number] = data.ctypes.data
                    made.append(Copy(kind, agent, data.data))
            chunk.flags = 0
            self._given.append((chunk, 4 * place + 3, made))

    def take_note(self, last: bool) -> None:
        """Tells the caches of what native code has given itself since the last time.

        At the `last` time also of what it may have written; all is offered to the next kernel then.
        """
        caches, words = self._caches, self._words
        for chunk, place, copies in self._given:
            before, flags = chunk.flags, words[place]
            if flags != before:
                for kind, agent, data in copies:
                    if flags & kind and not before & kind:
                        caches.see(agent, chunk.mapping, chunk.offset, bytes(data))
            if last and flags & STORES:
                caches.written_in_place(chunk.mapping, chunk.offset, chunk.size)
            chunk.flags = 0 if last else flags
        if last:
            words[:] = self._blank


class ChunkedMemory:
    """Fills a `MemoryMap` from a process's memory while a kernel runs.

    Chunks that are the memory itself grow with their number.

    Attributes:
        map: what the engine sees.
    """

    def __init__(
        self,
        port: AgentPort[Any],
        scalars: AgentPort[Any] | None = None,
        own: Sequence[Span] = (),
        in_place: int = IN_PLACE,
    ):
        """Memory of a kernel.

        Args:
            port: how it loads and stores.
            scalars: the same for scalar loads, where those have a cache of their own.
            own: memory that the kernel brings along.
            in_place: bytes of a chunk that is the memory itself, a power of two of at least a page;
                of one that is a copy a page.
        """
        self._port, self._scalars = port, scalars
        self._agents = (port.agent, (scalars or port).agent)
        self._space, self._caches = port.space, port.caches
        self._own, self._in_place = own, in_place
        self._generation = port.space.generation
        self._chunks: dict[int, Chunk] = {}
        self._held: list[Chunk] = []
        self._offers: Offers | None = None
        self.map = MemoryMap()
        self._update()

    def again(self) -> None:
        """Is another kernel's, like the one that has ended: what that was given is offered."""
        if self._generation != self._space.generation:
            self._generation = self._space.generation
            self._chunks, self._offers = {}, None
        if not self._offers:
            chunks = self._used_together()
            self._chunks = {chunk.start: chunk for chunk in chunks}
            self._update()
            if chunks:
                self._offers = Offers(self.map, chunks, self._own, self._caches, self._agents)

    def _used_together(self) -> list[Chunk]:
        """What was given, neighbours that were used as one joined; nothing where that is much."""
        chunks: list[Chunk] = []
        for chunk in sorted(self._chunks.values(), key=_start_of):
            chunk.offered |= chunk.flags
            before = chunks[-1] if chunks else None
            if before and _are_alike(before, chunk):
                before.size += chunk.size
            else:
                chunks.append(chunk)
        copied = sum(chunk.size for chunk in chunks if chunk.mapping.cached)
        return chunks if len(chunks) <= _MOST_OFFERED and copied <= _MOST_COPIED else []

    def begin_turn(self) -> None:
        """Takes back what is mapped differently by now."""
        if self._generation == self._space.generation:
            return
        self._generation = self._space.generation
        gone = [start for start, chunk in self._chunks.items() if not self._is_current(chunk)]
        for start in gone:
            del self._chunks[start]
        held = [chunk for chunk in self._held if self._is_current(chunk)]
        if gone or len(held) < len(self._held):
            self._held = held
            self._update()

    def end_turn(self, last: bool) -> None:
        """Lets others see what the kernel wrote; `last` when it has ended. Raises PageFault."""
        if self._offers:  # of all that there is
            self._offers.take_note(last)
            return
        copies = False
        for start, chunk in list(self._chunks.items()):
            if chunk.copy is not None:
                self._store_changes(chunk)
                del self._chunks[start]
                copies = True
            elif last and chunk.flags & STORES:
                self._caches.written_in_place(chunk.mapping, chunk.offset, chunk.size)
        if copies:
            self._update()

    def fill(self, address: int, size: int, access: int) -> None:
        """Gives the engine what it misses. Raises PageFault."""
        if self._offers:
            self._offers.take_note(last=False)
        at, touched = address, []
        while at < address + size:
            touched.append(self._chunk(at, bool(access & STORES)))
            at = touched[-1].end
        if len(touched) > 1:  # an access must lie in one range; chunks of one kind join
            for chunk in touched:
                access |= chunk.flags
            if not self._is_in_place(touched[0].mapping):
                touched = [self._joined(touched)]
        for chunk in touched:
            self._give(chunk, access)
        self._update()

    def hold(self, address: int, size: int) -> bool:
        """Gives a range that only this kernel uses, for reading and writing, as one.

        False where it is not one piece of memory that can be given in place. Raises PageFault.
        """
        mapping = self._space.translate(address, write=True)
        region = mapping.region
        if address + size > mapping.end:
            self._space.translate(mapping.end, write=True)
            return False
        if not self._is_in_place(mapping) or not isinstance(region, Pool):
            return False
        chunk = Chunk(mapping, address, size, flags=layout.READ | STORES)
        chunk.host = region.host_address(chunk.offset)
        self._held = [chunk]
        self._update()
        return True

    def _is_current(self, chunk: Chunk) -> bool:
        if not chunk.flags:
            return False  # it is only offered
        try:
            found = self._space.translate(chunk.start, bool(chunk.flags & STORES))
        except PageFault:
            return False
        return found is chunk.mapping

    def _is_in_place(self, mapping: Mapping) -> bool:
        safe = self._caches.mode != "oldest" or not mapping.cached
        return safe and isinstance(mapping.region, Pool)

    def _chunk(self, address: int, write: bool) -> Chunk:
        """The chunk of an address, which may not be given out yet. Raises PageFault."""
        mapping = self._space.translate(address, write)
        step = PAGE_SIZE
        if self._is_in_place(mapping):
            step = self._in_place << min(_MOST_DOUBLED, len(self._chunks) // _MANY)
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
            self._read_in_place(chunk, chunk.flags | access)
        elif missing:
            self._store_changes(chunk)
            self._copy(chunk, access)
        self._chunks[chunk.start] = chunk

    def _read_in_place(self, chunk: Chunk, flags: int) -> None:
        """Memory itself is given with these flags."""
        before, chunk.flags = chunk.flags, flags
        if self._caches.mode == "none" or not chunk.mapping.cached:
            return
        for kind, agent in zip(_KINDS, self._agents, strict=True):
            if flags & kind and not before & kind:
                data = chunk.mapping.region.load(chunk.offset, chunk.size)
                self._caches.see(agent, chunk.mapping, chunk.offset, data)

    def _copy(self, chunk: Chunk, access: int) -> None:
        """Gives a chunk a copy of what the caches have for an access, and flags that say so.

        What two caches have may differ: a copy is for the loads of one.
        """
        port, flags = self._port, chunk.flags | access | layout.READ
        if self._scalars and access == layout.SCALAR:
            port, flags = self._scalars, layout.SCALAR
        elif self._scalars:
            flags &= layout.READ | STORES
        chunk.flags, chunk.before = flags, port.read(chunk.start, chunk.size)
        chunk.copy = np.frombuffer(bytearray(chunk.before), np.uint8)
        chunk.host = chunk.copy.ctypes.data

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
            self._port.write(chunk.start + first, chunk.copy[first : last + 1].tobytes())

    def _joined(self, chunks: list[Chunk]) -> Chunk:
        """One chunk for several, whose copies lie apart."""
        for chunk in chunks:
            self._store_changes(chunk)
            self._chunks.pop(chunk.start, None)
        first = chunks[0]
        return Chunk(
            first.mapping, first.start, min(chunks[-1].end, first.mapping.end) - first.start
        )

    def _update(self) -> None:
        """Makes ranges of what is given; neighbours of one kind are one range. Offers nothing."""
        self._offers = None
        ranges: list[Span] = []
        for chunk in sorted(
            filter(_flags_of, [*self._chunks.values(), *self._held]), key=_start_of
        ):
            if ranges:
                before, size, host, flags = ranges[-1]
                joins = before + size == chunk.start and host + size == chunk.host
                if joins and flags == chunk.flags:
                    ranges[-1] = (before, size + chunk.size, host, flags)
                    continue
            ranges.append((chunk.start, chunk.size, chunk.host, chunk.flags))
        self.map.replace(sorted([*ranges, *self._own]))


def _start_of(chunk: Chunk) -> int:
    return chunk.start


def _are_alike(before: Chunk, chunk: Chunk) -> bool:
    """Whether a kernel used neighbours as if they were one."""
    adjoin = before.end == chunk.start and before.mapping is chunk.mapping
    return adjoin and before.offered == chunk.offered and bool(before.flags and chunk.flags)


def _flags_of(chunk: Chunk) -> int:
    return chunk.flags
