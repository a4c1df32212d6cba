"""Bits of page-table entries, against words put together by hand from amdgpu_vm.h."""

from __future__ import annotations

import random

import pytest

from gpu.core.errors import InvalidValue
from gpu.core.pagelevels import Level, Page
from gpu.core.pagetable import PageTable
from gpu.drivers.am.pci.entries import DEPTH, GFX11, GFX12, HUGE_PAGE, PAGE, ROOT, Access

LEVELS = {"PDB2": ROOT, "PDB1": ROOT.below[0], "PDB0": ROOT.below[0].below[0]}
LEVELS["PTB"] = LEVELS["PDB0"].below[0]
DATA, CODE = Access.READ | Access.WRITE, Access.READ | Access.EXECUTE
SYSTEM = DATA | Access.SYSTEM | Access.UNCACHED


def test_levels() -> None:
    assert [(LEVELS[n].hi, LEVELS[n].lo) for n in ("PDB2", "PDB1", "PDB0", "PTB")] == [
        (47, 39),
        (38, 30),
        (29, 21),
        (20, 12),
    ]
    assert DEPTH == 3 and all(level.table_bytes == 4096 for level in LEVELS.values())


@pytest.mark.parametrize(
    "format, level, pa, flags, run, raw",
    [
        # VALID | READABLE | WRITEABLE
        (GFX11, "PTB", 0x1_2345_6000, DATA, PAGE, 0x0000_0001_2345_6061),
        (GFX11, "PTB", 0x1_2345_6000, CODE, PAGE, 0x0000_0001_2345_6031),
        # ... SYSTEM, SNOOPED, MTYPE_UC (3 at 50:48)
        (GFX11, "PTB", 0x7FFF_FFFF_F000, SYSTEM, PAGE, 0x0003_7FFF_FFFF_F067),
        # a run of 64 KiB: FRAG 4 at 11:7
        (GFX11, "PTB", 0x2_0000_0000, DATA, 64 << 10, 0x0000_0002_0000_0261),
        # 2 MiB: FRAG 9, PDE_PTE (54)
        (GFX11, "PDB0", 0x2_0020_0000, DATA, HUGE_PAGE, 0x0040_0002_0020_04E1),
        # GFX12: IS_PTE (63) at all levels, MTYPE at 55:54
        (GFX12, "PTB", 0x1_2345_6000, DATA, PAGE, 0x8000_0001_2345_6061),
        (GFX12, "PTB", 0x1_2345_6000, SYSTEM, PAGE, 0x80C0_0001_2345_6067),
        (GFX12, "PDB0", 0x2_0020_0000, DATA, HUGE_PAGE, 0x8000_0002_0020_04E1),
    ],
)
def test_pages(format: object, level: str, pa: int, flags: Access, run: int, raw: int) -> None:
    assert format in (GFX11, GFX12)
    kind = GFX12 if format is GFX12 else GFX11
    assert kind.page(LEVELS[level], pa, int(flags), run) == raw, hex(raw)
    assert kind.parse(LEVELS[level], raw) == Page(pa, int(flags), run)


@pytest.mark.parametrize("format", [GFX11, GFX12], ids=["gfx11", "gfx12"])
def test_directories(format: object) -> None:
    kind = GFX12 if format is GFX12 else GFX11
    for level in (LEVELS["PDB2"], LEVELS["PDB1"], LEVELS["PDB0"]):
        raw = kind.tables(level, (0x8000_1000,))
        assert raw == 0x8000_1001
        assert kind.parse(level, raw) == (0x8000_1000,)
        assert kind.parse(level, 0x8000_1000) is None  # not valid


@pytest.mark.parametrize("format, bits", [(GFX11, (57, 59, 63)), (GFX12, (48, 51, 59, 62))])
def test_reserved_bits_are_seen(format: object, bits: tuple[int, ...]) -> None:
    kind = GFX12 if format is GFX12 else GFX11
    raw = kind.page(LEVELS["PTB"], 0x1000, int(DATA), PAGE)
    for bit in bits:
        with pytest.raises(InvalidValue, match="PTB"):
            kind.parse(LEVELS["PTB"], raw | 1 << bit)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidValue, match="47:12"):
        GFX11.page(LEVELS["PTB"], 1 << 48, int(DATA), PAGE)
    with pytest.raises(InvalidValue, match="run"):
        GFX11.page(LEVELS["PTB"], 0, int(DATA), 3 * PAGE)
    with pytest.raises(InvalidValue, match="flags"):
        GFX11.page(LEVELS["PTB"], 0, 1 << 9, PAGE)
    with pytest.raises(InvalidValue, match="table"):
        GFX11.tables(LEVELS["PDB0"], (0x1234,))


class Memory:
    """Where tables are: a dictionary."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.next = 0x10_0000

    def read64(self, address: int) -> int:
        return self.words.get(address, 0)

    def write64(self, address: int, value: int) -> None:
        self.words[address] = value

    def alloc_table(self, size: int) -> int:
        self.next += size
        return self.next - size

    def free_table(self, address: int, size: int) -> None:
        assert not any(self.words.get(address + 8 * i) for i in range(size // 8))


def walk(memory: Memory, root: int, va: int, is_page_bit: int) -> int | None:
    """A walk by the documents alone: nine bits a level; None where nothing is mapped."""
    table = root
    for low in (39, 30, 21, 12):
        entry = memory.words.get(table + 8 * (va >> low & 511), 0)
        if not entry & 1:
            return None
        base = entry & 0xFFFF_FFFF_F000
        if low == 12 or entry >> is_page_bit & 1:
            return base + va % (1 << low)
        table = base
    raise AssertionError("the last level ends it")


@pytest.mark.parametrize("format, bit", [(GFX11, 54), (GFX12, 63)], ids=["gfx11", "gfx12"])
def test_tables_translate_as_a_plain_walk_does(format: object, bit: int) -> None:
    kind = GFX12 if format is GFX12 else GFX11
    draw = random.Random(bit)
    memory = Memory()
    table = PageTable(memory, kind, ROOT)
    mapped: dict[int, tuple[int, int]] = {}
    for _ in range(120):
        size = PAGE * draw.choice((1, 2, 3, 16, 511, 512, 513, 1024))
        align = draw.choice((PAGE, HUGE_PAGE))
        va = draw.randrange(1 << 27) * PAGE // align * align
        pa = draw.randrange(1 << 30) * PAGE // align * align
        if any(va < at + n and at < va + size for at, (n, _) in mapped.items()):
            continue
        table.map(va, pa, size, int(DATA))
        mapped[va] = (size, pa)
        if draw.random() < 0.3:
            gone = draw.choice(list(mapped))
            table.release(table.unmap(gone, mapped.pop(gone)[0]))
    assert len(mapped) > 20
    for va, (size, pa) in mapped.items():
        for at in (0, size // 2, size - 1):
            assert walk(memory, table.root, va + at, bit) == pa + at
    assert walk(memory, table.root, (1 << 47) + 5, bit) is None


def test_root_is_a_level() -> None:
    assert isinstance(ROOT, Level)
