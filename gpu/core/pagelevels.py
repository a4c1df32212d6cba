"""Layouts of page tables: levels, what entries say, and where tables live.

Together these describe a GPU to `gpu.core.pagetable.PageTable`. As an example, 4 KiB and 2 MiB
pages below two levels of directories, with runs of up to 64 KiB announced::

    pages = Level("PTE", hi=20, lo=12, page=True, run=64 << 10)
    large = Level("PDE0", hi=29, lo=21, page=True, below=(pages,))
    root = Level("PDE1", hi=38, lo=30, below=(large,))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gpu.core.bits import align_down, align_up, is_power_of_two
from gpu.core.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Level:
    """One level of tables: the virtual address bits ``hi:lo`` index a table of this level.

    ``page``: an entry may map a page of ``1 << lo`` bytes. ``below``: what an entry may point to,
    one table of each, the largest pages first; several only where those are the last levels.
    ``run``: the longest run in bytes that an entry can announce, 0 where there is no such hint.
    """

    name: str
    hi: int
    lo: int
    page: bool = False
    below: tuple[Level, ...] = ()
    entry_bytes: int = 8
    run: int = 0

    def __post_init__(self) -> None:
        if not (self.hi >= self.lo >= 0 and (self.page or self.below)):
            raise InvalidValue(f"level {self.name}: bits {self.hi}:{self.lo} must map or point")
        if any(child.hi != self.lo - 1 for child in self.below):
            raise InvalidValue(f"level {self.name}: levels below must begin at bit {self.lo - 1}")
        if len(self.below) > 1 and any(child.below for child in self.below):
            raise InvalidValue(f"level {self.name}: only last levels may lie side by side")
        if self.entry_bytes % 8 or (self.run and not is_power_of_two(self.run)):
            raise InvalidValue(
                f"level {self.name}: entries of {self.entry_bytes} bytes and runs of {self.run}: "
                "give a multiple of 8 and a power of two"
            )

    @property
    def span(self) -> int:
        """How many bytes of address space one entry covers."""
        return 1 << self.lo

    @property
    def covered(self) -> int:
        """How many bytes of address space one table covers."""
        return 1 << (self.hi + 1)

    @property
    def table_bytes(self) -> int:
        """The size of one table."""
        return self.entry_bytes << (self.hi - self.lo + 1)

    @property
    def smallest_page(self) -> int:
        """The size of the smallest page at or below this level."""
        return min(child.smallest_page for child in self.below) if self.below else self.span

    def below_of(self, entry: Tables) -> list[tuple[Level, int]]:
        """The tables that an entry points to, with their levels."""
        pairs = zip(self.below, entry, strict=True)
        return [(low, table) for low, table in pairs if table is not None]


@dataclass(frozen=True, slots=True)
class Page:
    """An entry that maps a page: ``run`` is the size of the aligned run it belongs to.

    ``flags`` are the driver's: access rights, caching, which memory ``pa`` is an address of.
    """

    pa: int
    flags: int
    run: int


# An entry that points to tables: the address of one for each of the level's `below`, or None.
Tables = tuple[int | None, ...]


class EntryFormat(Protocol):
    """The bits of entries; `InvalidValue` for addresses or flags that they cannot hold."""

    def page(self, level: Level, pa: int, flags: int, run: int) -> int:
        """The entry that maps a page, of a run of ``run`` bytes (at least the page)."""
        ...

    def tables(self, level: Level, addresses: Tables) -> int:
        """The entry that points to tables."""
        ...

    def parse(self, level: Level, raw: int) -> Page | Tables | None:
        """What an entry other than zero says; None when it is not valid."""
        ...


class TableMemory(Protocol):
    """Where tables live; addresses are what entries hold. It may keep a copy for fast reads."""

    def read64(self, address: int) -> int:
        """Eight bytes of a table."""
        ...

    def write64(self, address: int, value: int) -> None:
        """Write eight bytes of a table."""
        ...

    def alloc_table(self, size: int) -> int:
        """A zeroed table of this size, aligned to it or to a page; `OutOfMemory` when full."""
        ...

    def free_table(self, address: int, size: int) -> None:
        """Take back a table that no entry points to and no cache knows."""
        ...


def run_around(level: Level, va: int, first: int, last: int, delta: int) -> int:
    """The longest aligned run around ``va`` within ``first`` to ``last`` that can be announced."""
    run = level.span
    while 2 * run <= level.run and delta % (2 * run) == 0:
        start = align_down(va, 2 * run)
        if start < first or start + 2 * run > last:
            break
        run *= 2
    return run


def shares(
    levels: tuple[Level, ...], va: int, end: int, delta: int, index: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Which of the tables side by side maps which part: (index of the level, start, end).

    Each takes what its pages can map, in the middle; the next ones take the ends.
    """
    unit = levels[index].smallest_page
    start, stop = align_up(va, unit), align_down(end, unit)
    if index == len(levels) - 1:
        yield index, va, end
    elif delta % unit or start >= stop:
        yield from shares(levels, va, end, delta, index + 1)
    else:
        if va < start:
            yield from shares(levels, va, start, delta, index + 1)
        yield index, start, stop
        if stop < end:
            yield from shares(levels, stop, end, delta, index + 1)
