"""A machine with AMD's cards behind bridges from USB.

    world = UsbWorld(seed=1, chip="gfx1100")
    driver = open_it(World(world.os, world.waiter, usb=world.usb))
    assert not world.debug.violations

Each card has a bridge of its own, on a port of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu.sim.amd.chip.dispatch import KernelExecutor, NoExecutor
from gpu.sim.amd.pci.boards import find_board
from gpu.sim.amd.pci.card import AmdCard
from gpu.sim.amd.pci.cards import CardMachine
from gpu.sim.faults import Given
from gpu.sim.linecaches import Mode
from gpu.sim.usb.bridge import Bridge, Kind, Settings, Troubles, find_identity
from gpu.sim.usb.chip import Timing
from gpu.sim.usb.device import SimUsbBus
from gpu.sim.usb.link import DeadLink


class UsbWorld(CardMachine):
    """A machine with bridges.

    Args:
        seed: of all that is left to chance.
        chip: name of one GPU, or of each of several; see `gpu.sim.amd.pci.boards`.
        faults: what goes wrong with GPUs on purpose; see `gpu.sim.faults`.
        coherence: what caches and HDP do; see `gpu.sim.amd.chip.caches`.
        executor: runs kernels; without one a dispatch is an error.
        settle_ns: how long a card's own firmware is still at work after power-on.
        firmware: of the bridges: the open one, or what the vendor ships.
        vendor, product: as USB has them; by default the first of those with that firmware.
        speed: of USB, Mbit/s: 480, 5000, 10000 or 20000.
        boots_powered: whether the card has power when the bridge starts; stock ones give it.
        train_ns: how long the link trains; by default drawn.
        crs_ns: how long the card then puts off config requests.
        dead_link: what a request meets on a link that is down: stale words, or a wait for ever.
        no_card: nothing is behind the bridges.
        kernel_driver: that has the interface while no process does, as usb-storage.
        write16_lands: whether a stock firmware's WRITE(16) gets to SRAM.
        stall, short, unplug, link_dies: the number of the USB request that meets it, from 1 on;
            0 is none. See `Troubles`.

    Attributes: those of `CardMachine`, and
        usb: the bus.
        bridges: what is on it, in the order of the cards.
    """

    def __init__(
        self,
        seed: int = 0,
        chip: str | Sequence[str] = "gfx1100",
        *,
        faults: Given = (),
        coherence: Mode = "check",
        executor: KernelExecutor | None = None,
        settle_ns: int = 0,
        firmware: Kind = "open",
        vendor: int | None = None,
        product: int | None = None,
        speed: int = 10000,
        boots_powered: bool = False,
        train_ns: int | None = None,
        crs_ns: int = 100_000_000,
        dead_link: DeadLink = "stale",
        no_card: bool = False,
        kernel_driver: str = "",
        write16_lands: bool = True,
        stall: int = 0,
        short: int = 0,
        unplug: int = 0,
        link_dies: int = 0,
    ):
        super().__init__(seed, faults)
        if train_ns is None:
            train_ns = self.rng.randint(1, 400) * 1_000_000
        settings = Settings(
            firmware,
            find_identity(firmware, vendor, product),
            speed,
            boots_powered or firmware == "stock",
            Timing(train_ns, crs_ns),
            dead_link,
            not no_card,
            kernel_driver,
            write16_lands,
            Troubles(stall, short, unplug, link_dies),
        )
        self.bridges: list[Bridge] = []
        for number, name in enumerate([chip] if isinstance(chip, str) else chip):
            card = AmdCard(
                *(find_board(name), self, coherence, executor or NoExecutor()), settle_ns=settle_ns
            )
            self.gpus.append(card)
            self.bridges.append(Bridge(self, settings, number, card))
        self.usb = SimUsbBus(self.bridges)

    def work(self, deadline_ns: int | None = None) -> bool:
        """As all machines do; writes that were posted have arrived before."""
        for bridge in self.bridges:
            bridge.chip.tlp.drain()
        return super().work(deadline_ns)

    def unplug(self) -> None:
        """Takes all GPUs away, with their bridges."""
        super().unplug()
        for bridge in self.bridges:
            bridge.unplug()
