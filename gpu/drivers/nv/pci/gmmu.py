"""Page tables of NVIDIA's GPUs: version 2 up to Ada, version 3 from Hopper on.

Sources: dev_mmu.h of pascal/gp100 (VER2) and hopper/gh100 (VER3), kern_gmmu_fmt_{gp10x,gh10x}.c of
open-gpu-kernel-modules at tag 570.144. That RM takes kind 6 for all of it: memory of version 2 of
Turing and later (NV_MMU_PTE_KIND_GENERIC_MEMORY).
"""

from __future__ import annotations

from typing import Final

from gpu.core.bits import bits
from gpu.core.errors import InvalidValue
from gpu.core.pagelevels import Level, Page, Tables

SYSTEM, READ_ONLY = 1, 2
"""Flags of a page: of the machine's memory, not to be written."""
_VALID: Final = 1
_VIDEO, _COHERENT = 0, 2  # apertures of pages; a table in video memory has 1
_TABLE_IN_VIDEO: Final = 1
_GENERIC: Final = 6
_MOST: Final = 1 << 52

_SMALL: Final = Level("PTE", 20, 12, page=True)
_LARGE: Final = Level("PTE of 64 KiB", 20, 16, page=True)
_PDE0: Final = Level("PDE0", 28, 21, page=True, below=(_LARGE, _SMALL), entry_bytes=16)
_PDE1: Final = Level("PDE1", 37, 29, below=(_PDE0,))
_PDE2: Final = Level("PDE2", 46, 38, below=(_PDE1,))
ROOT_V2: Final = Level("PDE3", 48, 47, below=(_PDE2,))
ROOT_V3: Final = Level("PDE4", 56, 56, below=(Level("PDE3", 55, 47, below=(_PDE2,)),))


class GmmuV2:
    """Entries of version 2. See `gpu.core.pagelevels.EntryFormat`."""

    def page(self, level: Level, pa: int, flags: int, run: int) -> int:
        """An entry that maps a page; what is the machine's is not kept in L2 (VOL)."""
        _check(pa)
        system = bool(flags & SYSTEM)
        raw = _VALID | (_COHERENT if system else _VIDEO) << 1 | system << 3
        return raw | bool(flags & READ_ONLY) << 6 | pa >> 12 << 8 | _GENERIC << 56

    def tables(self, level: Level, addresses: Tables) -> int:
        """An entry that points to tables in video memory."""
        if len(addresses) == 1:
            return 0 if addresses[0] is None else _TABLE_IN_VIDEO << 1 | addresses[0] >> 12 << 8
        large, small = addresses
        low = 0 if large is None else _TABLE_IN_VIDEO << 1 | large >> 8 << 4
        high = 0 if small is None else _TABLE_IN_VIDEO << 1 | small >> 12 << 8
        return low | high << 64

    def parse(self, level: Level, raw: int) -> Page | Tables | None:
        """What an entry says."""
        if level.page and raw & _VALID:
            system = bits(raw, 2, 1) == _COHERENT
            flags = SYSTEM * system | READ_ONLY * bits(raw, 6, 6)
            return Page(bits(raw, 53 if system else 32, 8) << 12, flags, level.span)
        if len(level.below) == 2:
            low, high = bits(raw, 63, 0), raw >> 64
            large = bits(low, 53, 4) << 8 if bits(low, 2, 1) else None
            small = bits(high, 53, 8) << 12 if bits(high, 2, 1) else None
            return (large, small) if (large, small) != (None, None) else None
        return (bits(raw, 53, 8) << 12,) if level.below and bits(raw, 2, 1) else None


class GmmuV3:
    """Entries of version 3. See `gpu.core.pagelevels.EntryFormat`."""

    _UNCACHED, _READ_ONLY = 1, 4  # of a page's PCF
    _NO_ATS: Final = 2  # of a table's

    def page(self, level: Level, pa: int, flags: int, run: int) -> int:
        """An entry that maps a page; what is the machine's is not kept in L2."""
        _check(pa)
        system = bool(flags & SYSTEM)
        pcf = self._UNCACHED * system | self._READ_ONLY * bool(flags & READ_ONLY)
        raw = _VALID | (_COHERENT if system else _VIDEO) << 1 | pcf << 3
        return raw | _GENERIC << 8 | pa >> 12 << 12

    def tables(self, level: Level, addresses: Tables) -> int:
        """An entry that points to tables in video memory."""
        mark = _TABLE_IN_VIDEO << 1 | self._NO_ATS << 3
        if len(addresses) == 1:
            return 0 if addresses[0] is None else mark | addresses[0]
        large, small = addresses
        low = 0 if large is None else mark | large
        return low | (0 if small is None else mark | small) << 64

    def parse(self, level: Level, raw: int) -> Page | Tables | None:
        """What an entry says."""
        if level.page and raw & _VALID:
            flags = SYSTEM * (bits(raw, 2, 1) == _COHERENT)
            flags |= READ_ONLY * bool(bits(raw, 7, 3) & self._READ_ONLY)
            return Page(bits(raw, 51, 12) << 12, flags, level.span)
        if len(level.below) == 2:
            low, high = bits(raw, 63, 0), raw >> 64
            large = bits(low, 51, 8) << 8 if bits(low, 2, 1) else None
            small = bits(high, 51, 12) << 12 if bits(high, 2, 1) else None
            return (large, small) if (large, small) != (None, None) else None
        return (bits(raw, 51, 12) << 12,) if level.below and bits(raw, 2, 1) else None


def _check(pa: int) -> None:
    if not 0 <= pa < _MOST:
        raise InvalidValue(f"address {pa:#x}: entries have 52 bits")
