"""One builder and walker of page tables for GPUs with different layouts.

A layout is a tree of `Level`s, an `EntryFormat` knows the bits of entries, a `TableMemory` is where
tables live. Covered are pages at several levels (a directory entry that is itself a large page),
runs (a hint in each entry that its neighbours continue it, AMD's fragment), and entries that point
to one table of large and one of small pages (NVIDIA's PDE0).

An entry of zero is empty. Every change tells what it changed, as TLBs and directory caches must be
flushed before the tables it unlinked may be used again::

    change = table.unmap(va, size)
    flush(change.va, change.size, directories=change.tables)
    table.release(change)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu.core.bits import align_down, align_up
from gpu.core.errors import InvalidValue
from gpu.core.pagelevels import (
    EntryFormat,
    Level,
    Page,
    TableMemory,
    Tables,
    run_around,
    shares,
)

__all__ = [
    "Change",
    "EntryFormat",
    "Level",
    "Mapping",
    "Page",
    "PageTable",
    "Step",
    "TableMemory",
    "Tables",
    "walk",
]


class Mapping(NamedTuple):
    """One page as it is mapped: ``size`` bytes of virtual addresses from ``va``."""

    va: int
    size: int
    page: Page


class Step(NamedTuple):
    """One entry that a walk read."""

    level: Level
    table: int
    slot: int
    raw: int


class Change(NamedTuple):
    """What `map` or `unmap` changed: translations of ``size`` bytes from ``va``.

    ``tables`` says that entries pointing to tables changed too; ``released`` are tables (address,
    size) that nothing points to any more, for `PageTable.release` after the flush.
    """

    va: int
    size: int
    tables: bool
    released: tuple[tuple[int, int], ...]


@dataclass
class _Plan:
    """A mapping that is not written yet; entries come before the entries that point to them."""

    delta: int  # pa - va
    flags: int
    undo: ExitStack
    writes: list[tuple[Level, int, int]] = field(default_factory=list)  # level, address, entry
    fresh: set[int] = field(default_factory=set)  # tables made by this plan
    added: Counter[int] = field(default_factory=Counter)  # entries more in each table


class PageTable:
    """The tables of one address space, below ``root``, the address of the topmost table.

    Addresses and sizes are in bytes. Tables that become empty are unlinked at once, but the root.
    Nothing else may write the tables.
    """

    def __init__(self, memory: TableMemory, format: EntryFormat, level: Level):
        self.memory = memory
        self.format = format
        self.level = level
        self.root = memory.alloc_table(level.table_bytes)
        self._used = {self.root: 0}  # table -> how many of its entries are not zero

    def map(self, va: int, pa: int, size: int, flags: int = 0) -> Change:
        """Map ``size`` bytes at ``va`` to the contiguous ``pa``, with the largest pages that fit.

        Raises `InvalidValue` for misalignment, for addresses out of range and where something is
        mapped already, `OutOfMemory` from the memory; the tables are unchanged then.
        """
        self._check_range(va, size, pa)
        taken = next(self.mappings(va, va + size), None)
        if taken is not None:
            raise InvalidValue(
                f"mapping {size:#x} bytes at {va:#x}: {taken.size:#x} bytes at {taken.va:#x} "
                f"are mapped to {taken.page.pa:#x} already; unmap them first"
            )
        with ExitStack() as undo:
            plan = _Plan(pa - va, flags, undo)
            self._plan_table(plan, self.level, self.root, va, va + size)
            undo.pop_all()
        for table, count in plan.added.items():
            self._used[table] = self._used.get(table, 0) + count
        for level, address, raw in plan.writes:
            self._write(level, address, raw)
        return Change(va, size, bool(plan.fresh), ())

    def unmap(self, va: int, size: int) -> Change:
        """Unmap ``size`` bytes at ``va``; nothing may use them any more.

        Raises `InvalidValue`, and changes nothing, where part is not mapped or where a page or a
        run would be cut in two.
        """
        self._check_range(va, size, 0)
        position, end = va, va + size
        for mapping in self.mappings(va, end):
            if mapping.va > position:
                break
            run = mapping.page.run
            first = align_down(mapping.va, run)
            if first < va or first + run > end:
                raise InvalidValue(
                    f"unmapping {size:#x} bytes at {va:#x} would cut the page or run of "
                    f"{run:#x} bytes at {first:#x}: unmap all of it"
                )
            position = mapping.va + mapping.size
        if position < end:
            raise InvalidValue(
                f"unmapping {size:#x} bytes at {va:#x}: nothing is mapped at {position:#x}"
            )
        released: list[tuple[int, int]] = []
        self._clear(self.level, self.root, va, end, released)
        return Change(va, size, bool(released), tuple(released))

    def release(self, change: Change) -> None:
        """Free the tables that a change unlinked, once caches were flushed."""
        for address, size in change.released:
            self.memory.free_table(address, size)

    def lookup(self, va: int) -> Mapping | None:
        """The page that an address is in, None when it is not mapped."""
        return next(self.mappings(va, va + 1), None)

    def mappings(self, start: int = 0, end: int | None = None) -> Iterator[Mapping]:
        """The pages that are mapped between two addresses (all by default), in their order."""
        end = self.level.covered if end is None else end
        return self._mappings(self.level, self.root, 0, start, end)

    def walk(self, va: int) -> list[Step]:
        """The entries read on the way to an address, for people: also those that are empty."""
        return list(walk(self._read, self.format, self.level, self.root, va))

    def tables(self) -> Iterator[tuple[int, int]]:
        """All tables (address, size), the root last: what to free when all is over."""
        yield from self._tables_under(self.level, self.root)

    # Reading.

    def _read(self, level: Level, address: int) -> int:
        words = range(level.entry_bytes // 8)
        return sum(self.memory.read64(address + 8 * i) << (64 * i) for i in words)

    def _entry(self, level: Level, address: int) -> Page | Tables | None:
        raw = self._read(level, address)
        return self.format.parse(level, raw) if raw else None

    def _mappings(
        self, level: Level, table: int, base: int, start: int, end: int
    ) -> Iterator[Mapping]:
        """Pages of one table, whose first entry is for the address ``base``."""
        last = min(end, base + level.covered)
        for va in range(align_down(max(start, base), level.span), last, level.span):
            entry = self._entry(level, _entry_address(level, table, va))
            if isinstance(entry, Page):
                yield Mapping(va, level.span, entry)
            elif entry is not None:
                below = level.below_of(entry)
                inner = [self._mappings(low, at, va, start, end) for low, at in below]
                yield from (
                    inner[0]
                    if len(inner) == 1
                    else heapq.merge(*inner, key=lambda mapping: mapping.va)
                )

    def _tables_under(self, level: Level, table: int) -> Iterator[tuple[int, int]]:
        for address in range(table, table + level.table_bytes, level.entry_bytes):
            entry = self._entry(level, address) if level.below else None
            if entry is not None and not isinstance(entry, Page):
                for low, at in level.below_of(entry):
                    yield from self._tables_under(low, at)
        yield table, level.table_bytes

    # Mapping.

    def _plan_table(self, plan: _Plan, level: Level, table: int, va: int, end: int) -> None:
        """Plan the entries of one table for ``va`` to ``end``, which it covers."""
        first, last = align_up(va, level.span), align_down(end, level.span)
        pages = level.page and plan.delta % level.span == 0
        while va < end:
            stop = min(align_down(va, level.span) + level.span, end)
            address = _entry_address(level, table, va)
            old = None if table in plan.fresh else self._entry(level, address)
            if old is None:
                plan.added[table] += 1
            if pages and stop - va == level.span:
                assert old is None, "map checked that nothing is mapped, and no table is empty"
                run = run_around(level, va, first, last, plan.delta)
                raw = self.format.page(level, va + plan.delta, plan.flags, run)
                plan.writes.append((level, address, raw))
            else:
                assert not isinstance(old, Page), "map checked that nothing is mapped"
                self._plan_below(plan, level, address, old or (None,) * len(level.below), va, stop)
            va = stop

    def _plan_below(
        self, plan: _Plan, level: Level, address: int, old: Tables, va: int, end: int
    ) -> None:
        """Plan an entry that points to tables, and those."""
        tables = list(old)
        for i, start, stop in shares(level.below, va, end, plan.delta):
            low = level.below[i]
            table = tables[i]
            if table is None:
                table = tables[i] = self.memory.alloc_table(low.table_bytes)
                plan.undo.callback(self.memory.free_table, table, low.table_bytes)
                plan.fresh.add(table)
            self._plan_table(plan, low, table, start, stop)
        if tuple(tables) != old:
            plan.writes.append((level, address, self.format.tables(level, tuple(tables))))

    # Unmapping.

    def _clear(
        self, level: Level, table: int, va: int, end: int, released: list[tuple[int, int]]
    ) -> None:
        """Empty the entries of one table for ``va`` to ``end``; unlink what becomes empty."""
        while va < end:
            stop = min(align_down(va, level.span) + level.span, end)
            address = _entry_address(level, table, va)
            entry = self._entry(level, address)
            if isinstance(entry, Page):
                self._write(level, address, 0)
                self._used[table] -= 1
            elif entry is not None:
                left = self._clear_below(level, entry, va, stop, released)
                if not any(at is not None for at in left):
                    self._write(level, address, 0)
                    self._used[table] -= 1
                elif left != entry:
                    self._write(level, address, self.format.tables(level, left))
            va = stop

    def _clear_below(
        self, level: Level, entry: Tables, va: int, end: int, released: list[tuple[int, int]]
    ) -> Tables:
        """Clear the tables that an entry points to; those that are still in use."""
        for low, table in level.below_of(entry):
            self._clear(low, table, va, end, released)
            if not self._used[table]:
                released.append((table, low.table_bytes))
                del self._used[table]
        return tuple(table if table in self._used else None for table in entry)

    # Small things.

    def _write(self, level: Level, address: int, raw: int) -> None:
        """Write an entry, its first word last when it is set: that is where it becomes valid."""
        words = range(0, level.entry_bytes, 8)
        for offset in words if raw == 0 else reversed(words):
            self.memory.write64(address + offset, raw >> (8 * offset) & 0xFFFF_FFFF_FFFF_FFFF)

    def _check_range(self, va: int, size: int, pa: int) -> None:
        unit = self.level.smallest_page
        if size <= 0 or pa < 0 or va % unit or size % unit or pa % unit:
            raise InvalidValue(
                f"{size:#x} bytes at {va:#x} (physical {pa:#x}): all must be multiples of the "
                f"page size {unit:#x}, and the size positive"
            )
        if not 0 <= va <= self.level.covered - size:
            raise InvalidValue(
                f"{size:#x} bytes at {va:#x}: tables cover 0 to {self.level.covered - 1:#x}"
            )


def walk(
    read: Callable[[Level, int], int], format: EntryFormat, level: Level, root: int, va: int
) -> Iterator[Step]:
    """The entries on the way to an address, each before it is followed; also those that are empty.

    ``read`` gives the entry of a level at an address. Raises `InvalidValue` for an address that
    tables do not cover, and for an entry that the format does not have.
    """
    if not 0 <= va < level.covered:
        raise InvalidValue(f"address {va:#x}: tables cover 0 to {level.covered - 1:#x}")
    tables = [(level, root)]
    while tables:
        level, table = tables.pop(0)
        slot = va % level.covered >> level.lo
        raw = read(level, table + slot * level.entry_bytes)
        yield Step(level, table, slot, raw)
        entry = format.parse(level, raw) if raw else None
        if isinstance(entry, Page):
            break
        if entry is not None:
            tables += level.below_of(entry)


def _entry_address(level: Level, table: int, va: int) -> int:
    """Where the entry for an address is in a table."""
    return table + (va % level.covered >> level.lo) * level.entry_bytes
