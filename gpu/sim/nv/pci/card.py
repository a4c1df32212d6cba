"""NVIDIA's card behind its BARs: registers, video memory, and the processors behind those."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from gpu.core.pci import Bar, PciAddress
from gpu.core.window import TrappedWindow
from gpu.sim.nv.pci.boards import Board, FalconFacts
from gpu.sim.nv.pci.falconboot import FalconGsp, Gfw
from gpu.sim.nv.pci.fsp import Cot, Fsp
from gpu.sim.nv.pci.gsp import Gsp
from gpu.sim.nv.pci.images import Known
from gpu.sim.nv.pci.memory import INSTANCE_BYTES, Memory
from gpu.sim.nv.pci.registers import BAR_BYTES
from gpu.sim.nv.pci.rm import Rm
from gpu.sim.nv.pci.silicon import Halt, Silicon
from gpu.sim.nv.pci.sysinfo import MIRROR_BYTES
from gpu.sim.pci.function import CardBar, CardBus
from gpu.sim.physical import Extent
from gpu.sim.simulation import Simulation

QUIET_NS: Final = 100_000_000
"""How long nothing may be asked of a function after its reset (PCI Express 5.0, 6.6.2)."""
_ACCESS_NS: Final = 500


class NvCard:
    """The card. See `gpu.sim.pci.function.Card`, `gpu.sim.machine.Gpu`.

    Attributes:
        chip: what its blocks share.
        memory, starter, gsp, rm: its blocks; what starts GSP is FSP, or the card's own firmware.
    """

    vectors = 1

    def __init__(
        self,
        board: Board,
        sim: Simulation,
        known: Known,
        address: PciAddress,
        settle_ns: int = 0,
        lenient: bool = False,
    ):
        """`settle_ns` is how long after power-on that is at work; the rest as of the world."""
        self.ids = board.ids
        self.plugged = True
        self.chip = chip = Silicon(board, sim, lenient)
        self._quiet_until = 0
        self._address = address
        self._add_identity(chip)
        self.memory = Memory(chip)
        self.rm = Rm(chip, lambda: address.domain << 32 | address.bus << 8 | address.device)
        self.starter: Fsp | Gfw
        self.gsp: Gsp | FalconGsp
        if isinstance(board.start, FalconFacts):
            self.starter = Gfw(chip, settle_ns)
            self.gsp = falcons = FalconGsp(chip, known, self.memory.flush)
            falcons.on_boot = self.rm.reset
        else:
            self.starter = fsp = Fsp(chip, known, settle_ns)
            self.gsp = gsp = Gsp(chip, known)
            fsp.on_boot = partial(self._boot, gsp)
        chip.regs.is_locked = self.gsp.is_locked
        self.gsp.on_start, self.gsp.on_doorbell = self.rm.start, self.rm.ring
        self.rm.on_unload = self.gsp.suspend
        registers = TrappedWindow(BAR_BYTES, self._read, self._write, widest=4)
        frame = Bar(board.chip.bar1_size, prefetchable=True)
        self.bars: Mapping[int, CardBar] = {
            0: CardBar(registers, Bar(BAR_BYTES, is_64bit=False)),
            1: CardBar(self.memory.frame, frame),
            3: CardBar(self.memory.instance, Bar(INSTANCE_BYTES, prefetchable=True)),
        }
        chip.later.run()

    @property
    def due_ns(self) -> int | None:
        """When firmware will have done something. See `gpu.sim.machine.Engine`."""
        return self.chip.later.due_ns

    def why_idle(self) -> str:
        """What firmware has to do, or why it does nothing more."""
        return self.chip.later.why_idle() or self.rm.unread

    def plug(self, bus: CardBus) -> None:
        """It reaches the machine's memory through this."""
        self.chip.bus = bus

    def reset(self) -> None:
        """A function level reset: all is forgotten, and nothing may be asked for a while."""
        chip = self.chip
        chip.later.forget()
        chip.regs.reset()
        chip.vram.forget((Extent(0, chip.vram.size),))
        chip.wpr2 = range(0)
        self.rm.reset()
        self.gsp.reset()
        self.starter.reset()
        self._quiet_until = chip.sim.clock.now_ns + QUIET_NS

    def sample(self) -> None:
        """Nothing of it is seen without an access."""

    def unplug(self) -> None:
        """It is gone from its bus: nothing answers any more."""
        self.plugged = False

    def close(self) -> None:
        """Gives its memory back."""
        self.chip.vram.close()

    def work(self) -> bool:
        """Does what is due; whether there was something."""
        return self.chip.later.run()

    def _boot(self, gsp: Gsp, cot: Cot) -> None:
        self.rm.reset()
        try:
            self.memory.flush()
        except Halt as why:
            self.chip.violation(f"GSP is not reset: {why}")
            return
        gsp.boot(cot)

    def _add_identity(self, chip: Silicon) -> None:
        regs, board = chip.regs, chip.board
        regs.add("NV_PMC_BOOT_0", 0x0, board.boot_0, writable=False)
        regs.add("NV_PMC_BOOT_1", 0x4, writable=False)
        regs.add("NV_PMC_BOOT_42", 0xA00, board.boot_42, writable=False)
        regs.add("NV_PGC6_AON_SECURE_SCRATCH_GROUP_20", 0x1182CC, writable=False)
        for number in range(64):
            regs.add(f"NV_PBUS_SW_SCRATCH({number})", 0x1400 + 4 * number)
        for offset in range(0, MIRROR_BYTES, 4):
            read = partial(self._mirror, offset)
            regs.add(f"NV_PCFG + {offset:#x}", board.mirror + offset, read=read, writable=False)

    def _mirror(self, offset: int) -> int:
        return self.chip.bus.config_word(offset)

    def _answers(self, what: str) -> bool:
        chip = self.chip
        chip.sim.clock.advance(_ACCESS_NS)
        if chip.sim.clock.now_ns < self._quiet_until:
            chip.violation(f"{what} within 100 ms of a function level reset")
            return False
        chip.later.run()
        return self.plugged

    def _read(self, offset: int, width: int) -> int:
        if not self._answers(f"a read of BAR 0 at {offset:#x}"):
            return (1 << 8 * width) - 1
        return self.chip.regs.read(offset, width)

    def _write(self, offset: int, width: int, value: int) -> None:
        if self._answers(f"a write to BAR 0 at {offset:#x}"):
            self.chip.regs.write(offset, width, value)
