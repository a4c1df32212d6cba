"""AMD's card behind its BARs: video memory, doorbells, registers, and what is behind those."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpu.core import hostmem
from gpu.core.pci import Bar
from gpu.core.window import TrappedWindow
from gpu.sim.amd.chip.asic import Asic
from gpu.sim.amd.chip.dispatch import KernelExecutor
from gpu.sim.amd.chip.hwqueue import HwQueue
from gpu.sim.amd.pci import discovery
from gpu.sim.amd.pci.boards import Board
from gpu.sim.amd.pci.copy_engines import CopyEngines
from gpu.sim.amd.pci.gfx import GraphicsCore
from gpu.sim.amd.pci.gmc import Hub
from gpu.sim.amd.pci.hosts import Parts
from gpu.sim.amd.pci.ih import GFX, VMC, InterruptHandler
from gpu.sim.amd.pci.nbio import DOORBELL_BYTES, Nbio, cpu_memory
from gpu.sim.amd.pci.psp import SMU_TYPE, Psp
from gpu.sim.amd.pci.registers import ONES
from gpu.sim.amd.pci.silicon import Silicon
from gpu.sim.amd.pci.smu import Smu
from gpu.sim.linecaches import Mode
from gpu.sim.pci.function import CardBar, CardBus
from gpu.sim.physical import Extent
from gpu.sim.simulation import Simulation

REGISTER_BYTES: Final = 1 << 20
_ACCESS_NS: Final = 500


class AmdCard:
    """The card. See `gpu.sim.pci.function.Card`, `gpu.sim.machine.Gpu`.

    Attributes:
        chip: what its blocks share.
        nbio, gfxhub, mmhub, ih, psp, smu, gfx, sdma: its blocks.
        on_mode1: is told that config space has forgotten what was written there.
    """

    vectors = 1

    def __init__(
        self,
        board: Board,
        sim: Simulation,
        mode: Mode,
        executor: KernelExecutor,
        bar_size: int | None = None,
        settle_ns: int = 0,
    ):
        """`settle_ns` is how long after power-on its own firmware is still at work."""
        self.ids = board.ids
        self.plugged = True
        self.chip = chip = Silicon(board, sim, Asic(board.chip, sim, mode, executor))
        self._quiet_until = 0
        visible = min(bar_size or board.bar_size, chip.vram.size)
        self._visible = cpu_memory(chip.vram, visible)
        self.nbio = Nbio(chip)
        self._doorbells = cpu_memory(self.nbio.doorbells, DOORBELL_BYTES)
        self.gfxhub, self.mmhub = Hub(chip, "GFXHUB"), Hub(chip, "MMHUB")
        firmware = self.mmhub.spaces[0]
        self.ih = InterruptHandler(chip, firmware)
        self.psp, self.smu = Psp(chip, firmware, settle_ns), Smu(chip, firmware)
        parts = Parts(chip, self.gfxhub, self.nbio, self.ih)
        self.gfx, self.sdma = GraphicsCore(parts), CopyEngines(parts)
        self._connect()
        registers = TrappedWindow(REGISTER_BYTES, self._read, self._write, widest=4)
        vram = Bar(bar_size or board.bar_size, prefetchable=True)
        self.bars: Mapping[int, CardBar] = {
            0: CardBar(self._visible, vram, chip.vram.map_part),
            2: CardBar(
                self._doorbells,
                Bar(DOORBELL_BYTES, prefetchable=True),
                self.nbio.doorbells.map_part,
            ),
            5: CardBar(registers, Bar(REGISTER_BYTES, is_64bit=False), self.nbio.map_hole),
        }
        self._power_on()

    @property
    def queues(self) -> list[HwQueue]:
        """Those that are on the hardware now."""
        return [*self.gfx.hardware(), *self.sdma.hardware()]

    @property
    def due_ns(self) -> int | None:
        """When firmware will have done something. See `gpu.sim.machine.Engine`."""
        return self.chip.later.due_ns

    def why_idle(self) -> str:
        """What firmware has to do."""
        return self.chip.later.why_idle()

    def plug(self, bus: CardBus) -> None:
        """It reaches the machine's memory through this."""
        self.chip.bus = bus

    def reset(self) -> None:
        """A reset of the function or its bus: as after power-on, at once."""
        self._quiet_until = 0
        self._forget()
        self._power_on()

    def sample(self) -> None:
        """Looks at what the host has written without an access that is seen."""
        self.nbio.sample()
        for queue in self.queues:
            queue.sample()

    def unplug(self) -> None:
        """It is gone from its bus: nothing answers any more."""
        self.plugged = False

    def close(self) -> None:
        """Gives its memory back."""
        for window in (self._visible, self._doorbells):
            hostmem.unmap(window.address, window.size)
        self.nbio.close()
        self.chip.vram.close()

    def _connect(self) -> None:
        self.on_mode1: Callable[[], None] = lambda: None
        self.psp.on_ready = self._publish
        self.psp.on_loaded = self._loaded
        self.psp.on_mode1 = self.smu.on_mode1 = self._mode1
        self.psp.on_autoload = self._autoloaded
        self.gfxhub.protected = lambda: self.psp.tmr
        self.gfxhub.tell = self.mmhub.tell = self._memory_fault

    def _loaded(self, kind: int) -> None:
        if kind == SMU_TYPE:
            self.smu.loaded()

    def _autoloaded(self) -> None:
        self.gfx.start()
        self.sdma.start()

    def _memory_fault(self, hub: str, vmid: int, address: int, kind: int) -> None:
        """An entry as gmc_v11_0_process_interrupt and event_interrupt_wq_v11 read it."""
        client = VMC if hub == "MMHUB" else GFX
        page, is_write = address >> 12, kind & 1
        self.ih.send(client, 0, kind & ~1, vmid, (page, page >> 32 & 0xF | 0x20 * is_write))

    def _mode1(self) -> None:
        """All is forgotten, also where the host put the card on its bus.

        amdgpu_device_mode1_reset ends bus mastering first, as what is under way has no end then.
        """
        if self.chip.bus.is_master:
            self.chip.violation("a mode1 reset while it is bus master")
        self._forget()
        self._quiet_until = self.chip.sim.clock.now_ns + self.chip.board.reset_ns
        self.on_mode1()
        self.psp.reset()

    def _forget(self) -> None:
        chip = self.chip
        chip.later.forget()
        chip.regs.reset()
        chip.vram.forget((Extent(0, chip.vram.size),))
        chip.asic.caches.drop(chip.vram, 0, chip.vram.size)
        for block in (self.gfx, self.sdma, self.nbio, self.gfxhub, self.mmhub, self.ih, self.smu):
            block.reset()

    def _power_on(self) -> None:
        self.psp.reset()
        self.chip.later.run()

    def _publish(self) -> None:
        """Memory is trained: firmware leaves the discovery table there."""
        table = discovery.build(self.chip.board)
        self.chip.vram.store(self.chip.vram.size - discovery.OFFSET, table)

    def _answers(self) -> bool:
        clock = self.chip.sim.clock
        clock.advance(_ACCESS_NS)
        self.nbio.sample()
        self.chip.later.run()
        return self.plugged and clock.now_ns >= self._quiet_until

    def _read(self, offset: int, width: int) -> int:
        if not self._answers():
            return (1 << 8 * width) - 1
        if self.nbio.writes_hole(offset):
            return 0
        if not self._is_whole(offset, width):
            return (1 << 8 * width) - 1
        return self.chip.regs.read(offset // 4)

    def _write(self, offset: int, width: int, value: int) -> None:
        if not self._answers():
            return
        if not self.nbio.writes_hole(offset) and self._is_whole(offset, width):
            self.chip.regs.write(offset // 4, value & ONES)

    def _is_whole(self, offset: int, width: int) -> bool:
        if width != 4:
            self.chip.violation(
                f"an access of {width} bytes at {offset:#x} of BAR 5: registers have 4"
            )
        return width == 4
