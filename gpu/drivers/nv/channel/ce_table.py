"""What copies within a device: a copy engine or a kernel, by how many bytes there are.

The ranges are measured ones: the acceptance run times both ways, prints the ranges of its GPU
(`ranges`), and they are written down here. A chip that was not measured has none, and its copies
are an engine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gpu.drivers.nv.rm.classes import Generation
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.program import HCQProgram

Way = Literal["engine", "kernel"]
UNIT: Final = 4  # bytes that a thread of the kernel copies at once


@dataclass(frozen=True, slots=True)
class Range:
    """Copies of at least so many bytes, up to the next range, and what is faster at them."""

    start: int
    way: Way


COPY_TABLE: Final[dict[int, tuple[Range, ...]]] = {}
"""By compute class, in order of size. Nothing is measured yet."""


def way_of(generation: Generation, size: int) -> Way:
    """What copies so many bytes within a device."""
    ways = [each.way for each in COPY_TABLE.get(generation.compute, ()) if each.start <= size]
    return ways[-1] if ways else "engine"


def ranges(measured: Sequence[tuple[int, Mapping[Way, float]]]) -> tuple[Range, ...]:
    """Ranges for `COPY_TABLE` from sizes with the seconds of each way; sizes ascend.

    A range begins at the first size that was measured with its way as the faster one.
    """
    found: list[Range] = []
    for size, seconds in measured:
        way: Way = "kernel" if seconds["kernel"] < seconds["engine"] else "engine"
        if way != (found[-1].way if found else "engine"):
            found.append(Range(size, way))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class CopyKernel:
    """A kernel that copies words: (source, target; 64-bit count), however it is launched.

    Attributes:
        program: it, loaded.
        generation: decides by `COPY_TABLE` whether it is taken.
        blocks, threads: of a launch; the threads share the words. As many as H200 runs at once.
    """

    program: HCQProgram
    generation: Generation
    blocks: int = 1056
    threads: int = 256

    def __call__(self, dst: HCQBuffer, src: HCQBuffer) -> bool:
        """Copies in order if that is faster and there are whole words; whether it did."""
        size = src.size
        whole = not (size | dst.address | src.address) % UNIT
        if not whole or way_of(self.generation, size) == "engine":
            return False
        self.copy(dst, src)
        return True

    def copy(self, dst: HCQBuffer, src: HCQBuffer) -> None:
        """Copies in order, whatever is faster."""
        grid, block = (self.blocks, 1, 1), (self.threads, 1, 1)
        self.program(src, dst, vals=(src.size // UNIT,), grid=grid, block=block)
