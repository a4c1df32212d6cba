"""`gpu pci`: PCI functions, taking one from its kernel driver and giving it back.

What that means and risks is told in docs/pci.md.
"""

from __future__ import annotations

import argparse
import re
from typing import Final

from gpu.cli.info import hanging
from gpu.core.config import config
from gpu.core.errors import InvalidValue
from gpu.core.pci import PciAddress
from gpu.transport.files import Looking, RealFiles
from gpu.transport.os import RealOs
from gpu.transport.pci import claim
from gpu.transport.pci.survey import survey

_NONE: Final = "no display or accelerator is on the bus; `gpu pci list --all` shows all functions"
_UNITS: Final = {"M": 1 << 20, "G": 1 << 30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu pci`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    shown = actions.add_parser("list", help="functions, who has them, what can be done")
    shown.add_argument("--all", action="store_true", help="not only displays and accelerators")
    take = actions.add_parser("take", help="from its kernel driver, for VFIO or PCI_ACCESS=sysfs")
    take.add_argument("address", help="as in 0000:03:00.0")
    take.add_argument(
        "--resize", action="append", default=[], metavar="BAR:SIZE", help="as in 0:16G"
    )
    back = actions.add_parser("give-back", help="to the kernel driver that it had")
    back.add_argument("address", help="as in 0000:03:00.0")


def run(arguments: argparse.Namespace) -> int:
    """Does what the action says. Raises what `gpu.transport.pci.claim` raises."""
    if arguments.action == "list":
        print(as_text(RealFiles(), arguments.all))
        return 0
    address, notes = PciAddress.parse(arguments.address), config.CACHE_DIR / "pci"
    if arguments.action == "take":
        sizes = [_size(text) for text in arguments.resize]
        driver = claim.VFIO if config.PCI_ACCESS == "VFIO" else ""
        taken = claim.take(RealOs(), notes, address, driver, sizes)
        print(f"{', '.join(map(str, taken))}: taken; `sudo gpu pci give-back {address}` leads back")
    else:
        for now in claim.give_back(RealOs(), notes, address):
            print(f"{now.address}: {now.driver or 'no driver'} has it")
    return 0


def as_text(system: Looking, everything: bool) -> str:
    """The functions of a machine for people."""
    lines: list[str] = []
    for seen in survey(system, everything):
        lines += hanging("", str(seen))
        lines += hanging("  -> ", seen.fix) if seen.fix else []
    return "\n".join(lines) if lines else _NONE


def _size(text: str) -> tuple[int, int]:
    parts = re.fullmatch(r"([0-5]):(\d+)([MG]?)", text)
    if parts is None:
        raise InvalidValue(f"--resize {text!r}: a BAR and its size are wanted, as in 0:16G")
    return int(parts[1]), int(parts[2]) * _UNITS.get(parts[3], 1)
