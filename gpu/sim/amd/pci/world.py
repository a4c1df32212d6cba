"""A machine with AMD's cards on PCI that no kernel driver but vfio-pci has.

    world = AmPciWorld(seed=1, chip="gfx1100")
    driver = open_it(World(world.os, world.waiter, HostPci(world.os)))
    assert not world.debug.violations

Each card is behind a root port of its own, with the function that plays its sound beside it. The
kernel's side, VFIO and sysfs, is `gpu.sim.pci`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu.core.pci import PciAddress, PciIds
from gpu.sim.amd.chip.dispatch import KernelExecutor, NoExecutor
from gpu.sim.amd.pci.boards import find_board
from gpu.sim.amd.pci.card import AmdCard
from gpu.sim.amd.pci.cards import HOST_MEMORY, CardMachine, Quiet
from gpu.sim.faults import Given
from gpu.sim.linecaches import Mode
from gpu.sim.pci.host import HostPciModel
from gpu.sim.pci.vfio import add_vfio

_FIRST_BUS, _FIRST_GROUP = 3, 7


class AmPciWorld(CardMachine):
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

    Attributes: those of `CardMachine`, and
        pci: the kernel's view of the bus.
    """

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
        super().__init__(seed, faults)
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
        self.pci.add(PciAddress(0, 0, 1 + number, 1), port, 1 + number, "pcieport")
        function = self.pci.add(
            PciAddress(0, bus, 0, 0), card, group, "vfio-pci", resets_alone=False
        )
        if not keeps_config:
            card.on_mode1 = function.config.reset
        self.pci.add(
            PciAddress(0, bus, 0, 1), Quiet.sound(), group, sound_driver, resets_alone=False
        )
