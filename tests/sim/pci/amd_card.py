"""AMD's chip behind registers instead of a kernel driver, to show that neither part needs one.

Nothing of the card around the chip is AMD's. BAR 0 is VRAM, BAR 2 a page with the doorbell, BAR 5
registers, accesses of 4 bytes only: dwords 0 to 3 are addresses of ring and read pointer, 4 and 5
that of the write pointer, 6 the ring's size, 7 where the page table is in VRAM; writing 1 to dword
8 switches the queue on, 0 off; dwords 9 and 10 hold the address of the last fault. Entries of the
page table have 8 bytes: valid 1, memory of the machine 2, writable 4, executable 8, and the page.
Message 0 is an end-of-pipe interrupt, message 1 a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu.core.pci import Bar, PciIds
from gpu.core.window import TrappedWindow
from gpu.sim.amd.chip.asic import Asic
from gpu.sim.amd.chip.hwqueue import RingSettings
from gpu.sim.amd.chip.lanes import LaneExecutor
from gpu.sim.amd.chip.pm4_queue import Pm4Queue
from gpu.sim.amd.chips import find_chip
from gpu.sim.pci.function import CardBar, CardBus
from gpu.sim.physical import Pool
from gpu.sim.simulation import Simulation
from gpu.sim.translate import PAGE_SIZE, PageFault, Translation
from gpu.sim.translate import Mapping as Translated
from sim.pci.card import cpu_memory

RING, RPTR, WPTR, SIZE, TABLE, ACTIVE, FAULT = 0, 2, 4, 6, 7, 8, 9
VALID, SYSTEM, WRITABLE, EXECUTABLE = 1, 2, 4, 8
PAGES: Final = 512


class Tables(Translation):
    """A walk of the page table in VRAM at each miss, and a TLB before it."""

    def __init__(self, vram: Pool, bus: CardBus, table: int):
        super().__init__()
        self._vram = vram
        self._bus = bus
        self._table = table
        self._tlb: dict[int, Translated] = {}

    def translate(self, address: int, write: bool) -> Translated:
        page = address // PAGE_SIZE
        if page not in self._tlb:
            entry = 0
            if page < PAGES:
                entry = self._vram.read_word(self._table + 8 * page, 8)
            if not entry & VALID:
                raise PageFault(address, write, present=False)
            region, start = self._bus if entry & SYSTEM else self._vram, page * PAGE_SIZE
            self._tlb[page] = Translated(
                *(start, start + PAGE_SIZE, region, entry // PAGE_SIZE * PAGE_SIZE),
                writable=bool(entry & WRITABLE),
                executable=bool(entry & EXECUTABLE),
            )
        if write and not self._tlb[page].writable:
            raise PageFault(address, write, present=True)
        return self._tlb[page]


class AmdCard:
    """The card; also what works in its machine, and the host of its one queue."""

    ids = PciIds(0x1002, 0x744C, 0x1002, 0x0E3B, 0xC8, 0x030000)
    vectors = 2
    plugged = True
    name = "0 of the card"
    bus: CardBus
    space: Translation

    def __init__(self, sim: Simulation) -> None:
        self.registers = [0] * 16
        self.doorbells = Pool("doorbells", PAGE_SIZE)
        self.queue: Pm4Queue | None = None
        self._seen = 0
        self.asic = Asic(find_chip("gfx1100"), sim, "check", LaneExecutor(1))
        registers = TrappedWindow(0x40, self.read, self.write, widest=4)
        vram = self.asic.vram.size
        self.bars: Mapping[int, CardBar] = {
            0: CardBar(cpu_memory(self.asic.vram), Bar(1 << vram.bit_length(), prefetchable=True)),
            2: CardBar(cpu_memory(self.doorbells), Bar(PAGE_SIZE)),
            5: CardBar(registers, Bar(0x40, is_64bit=False)),
        }

    def plug(self, bus: CardBus) -> None:
        self.bus = bus

    def reset(self) -> None:
        self.registers, self.queue = [0] * 16, None

    def read(self, offset: int, width: int) -> int:
        return self.registers[offset // 4]

    def write(self, offset: int, width: int, value: int) -> None:
        self.registers[offset // 4] = value
        if offset // 4 == ACTIVE:
            self.queue = self._queue() if value else None

    def _queue(self) -> Pm4Queue:
        words = self.registers
        ring, rptr, wptr = (words[i + 1] << 32 | words[i] for i in (RING, RPTR, WPTR))
        self.space = Tables(self.asic.vram, self.bus, words[TABLE])
        return Pm4Queue(self, self.asic, RingSettings(ring, words[SIZE], rptr, wptr))

    def why_off(self) -> str:
        return ""

    def doorbell(self) -> int | None:
        before, self._seen = self._seen, self.doorbells.read_word(0, 8)
        return self._seen if self._seen != before else None

    def unplug(self) -> None:
        self.plugged = False

    def page_fault(self, fault: PageFault) -> None:
        self.registers[FAULT : FAULT + 2] = fault.address & 0xFFFFFFFF, fault.address >> 32
        self.bus.interrupt(1)

    def reset_gpu(self, why: str) -> None:
        raise NotImplementedError(why)

    def read_poison(self) -> None:
        raise NotImplementedError

    def interrupt(self, number: int, bits: int) -> None:
        self.bus.interrupt(0)

    @property
    def due_ns(self) -> int | None:
        return self.queue.due_ns if self.queue else None

    def why_idle(self) -> str:
        return self.queue.why_idle() if self.queue else ""

    def has_work(self) -> bool:
        return self.queue is not None and self.queue.runnable()

    def work(self) -> None:
        if self.queue:
            self.queue.run(8)

    def sample(self) -> None:
        if self.queue:
            self.queue.sample()

    def close(self) -> None:
        self.asic.vram.close()
        self.doorbells.close()
