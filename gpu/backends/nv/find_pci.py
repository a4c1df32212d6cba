"""Looking for cards of NVIDIA's that can be had without a kernel driver, and at what one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gpu.core.config import config
from gpu.core.errors import FirmwareError
from gpu.core.firmware import Wanted, load
from gpu.drivers.nv.firmware import WANTED
from gpu.runtime.default import Found, Look, look_at_card
from gpu.transport.files import Looking
from gpu.transport.machine import NVIDIA
from gpu.transport.missing import NO_PCI_NVIDIA
from gpu.transport.pci import tree
from gpu.transport.pci.survey import Seen, survey

if TYPE_CHECKING:
    from gpu.drivers.nv.pci.boot import BootCard

_FRAME: Final = 1
"""The BAR that shows video memory."""


def looks(system: Looking) -> Iterator[Look]:
    """What there is to say of each card on the bus, for the driver that needs no kernel's.

    Which chip a card has is known only once its registers are read: see `probe`.
    """
    cards = [seen for seen in survey(system) if seen.ids.vendor == NVIDIA]
    if not cards:
        yield Look.lacking(Found.NOTHING, NO_PCI_NVIDIA)
    for which, seen in enumerate(cards):
        name = f"{seen.address} ({_about(system, seen)})"
        yield look_at_card(which, name, _why_refused(), (seen.is_ready, seen.told, seen.fix))


def _about(system: Looking, seen: Seen) -> str:
    """Who has a card, with whom it goes to a virtual machine, and how much of it is seen."""
    group = f"IOMMU group {seen.group}" if seen.group is not None else "no IOMMU"
    ranges = tree.ranges_of(system, seen.address)
    frame = f"BAR 1 of {ranges[_FRAME].bar.size >> 20} MiB" if _FRAME in ranges else "no BAR 1"
    return f"{seen.driver or 'no driver'}, {group}, {frame}"


def _why_refused() -> str:
    """Why no card boots here: RM's image, which is one for all chips, is not there."""
    image = next(wanted for wanted in WANTED if "/gsp-" in wanted.name)
    try:
        load(image)
    except FirmwareError as error:
        return error.message
    return ""


def probe(index: int) -> str:
    """What a card on the bus is: it is taken, who it is is read, and it is given back.

    Its firmware is looked for, and not loaded. Raises what taking, those steps and files raise.
    """
    # Imported on use: it has the registers of all chips, and the simulator.
    from gpu.backends.nv.simulated import card_world
    from gpu.drivers.nv.pci.boot import take_card

    world, read = card_world(config.SIM)[:2]
    return tell(take_card(world, index, read), read)


def tell(card: BootCard, read: Callable[[Wanted], bytes]) -> str:
    """What a card is that was taken: who it is is read, its files are looked for; it is closed."""
    from gpu.drivers.nv.pci.boot import boot, close_card

    try:
        for _ in boot(card, "state"):
            pass
        for part in card.chip.parts:
            read(card.chip.firmware(part))
        state = "somebody's GSP runs on it" if card.state == "alive" else card.state
        return (
            f"{card.chip_name}, {state}, and its firmware are there; no card was tried with this"
            " version, models alone"
        )
    finally:
        close_card(card)
