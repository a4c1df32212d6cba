"""What an encoder makes of commands: segments of bytes, and patches for what is not known yet.

The first segment is what the queue fetches. Placed in the ``ring`` it is copied into the queue's
ring, or, when its commands are bound and its kind is not ``aql``, called from there like one placed
in ``memory``. All other segments lie in memory and are found by address, through a patch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gpu.core.bits import is_power_of_two
from gpu.core.errors import InvalidIndex, InvalidValue
from gpu.hcq.commands import Command
from gpu.hcq.symbol import Symbol, resolve

SegmentKind = Literal["ring", "ib", "pushbuf", "qmd", "kernarg", "aql"]
Placement = Literal["ring", "memory"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes for the device: what for, the alignment of its address, where, and the contents.

    ``arguments`` is the offset of the arguments within a segment of kind ``kernarg``, which may
    have other data before and after them.
    """

    kind: SegmentKind
    align: int
    placement: Placement
    data: bytes
    arguments: int = 0

    def __post_init__(self) -> None:
        if not is_power_of_two(self.align):
            raise InvalidValue(f"{self.kind} segment aligned to {self.align}: give a power of two")


@dataclass(frozen=True, slots=True)
class Patch:
    """Puts ``((symbol + addend) >> shift) & mask`` into a word of a segment, from ``position`` on.

    The word is ``width`` bytes at ``offset``, a multiple of it, little-endian; bits of the word
    that ``mask << position`` does not cover stay as the segment has them.
    """

    segment: int
    offset: int
    width: int
    shift: int
    mask: int
    symbol: Symbol
    addend: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        what = f"patch of {self.symbol.name!r} at {self.offset:#x}"
        if self.width not in (1, 2, 4, 8):
            raise InvalidValue(f"{what} has a width of {self.width} bytes: give 1, 2, 4 or 8")
        if self.offset % self.width:
            raise InvalidValue(f"{what} is not aligned to its width of {self.width} bytes")
        if self.position < 0 or not 0 < self.mask << self.position < 1 << 8 * self.width:
            raise InvalidValue(
                f"{what} has the mask {self.mask:#x} from bit {self.position}: it must be positive"
                f" and fit {self.width} bytes"
            )
        if not 0 <= self.shift < 64:
            raise InvalidValue(f"{what} shifts by {self.shift}: give 0 to 63")
        if not -(1 << 63) <= self.addend < 1 << 63:
            raise InvalidValue(f"{what} adds {self.addend:#x}: it must fit 64 signed bits")

    def apply(self, data: bytearray, value: int) -> None:
        """Put the symbol's value into the bytes of the segment."""
        place = slice(self.offset, self.offset + self.width)
        kept = int.from_bytes(data[place], "little") & ~(self.mask << self.position)
        total = (value + self.addend) & 0xFFFF_FFFF_FFFF_FFFF
        field = (total >> self.shift & self.mask) << self.position
        data[place] = (kept | field).to_bytes(self.width, "little")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Segments, the first of which the queue fetches, and the patches of all."""

    segments: tuple[Segment, ...]
    patches: tuple[Patch, ...] = ()

    def __post_init__(self) -> None:
        if not self.segments:
            raise InvalidValue("encoded commands have no segment: the queue has nothing to fetch")
        for index, segment in enumerate(self.segments[1:], 1):
            if segment.placement == "ring":
                raise InvalidValue(f"segment {index} is placed in the ring: only the first can be")
        for patch in self.patches:
            if not 0 <= patch.segment < len(self.segments):
                raise InvalidIndex(
                    f"patch of {patch.symbol.name!r} is for segment {patch.segment} of"
                    f" {len(self.segments)}"
                )
            size = len(self.segments[patch.segment].data)
            if not 0 <= patch.offset <= size - patch.width:
                raise InvalidIndex(
                    f"patch of {patch.symbol.name!r}: {patch.width} bytes at {patch.offset:#x} are"
                    f" outside of segment {patch.segment}, which has {size:#x}"
                )

    def resolve(self, values: Mapping[Symbol, int]) -> tuple[bytes, ...]:
        """The bytes of all segments with every symbol put in; for tests and dumps.

        Segments get their addresses through ``values`` too (`segment_address`). Raises
        `InvalidValue` for a symbol without value.
        """
        images = [bytearray(segment.data) for segment in self.segments]
        for patch in self.patches:
            patch.apply(images[patch.segment], resolve(patch.symbol, values))
        return tuple(bytes(image) for image in images)


class Encoder(Protocol):
    """Turns commands into what one kind of queue reads. All methods are pure."""

    def encode(self, commands: Sequence[Command]) -> Encoded:
        """The commands as segments; the first is fetched by the queue.

        Raises `Unsupported` for a command that this kind of queue cannot run.
        """

    def call(self, target: Symbol, addend: int, size: int) -> Encoded:
        """One segment for the ring that makes the queue run ``size`` bytes at a place in memory.

        An INDIRECT_BUFFER packet, a GP entry. The place is ``target + addend``.
        """

    def filler(self, size: int) -> bytes:
        """``size`` bytes for the ring that do nothing: no submission crosses the ring's end."""
