"""`gpu pagetable`: how a card without a kernel driver translates an address, as it has it now.

Which blocks the card has is read first; with --until it is brought up that far. Registers and video
memory are only read.
"""

from __future__ import annotations

import argparse

from gpu.cli.cards import DEVICE_HELP, take
from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.am.pci.chip import Chip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu pagetable`."""
    parser.add_argument("device", help=DEVICE_HELP)
    parser.add_argument(
        "address",
        nargs="?",
        type=lambda text: int(text, 0),
        help="of the GPU; without, a list of what is translated at all",
    )
    parser.add_argument("--vmid", type=int, default=8, help="whose address it is, 8 by default")
    parser.add_argument(
        "--hub", choices=("GC", "MM"), default="GC", help="of kernels (GC) or firmware (MM)"
    )
    parser.add_argument("--until", metavar="STEP", help="of `gpu boot`, which is walked first")


def run(arguments: argparse.Namespace) -> int:
    """Prints the way; 1 where no page is there. Raises Unsupported for another vendor's card."""
    taken = take(arguments.device)
    try:
        card = taken.card
        if not isinstance(card, Chip):
            raise Unsupported(f"{arguments.device}: this version walks page tables of AMD's cards")
        for _ in taken.walk(arguments.until or taken.known):
            pass
        if taken.known not in card.done:
            raise InvalidValue(
                f"--until {arguments.until}: {taken.known} or a later step is wanted"
            )
        return _list(card) if arguments.address is None else _walk(card, arguments)
    finally:
        taken.close()


def _list(chip: Chip) -> int:
    from gpu.drivers.am.pci.translation import contexts, describe

    found = [describe(*each) for each in contexts(chip)]
    print("\n".join(found) or "nothing is translated: no context is on since the card was reset")
    return 0


def _walk(chip: Chip, arguments: argparse.Namespace) -> int:
    from gpu.drivers.am.pci.ip.gmc import hubs_of
    from gpu.drivers.am.pci.translation import translate

    (hub,) = (each for each in hubs_of(chip) if each.prefix == arguments.hub)
    found = translate(chip, hub, arguments.vmid, arguments.address)
    print("\n".join(found.lines))
    return 0 if found.is_mapped else 1
