"""Packets as 32-bit words in the making, some of them with the bits of a symbol in them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from gpu.core.errors import InvalidValue
from gpu.hcq.encoder import Patch
from gpu.hcq.symbol import Symbol, Value

WORD: Final = 4
"""Bytes of a word."""
VA_BITS: Final = 48
_LOW: Final = 0xFFFF_FFFF


class Late(NamedTuple):
    """A word with bits of a symbol in it: those from ``shift`` on that ``mask`` has ones for."""

    symbol: Symbol
    shift: int = 0
    mask: int = _LOW


Word = int | Late


def low(value: Value, shift: int = 0) -> Word:
    """Bits ``shift`` to ``shift + 31`` of a value."""
    return Late(value, shift) if isinstance(value, Symbol) else value >> shift & _LOW


def pair(value: Value, shift: int = 0) -> tuple[Word, Word]:
    """The low and the high word of ``value >> shift``."""
    return low(value, shift), low(value, shift + 32)


def check_address(what: str, address: Value, align: int) -> None:
    """Raises InvalidValue for an address of more than 48 bits, or off its alignment.

    Symbols pass.
    """
    if isinstance(address, Symbol):
        return
    if not 0 <= address < 1 << VA_BITS:
        raise InvalidValue(f"{what} at {address:#x}: addresses are of {VA_BITS} bits")
    if address % align:
        raise InvalidValue(f"{what} at {address:#x}: give a multiple of {align}")


def check_word(what: str, value: Value) -> None:
    """Raises InvalidValue for a number of more than 32 bits; symbols pass."""
    if not isinstance(value, Symbol) and not 0 <= value <= _LOW:
        raise InvalidValue(f"{what} {value:#x}: queues of this GPU compare and write 32 bits")


class WordList:
    """Words in order, and the patches of those that are not known yet, as of segment 0."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.patches: list[Patch] = []

    def __len__(self) -> int:
        return len(self.words)

    def append(self, words: Iterable[Word]) -> None:
        """Adds words behind the others."""
        for word in words:
            if isinstance(word, Late):
                place = WORD * len(self.words)
                self.patches.append(Patch(0, place, WORD, word.shift, word.mask, word.symbol))
                self.words.append(0)
            else:
                self.words.append(word)

    @property
    def data(self) -> bytes:
        """The words, little-endian, with zeros where symbols are."""
        return struct.pack(f"<{len(self.words)}I", *self.words)


def in_segment(patches: Iterable[Patch], segment: int, by: int = 0) -> list[Patch]:
    """Patches for bytes that begin ``by`` bytes into another segment."""
    return [replace(patch, segment=segment, offset=patch.offset + by) for patch in patches]
