"""Memory for the lane engine, through NVIDIA's caches. See `gpu.sim.chunks`.

Chunks grow with their number. Memory itself is given out of what no cache holds, and in the modes
"check" and "none"; its copies in caches are told of stores to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.sim.chunks import LOADS, STORES, Chunk, ChunkedMemory, Span, fill_copy
from gpu.sim.isa import layout
from gpu.sim.nv.chip.launch import KernelMemory
from gpu.sim.translate import PAGE_SIZE

_MANY: Final = 16  # chunks after which the next ones are twice as large
_LARGEST: Final = 8  # times that they double


class LaneMemory(ChunkedMemory):
    """What warps of one kernel see."""

    def __init__(self, memory: KernelMemory, own: Span):
        """`own` is memory that the kernel brings along."""
        super().__init__(memory.space, memory.caches.mode)
        self._memory = memory
        self._brought = own
        self._update()

    def fill(self, address: int, size: int, access: int) -> None:
        """Gives the engine what it misses. Raises PageFault."""
        self._give(self._chunk(address, bool(access & STORES)), access)
        self._update()

    def _own(self) -> Sequence[Span]:
        return (self._brought,)

    def _step(self, in_place: bool) -> int:
        return PAGE_SIZE << (min(_LARGEST, len(self._chunks) // _MANY) if in_place else 0)

    def _load(self, chunk: Chunk, access: int) -> None:
        if access & LOADS and not chunk.flags & LOADS:
            self._memory.caches.load("data", chunk.mapping, chunk.offset, chunk.size)

    def _copy(self, chunk: Chunk, access: int) -> None:
        fill_copy(chunk, self._memory.data.read(chunk.start, chunk.size))
        chunk.flags |= access | layout.READ

    def _write(self, address: int, data: bytes) -> None:
        self._memory.data.write(address, data)

    def _written_in_place(self, chunk: Chunk) -> None:
        if self._memory.caches.mode != "none":
            # The cache takes part in stores: copies of these lines are not old.
            data = chunk.mapping.region.load(chunk.offset, chunk.size)
            self._memory.caches.store("data", chunk.mapping, chunk.offset, data)
