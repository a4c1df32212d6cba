"""Looking for cards of AMD's that can be had without a kernel driver, and at what one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpu.core.config import config
from gpu.core.errors import FirmwareError, Unsupported
from gpu.core.firmware import Wanted, load
from gpu.drivers.am.firmware import FirmwareSet, firmware_of
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.discovery import HwId, IpBlock
from gpu.drivers.am.pci.ip.claim import check_core
from gpu.runtime.default import Found, Look, look_at_card
from gpu.transport.files import Looking
from gpu.transport.machine import AMD, number_in
from gpu.transport.missing import NO_PCI_GPU
from gpu.transport.pci import tree
from gpu.transport.pci.survey import Seen, survey


def looks(system: Looking) -> Iterator[Look]:
    """What there is to say of each card on the bus, for the driver that needs no kernel's.

    What amdgpu tells of a card that it has is used: its blocks, and so its firmware.
    """
    cards = [seen for seen in survey(system) if seen.ids.vendor == AMD]
    if not cards:
        yield Look.lacking(Found.NOTHING, NO_PCI_GPU)
    for which, seen in enumerate(cards):
        name = f"{seen.address} ({seen.driver or 'no driver'})"
        state = seen.is_ready, seen.told, seen.fix
        yield look_at_card(which, name, _why_refused(system, seen), state)


def _why_refused(system: Looking, seen: Seen) -> str:
    """Why this version does not boot a card, or cannot for want of firmware; empty where it may.

    Only amdgpu tells of blocks of a card that nobody has opened (amdgpu_discovery.c).
    """
    found = {}
    for block in (HwId.GC, HwId.SDMA0, HwId.MP0, HwId.MP1):
        folder = f"{tree.folder_of(seen.address)}/ip_discovery/die/0/{int(block)}/0"
        parts = [number_in(system, f"{folder}/{part}") for part in ("major", "minor", "revision")]
        if any(part is None for part in parts):
            return ""
        major, minor, revision = (part or 0 for part in parts)
        found[block] = (major, minor, revision)
    try:
        check_core(IpBlock(HwId.GC, 0, found[HwId.GC], ()))
        check_firmware(
            firmware_of(
                seen.ids,
                gc=found[HwId.GC],
                sdma=found[HwId.SDMA0],
                mp0=found[HwId.MP0],
                mp1=found[HwId.MP1],
            )
        )
    except (Unsupported, FirmwareError) as error:
        return error.message
    return ""


def check_firmware(files: FirmwareSet, read: Callable[[Wanted], bytes] = load) -> None:
    """Raises FirmwareError for the first file of a card that is not there."""
    for wanted in files.all():
        read(wanted)


def probe(index: int) -> str:
    """What a card on the bus is: it is taken, its table is read, and it is given back.

    Its firmware is looked for, and not loaded. Raises what taking, those steps and files raise.
    """
    # Imported on use: it has the registers of all chips.
    from gpu.backends.amd.device import card_world
    from gpu.drivers.am.pci.port import take_card

    world, read = card_world(config.SIM)
    return tell(take_card(world, index, read), read)


def tell(chip: Chip, read: Callable[[Wanted], bytes]) -> str:
    """What a card is that was taken: its table is read, its files are looked for; it is closed."""
    from gpu.drivers.am.pci.port import boot, close_chip

    try:
        for _ in boot(chip, "discovery"):
            pass
        check_firmware(chip.firmware, read)
        core = chip.discovery.block(HwId.GC)
        return f"{core}, {chip.vram.size >> 20} MiB, and its firmware are there"
    finally:
        close_chip(chip)
