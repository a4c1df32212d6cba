"""What the blocks of a card share: registers, memory, the way to the machine, what is later."""

from __future__ import annotations

from functools import partial

from gpu.sim.amd.chip.asic import Asic
from gpu.sim.amd.pci.boards import Board
from gpu.sim.amd.pci.registers import Refused, Registers
from gpu.sim.pci.function import CardBus
from gpu.sim.pci.later import Later
from gpu.sim.physical import Pool
from gpu.sim.simulation import Simulation

FB_BASE = 0x80_0000_0000
"""Where firmware puts video memory among the chip's own addresses (MMMC_VM_FB_LOCATION_BASE; R)."""


class Silicon:
    """One card's shared parts.

    Attributes:
        board, sim, asic: which card, the run of the model, the chip with its engines.
        regs: its registers.
        later: what firmware does meanwhile.
        bus: its way to the machine's memory, once it is plugged in.
    """

    bus: CardBus

    def __init__(self, board: Board, sim: Simulation, asic: Asic):
        self.board = board
        self.sim = sim
        self.asic = asic
        self.regs = Registers(board, sim.debug)
        self.later = Later(sim.clock)
        self._add_clock()

    def _add_clock(self) -> None:
        """Time stamps as registers: smuio_13_0_6_offset.h, smuio_14_0_2_offset.h."""
        base = self.board.block("SMUIO").bases[1]
        for half, offset, shift in (("UPPER", 0x2D, 32), ("LOWER", 0x2E, 0)):
            name = f"GOLDEN_TSC_COUNT_{half}"
            self.regs.add(name, base + offset, "SMUIO")
            self.regs.hook(name, partial(self._ticks, shift), self._no_clock)

    def _ticks(self, shift: int) -> int:
        return self.sim.clock.gpu_ticks >> shift & 0xFFFFFFFF

    def _no_clock(self, value: int) -> None:
        raise Refused("it is read-only")

    @property
    def vram(self) -> Pool:
        """Video memory, as the chip sees it."""
        return self.asic.vram

    def violation(self, what: str) -> None:
        """Records that a driver did what it may not do."""
        self.sim.debug.violation(f"{self.board.chip.name}: {what}")
