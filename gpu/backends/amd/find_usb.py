"""Looking for bridges from USB to PCI, and at the card of AMD's behind one."""

from __future__ import annotations

from collections.abc import Iterator

from gpu.backends.amd.find_pci import tell
from gpu.core.config import config
from gpu.runtime.default import Found, Look
from gpu.transport.asm24.find import NO_BRIDGE
from gpu.transport.asm24.survey import seen_bridges, tunnelled
from gpu.transport.files import Looking


def looks(system: Looking) -> Iterator[Look]:
    """What there is to say of each bridge, or of why there is none; nothing is opened."""
    seen = list(seen_bridges(system))
    for which, bridge in enumerate(seen):
        if not bridge.is_open:
            told = "it has its maker's firmware: registers are reached, and no kernels run"
            yield Look(Found.NOTHING, f"{bridge.name}: {told}")
        elif denied := system.why_denied(bridge.node):
            yield Look(Found.UNUSABLE, f"{bridge.name}: {denied}", which)
        else:
            yield Look(Found.USABLE, f"{bridge.name}, {bridge.speed} Mbit/s", which)
    if not seen and (device := tunnelled(system)):
        why = f"{device} is connected by USB4, so that its card is on the PCI bus: use PCI+AMD"
        yield Look(Found.NOTHING, why)
    elif not seen:
        yield Look.lacking(Found.NOTHING, NO_BRIDGE)


def probe(index: int) -> str:
    """What the card behind a bridge is: it is powered, its table is read, and it is given back.

    Its firmware is looked for, and not loaded. Raises what opening, those steps and files raise.
    """
    # Imported on use: it has the registers of all chips.
    from gpu.backends.amd.device import usb_world
    from gpu.drivers.am.pci.usb import take_card

    world, read = usb_world(config.SIM)
    return tell(take_card(world, index, read), read)
