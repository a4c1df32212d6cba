"""Memory for the lane engine, through AMD's caches. See `gpu.sim.chunks`.

Memory itself is given out of what no cache holds, and in the mode "check", in which memory is up to
date.
"""

from __future__ import annotations

from typing import Final, Literal

from gpu.sim.amd.chip.dispatch import KernelMemory
from gpu.sim.chunks import STORES, Chunk, JoiningMemory, fill_copy
from gpu.sim.isa import layout
from gpu.sim.physical import Pool

IN_PLACE: Final = 64 << 10
"""Bytes of a chunk that is the memory itself."""
_VECTOR: Final = layout.READ | STORES


class LaneMemory(JoiningMemory):
    """What waves of one kernel see."""

    in_place = IN_PLACE

    def __init__(self, memory: KernelMemory):
        self._memory = memory
        self._held: Chunk | None = None
        super().__init__(memory.space, memory.caches.mode)

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
        chunk = Chunk(mapping, address, size, flags=_VECTOR)
        chunk.host = region.host_address(chunk.offset)
        self._held = chunk
        self._update()
        return True

    def _shown(self) -> list[Chunk]:
        return [*self._chunks.values(), *([self._held] if self._held else [])]

    def _see(self, chunk: Chunk, scalar: bool, data: bytes) -> None:
        agent: Literal["scalar", "vector"] = "scalar" if scalar else "vector"
        self._memory.caches.see(agent, chunk.mapping, chunk.offset, data)

    def _copy(self, chunk: Chunk, access: int) -> None:
        """Of what the scalar or the vector cache has: not both at a time."""
        scalar = access == layout.SCALAR
        port = self._memory.scalar if scalar else self._memory.vector
        fill_copy(chunk, port.read(chunk.start, chunk.size))
        chunk.flags = layout.SCALAR if scalar else (chunk.flags | access) & _VECTOR | layout.READ

    def _write(self, address: int, data: bytes) -> None:
        self._memory.vector.write(address, data)

    def _written_in_place(self, chunk: Chunk) -> None:
        self._memory.caches.written_in_place(chunk.mapping, chunk.offset, chunk.size)
