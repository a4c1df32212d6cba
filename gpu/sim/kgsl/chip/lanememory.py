"""Memory for the lane engine, through the GPU's caches. See `gpu.sim.chunks`.

Memory itself is given out in the modes "check" and "none", in which it is up to date.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.chunks import Chunk, JoiningMemory, fill_copy
from gpu.sim.isa import layout
from gpu.sim.kgsl.chip.launch import KernelMemory

IN_PLACE: Final = 64 << 10
"""Bytes of a chunk that is the memory itself."""


class LaneMemory(JoiningMemory):
    """What waves of one kernel see."""

    in_place = IN_PLACE

    def __init__(self, memory: KernelMemory):
        self._memory = memory
        super().__init__(memory.space, memory.caches.mode)

    def _see(self, chunk: Chunk, scalar: bool, data: bytes) -> None:
        self._memory.caches.see("shader", chunk.mapping, chunk.offset, data)

    def _copy(self, chunk: Chunk, access: int) -> None:
        fill_copy(chunk, self._memory.data.read(chunk.start, chunk.size))
        chunk.flags |= access | layout.READ

    def _write(self, address: int, data: bytes) -> None:
        self._memory.data.write(address, data)

    def _written_in_place(self, chunk: Chunk) -> None:
        self._memory.caches.written_in_place(chunk.mapping, chunk.offset, chunk.size)
