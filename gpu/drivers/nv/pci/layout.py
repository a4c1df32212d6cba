"""How video memory is divided before GSP's firmware starts, and what it is told of that.

On Hopper and Blackwell the firmware lays out by itself, from sizes; on Ampere and Ada we do, from
the end of memory down:

    VGA workspace | FRTS | bootloader | RM's image | heap | WPR meta | heap outside of WPR2 | free
                  ^ end of WPR2, 128 KiB aligned          ^ start of WPR2

Sources: kgspCalculateFbLayout_{TU102,GH100}, kgspGetFwHeapSize and gsp_fw_heap.h of
open-gpu-kernel-modules at tag 570.144.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import gsp
from gpu.core.bits import align_down, align_up
from gpu.core.errors import Unsupported
from gpu.drivers.nv.pci.chips import Chip, Way
from gpu.drivers.nv.pci.images import Bootloader

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
FRTS_SIZE: Final = _MIB
VGA_WORKSPACE: Final = 0x2_0000
_PRAMIN: Final = 0x10_0000
_PRESCRUBBED: Final = 256 * _MIB  # what the card's own firmware has cleared, at the end
_WPR_ALIGN: Final = 0x2_0000
_IMAGE_ALIGN: Final = 0x1_0000


@dataclass(frozen=True, slots=True)
class Placed:
    """Where GSP's parts are in the machine's memory, as it finds them.

    Attributes:
        image: the first table of RM's image, which has ``image_size`` bytes.
        bootloader: the code that starts it.
        signature: of RM's image, with ``signature_size`` bytes.
    """

    image: int
    image_size: int
    bootloader: int
    signature: int
    signature_size: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """Where the end of video memory is somebody else's, on Ampere and Ada; None for nobody's.

    Attributes:
        vga: where a VBIOS draws to.
        locked: from where on a VBIOS has locked it.
    """

    vga: int | None = None
    locked: int | None = None


def heap_size(chip: Chip, vram_size: int, most: int | None = None) -> int:
    """Bytes of the firmware's heap: for RM, for so much memory, for its clients' channels."""
    gigabytes = -(-vram_size // _GIB)
    wanted = (
        gsp.GSP_FW_HEAP_PARAM_OS_SIZE_LIBOS3_BAREMETAL
        + chip.heap_base
        + align_up(gsp.GSP_FW_HEAP_PARAM_SIZE_PER_GB_FB * gigabytes, _MIB)
        + align_up(gsp.GSP_FW_HEAP_PARAM_CLIENT_ALLOC_SIZE, _MIB)
    )
    wanted = max(wanted, gsp.GSP_FW_HEAP_SIZE_OVERRIDE_LIBOS3_BAREMETAL_MIN_MB * _MIB)
    return wanted if most is None else min(wanted, align_down(most, _MIB))


def make_wpr_meta(
    chip: Chip,
    vram_size: int,
    placed: Placed,
    bootloader: Bootloader,
    reserved: Reserved = Reserved(),
) -> gsp.GspFwWprMeta:
    """What the firmware is told. Raises Unsupported where video memory is too small for it."""
    meta = gsp.GspFwWprMeta(
        magic=gsp.GSP_FW_WPR_META_MAGIC,
        revision=gsp.GSP_FW_WPR_META_REVISION,
        sysmemAddrOfRadix3Elf=placed.image,
        sizeOfRadix3Elf=placed.image_size,
        sysmemAddrOfBootloader=placed.bootloader,
        sizeOfBootloader=len(bootloader.image),
        bootloaderCodeOffset=bootloader.code_offset,
        bootloaderDataOffset=bootloader.data_offset,
        bootloaderManifestOffset=bootloader.manifest_offset,
        sysmemAddrOfSignature=placed.signature,
        sizeOfSignature=placed.signature_size,
        frtsSize=FRTS_SIZE,
        nonWprHeapSize=chip.non_wpr_heap,
    )
    if chip.way is Way.FSP:
        meta.vgaWorkspaceSize = VGA_WORKSPACE
        meta.gspFwHeapSize = heap_size(chip, vram_size)
        meta.pmuReservedSize = chip.pmu_reserve
    else:
        _lay_out(meta, chip, vram_size, reserved)
    return meta


def _lay_out(meta: gsp.GspFwWprMeta, chip: Chip, vram_size: int, reserved: Reserved) -> None:
    """Fills in all offsets, from the end of video memory down."""
    meta.fbSize = vram_size
    if reserved.vga is None:
        meta.vgaWorkspaceOffset = vram_size - _PRAMIN
    elif reserved.vga < vram_size - _PRAMIN:
        meta.vgaWorkspaceOffset = vram_size - VGA_WORKSPACE
    else:
        meta.vgaWorkspaceOffset = min(reserved.vga, vram_size)
    meta.vgaWorkspaceSize = vram_size - meta.vgaWorkspaceOffset
    end = meta.vgaWorkspaceOffset
    if reserved.locked is not None:
        end = min(end, reserved.locked)
    parts = meta.frtsSize + meta.sizeOfBootloader + meta.sizeOfRadix3Elf
    if end < parts + _WPR_ALIGN + _IMAGE_ALIGN:  # below, offsets would wrap
        raise Unsupported(
            f"the VBIOS leaves the first {end:#x} bytes of {vram_size >> 20} MiB of video memory,"
            f" too few for GSP's firmware, which has {parts:#x}"
        )
    meta.gspFwWprEnd = align_down(end, _WPR_ALIGN)
    meta.frtsOffset = meta.gspFwWprEnd - meta.frtsSize
    meta.bootBinOffset = align_down(meta.frtsOffset - meta.sizeOfBootloader, 0x1000)
    meta.gspFwOffset = align_down(meta.bootBinOffset - meta.sizeOfRadix3Elf, _IMAGE_ALIGN)
    before = align_up(ctypes.sizeof(meta), _MIB) + meta.nonWprHeapSize
    behind = align_up(vram_size - meta.gspFwOffset, _MIB)
    # Without a scrubber only what the card's own firmware has cleared may be protected.
    most = None if chip.scrubbed else _PRESCRUBBED - before - behind
    size = heap_size(chip, vram_size, most)
    if size <= 0 or meta.gspFwOffset - size - before < 0:
        raise Unsupported(
            f"{vram_size >> 20} MiB of video memory are too few for GSP's firmware, which wants"
            f" {(before + behind + size) >> 20} MiB"
        )
    meta.gspFwHeapOffset = align_down(meta.gspFwOffset - size, _MIB)
    meta.gspFwHeapSize = align_down(meta.gspFwOffset - meta.gspFwHeapOffset, _MIB)
    meta.gspFwWprStart = meta.gspFwHeapOffset - align_up(ctypes.sizeof(meta), _MIB)
    meta.nonWprHeapOffset = meta.gspFwWprStart - meta.nonWprHeapSize
    meta.gspFwRsvdStart = meta.nonWprHeapOffset
