"""NVIDIA's card behind its BARs: registers, video memory, and the processors behind those."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from gpu.core.pci import Bar, PciAddress
from gpu.core.window import TrappedWindow
from gpu.sim.kernel import SysError
from gpu.sim.mapping import Mapper
from gpu.sim.nv.chip.gpu import USERMODE_SIZE, NvGpu
from gpu.sim.nv.pci.boards import Board, FalconFacts
from gpu.sim.nv.pci.falconboot import FalconGsp, Gfw
from gpu.sim.nv.pci.fsp import Cot, Fsp
from gpu.sim.nv.pci.gsp import Gsp
from gpu.sim.nv.pci.images import Known
from gpu.sim.nv.pci.memory import INSTANCE_BYTES, Memory
from gpu.sim.nv.pci.mmu import Mmu
from gpu.sim.nv.pci.objects import FirmwareRm
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
USERMODE: Final = 0xBB0000  # NV_VIRTUAL_FUNCTION, 0xb80000, with its 0x30000 (dev_vm.h)


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
        *,
        gpu: NvGpu,
    ):
        """`settle_ns` is how long after power-on that is at work, `gpu` what is on the chip.

        The rest is as of the world.
        """
        self.ids = board.ids
        self.plugged = True
        self.gpu = gpu
        self.chip = chip = Silicon(board, sim, lenient, gpu.vram)
        self._quiet_until = 0
        self._address = address
        self._add_identity(chip)
        self.memory = Memory(chip)
        self.mmu = Mmu(chip)
        objects = FirmwareRm(gpu, self.mmu, sim.debug)
        where = address.domain << 32 | address.bus << 8 | address.device
        self.rm = Rm(chip, lambda: where, objects)
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
            0: CardBar(registers, Bar(BAR_BYTES, is_64bit=False), self._map_doorbell),
            1: CardBar(self.memory.frame, frame, self.memory.map_frame),
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
        self.gpu.forget_ring()
        chip.regs.reset()
        chip.vram.forget((Extent(0, chip.vram.size),))
        chip.wpr2 = range(0)
        self.rm.reset()
        self.mmu.reset()
        self.gsp.reset()
        self.starter.reset()
        self._quiet_until = chip.sim.clock.now_ns + QUIET_NS

    def sample(self) -> None:
        """Looks at what processes wrote where they mapped it."""
        self.gpu.sample()

    def unplug(self) -> None:
        """It is gone from its bus: nothing answers any more."""
        self.gpu.unplug()
        self.plugged = False

    def close(self) -> None:
        """Gives its memory back."""
        self.gpu.close()

    def work(self) -> bool:
        """Does what is due; whether there was something."""
        return self.rm.catch_up() + self.chip.later.run() > 0

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

    def _map_doorbell(
        self, offset: int, size: int, prot: int, flags: int, address: int, mapper: Mapper
    ) -> int:
        """The page with doorbell and clock in a process. Raises SysError for other registers."""
        if offset != USERMODE or size > USERMODE_SIZE:
            raise SysError(22, f"BAR 0 at {offset:#x} has registers: {USERMODE:#x} alone is mapped")
        extents = (Extent(0, size),)
        return self.gpu.usermode.map_for_cpu(extents, size, prot, flags, address, mapper)

    def _read(self, offset: int, width: int) -> int:
        if not self._answers(f"a read of BAR 0 at {offset:#x}"):
            return (1 << 8 * width) - 1
        if USERMODE <= offset < USERMODE + USERMODE_SIZE:
            return self.gpu.usermode.read_word(offset - USERMODE, width)
        return self.chip.regs.read(offset, width)

    def _write(self, offset: int, width: int, value: int) -> None:
        if not self._answers(f"a write to BAR 0 at {offset:#x}"):
            return
        if USERMODE <= offset < USERMODE + USERMODE_SIZE:
            self.gpu.usermode.write_word(offset - USERMODE, width, value)
            self.gpu.take_ring()
        else:
            self.chip.regs.write(offset, width, value)
