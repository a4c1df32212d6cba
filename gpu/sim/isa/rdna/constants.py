"""Constants among source operands: inline constants, apertures and literals."""

from __future__ import annotations

import struct
from typing import Final

from gpu.sim.isa.rdna.formats import LITERAL, NULL

CONDITIONS: Final = {251: 1, 252: 2, 253: 0}
"""Sources VCCZ, EXECZ and SCC: the aux word of `special`."""
SHARED_APERTURE: Final = 0x00010000
PRIVATE_APERTURE: Final = 0x00020000
"""Upper halves of the addresses of LDS and scratch in the flat address space, as KFD sets them
(MAKE_LDS_APP_BASE_V9, MAKE_SCRATCH_APP_BASE_V9 in amdkfd/kfd_flat_memory.c)."""
_APERTURES: Final = {
    235: (0, SHARED_APERTURE),
    236: (0xFFFFFFFF, SHARED_APERTURE),
    237: (0, PRIVATE_APERTURE),
    238: (0xFFFFFFFF, PRIVATE_APERTURE),
}
_FLOATS: Final = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0, 0.15915494309189535)
_FIRST_FLOAT: Final = 240
_PACKING: Final = {"f16": "<e", "i16": "<e", "f64": "<d", "i64": "<d"}


def words_of(
    code: int, kind: str, literal: int | None, signed: bool = False
) -> tuple[int, ...] | None:
    """The dwords of a constant source read as a type; None for what is none.

    Float constants take the operand's width, also where it is an integer. A 64-bit float's literal
    is its upper half; a 64-bit integer's is zero-extended, for a `signed` operation sign-extended.
    """
    wide = kind in ("i64", "f64")
    if code == LITERAL:
        assert literal is not None
        if kind == "f64":
            return 0, literal
        extension = 0xFFFFFFFF if signed and literal >> 31 else 0
        return (literal, extension) if wide else (literal,)
    if code == NULL:
        return (0, 0) if wide else (0,)
    if code in _APERTURES:
        low, high = _APERTURES[code]
        return (low, high) if wide else (high,)
    if 128 <= code <= 208:
        number = code - 128 if code <= 192 else 192 - code
        return (number & 0xFFFFFFFF, number >> 31 & 0xFFFFFFFF) if wide else (number & 0xFFFFFFFF,)
    if _FIRST_FLOAT <= code < _FIRST_FLOAT + len(_FLOATS):
        return _float_words(_FLOATS[code - _FIRST_FLOAT], kind)
    return None


def _float_words(number: float, kind: str) -> tuple[int, ...]:
    if kind == "bf16":  # of a single the upper half; 1 / (2 pi) is cut
        return (int.from_bytes(struct.pack("<f", number), "little") >> 16,)
    data = struct.pack(_PACKING.get(kind, "<f"), number)
    value = int.from_bytes(data, "little")
    return (value & 0xFFFFFFFF, value >> 32) if kind in ("f64", "i64") else (value,)
