"""Cards without a kernel driver, as the command line names them."""

from __future__ import annotations

from typing import Final

from gpu.core.config import config
from gpu.core.devspec import parse_device_spec
from gpu.core.errors import Unsupported
from gpu.drivers.am.pci.chip import Chip

DEVICE_HELP: Final = "as in PCI+AMD, or PCI+AMD:1 for the second card"


def take(device: str) -> Chip:
    """The function of a card that a text names, nothing of it touched.

    Raises ConfigError for another text, Unsupported for what is not reached so, and as `take_card`.
    """
    from gpu.backends.amd.device import card_world
    from gpu.drivers.am.pci.port import take_card

    spec = parse_device_spec(device)
    if (spec.device, spec.interface) != ("AMD", "PCI"):
        raise Unsupported(f"{device}: this version brings up PCI+AMD, or PCI+AMD:1 and so on")
    world, load = card_world(config.SIM)
    return take_card(world, spec.index, load)
