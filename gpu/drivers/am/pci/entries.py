"""Bits of page-table entries, and the levels of tables: four, from 48 bits of address to 4 KiB
pages.

An entry that maps a page says how far the run of pages around it goes (a fragment), so that one
entry of a TLB covers it. A page of 2 MiB is an entry of the last directory with a mark. Addresses
of video memory are what the bridge adds to it, and not those of the aperture that the host's view
has.

Sources: amdgpu_vm.h; get_vm_pte and the comment on formats in gmc_v11_0.c and gmc_v12_0.c;
amdgpu_vm_pt.c (which entries are marked) of Linux 6.12.117.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from gpu.core.bits import is_power_of_two, mask
from gpu.core.errors import InvalidValue
from gpu.core.pagelevels import Level, Page, Tables
from gpu.drivers.am.target import Version

PAGE: Final = 4096
HUGE_PAGE: Final = 2 << 20
_PAGES: Final = Level("PTB", hi=20, lo=12, page=True, run=HUGE_PAGE)
_LAST: Final = Level("PDB0", hi=29, lo=21, page=True, below=(_PAGES,), run=HUGE_PAGE)
ROOT: Final = Level("PDB2", hi=47, lo=39, below=(Level("PDB1", hi=38, lo=30, below=(_LAST,)),))
"""The topmost level."""
DEPTH: Final = 3
"""How many levels of directories are above the tables of pages (PAGE_TABLE_DEPTH)."""

_VALID, _SYSTEM, _SNOOPED = 1 << 0, 1 << 1, 1 << 2
_EXECUTABLE, _READABLE, _WRITEABLE = 1 << 4, 1 << 5, 1 << 6
_FRAGMENT: Final = 7  # its lowest bit; there are five
_ADDRESS: Final = mask(47, 12)
_CACHED, _UNCACHED = 0, 3  # MTYPE_NC, MTYPE_UC


class Access(enum.IntFlag):
    """What a mapping allows, and of which memory it is."""

    READ = 1
    WRITE = 2
    EXECUTE = 4
    SYSTEM = 8  # memory of the machine, by bus address, snooped
    UNCACHED = 16  # what either side writes the other reads


@dataclass(frozen=True, slots=True)
class AmEntryFormat:
    """The `gpu.core.pagetable.EntryFormat` of a generation.

    Attributes:
        memory_type: lowest bit of the field that says how it is cached.
        leaf: what marks an entry that maps a page, at the last level and above it.
        huge: what marks a page above the last level.
        reserved: bits that must be 0.
    """

    memory_type: int
    memory_types: int
    leaf: int
    huge: int
    reserved: int

    def page(self, level: Level, pa: int, flags: int, run: int) -> int:
        """The entry of a page. Raises InvalidValue for what it cannot hold."""
        if pa & ~_ADDRESS:
            raise InvalidValue(f"page at {pa:#x}: entries have bits 47:12 of its address")
        if not is_power_of_two(run) or not PAGE <= run <= PAGE << 31:
            raise InvalidValue(f"run of {run:#x} bytes: a power of two from {PAGE:#x} up is wanted")
        if flags & ~int(Access(31)):
            raise InvalidValue(f"flags {flags:#x} of a page: known are {Access(31)!r}")
        raw: int = pa | _VALID | self.leaf | (run // PAGE).bit_length() - 1 << _FRAGMENT
        for flag, bits in _BITS.items():
            raw |= bits if flags & flag else 0
        if flags & Access.UNCACHED:
            raw |= _UNCACHED << self.memory_type
        return raw | (self.huge if level.below else 0)

    def tables(self, level: Level, addresses: Tables) -> int:
        """The entry that points to a table."""
        (address,) = addresses
        if address is None:
            return 0
        if address & ~_ADDRESS:
            raise InvalidValue(f"table at {address:#x}: entries have bits 47:12 of its address")
        return address | _VALID

    def parse(self, level: Level, raw: int) -> Page | Tables | None:
        """What an entry says. Raises InvalidValue for reserved bits."""
        if not raw & _VALID:
            return None
        if raw & self.reserved:
            raise InvalidValue(f"entry {raw:#018x} of {level.name}: bits {raw & self.reserved:#x}")
        if level.below and not raw & self.huge:
            return (raw & _ADDRESS,)
        flags: int = sum(flag for flag, bits in _BITS.items() if raw & bits)
        if raw >> self.memory_type & self.memory_types == _UNCACHED:
            flags |= Access.UNCACHED
        return Page(raw & _ADDRESS, flags, PAGE << (raw >> _FRAGMENT & 31))


_BITS: Final = {
    Access.READ: _READABLE,
    Access.WRITE: _WRITEABLE,
    Access.EXECUTE: _EXECUTABLE,
    Access.SYSTEM: _SYSTEM | _SNOOPED,
}
GFX11: Final = AmEntryFormat(
    memory_type=48, memory_types=7, leaf=0, huge=1 << 54, reserved=mask(63, 59) | 1 << 57
)
GFX12: Final = AmEntryFormat(
    memory_type=54, memory_types=3, leaf=1 << 63, huge=1 << 63, reserved=mask(62, 59) | mask(53, 48)
)


def format_of(gc: Version) -> AmEntryFormat:
    """The format of a graphics core that `registers` knows."""
    return GFX12 if gc[0] >= 12 else GFX11


def is_system(raw: int) -> bool:
    """Whether what an entry leads to is in the machine's memory."""
    return bool(raw & _SYSTEM)
