"""AMD's chip without KFD: queues set up by registers, page tables walked, DMA and messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gpu.core.window import MemoryWindow
from gpu.sim.translate import PAGE_SIZE as PAGE
from gpu.transport.world import World
from sim.isa.asm import END, op
from sim.pci.amd_card import (
    ACTIVE,
    EXECUTABLE,
    FAULT,
    RING,
    RPTR,
    SIZE,
    SYSTEM,
    TABLE,
    VALID,
    WPTR,
    WRITABLE,
    AmdCard,
)
from sim.pci.card import AT, CardMachine
from sim.raw_kfd import halves, packet3, release_mem, write_data

SECOND = 1_000_000_000
VRAM_PAGE, SYSTEM_PAGE, RINGS, POINTERS = 16, 32, 48, 64
ACCESS = VALID | WRITABLE | EXECUTABLE

pytestmark = pytest.mark.usefixtures("needs_llvm")


@pytest.fixture
def needs_llvm() -> None:
    pytest.importorskip("llvmlite")


class Driver:
    """Brings the card up: one page of VRAM, four of the machine's memory, and a queue."""

    def __init__(self, world: World):
        self.card = card = world.pci.open(AT)
        self.registers, self.doorbell = card.window(5), card.map(2, 0, PAGE)
        self.vram = card.map(0, 0, 1 << 20)
        self.memory = card.allocate(4 * PAGE)
        card.set_bus_master(True)
        self.done, self.faulted = card.interrupts(2)
        bus = int(self.memory.pieces[0].address)
        table = 0x10000
        self.vram.write(table + 8 * VRAM_PAGE, 8, 0x40000 | ACCESS)
        for i, page in enumerate((SYSTEM_PAGE, SYSTEM_PAGE + 1, RINGS, POINTERS)):
            self.vram.write(table + 8 * page, 8, (bus + i * PAGE) | ACCESS | SYSTEM)
        for register, address in ((RING, RINGS), (RPTR, POINTERS)):
            self.set(register, address * PAGE)
        self.set(WPTR, POINTERS * PAGE + 8)
        self.registers.write(4 * SIZE, 4, PAGE)
        self.registers.write(4 * TABLE, 4, table)
        self.registers.write(4 * ACTIVE, 4, 1)
        self.wptr = 0

    def set(self, register: int, address: int) -> None:
        for i, half in enumerate(halves(address)):
            self.registers.write(4 * (register + i), 4, half)

    def system(self, page: int) -> MemoryWindow:
        return self.memory.window.sub(page * PAGE, PAGE)

    def submit(self, words: list[int]) -> None:
        for word in words:
            self.system(2).write(4 * self.wptr, 4, word)
            self.wptr += 1
        self.system(3).write(8, 8, self.wptr)
        self.doorbell.write(0, 8, self.wptr)


@pytest.fixture
def machine() -> Iterator[CardMachine]:
    machine = CardMachine(AmdCard)
    yield machine
    machine.close()


@pytest.fixture
def driver(machine: CardMachine) -> Driver:
    return Driver(World(machine.os, machine.waiter, machine.pci))


def test_packets_reach_both_memories(driver: Driver, machine: CardMachine) -> None:
    rng = np.random.default_rng(5)
    values = [int(value) for value in rng.integers(1 << 32, size=3, dtype=np.uint64)]
    words = write_data(SYSTEM_PAGE * PAGE, values[0]) + write_data(VRAM_PAGE * PAGE + 4, values[1])
    driver.submit(words + release_mem(SYSTEM_PAGE * PAGE + 8, values[2], interrupt=2))
    assert driver.done.wait(SECOND) == 1
    assert driver.system(0).read(0, 4) == values[0]
    assert driver.vram.read(0x40004, 4) == values[1]
    assert driver.system(0).read(8, 8) == values[2]
    assert driver.system(3).read(0, 4) == driver.wptr
    assert not machine.debug.violations and not machine.debug.faults
    assert machine.counts.packets == 3 and machine.counts.doorbells == 1


def test_a_kernel_stores_over_the_bus(driver: Driver, machine: CardMachine) -> None:
    text = op("s_load_b64", sdata=10, sbase=0) + op("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)
    text += op("v_mov_b32", vdst=2, src0=255, literal=0xC0FFEE)
    text += op("global_store_b32", addr=1, data=2, saddr=10) + END
    driver.vram.store(0x40000, text)
    driver.system(0).write(0, 8, (SYSTEM_PAGE + 1) * PAGE)  # the kernel's argument
    entry, arguments = VRAM_PAGE * PAGE, SYSTEM_PAGE * PAGE
    words = packet3(0x76, 0x20C, *halves(entry >> 8)) + packet3(0x76, 0x212, 0x60AF0000, 2 << 1)
    words += packet3(0x76, 0x204, 0, 0, 0, 32, 1, 1) + packet3(0x76, 0x240, *halves(arguments))
    words += packet3(0x15, 1, 1, 1, 0x8001)
    driver.submit(words + release_mem(SYSTEM_PAGE * PAGE + 8, 1, interrupt=2))
    assert driver.done.wait(SECOND) == 1
    out = np.frombuffer(driver.system(1).load(0, PAGE), np.uint32)
    assert (out[:32] == 0xC0FFEE).all() and not out[32:].any()
    assert not machine.debug.violations and not machine.debug.faults


def test_a_fault_is_told_by_register_and_message(driver: Driver, machine: CardMachine) -> None:
    driver.submit(write_data(5 * PAGE + 16, 1))
    assert driver.faulted.wait(SECOND) == 1 and driver.done.wait(0) == 0
    assert driver.registers.read(4 * FAULT, 4) == 5 * PAGE + 16
    (fault,) = machine.debug.faults
    assert "pm4 queue 0 of the card: write at 0x5010, which is not mapped" in fault


def test_memory_behind_the_iommu_is_the_drivers_alone(driver: Driver, machine: CardMachine) -> None:
    driver.memory.close()
    driver.doorbell.write(0, 8, 1)
    machine.run_until_idle()
    assert machine.debug.faults and all("DMA" in told for told in machine.debug.faults)
