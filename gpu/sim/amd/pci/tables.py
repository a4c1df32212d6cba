"""Entries of page tables, and the walk: amdgpu_vm.h and amdgpu_vm_pt.c of Linux 6.12.

A page directory's entry holds the address of the next table and VALID; where PDE_PTE is set, or at
the last level, it is of memory. Levels index 9 bits each above the page (`block_size` more at the
last), the root what is left. What the names of a generation's bits leave out must be 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

VALID, SYSTEM, EXECUTABLE, READABLE, WRITABLE = (1 << bit for bit in (0, 1, 4, 5, 6))
_ADDRESS: Final = ((1 << 48) - 1) & ~0xFFF
_FRAGMENT: Final = 0x1F << 7
_COMMON: Final = (1 << 7) - 1 | _FRAGMENT | _ADDRESS
_UC: Final = 3
PAGE_BITS, TABLE_BITS = 12, 9


@dataclass(frozen=True)
class Generation:
    """Where the bits are that differ.

    Attributes:
        leaf: the bit of an entry of a directory that is of memory.
        memory_type: the lowest bit of MTYPE, and its width.
        last_is_leaf: whether entries of the last level have that bit as well.
        named: bits of entries of memory that have a name.
    """

    leaf: int
    memory_type: tuple[int, int]
    last_is_leaf: bool
    named: int


GFX11: Final = Generation(1 << 54, (48, 3), False, _COMMON | 7 << 48 | 1 << 51 | 1 << 55 | 1 << 58)
GFX12: Final = Generation(1 << 63, (54, 2), True, _COMMON | 3 << 54 | 1 << 56 | 1 << 58 | 1 << 63)


class WalkError(Exception):
    """A walk that found no memory.

    Attributes:
        level: at which level, 0 is the last.
        violation: what the tables break beside, which hardware may not notice; may be empty.
    """

    def __init__(self, level: int, violation: str = ""):
        self.level = level
        self.violation = violation
        super().__init__(violation or f"no valid entry at level {level}")


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a walk found: `pages` aligned pages, which begin at `physical`."""

    physical: int
    first_page: int
    pages: int
    flags: int
    cached: bool


class Walk:
    """Walks of tables whose words `read` gives, from (physical address, in system memory)."""

    def __init__(self, generation: Generation, read: Callable[[int, bool], int]):
        self._bits = generation
        self._read = read

    def __call__(self, root: int, depth: int, block: int, page: int) -> Leaf:
        """The memory of a page, counted from where tables begin. Raises WalkError."""
        entry, level = root, depth
        if not entry & VALID:
            raise WalkError(level, "the base of the page tables is not VALID")
        while True:
            shift = (TABLE_BITS * level + block) if level else 0
            bits = (TABLE_BITS + block) if not level else TABLE_BITS
            index = page >> shift
            if level != depth:
                index &= (1 << bits) - 1
            table, in_system = entry & _ADDRESS, bool(entry & SYSTEM)
            entry = self._read(table + 8 * index, in_system)
            if not entry & VALID:
                raise WalkError(level)
            if not level or entry & self._bits.leaf:
                return self._leaf(entry, level, shift, page, (table, index, in_system))
            if entry & ~(_COMMON | self._bits.named):
                raise WalkError(level, f"entry {entry:#x} of a directory has bits without a name")
            level -= 1

    def _leaf(
        self, entry: int, level: int, shift: int, page: int, where: tuple[int, int, bool]
    ) -> Leaf:
        marked = bool(entry & self._bits.leaf)
        if marked != (self._bits.last_is_leaf or bool(level)):
            raise WalkError(level, f"entry {entry:#x} at level {level}: the bit of leaves is wrong")
        if entry & ~(self._bits.named | self._bits.leaf):
            raise WalkError(level, f"entry {entry:#x} has bits without a name")
        low, width = self._bits.memory_type
        cached = entry >> low & (1 << width) - 1 != _UC
        physical = entry & _ADDRESS
        if shift:
            if physical & (1 << shift + PAGE_BITS) - 1:
                raise WalkError(level, f"entry {entry:#x} of {1 << shift} pages is not aligned")
            first = page >> shift << shift
            return Leaf(physical, first, 1 << shift, entry, cached)
        fragment = min((entry & _FRAGMENT) >> 7, TABLE_BITS)
        self._check_fragment(entry, fragment, where)
        first = page >> fragment << fragment
        start = physical - (page - first << PAGE_BITS)
        return Leaf(start, first, 1 << fragment, entry, cached)

    def _check_fragment(self, entry: int, fragment: int, where: tuple[int, int, bool]) -> None:
        """The first and the last page of a fragment must continue this one."""
        table, index, in_system = where
        for other in {index >> fragment << fragment, index | (1 << fragment) - 1} - {index}:
            wanted = entry + ((other - index) << PAGE_BITS)
            found = self._read(table + 8 * other, in_system)
            if found != wanted:
                raise WalkError(
                    0,
                    f"fragment of {1 << fragment} pages: entry {other:#x} is {found:#x}, and "
                    f"{wanted:#x} would go on from {entry:#x}",
                )
        if (entry & _ADDRESS) >> PAGE_BITS & (1 << fragment) - 1 != index & (1 << fragment) - 1:
            raise WalkError(0, f"entry {entry:#x}: its fragment is not aligned in memory")
