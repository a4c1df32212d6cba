"""A machine with AMD's cards on PCI that no kernel driver but vfio-pci has.

    world = AmPciWorld(seed=1, chip="gfx1100")
    driver = open_it(World(world.os, world.waiter, HostPci(world.os)))
    assert not world.debug.violations

Each card is behind a root port of its own, with the function that plays its sound beside it. The
kernel's side, VFIO and sysfs, is `gpu.sim.pci`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from gpu.core.pci import Bar, PciAddress, PciIds
from gpu.core.window import TrappedWindow
from gpu.sim.amd.chip.caches import Mode
from gpu.sim.amd.chip.dispatch import KernelExecutor, NoExecutor
from gpu.sim.amd.pci.boards import find_board
from gpu.sim.amd.pci.card import AmdCard
from gpu.sim.amd.pci.firmware import make_images
from gpu.sim.faults import Given
from gpu.sim.machine import Engine, Machine
from gpu.sim.pci.function import CardBar, CardBus
from gpu.sim.pci.host import HostPciModel
from gpu.sim.pci.vfio import add_vfio

HOST_MEMORY: Final = 16 << 30
_FIRST_BUS, _FIRST_GROUP = 3, 7
_SOUND_BYTES: Final = 16 << 10


class Quiet:
    """A function that does nothing: a root port, or sound. See `gpu.sim.pci.function.Card`."""

    vectors = 1

    def __init__(self, ids: PciIds, size: int = 0):
        self.ids = ids
        nothing = TrappedWindow(max(size, 1), lambda offset, width: 0, lambda *access: None)
        self.bars: Mapping[int, CardBar] = (
            {0: CardBar(nothing, Bar(size, is_64bit=False))} if size else {}
        )

    def plug(self, bus: CardBus) -> None:
        """It never uses it."""

    def reset(self) -> None:
        """It knows nothing."""


class AmPciWorld(Machine):
    """A machine with AMD's cards.

    Args:
        seed: of all that is left to chance.
        chip: name of one GPU, or of each of several; see `gpu.sim.amd.pci.boards`.
        faults: what goes wrong on purpose; see `gpu.sim.faults`.
        coherence: what caches and HDP do; see `gpu.sim.amd.chip.caches`. With "oldest" the CPU has
            a view of video memory of its own until HDP is flushed.
        executor: runs kernels; without one a dispatch is an error.
        bar_size: bytes of BAR 0; by default all of video memory is behind it.
        moved: by how many dwords blocks are elsewhere than usual; see `Board.moved`.
        settle_ns: how long a card's own firmware is still at work, as in one just plugged in.
        sound_driver: who has the cards' sound; where that is not vfio-pci, VFIO cannot reset the
            bus when a card is closed, and it stays as it is.
        keeps_config: whether a mode1 reset leaves config space, BARs too, as it was.

    Attributes: those of `Machine`, and
        gpus: the cards.
        pci: the kernel's view of the bus.
    """

    vendor = "AMD"
    gpus: list[AmdCard]

    def __init__(
        self,
        seed: int = 0,
        chip: str | Sequence[str] = "gfx1100",
        *,
        faults: Given = (),
        coherence: Mode = "check",
        executor: KernelExecutor | None = None,
        bar_size: int | None = None,
        moved: int = 0,
        settle_ns: int = 0,
        sound_driver: str = "vfio-pci",
        keeps_config: bool = False,
    ):
        super().__init__(seed, faults, HOST_MEMORY)
        self.gpus = []
        self.pci = HostPciModel(self, ("vfio-pci", "pcieport"))
        self.pci.memlock = HOST_MEMORY
        for number, name in enumerate([chip] if isinstance(chip, str) else chip):
            board = find_board(name)
            board = board.moved(moved) if moved else board
            card = AmdCard(board, self, coherence, executor or NoExecutor(), bar_size, settle_ns)
            self.gpus.append(card)
            self._plug_in(card, number, sound_driver, keeps_config)
        add_vfio(self.pci)

    def _plug_in(self, card: AmdCard, number: int, sound_driver: str, keeps_config: bool) -> None:
        bus, group = _FIRST_BUS + number, _FIRST_GROUP + number
        port = Quiet(PciIds(0x1022, 0x14DB, 0x1022, 0x1453, 0, 0x060400))
        sound = Quiet(PciIds(0x1002, 0xAB30, 0x1002, 0xAB30, 0, 0x040300), _SOUND_BYTES)
        self.pci.add(PciAddress(0, 0, 1 + number, 1), port, 1 + number, "pcieport")
        function = self.pci.add(
            PciAddress(0, bus, 0, 0), card, group, "vfio-pci", resets_alone=False
        )
        if not keeps_config:
            card.on_mode1 = function.config.reset
        self.pci.add(PciAddress(0, bus, 0, 1), sound, group, sound_driver, resets_alone=False)

    @cached_property
    def firmware(self) -> Mapping[str, bytes]:
        """Made-up images for its cards, by the names of files such as amdgpu/gc_11_0_0_mec.bin."""
        boards = {card.chip.board.chip.name: card.chip.board for card in self.gpus}
        return {
            name: data for board in boards.values() for name, data in make_images(board).items()
        }

    def _engines(self) -> Sequence[Engine]:
        engines: list[Engine] = []
        for card in self.gpus:
            engines += (card, *card.queues)
        return engines

    def _run_one(self) -> bool:
        if sum(card.chip.later.run() for card in self.gpus):
            return True
        runnable = [q for card in self.gpus if card.plugged for q in card.queues if q.runnable()]
        if runnable:
            self.rng.choice(runnable).run(self._steps())
        return bool(runnable)

    def work(self, deadline_ns: int | None = None) -> bool:
        """As all machines do; time passes where no queue could do anything, as on hardware.

        So a driver can let a card settle. What waits on a queue that stands is told at once.
        """
        if super().work(deadline_ns):
            return True
        if deadline_ns is None or any(card.queues for card in self.gpus):
            return False
        self.clock.advance(max(deadline_ns - self.clock.now_ns, 0))
        return True
