"""GSP's first code: what it wants of the boot parameters, and how it lays video memory out.

gspifpub.h, gsp_fw_wpr_meta.h and kernel_gsp_gh100.c: on these chips a driver tells sizes, and the
FMC (its part ACR) chooses the places, from the end of memory down: VGA workspace, PMU, FRTS,
bootloader, RM, heap, then the heap that is not protected.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from gpu.core.bits import align_up
from gpu.sim.nv.pci.images import Known
from gpu.sim.nv.pci.silicon import Halt, Silicon
from gpu.sim.nv.pci.wprmeta import META_BYTES, PAGE, VGA, Booted, check_images, read_meta, why_meta

_PARAMS: Final = struct.Struct("<I4xIIQQIB3xI4xQI4xQI4x")  # GSP_FMC_BOOT_PARAMS
_CHOSEN: Final = (  # by the FMC
    *("gspFwRsvdStart", "nonWprHeapOffset", "gspFwWprStart", "gspFwHeapOffset", "gspFwOffset"),
    *("bootBinOffset", "frtsOffset", "gspFwWprEnd", "vgaWorkspaceOffset", "fbSize"),
)
_ALIGNMENT: Final = 128 << 10
_SYSTEM: Final = (1, 2)  # coherent or not


def boot(chip: Silicon, known: Known, address: int) -> Booted:
    """Checks everything and lays memory out. Raises Halt."""
    if address % PAGE:
        raise Halt(f"boot parameters at {address:#x}, not at a page")
    params = _PARAMS.unpack(chip.fetch(address, _PARAMS.size, "boot parameters"))
    for why in _why_params(params):
        raise Halt(f"boot parameters: {why}")
    place, arguments = params[3], params[8]
    meta = read_meta(chip, place)
    for why in _why_meta(chip, known, meta):
        raise Halt(f"WPR meta: {why}")
    check_images(chip, known, meta)
    return _lay_out(chip, meta, arguments)


def _why_params(params: tuple[int, ...]) -> Iterator[str]:
    """What is wrong with `GSP_FMC_BOOT_PARAMS`."""
    regkeys, target, size, _, carveout, carveout_size, is_rm, rm_target = params[:8]
    if regkeys or any(params[9:]):
        yield "regkeys and SPDM are of confidential computing"
    if target not in _SYSTEM:
        yield f"target {target} of WPR meta: system memory is 1 or 2"
    if size != META_BYTES:
        yield f"WPR meta has {size:#x} bytes, {META_BYTES:#x} wanted"
    if carveout or carveout_size:
        yield "the FMC chooses where WPR2 is"
    if is_rm != 1:
        yield "bIsGspRmBoot is not 1"
    if rm_target not in _SYSTEM:
        yield f"target {rm_target} of RM's arguments: system memory is 1 or 2"


def _why_meta(chip: Silicon, known: Known, meta: dict[str, int]) -> Iterator[str]:
    """What is wrong with `GspFwWprMeta`."""
    for name in _CHOSEN:
        if meta[name]:
            yield f"{name} is {meta[name]:#x}: the FMC chooses it, 0 is wanted"
    if meta["flags"]:
        yield f"flags is {meta['flags']:#x}, 0 wanted"
    wanted = {
        "frtsSize": len(chip.wpr2),
        "vgaWorkspaceSize": VGA,
        "pmuReservedSize": chip.board.pmu_reserved,
        "nonWprHeapSize": chip.board.non_wpr_heap,
    }
    yield from why_meta(known, meta, wanted)


def _lay_out(chip: Silicon, meta: dict[str, int], arguments: int) -> Booted:
    frts = chip.wpr2
    at = frts.start
    for size in (meta["sizeOfBootloader"], meta["sizeOfRadix3Elf"], meta["gspFwHeapSize"], PAGE):
        at = (at - size) & -PAGE
    start = (at & -_ALIGNMENT) - _ALIGNMENT
    heap = range(start - align_up(meta["nonWprHeapSize"], _ALIGNMENT), start)
    return Booted(arguments, range(start, frts.stop), frts, heap)
