"""What the blocks of a card share: registers, memory, the way to the machine, what is later."""

from __future__ import annotations

from gpu.sim.nv.pci.boards import Board
from gpu.sim.nv.pci.registers import Registers
from gpu.sim.pci.function import CardBus
from gpu.sim.pci.later import Later
from gpu.sim.physical import Pool
from gpu.sim.simulation import Simulation
from gpu.sim.translate import PageFault


class Halt(Exception):
    """A processor of the card stops, and why."""


class Silicon:
    """One card's shared parts.

    Attributes:
        board, sim: which card, the run of the model.
        regs: its registers.
        vram: video memory.
        wpr2: the part of it that the host may not touch; empty while nothing is protected.
        later: what firmware does meanwhile.
        bus: its way to the machine's memory, once it is plugged in.
    """

    bus: CardBus

    def __init__(self, board: Board, sim: Simulation, lenient: bool, vram: Pool):
        self.board = board
        self.sim = sim
        self.regs = Registers(f"{board.name} registers", sim.debug, lenient)
        self.vram = vram
        self.wpr2 = range(0)
        self.later = Later(sim.clock)

    def violation(self, what: str) -> None:
        """Records that a driver did what it may not do."""
        self.sim.debug.violation(f"{self.board.name}: {what}")

    def fetch(self, address: int, size: int, what: str) -> bytes:
        """System memory, of which all must be the card's. Raises Halt."""
        self._check(address, size, what, write=False)
        return self.bus.load(address, size)

    def put(self, address: int, data: bytes, what: str) -> None:
        """Writes system memory. Raises Halt."""
        self._check(address, len(data), what, write=True)
        self.bus.store(address, data)

    def _check(self, address: int, size: int, what: str, write: bool) -> None:
        place = f"{what}: {size:#x} bytes at {address:#x}"
        bits = self.board.dma_bits
        if address + size > 1 << bits:
            raise Halt(f"{place} are beyond the {bits} bits that the chip reaches")
        if not self.bus.is_master:
            self.bus.load(address, 1)  # records it
            raise Halt(f"{place}, while the card is no bus master")
        try:
            for _ in self.bus.space.spans(address, size, write):
                pass
        except PageFault as fault:
            if write:
                self.bus.store(fault.address, b"\0")  # the IOMMU records it, and it has no effect
            else:
                self.bus.load(fault.address, 1)
            raise Halt(f"{place} are not the card's: {fault}") from None
