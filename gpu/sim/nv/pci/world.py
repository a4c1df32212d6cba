"""A machine with NVIDIA's cards on PCI that no kernel driver but vfio-pci has.

    world = NvPciWorld(seed=1, chip="gh100")
    driver = open_it(World(world.os, world.waiter, HostPci(world.os)))
    assert not world.debug.violations

Each card is alone behind a root port. The kernel's side, VFIO and sysfs, is `gpu.sim.pci`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpu.core.pci import PciAddress
from gpu.sim.faults import Given
from gpu.sim.linecaches import Mode
from gpu.sim.machine import Engine, Machine
from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.chip.launch import KernelExecutor, NoExecutor
from gpu.sim.nv.pci.boards import find_board
from gpu.sim.nv.pci.card import NvCard
from gpu.sim.nv.pci.images import learn, make_images
from gpu.sim.pci.host import HostPciModel
from gpu.sim.pci.vfio import add_vfio

HOST_MEMORY: Final = 16 << 30
_FIRST_BUS, _FIRST_GROUP = 3, 7


class NvPciWorld(Machine):
    """A machine with NVIDIA's cards.

    Args:
        seed: of all that is left to chance.
        chip: name of one GPU, or of each of several; see `gpu.sim.nv.pci.boards`.
        faults: what goes wrong on purpose; see `gpu.sim.faults`.
        firmware: files by their names, which the cards know then; made-up ones by default.
        settle_ns: how long a card's own firmware is still at work, as in one just plugged in.
        lenient: for drivers of others: registers that the model does not have are noted only.
        coherence: what caches do; see `gpu.sim.nv.chip.caches`.
        executor: runs kernels; without one a launch is an error.

    Attributes: those of `Machine`, and
        gpus: the cards.
        pci: the kernel's view of the bus.
        firmware: the files that the cards know, by names such as nvidia/gh100/gsp/fmc-570.144.bin.
    """

    vendor = "NV"
    gpus: list[NvCard]

    def __init__(
        self,
        seed: int = 0,
        chip: str | Sequence[str] = "gh100",
        *,
        faults: Given = (),
        firmware: Mapping[str, bytes] | None = None,
        settle_ns: int = 0,
        lenient: bool = False,
        coherence: Mode = "check",
        executor: KernelExecutor | None = None,
    ):
        super().__init__(seed, faults, HOST_MEMORY)
        self.gpus = []
        self.pci = HostPciModel(self, ("vfio-pci",))
        self.pci.memlock = HOST_MEMORY
        boards = [find_board(name) for name in ([chip] if isinstance(chip, str) else chip)]
        made = {name: data for board in boards for name, data in make_images(board).items()}
        self.firmware: Mapping[str, bytes] = made if firmware is None else firmware
        for number, board in enumerate(boards):
            address = PciAddress(0, _FIRST_BUS + number, 0, 0)
            known = learn(board, self.firmware)
            parts = (self._host, self.clock, self.debug, self.rng, self.faults, self.counts)
            gpu = NvGpu(board.chip, number, *parts, coherence, executor or NoExecutor())
            gpu.has_runlist_doorbell = board.family == "gb20x"
            card = NvCard(board, self, known, address, settle_ns, lenient, gpu=gpu)
            self.gpus.append(card)
            self.pci.add(address, card, _FIRST_GROUP + number, "vfio-pci")
        add_vfio(self.pci)

    def _engines(self) -> Sequence[Engine]:
        return [*self.gpus, *(each for card in self.gpus for each in card.gpu.channels)]

    def _run_one(self) -> bool:
        worked = sum(card.work() for card in self.gpus if card.plugged) > 0
        runnable = [channel for card in self.gpus for channel in card.gpu.runnable()]
        if runnable:
            self.rng.choice(runnable).run(self._steps())
        return worked or bool(runnable)

    def _time_passed(self) -> None:
        for card in self.gpus:
            card.gpu.show_clock()

    def work(self, deadline_ns: int | None = None) -> bool:
        """As all machines do; time passes where firmware has nothing to do, as on hardware."""
        if super().work(deadline_ns):
            return True
        if deadline_ns is None or any(card.why_idle() for card in self.gpus):
            return False
        self.clock.advance(max(deadline_ns - self.clock.now_ns, 0))
        return True
