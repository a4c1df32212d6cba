"""Lays encoded commands out for submission: ring words, an image for memory, patches of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpu.core.bits import align_up
from gpu.hcq.encoder import Encoded, Encoder, Patch
from gpu.hcq.symbol import IMAGE, Derived, Offset, Symbol, segment_address


class Linked(NamedTuple):
    """One submission: the words for the ring, and what lies in memory beside it.

    Offsets of patches count from the start of the ring words or of the image; other segments are
    addressed from `IMAGE`. ``arguments`` are where in the image the arguments of each launch are.
    """

    ring: bytes
    ring_patches: tuple[Patch, ...]
    image: bytes
    image_align: int
    image_patches: tuple[Patch, ...]
    arguments: tuple[int, ...]

    def symbols(self) -> list[Symbol]:
        """The symbols that are left, without doubles, in the order of their first patch."""
        return list(dict.fromkeys(p.symbol for p in (*self.ring_patches, *self.image_patches)))

    def patch_counts(self) -> Counter[Symbol]:
        """How many patches each symbol has."""
        return Counter(patch.symbol for patch in (*self.ring_patches, *self.image_patches))

    def put_in(self, known: Mapping[Symbol, int]) -> Linked:
        """The same with the symbols that are known for good resolved."""
        ring, ring_patches = _put_in(self.ring, self.ring_patches, known)
        image, image_patches = _put_in(self.image, self.image_patches, known)
        return self._replace(
            ring=ring, ring_patches=ring_patches, image=image, image_patches=image_patches
        )


def link(encoded: Encoded, encoder: Encoder, *, bound: bool = False) -> Linked:
    """Place all segments, and address them from `IMAGE`.

    The first segment becomes the ring words if it is placed in the ring, except when ``bound``:
    then it stays in memory like all others (unless its kind is ``aql``), and the ring words are a
    call of it.
    """
    first = encoded.segments[0]
    in_ring = first.placement == "ring" and (first.kind == "aql" or not bound)
    starts, size = _place(encoded, skip=1 if in_ring else 0)
    addresses = {segment_address(index): start for index, start in starts.items()}
    image = bytearray(size)
    for index, start in starts.items():
        data = encoded.segments[index].data
        image[start : start + len(data)] = data
    in_image = [patch for patch in encoded.patches if patch.segment in starts]
    if in_ring:
        ring, in_call = first.data, [p for p in encoded.patches if p.segment == 0]
    else:
        call = encoder.call(segment_address(0), 0, len(first.data))
        ring, in_call = call.segments[0].data, list(call.patches)
    kernargs = ((i, s) for i, s in enumerate(encoded.segments) if s.kind == "kernarg")
    return Linked(
        ring=ring,
        ring_patches=_move(in_call, {0: 0}, addresses),
        image=bytes(image),
        image_align=max((encoded.segments[i].align for i in starts), default=1),
        image_patches=_move(in_image, starts, addresses),
        arguments=tuple(starts[i] + segment.arguments for i, segment in kernargs),
    )


def _place(encoded: Encoded, skip: int) -> tuple[dict[int, int], int]:
    """Where in the image each segment from number ``skip`` on starts, and the image's size."""
    starts: dict[int, int] = {}
    size = 0
    for index, segment in enumerate(encoded.segments[skip:], skip):
        starts[index] = align_up(size, segment.align)
        size = starts[index] + len(segment.data)
    return starts, size


def _move(
    patches: Iterable[Patch], starts: Mapping[int, int], addresses: Mapping[Symbol, int]
) -> tuple[Patch, ...]:
    """Patches with offsets from the start of what their segments were placed in."""
    moved = []
    for patch in patches:
        symbol, addend = patch.symbol, patch.addend
        if isinstance(symbol, Offset):
            addend += symbol.addend
            symbol = symbol.base
        if symbol in addresses:
            symbol, addend = IMAGE, addend + addresses[symbol]
        offset = patch.offset + starts[patch.segment]
        moved.append(replace(patch, segment=0, offset=offset, symbol=symbol, addend=addend))
    return tuple(moved)


def _put_in(
    data: bytes, patches: Iterable[Patch], known: Mapping[Symbol, int]
) -> tuple[bytes, tuple[Patch, ...]]:
    changed = bytearray(data)
    left = []
    for patch in patches:
        value = _value(patch.symbol, known)
        if value is None:
            left.append(patch)
        else:
            patch.apply(changed, value)
    return bytes(changed), tuple(left)


def _value(symbol: Symbol, known: Mapping[Symbol, int]) -> int | None:
    """The value of a symbol, where it or all that it is derived from is known."""
    if symbol in known or not isinstance(symbol, Derived):
        return known.get(symbol)
    values = [_value(source, known) for source in symbol.sources]
    return None if None in values else symbol.compute(*values)
