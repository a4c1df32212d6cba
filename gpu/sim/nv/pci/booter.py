"""booter_load: signed code on SEC2 that puts RM behind WPR2 and starts GSP's other core.

It is told where `GspFwWprMeta` is by its mailbox, and what that says of video memory it takes, if
it is in order (kgspCalculateFbLayout_TU102, gsp_fw_wpr_meta.h). Which checks the real one makes is
nowhere published: these are what that function promises (U), apart from what the header says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu.sim.nv.pci.images import Known
from gpu.sim.nv.pci.silicon import Halt, Silicon
from gpu.sim.nv.pci.wprmeta import PAGE, Booted, check_images, read_meta, why_meta

_MIB: Final = 1 << 20
_WPR_ALIGNMENT: Final = 128 << 10
_IMAGE_ALIGNMENT: Final = 64 << 10
_BOOST: Final = 1
_VERIFIED: Final = 0xA0A0A0A0A0A0A0A0
_META_BYTES, _VERIFIED_AT = 256, 248


def load(chip: Silicon, known: Known, address: int, arguments: int, vga: int) -> Booted:
    """Checks everything, and copies what it was told to the begin of WPR2. Raises Halt.

    `arguments` is what GSP's mailbox holds, `vga` where the VBIOS keeps its work space.
    """
    if address % PAGE or not address:
        raise Halt(f"WPR meta at {address:#x}, not at a page")
    meta = read_meta(chip, address)
    for why in _why_meta(chip, known, meta, vga):
        raise Halt(f"WPR meta: {why}")
    check_images(chip, known, meta)
    frts, start = chip.wpr2, meta["gspFwWprStart"]
    data = bytearray(chip.fetch(address, _META_BYTES, "WPR meta"))
    data[_VERIFIED_AT:] = _VERIFIED.to_bytes(8, "little")
    chip.vram.store(start, bytes(data))
    heap = range(meta["nonWprHeapOffset"], meta["nonWprHeapOffset"] + meta["nonWprHeapSize"])
    return Booted(arguments, range(start, frts.stop), frts, heap)


def _why_meta(chip: Silicon, known: Known, meta: dict[str, int], vga: int) -> Iterator[str]:
    frts = chip.wpr2
    wanted = {
        "fbSize": chip.vram.size,
        "frtsOffset": frts.start,
        "frtsSize": len(frts),
        "gspFwWprEnd": frts.stop,
        "gspFwRsvdStart": meta["nonWprHeapOffset"],
        "pmuReservedSize": chip.board.pmu_reserved,
        "flags": meta["flags"] & _BOOST,
    }
    yield from why_meta(known, meta, wanted)
    workspace = meta["vgaWorkspaceOffset"], meta["vgaWorkspaceSize"]
    if sum(workspace) != chip.vram.size or workspace[0] > vga:
        yield f"a VGA work space of {workspace[1]:#x} bytes at {workspace[0]:#x}: from {vga:#x} on"
    heap, least = meta["nonWprHeapSize"], chip.board.non_wpr_heap
    if heap < least:
        yield f"nonWprHeapSize is {heap:#x}: {least:#x} at least"
    yield from _why_places(meta)


def _why_places(meta: dict[str, int]) -> Iterator[str]:
    """What is not aligned, or reaches into what comes behind it."""
    parts = (
        ("nonWprHeapOffset", meta["nonWprHeapSize"], _MIB),
        ("gspFwWprStart", _META_BYTES, _WPR_ALIGNMENT),
        ("gspFwHeapOffset", meta["gspFwHeapSize"], _MIB),
        ("gspFwOffset", meta["sizeOfRadix3Elf"], _IMAGE_ALIGNMENT),
        ("bootBinOffset", meta["sizeOfBootloader"], PAGE),
        ("frtsOffset", meta["frtsSize"], _WPR_ALIGNMENT),
        ("vgaWorkspaceOffset", meta["vgaWorkspaceSize"], PAGE),
    )
    end, before = 0, "memory"
    for name, size, alignment in parts:
        if meta[name] % alignment:
            yield f"{name} is {meta[name]:#x}, not at {alignment:#x}"
        if meta[name] < end:
            yield f"{name} is {meta[name]:#x}, but what begins at {before} ends at {end:#x}"
        end, before = meta[name] + size, name
