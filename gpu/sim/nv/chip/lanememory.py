"""Memory for the lane engine, through NVIDIA's caches. See `gpu.sim.chunks`.

Memory itself is given out of what no cache holds, and in the modes
"check" and "none"; its copies in caches are told of stores to it.
"""

from __future__ import annotations

from gpu.sim.chunks import STORES, Chunk, ChunkedMemory, Span, fill_copy
from gpu.sim.isa import layout
from gpu.sim.nv.chip.launch import KernelMemory
from gpu.sim.translate import PAGE_SIZE


class LaneMemory(ChunkedMemory):
    """What warps of one kernel see."""

    in_place = PAGE_SIZE

    def __init__(self, memory: KernelMemory, own: Span):
        """`own` is memory that the kernel brings along."""
        self._memory = memory
        super().__init__(memory.space, memory.caches.mode, (own,))

    def fill(self, address: int, size: int, access: int) -> None:
        """Gives the engine what it misses. Raises PageFault."""
        self._take_note()
        self._give(self._chunk(address, bool(access & STORES)), access)
        self._update()

    def _see(self, chunk: Chunk, scalar: bool, data: bytes) -> None:
        self._memory.caches.see("data", chunk.mapping, chunk.offset, data)

    def _copy(self, chunk: Chunk, access: int) -> None:
        fill_copy(chunk, self._memory.data.read(chunk.start, chunk.size))
        chunk.flags |= access | layout.READ

    def _write(self, address: int, data: bytes) -> None:
        self._memory.data.write(address, data)

    def _written_in_place(self, chunk: Chunk) -> None:
        if self._memory.caches.mode != "none":
            self._memory.caches.written_in_place(chunk.mapping, chunk.offset, chunk.size)
