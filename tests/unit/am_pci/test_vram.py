"""Video memory: what is allocated overlaps nothing, and is where the rules say, against a list."""

from __future__ import annotations

import random

import pytest

from gpu.core.errors import InvalidValue, OutOfMemory
from gpu.core.window import MemoryWindow
from gpu.drivers.am.pci.vram import BOOT_SIZE, PAGE, RESERVED_AT_END, Vram, VramTables

MIB = 1 << 20


@pytest.fixture(scope="module")
def memory() -> MemoryWindow:
    return MemoryWindow.over(bytearray(160 * MIB))


def test_boot_places_are_the_same_each_time(memory: MemoryWindow) -> None:
    asked = [(5, PAGE), (MIB, MIB), (1, PAGE), (20 * MIB, 32 * MIB), (PAGE, PAGE)]
    first, second = ([vram.place(*each) for each in asked] for vram in _two(memory))
    assert first == second and first == sorted(first)
    assert all(place % align == 0 for place, (_, align) in zip(first, asked, strict=True))
    with pytest.raises(OutOfMemory, match="boot area"):
        Vram(160 * MIB, memory).place(BOOT_SIZE + 1)


def _two(memory: MemoryWindow) -> tuple[Vram, Vram]:
    return Vram(160 * MIB, memory), Vram(160 * MIB, memory)


def test_against_a_plain_list(memory: MemoryWindow) -> None:
    draw = random.Random(3)
    vram = Vram(160 * MIB, memory)
    held: dict[int, int] = {}
    refused = 0
    for _ in range(3000):
        if held and draw.random() < 0.45:
            vram.free(place := draw.choice(list(held)))
            del held[place]
            continue
        size = draw.choice((1, PAGE, 3 * PAGE, 64 << 10, MIB, 3 * MIB))
        align = draw.choice((PAGE, 64 << 10, 2 * MIB))
        try:
            place = vram.allocate(size, align)
        except OutOfMemory:
            refused += 1
            free = 160 * MIB - BOOT_SIZE - RESERVED_AT_END - vram.in_use
            assert free < 32 * MIB
            continue
        whole = -(-size // PAGE) * PAGE
        assert place % align == 0
        assert place >= BOOT_SIZE and place + whole <= 160 * MIB - RESERVED_AT_END
        assert all(place + whole <= at or at + n <= place for at, n in held.items())
        assert vram.window.load(place, whole) == bytes(whole)
        vram.window.store(place, b"\xa5" * whole)
        held[place] = whole
        assert vram.in_use == sum(held.values())
    assert refused  # it was full at times


def test_only_what_the_host_sees_is_used(memory: MemoryWindow) -> None:
    vram = Vram(24 << 30, memory)
    assert vram.usable == memory.size
    last = 0
    with pytest.raises(OutOfMemory):
        while True:
            last = vram.allocate(MIB)
    assert last + MIB == memory.size
    with pytest.raises(OutOfMemory, match="Resizable BAR"):
        Vram(24 << 30, memory.sub(0, BOOT_SIZE))
    with pytest.raises(OutOfMemory, match="0x4000000"):
        Vram(BOOT_SIZE + RESERVED_AT_END, memory)


def test_wrong_uses(memory: MemoryWindow) -> None:
    vram = Vram(160 * MIB, memory)
    place = vram.allocate(PAGE)
    vram.free(place)
    with pytest.raises(InvalidValue):
        vram.free(place)
    with pytest.raises(InvalidValue):
        vram.sub(17, PAGE)


def test_tables_are_zeroed_and_given_back(memory: MemoryWindow) -> None:
    vram = Vram(160 * MIB, memory)
    tables = VramTables(vram, 0x80_0000_0000)
    table = tables.alloc_table(PAGE)
    assert table >= 0x80_0000_0000 + BOOT_SIZE
    tables.write64(table + 8, 0x1234_5678_9ABC_DEF0)
    assert tables.read64(table + 8) == 0x1234_5678_9ABC_DEF0 and tables.read64(table) == 0
    tables.free_table(table, PAGE)
    assert vram.in_use == 0
