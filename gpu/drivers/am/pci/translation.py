"""How a card translates an address now, for people: a walk of page tables as its registers and its
memory have them, whoever has put them there.

Sources: those of `gpu.drivers.am.pci.entries` and `gpu.drivers.am.pci.ip.gmc`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.pagetable import Level, Page, Step, walk
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.entries import DEPTH, ROOT, Access, format_of, is_system
from gpu.drivers.am.pci.ip.gmc import VMIDS, Context, Hub, find_memory, hubs_of


class Translation(NamedTuple):
    """Where an address leads: lines that tell the way, and whether a page is there."""

    lines: list[str]
    is_mapped: bool


def contexts(chip: Chip) -> Iterator[tuple[Hub, int, Context]]:
    """Hub and VMID of all contexts that are on; names of registers must be known."""
    for hub in hubs_of(chip):
        for vmid in range(VMIDS):
            context = hub.context(vmid)
            if context.is_on:
                yield hub, vmid, context


def describe(hub: Hub, vmid: int, context: Context) -> str:
    """A context in words."""
    return (
        f"{hub.prefix} VMID {vmid}: {context.start:#x} to {context.end - 1:#x}, tables at"
        f" {context.root:#x}, {context.depth} levels above pages"
    )


def translate(chip: Chip, hub: Hub, vmid: int, address: int) -> Translation:
    """Walks the tables of a VMID. Only reads the card.

    Raises InvalidValue for a VMID or an address that there is not, Unsupported for tables of
    another depth.
    """
    if not 0 <= vmid < VMIDS:
        raise InvalidValue(f"VMID {vmid}: there are 0 to {VMIDS - 1}")
    if not 0 <= address < ROOT.covered:
        raise InvalidValue(f"address {address:#x}: tables cover 0 to {ROOT.covered - 1:#x}")
    find_memory(chip)
    if vmid == 0 and chip.fb_base <= address <= chip.fb_end:
        line = f"{hub.prefix} VMID 0: {address:#x} is in the aperture of video memory, untranslated"
        return Translation([line, _place(chip, chip.pa_base + address - chip.fb_base)], True)
    context = hub.context(vmid)
    if not context.is_on:
        return Translation([f"{hub.prefix} VMID {vmid} is off: nothing is translated"], False)
    lines = [describe(hub, vmid, context)]
    if not context.start <= address < context.end:
        return Translation([*lines, f"{address:#x} is not in it"], False)
    if context.depth != DEPTH:
        raise Unsupported(f"{lines[0]}: this version walks {DEPTH} levels")
    entries = format_of(chip.gc)
    try:
        for step in walk(lambda _, at: _read(chip, at), entries, ROOT, context.root, address):
            found = entries.parse(step.level, step.raw)
            lines.append(_line(chip, step, found, address))
            if isinstance(found, Page):
                return Translation(lines, True)
            if found is not None and is_system(step.raw):
                break
    except InvalidValue as error:
        lines.append(error.message)
    return Translation(lines, False)


def _read(chip: Chip, address: int) -> int:
    """An entry. Raises InvalidValue for one that the host does not see."""
    window, offset = chip.vram.window, address - chip.pa_base
    if not 0 <= offset <= window.size - 8:
        raise InvalidValue(
            f"a table at {address:#x}: the host sees video memory from {chip.pa_base:#x} to"
            f" {chip.pa_base + window.size - 1:#x}"
        )
    return window.read(offset, 8)


def _line(chip: Chip, step: Step, found: object, address: int) -> str:
    head = f"{step.level.name}[{step.slot}] at {step.table:#x}: {step.raw:#018x}"
    if isinstance(found, Page):
        return f"{head}, {_page(chip, step.level, found, address)}"
    if not isinstance(found, tuple):
        return f"{head}, nothing is mapped"
    where = " of the machine, which is not read" if is_system(step.raw) else ""
    return f"{head}, a table at {found[0]:#x}{where}"


def _page(chip: Chip, level: Level, page: Page, address: int) -> str:
    flags = Access(page.flags)
    names = [each.name.lower() for each in Access if each in flags and each.name]
    at = page.pa + address % level.span
    place = f"{at:#x} of the bus" if Access.SYSTEM in flags else _place(chip, at)
    allowed = ", ".join(name for name in names if name != "system") or "nothing allowed"
    return f"{place}: {allowed}, run of {page.run >> 10} KiB"


def _place(chip: Chip, at: int) -> str:
    return f"{at - chip.pa_base:#x} of video memory"
