"""Page tables that the driver writes, as the model of the card's MMU walks them."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from gpu.core.pagetable import PageTable
from gpu.drivers.nv.pci.gmmu import READ_ONLY, ROOT_V2, ROOT_V3, SYSTEM, GmmuV2, GmmuV3
from gpu.sim.nv.pci.mmu import WalkedSpace
from gpu.sim.nv.pci.world import NvPciWorld
from gpu.sim.translate import PageFault

PAGE, LARGE, HUGE = 4096, 64 << 10, 2 << 20


class Tables:
    """Tables in the model's video memory, from 1 GiB on."""

    def __init__(self, world: NvPciWorld):
        self.vram = world.gpus[0].chip.vram
        self.next = 1 << 30

    def read64(self, address: int) -> int:
        return self.vram.read_word(address, 8)

    def write64(self, address: int, value: int) -> None:
        self.vram.write_word(address, 8, value)

    def alloc_table(self, size: int) -> int:
        self.next += max(size, PAGE)
        return self.next - max(size, PAGE)

    def free_table(self, address: int, size: int) -> None:
        self.vram.store(address, bytes(size))


@pytest.mark.parametrize("chip", ["ga102", "gh100"])
@pytest.mark.parametrize("seed", range(4))
def test_the_model_walks_what_the_driver_writes(chip: str, seed: int) -> None:
    """Pages of three sizes, in both memories, at random addresses; what is unmapped is gone."""
    rng = np.random.default_rng(seed)
    world = NvPciWorld(chip=chip)
    v2 = chip == "ga102"
    table = PageTable(Tables(world), *((GmmuV2(), ROOT_V2) if v2 else (GmmuV3(), ROOT_V3)))
    space = WalkedSpace(world.gpus[0].mmu)
    space.root = table.root
    made: list[tuple[int, int, int, int]] = []
    for number in range(24):
        unit = (PAGE, LARGE, HUGE)[rng.integers(3)]
        size = unit * int(rng.integers(1, 9))
        va = (int(rng.integers(1 << 8)) << 40) + (number << 32) + unit * int(rng.integers(1 << 9))
        pa = unit * int(rng.integers(1, 1 << 7)) + (2 << 30)
        flags = int(rng.integers(4))
        table.map(va, pa, size, flags)
        made.append((va, pa, size, flags))
    bus = world.gpus[0].chip.bus
    for va, pa, size, flags in made:
        for at in (0, size // 2, size - 1):
            mapping = space.translate(va + at, write=False)
            assert mapping.offset + va + at - mapping.start == pa + at
            assert (mapping.region is bus) == bool(flags & SYSTEM)
            assert mapping.writable == (not flags & READ_ONLY)
        assert space.overlapping(va, va + 1) is not None
        with pytest.raises(PageFault):
            space.translate(va + size, write=False)
    va, _, size, _ = made[0]
    table.unmap(va, size)
    space.translate(va, write=False)  # kept until somebody invalidates
    space.flush_tlb()
    with pytest.raises(PageFault):
        space.translate(va, write=False)
    assert world.debug.violations == []
    world.close()


@pytest.mark.parametrize("chip, raw, why", [
    ("ga102", 1 | 1 << 1 | 6 << 56, "of a peer"),
    ("ga102", 1 | 1 << 4 | 6 << 56, "reserved"),
    ("ga102", 1 | 1 << 36 | 6 << 56, "reserved"),
    ("ga102", 1 | 2 << 1 | 1 << 54 | 6 << 56, "reserved"),
    ("ga102", 1 | 0x11 << 56, "kind 0x11"),
    ("gh100", 1 | 1 << 52, "reserved"),
    ("gh100", 1 | 6 << 8 | 1 << 45, "beyond video memory"),
])  # fmt: skip
def test_entries_that_no_card_takes(chip: str, raw: int, why: str) -> None:
    world = NvPciWorld(chip=chip)
    tables = Tables(world)
    v2 = chip == "ga102"
    table = PageTable(tables, *((GmmuV2(), ROOT_V2) if v2 else (GmmuV3(), ROOT_V3)))
    table.map(0, 2 << 30, PAGE)
    (step,) = [step for step in table.walk(0) if step.level.name == "PTE"]
    tables.write64(step.table, raw)
    space = WalkedSpace(world.gpus[0].mmu)
    space.root = table.root
    with pytest.raises(PageFault):
        space.translate(0, write=False)
    assert why in world.debug.violations[-1]
    world.close()


@pytest.mark.parametrize("chip", ["ga102", "gh100"])
def test_tables_that_no_card_takes(chip: str) -> None:
    """A page far up, two pages at one address, a table beyond memory."""
    world = NvPciWorld(chip=chip)
    tables, vram = Tables(world), world.gpus[0].chip.vram
    v2 = chip == "ga102"
    table = PageTable(tables, *((GmmuV2(), ROOT_V2) if v2 else (GmmuV3(), ROOT_V3)))
    table.map(0, 2 << 30, PAGE)
    space = WalkedSpace(world.gpus[0].mmu)
    space.root = table.root

    def look() -> str:
        space.flush_tlb()
        with suppress(PageFault):
            space.translate(0, write=False)
        return world.debug.violations[-1]

    (directory,) = [step for step in table.walk(0) if step.level.name == "PDE0"]
    pages = tables.alloc_table(PAGE)
    leaf = GmmuV2() if v2 else GmmuV3()
    tables.write64(pages, leaf.page(ROOT_V2, 2 << 30, 0, 1))
    low = leaf.tables(directory.level, (pages, None))
    tables.write64(directory.table, low)
    assert "in a large page and in a small one" in look()
    tables.write64(table.root, tables.read64(table.root) | 1)
    assert "not modelled" in look()
    space.root = vram.size
    assert "beyond video memory" in look()
    world.close()
