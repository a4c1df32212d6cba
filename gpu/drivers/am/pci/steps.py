"""The steps of a boot, in their order."""

from __future__ import annotations

from typing import Final

from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.ip.claim import claim, discover, find_state
from gpu.drivers.am.pci.ip.gfx import start_core
from gpu.drivers.am.pci.ip.gmc import start_memory
from gpu.drivers.am.pci.ip.ih import start_interrupts
from gpu.drivers.am.pci.ip.psp import start_security
from gpu.drivers.am.pci.ip.sdma import start_copying
from gpu.drivers.am.pci.ip.smu import reset, set_clocks, start_power
from gpu.drivers.am.pci.ip.soc import start_bridge
from gpu.drivers.boot import Step

STEPS: Final[tuple[Step[Chip], ...]] = (
    Step(
        "claim",
        "the function is a GPU's, may reach memory, and its registers answer",
        (),
        ("function",),
        2.0,
        claim,
    ),
    Step(
        "discovery",
        "the chip's table of its blocks is read, and registers have names",
        ("function",),
        ("registers", "video memory"),
        5.0,
        discover,
    ),
    Step(
        "state",
        "whether firmware of somebody's runs on it",
        ("registers",),
        ("state",),
        0.5,
        find_state,
    ),
    Step(
        "reset",
        "a card that runs goes back to where it was when it got power (mode1)",
        ("state",),
        ("cold",),
        10.0,
        reset,
    ),
    Step(
        "soc",
        "the bridge lets doorbells through, and empties the host's data path",
        ("cold", "video memory"),
        ("flush",),
        0.5,
        start_bridge,
    ),
    Step(
        "gmc",
        "the hub that firmware is loaded through translates",
        ("flush",),
        ("hub",),
        1.0,
        start_memory,
    ),
    Step(
        "ih", "the chip has a ring for interrupts", ("hub",), ("interrupts",), 0.5, start_interrupts
    ),
    Step(
        "psp",
        "the security processor starts, and takes the firmware of all parts",
        ("hub", "interrupts"),
        ("firmware",),
        30.0,
        start_security,
    ),
    Step("smu", "power management works", ("firmware",), ("power",), 5.0, start_power),
    Step(
        "gfx",
        "the graphics core is up: its hub, and its compute processor",
        ("firmware", "power"),
        ("core",),
        5.0,
        start_core,
    ),
    Step("sdma", "the copy engines run", ("core",), ("copies",), 1.0, start_copying),
    Step(
        "clocks",
        "clocks may go from their lowest to their highest level",
        ("power", "core"),
        ("clocks",),
        5.0,
        set_clocks,
    ),
)
"""What brings a card from having power to taking queues; `PciPort` opens those."""
