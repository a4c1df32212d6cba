"""The memory of waves, and a look at one of them."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.sim.isa import layout

POISON: Final = 0xA5
"""The byte that registers, shared and private memory hold before anything is written there."""
Bytes = npt.NDArray[np.uint8]


def aligned_bytes(size: int, align: int = layout.HEADER) -> Bytes:
    """Fresh memory, poisoned, whose address is a multiple of a power of two."""
    raw = np.full(size + align, POISON, np.uint8)
    skip = -raw.ctypes.data % align
    return raw[skip : skip + size]


class Wave:
    """A wave, by its memory.

    Attributes:
        memory: see gpu/sim/isa/layout.py; its first byte is aligned to a row.
        words: the same as dwords.
    """

    __slots__ = ("_view", "memory", "words")

    def __init__(self, memory: Bytes):
        self.memory = memory
        self.words = memory.view(np.uint32)
        self._view = memory.data

    def state(self) -> tuple[bytes, bytes]:
        """All that decides what it does next but memory; a clock is asked for by name."""
        return bytes(self._view[: layout.COUNT]), bytes(self._view[layout.LOWEST :])

    def word(self, offset: int, format: str = "<I") -> int:
        """A field of the header."""
        value: int = struct.unpack_from(format, self._view, offset)[0]
        return value

    def set(self, offset: int, value: int, format: str = "<I") -> None:
        """Writes a field of the header."""
        struct.pack_into(format, self._view, offset, value)

    @property
    def record(self) -> int:
        """Address of the record to go on with."""
        return self.word(layout.RESUME, "<Q")

    @record.setter
    def record(self, address: int) -> None:
        self.set(layout.RESUME, address, "<Q")
