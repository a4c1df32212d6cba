"""Physical memory that was given out, and who holds it: handles, UVM's duplicates, channels."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu.sim.nv.chip.hardware import Hardware
from gpu.sim.physical import Extent, Pool, Region


@dataclass(eq=False)
class Physical:
    """One allocation's bytes.

    Attributes:
        gpu: whose device the allocation was made under.
        region: where the bytes are.
        extents: pieces of the region, in order.
        size: in bytes, whole pages.
        page_size: what UVM may at most map it with.
        cpu: whether RM_MAP_MEMORY may map it (memory of the process itself may not).
        users: how many hold it; the last one gives it back.
        seen_by: GPUs that it was ever mapped on.
    """

    gpu: Hardware
    region: Region
    extents: tuple[Extent, ...]
    size: int
    page_size: int
    cpu: bool = True
    users: int = field(default=1)
    seen_by: set[Hardware] = field(default_factory=set)

    @property
    def local(self) -> bool:
        """Whether it is video memory."""
        return self.region.local

    def hold(self) -> None:
        """One holder more."""
        self.users += 1

    def drop(self) -> None:
        """One holder less; the last one frees the pages."""
        self.users -= 1
        if self.users:
            return
        if isinstance(self.region, Pool):
            for gpu in {self.gpu, *self.seen_by}:
                for extent in self.extents:
                    gpu.caches.drop(self.region, *extent)
            self.region.release(self.extents)

    def pieces(self, offset: int, size: int) -> list[Extent]:
        """Where a part of it lies."""
        found = []
        for extent in self.extents:
            if offset < extent.size and size:
                count = min(size, extent.size - offset)
                found.append(Extent(extent.offset + offset, count))
                size, offset = size - count, 0
            else:
                offset -= extent.size
        return found

    def load(self, offset: int, size: int) -> bytes:
        """Reads bytes, as the kernel does."""
        pieces = self.pieces(offset, size)
        return b"".join(self.region.load(*piece) for piece in pieces)

    def read_word(self, offset: int) -> int:
        """Four aligned bytes, in a single access where a process may write them meanwhile."""
        (piece,) = self.pieces(offset, 4)
        if isinstance(self.region, Pool):
            return self.region.read_word(piece.offset, 4)
        return int.from_bytes(self.region.load(*piece), "little")

    def store(self, offset: int, data: bytes) -> None:
        """Writes bytes, as the kernel does."""
        for piece in self.pieces(offset, len(data)):
            self.region.store(piece.offset, data[: piece.size])
            data = data[piece.size :]
