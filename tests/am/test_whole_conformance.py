"""The conformance suite whole on cards behind PCI and USB: chips, seeds, what caches do.

`test_pci_conformance.py` and `test_usb.py` have a part of it each time.
"""

from __future__ import annotations

from typing import Literal

import pytest

from am.pci_target import PciTarget
from am.usb_target import UsbTarget
from bounded import bounded
from gpu.hcq.conformance import CHECKS, peers

Coherence = Literal["check", "oldest"]

pytestmark = [pytest.mark.slow, pytest.mark.sampled(0)]
# Two cards copy through the machine's memory, of which a card over USB reaches none.
NAMES = [name for name, check in CHECKS.items() if check not in peers.CHECKS]
NOT_OVER_USB = ("mapped_host_memory",)
WORLDS: list[tuple[str, int, Coherence]] = [
    (chip, seed, coherence)
    for chip in ("gfx1100", "gfx1201")
    for seed in (21, 22, 23)
    for coherence in ("check", "oldest")
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(map(str, world)))
@pytest.mark.parametrize("road", ["pci", "usb"])
def test_card(road: str, world: tuple[str, int, Coherence], name: str) -> None:
    if road == "usb" and name in NOT_OVER_USB:
        pytest.skip("the card reaches no memory of this machine")
    chip, seed, coherence = world
    target = (UsbTarget if road == "usb" else PciTarget)(seed, chip, coherence)
    with bounded(120):
        CHECKS[name](target)
    assert target.complaints() == []
    target.close()
