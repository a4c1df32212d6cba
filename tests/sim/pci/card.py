"""A made-up card in a machine: registers, a page of doorbells, memory, and an engine for copies.

Registers (BAR 0, accesses of 4 bytes only): 0x00 identity; 0x04 how many copies were done, of which
writing takes away; 0x10 and 0x14, 0x18 and 0x1c: bus address of a descriptor and of a fence. The
doorbell (BAR 2, memory) starts a copy when its value changes: the descriptor tells the bus address
in 8 bytes, the offset in the card's memory (BAR 4), how many bytes, and 1 for towards the machine.
Then the fence gets the doorbell's value, and message 0 is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gpu.core import hostmem
from gpu.core.pci import Bar, PciAddress, PciIds
from gpu.core.window import MemoryWindow, TrappedWindow
from gpu.sim.machine import Engine, Gpu, Machine
from gpu.sim.pci.function import Card, CardBar, CardBus, SimPci
from gpu.sim.physical import Extent, Pool
from gpu.sim.simulation import Simulation

IDENTITY, DONE, DESCRIPTOR, FENCE = 0x00, 0x04, 0x10, 0x18
WHO = 0x600DCA4D
MEMORY = 1 << 20
AT = PciAddress(0, 3, 0, 0)


def cpu_memory(pool: Pool) -> MemoryWindow:
    """All of a pool as the CPU sees it."""
    protection = hostmem.PROT_READ | hostmem.PROT_WRITE
    address = pool.map_for_cpu(
        (Extent(0, pool.size),), pool.size, protection, hostmem.MAP_SHARED, 0
    )
    return MemoryWindow(address, pool.size)


class MadeUpCard:
    """The card; also what works in its machine."""

    ids = PciIds(0x1234, 0x5678, 0x1234, 0x0001, 0xA1, 0x0B4000)
    vectors = 2
    plugged = True
    due_ns = None
    bus: CardBus

    def __init__(self, sim: Simulation) -> None:
        self.registers = {DESCRIPTOR: 0, DESCRIPTOR + 4: 0, FENCE: 0, FENCE + 4: 0}
        self.accesses: list[tuple[str, int, int]] = []
        self.doorbells, self.memory = Pool("doorbells", 0x1000), Pool("memory", MEMORY, local=True)
        self.rung = self.done = 0
        registers = TrappedWindow(0x1000, self.read, self.write, widest=4)
        self.bars: Mapping[int, CardBar] = {
            0: CardBar(registers, Bar(0x1000, is_64bit=False)),
            2: CardBar(cpu_memory(self.doorbells), Bar(0x1000)),
            4: CardBar(cpu_memory(self.memory), Bar(MEMORY, prefetchable=True)),
        }

    def unplug(self) -> None:
        self.plugged = False

    def plug(self, bus: CardBus) -> None:
        self.bus = bus

    def reset(self) -> None:
        self.registers = dict.fromkeys(self.registers, 0)
        self.rung = self.done = 0
        self.doorbells.write_word(0, 4, 0)

    def read(self, offset: int, width: int) -> int:
        self.accesses.append(("read", offset, width))
        return {IDENTITY: WHO, DONE: self.done}.get(offset, self.registers.get(offset, 0))

    def write(self, offset: int, width: int, value: int) -> None:
        self.accesses.append(("write", offset, width))
        if offset == DONE:
            self.done -= value
        elif offset in self.registers:
            self.registers[offset] = value

    def address(self, register: int) -> int:
        return self.registers[register + 4] << 32 | self.registers[register]

    def has_work(self) -> bool:
        return self.doorbells.read_word(0, 4) != self.rung

    def work(self) -> None:
        self.rung = self.doorbells.read_word(0, 4)
        there, here, size, outwards = struct.unpack(
            "<QIII", self.bus.load(self.address(DESCRIPTOR), 20)
        )
        if outwards == 1:
            self.bus.store(there, self.memory.load(here, size))
        elif outwards == 0:
            self.memory.store(here, self.bus.load(there, size))
        self.bus.store(self.address(FENCE), self.rung.to_bytes(4, "little"))
        self.done += 1
        self.bus.interrupt()

    def why_idle(self) -> str:
        return f"the card has done {self.done} copies"

    def sample(self) -> None:
        """A machine asks for it; the card looks at its doorbell when it may work."""

    def close(self) -> None:
        self.memory.close()
        self.doorbells.close()


class WorkingCard(Card, Engine, Gpu, Protocol):
    """A card that does something by itself."""

    def has_work(self) -> bool: ...

    def work(self) -> None: ...


class CardMachine(Machine):
    """A machine with a card and no kernel driver of its."""

    def __init__(self, make: Callable[[Simulation], WorkingCard], seed: int = 0):
        super().__init__(seed, (), 1 << 24)
        self.card = make(self)
        self.gpus: Sequence[WorkingCard] = [self.card]
        self.pci = SimPci(self, self._host, {AT: self.card})

    def _engines(self) -> Sequence[WorkingCard]:
        return self.gpus

    def _run_one(self) -> bool:
        ready = [card for card in self.gpus if card.has_work()]
        if ready:
            self.rng.choice(ready).work()
            self.clock.advance(1000)
        return bool(ready)
