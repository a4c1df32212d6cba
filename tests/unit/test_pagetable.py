"""Page tables against a dict of pages, for layouts like AMD's and like NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpu.core.errors import InvalidValue, OutOfMemory
from gpu.core.pagetable import Change, Level, Page, PageTable, Tables

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SMALL = 4 * KIB

# Three levels: pages of 4K and 2M, runs of up to 64K (and of up to 8M for the large pages).
FRAGMENTS = Level(
    *("PDE1", 38, 30),
    below=(
        Level(
            *("PDE0", 29, 21),
            page=True,
            run=8 * MIB,
            below=(Level("PTE", 20, 12, page=True, run=64 * KIB),),
        ),
    ),
)
# Four levels: 4K, 64K and 2M; entries of PDE0 are 16 bytes and point to two tables.
DUAL = Level(
    *("PDE2", 47, 39),
    below=(
        Level(
            *("PDE1", 38, 30),
            below=(
                Level(
                    *("PDE0", 29, 21),
                    page=True,
                    entry_bytes=16,
                    below=(
                        Level("BIG", 20, 16, page=True),
                        Level("SMALL", 20, 12, page=True),
                    ),
                ),
            ),
        ),
    ),
)
LAYOUTS = {"fragments": FRAGMENTS, "dual": DUAL}


class Format:
    """Per table eight bytes: bit 0 valid, bit 1 page, 4:2 flags, 11:5 log2 of run, address."""

    def page(self, level: Level, pa: int, flags: int, run: int) -> int:
        if pa >> 48:
            raise InvalidValue(f"physical address {pa:#x} is wider than 48 bits")
        return pa | run.bit_length() - 1 << 5 | flags << 2 | 3

    def tables(self, level: Level, addresses: Tables) -> int:
        return sum((at | 1) << 64 * i for i, at in enumerate(addresses) if at is not None)

    def parse(self, level: Level, raw: int) -> Page | Tables | None:
        if raw & 3 == 3:
            return Page(raw & ~0xFFF, raw >> 2 & 7, 1 << (raw >> 5 & 0x7F))
        words = [raw >> 64 * i & (1 << 64) - 1 for i in range(len(level.below))]
        return tuple(word & ~0xFFF if word & 1 else None for word in words)


class Memory:
    """Tables in a dict of words; tells what is written outside of tables, and leaks."""

    def __init__(self, limit: int = 1 << 30):
        self.limit = limit
        self.words: dict[int, int] = {}
        self.live: dict[int, int] = {}
        self.next = 0x10_0000
        self.writes: list[tuple[int, int]] = []

    def read64(self, address: int) -> int:
        return self.words[address]

    def write64(self, address: int, value: int) -> None:
        assert address in self.words, f"{address:#x} is in no table"
        self.words[address] = value
        self.writes.append((address, value))

    def alloc_table(self, size: int) -> int:
        if len(self.live) == self.limit:
            raise OutOfMemory("no tables left")
        address, self.next = self.next, self.next + max(size, 0x1000)
        self.words.update(dict.fromkeys(range(address, address + size, 8), 0))
        self.live[address] = size
        return address

    def free_table(self, address: int, size: int) -> None:
        assert self.live.pop(address) == size
        for word in range(address, address + size, 8):
            assert self.words.pop(word) == 0, "a table is freed with entries"


class Case(NamedTuple):
    memory: Memory
    table: PageTable


@pytest.fixture(params=LAYOUTS)
def case(request: pytest.FixtureRequest) -> Case:
    memory = Memory()
    return Case(memory, PageTable(memory, Format(), LAYOUTS[request.param]))


def pages(table: PageTable) -> dict[int, tuple[int, int]]:
    """All that is mapped, as 4 KiB pages: va -> (pa, flags)."""
    return {
        m.va + o: (m.page.pa + o, m.page.flags)
        for m in table.mappings()
        for o in range(0, m.size, SMALL)
    }


def check_runs(table: PageTable) -> None:
    """An announced run is aligned, and continued by all its pages."""
    mappings = {m.va: m for m in table.mappings()}
    for m in mappings.values():
        run = m.page.run
        assert run >= m.size
        first = m.va - m.va % run
        assert (m.page.pa - m.va) % run == 0
        for va in range(first, first + run, m.size):
            other = mappings[va]
            assert other.page == Page(m.page.pa + va - m.va, m.page.flags, run)


# Places near the borders of tables, sizes around those of pages.
UNITS = st.sampled_from([SMALL, 64 * KIB, 2 * MIB])
PLACE = st.builds(
    lambda base, unit, n: base + unit * n,
    *(st.sampled_from([0, GIB - 4 * MIB, GIB, 5 * MIB]), UNITS, st.integers(0, 20)),
)
SIZE = st.builds(
    lambda unit, n, rest: unit * n + rest * SMALL,
    *(UNITS, st.integers(1, 3), st.sampled_from([0, 0, 1, 17])),
)
MAP = st.tuples(PLACE, PLACE, SIZE, st.integers(0, 7), st.booleans())


# Eight calls at most: a failure is readable as it is, and shrinking it would take minutes.
@pytest.mark.slow
@settings(max_examples=40, deadline=None, phases=set(Phase) - {Phase.shrink})
@given(st.sampled_from(sorted(LAYOUTS)), st.lists(MAP, max_size=8), st.data())
def test_tables_do_what_a_dict_does(
    layout: str, calls: list[tuple[int, int, int, int, bool]], data: st.DataObject
) -> None:
    memory = Memory()
    table = PageTable(memory, Format(), LAYOUTS[layout])
    model: dict[int, tuple[int, int]] = {}
    live: list[tuple[int, int]] = []
    for va, place, size, flags, alike in calls:
        pa = 8 * GIB + (va % (2 * MIB) + place - place % (2 * MIB) if alike else place)
        wanted = {va + o: (pa + o, flags) for o in range(0, size, SMALL)}
        before = dict(memory.words)
        if wanted.keys() & model.keys():
            with pytest.raises(InvalidValue, match=r"are mapped to .* already"):
                table.map(va, pa, size, flags)
            assert memory.words == before
        else:
            change = table.map(va, pa, size, flags)
            assert change == (va, size, len(memory.words) > len(before), ())
            model |= wanted
            live.append((va, size))
        if live and data.draw(st.booleans()):
            unmap(table, model, *live.pop(data.draw(st.integers(0, len(live) - 1))))
        assert pages(table) == model
        check_runs(table)
        assert set(memory.live.items()) == set(table.tables())
    for va, size in live:
        unmap(table, model, va, size)
    assert memory.live == {table.root: table.level.table_bytes}
    assert not any(memory.words.values())


def unmap(table: PageTable, model: dict[int, tuple[int, int]], va: int, size: int) -> None:
    change = table.unmap(va, size)
    assert (change.va, change.size) == (va, size)
    assert change.tables == bool(change.released)
    table.release(change)
    for o in range(0, size, SMALL):
        del model[va + o]


def test_the_largest_pages_that_fit_are_used() -> None:
    table = PageTable(Memory(), Format(), DUAL)
    table.map(2 * MIB - 68 * KIB, 10 * MIB - 68 * KIB, 68 * KIB + 2 * MIB + 72 * KIB)
    assert [m.size for m in table.mappings()] == [
        *(SMALL, 64 * KIB, 2 * MIB, 64 * KIB, SMALL, SMALL)
    ]
    table.map(16 * MIB, 64 * KIB, 2 * MIB)  # the physical address allows for 64K
    assert {m.size for m in table.mappings(16 * MIB)} == {64 * KIB}
    table.map(32 * MIB, SMALL, 128 * KIB)
    assert {m.size for m in table.mappings(32 * MIB)} == {SMALL}


def test_runs_are_announced_as_long_as_both_addresses_allow() -> None:
    table = PageTable(Memory(), Format(), FRAGMENTS)
    table.map(60 * KIB, GIB + 60 * KIB, 4 * KIB + 64 * KIB + 16 * KIB)
    runs = [m.page.run // KIB for m in table.mappings()]
    assert runs == [4] + [64] * 16 + [16] * 4
    table.map(8 * MIB, 4 * MIB, 10 * MIB)
    assert [m.page.run // MIB for m in table.mappings(8 * MIB)] == [4, 4, 4, 4, 2]


def test_leaves_are_written_before_what_points_to_them(case: Case) -> None:
    case.memory.writes.clear()
    case.table.map(GIB - SMALL, 0, 2 * SMALL)
    linked = {case.table.root}
    for address, value in case.memory.writes[::-1]:
        home = max(at for at in case.memory.live if at <= address)
        if value:  # in reverse, a table is linked when its entries come
            assert home in linked
            linked |= {value & ~0xFFF} if value & 3 == 1 else set()
    assert linked == set(case.memory.live)


def test_wide_entries_become_valid_and_invalid_with_their_first_word() -> None:
    memory = Memory()
    table = PageTable(memory, Format(), DUAL)
    table.map(0, 0, SMALL)
    first_entry = table.walk(0)[2].table
    memory.writes.clear()
    table.map(2 * MIB, 2 * MIB, 2 * MIB)
    table.unmap(2 * MIB, 2 * MIB)
    assert [at - first_entry for at, _ in memory.writes] == [24, 16, 16, 24]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_when_tables_run_out_nothing_has_changed(layout: str) -> None:
    memory = Memory()
    table = PageTable(memory, Format(), LAYOUTS[layout])
    table.map(0, 0, SMALL)
    before = dict(memory.words)
    for more in range(2):
        memory.limit = len(memory.live) + more
        with pytest.raises(OutOfMemory, match="no tables left"):
            table.map(GIB - SMALL, 0, 2 * SMALL)
        assert memory.words == before
    with pytest.raises(InvalidValue, match="wider than 48 bits"):
        table.map(2 * SMALL, (1 << 48) - SMALL, 2 * SMALL)
    assert memory.words == before
    memory.limit = 100
    table.map(GIB - SMALL, 0, 2 * SMALL)
    assert [m.va for m in table.mappings()] == [0, GIB - SMALL, GIB]


def test_unmapping_what_is_not_mapped_or_only_part_of_a_page(case: Case) -> None:
    table = case.table
    table.map(2 * MIB, 2 * MIB, 2 * MIB)
    table.map(8 * MIB, 0, SMALL)
    before = dict(case.memory.words)
    refused: list[tuple[int, int, str]] = [
        (2 * MIB, SMALL, "would cut the page or run of 0x200000 bytes at 0x200000"),
        (4 * MIB - SMALL, SMALL, "would cut the page or run of 0x200000 bytes at 0x200000"),
        (6 * MIB, SMALL, "nothing is mapped at 0x600000"),
        (8 * MIB, 2 * SMALL, "nothing is mapped at 0x801000"),
        (8 * MIB - SMALL, 2 * SMALL, "nothing is mapped at 0x7ff000"),
    ]
    for va, size, message in refused:
        with pytest.raises(InvalidValue, match=message):
            table.unmap(va, size)
        assert case.memory.words == before
    table.unmap(2 * MIB, 2 * MIB)


def test_a_run_cannot_be_cut() -> None:
    table = PageTable(Memory(), Format(), FRAGMENTS)
    table.map(0, 0, 72 * KIB)
    with pytest.raises(InvalidValue, match="would cut the page or run of 0x10000 bytes at 0x0"):
        table.unmap(32 * KIB, 40 * KIB)
    table.unmap(64 * KIB, 8 * KIB)
    assert len(pages(table)) == 16


def test_unlinked_tables_are_released_by_the_caller(case: Case) -> None:
    table, memory = case.table, case.memory
    assert table.map(0, 0, SMALL).tables
    assert not table.map(SMALL, 0, SMALL).tables
    assert table.unmap(0, SMALL) == Change(0, SMALL, False, ())
    live = dict(memory.live)
    change = table.unmap(SMALL, SMALL)
    assert set(change.released) == set(live.items()) - {(table.root, 4096)}
    assert memory.live == live
    table.release(change)
    assert memory.live == {table.root: 4096}


def test_lookup_and_walk(case: Case) -> None:
    table = case.table
    table.map(2 * MIB + SMALL, 7 * SMALL, SMALL, flags=5)
    found = table.lookup(2 * MIB + SMALL + 123)
    assert found is not None
    assert (found.va, found.size) == (2 * MIB + SMALL, SMALL)
    assert (found.page.pa, found.page.flags) == (7 * SMALL, 5)
    assert table.lookup(2 * MIB) is None
    assert table.lookup(1 << 50) is None
    steps = table.walk(2 * MIB + SMALL)
    names = [step.level.name for step in steps]
    assert names == (["PDE1", "PDE0", "PTE"] if len(names) == 3 else [*names[:3], "SMALL"])
    assert [step.slot for step in steps[-2:]] == [1, 1]
    assert steps[-1].raw & ~0xFFF == 7 * SMALL
    assert [step.raw for step in table.walk(4 * GIB)][-1] == 0
    with pytest.raises(InvalidValue, match="tables cover 0 to"):
        table.walk(1 << 50)


def test_the_walk_of_a_dual_entry_shows_both_tables() -> None:
    table = PageTable(Memory(), Format(), DUAL)
    table.map(0, 0, 64 * KIB)
    table.map(64 * KIB, 0, SMALL)
    assert [s.level.name for s in table.walk(64 * KIB)] == ["PDE2", "PDE1", "PDE0", "BIG", "SMALL"]
    assert [s.level.name for s in table.walk(0)] == ["PDE2", "PDE1", "PDE0", "BIG"]


@pytest.mark.parametrize(
    ("va", "pa", "size"),
    [
        *((1, 0, SMALL), (0, 1, SMALL), (0, 0, 1), (0, 0, 0), (0, -SMALL, SMALL)),
        *((-SMALL, 0, SMALL), ((1 << 50) - SMALL, 0, SMALL), (0, 0, 1 << 50)),
    ],
)
def test_ranges_that_cannot_be_mapped(case: Case, va: int, pa: int, size: int) -> None:
    with pytest.raises(InvalidValue, match=r"multiples of the page size 0x1000|tables cover"):
        case.table.map(va, pa, size)
    assert len(case.memory.live) == 1


def leaf() -> Level:
    return Level("PTE", 20, 12, page=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Level("L", 20, 21, page=True), "must map or point"),
        (lambda: Level("L", 20, 12), "must map or point"),
        (lambda: Level("L", 29, 20, below=(leaf(),)), "must begin at bit 19"),
        (lambda: Level("L", 20, 12, page=True, entry_bytes=4), "multiple of 8"),
        (lambda: Level("L", 20, 12, page=True, run=3), "power of two"),
        (
            lambda: Level("L", 38, 30, below=2 * (Level("M", 29, 21, below=(leaf(),)),)),
            "only last levels may lie side by side",
        ),
    ],
)
def test_layouts_are_checked(make: Callable[[], Level], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        make()
