"""A machine with AMD's cards, whatever they are plugged into: what works when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from gpu.core.pci import Bar, PciIds
from gpu.core.window import TrappedWindow
from gpu.sim.amd.pci.card import AmdCard
from gpu.sim.amd.pci.firmware import make_images
from gpu.sim.faults import Given
from gpu.sim.machine import Engine, Machine
from gpu.sim.pci.function import CardBar, CardBus

HOST_MEMORY: Final = 16 << 30
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

    @classmethod
    def sound(cls) -> Quiet:
        """What plays a card's sound."""
        return cls(PciIds(0x1002, 0xAB30, 0x1002, 0xAB30, 0, 0x040300), _SOUND_BYTES)


class CardMachine(Machine):
    """A machine with cards.

    Attributes: those of `Machine`, and
        gpus: the cards.
    """

    vendor = "AMD"
    gpus: list[AmdCard]

    def __init__(self, seed: int, faults: Given):
        super().__init__(seed, faults, HOST_MEMORY)
        self.gpus = []

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
