"""GSP's first code: what it wants of the boot parameters, and how it lays video memory out.

gspifpub.h, gsp_fw_wpr_meta.h and kernel_gsp_gh100.c: on these chips a driver tells sizes, and the
FMC (its part ACR) chooses the places, from the end of memory down: VGA workspace, PMU, FRTS,
bootloader, RM, heap, then the heap that is not protected.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu.core.bits import align_up
from gpu.sim.nv.pci.images import Known
from gpu.sim.nv.pci.silicon import Halt, Silicon

MAGIC: Final = 0xDC3AAE21371A60B3
_PARAMS: Final = struct.Struct("<I4xIIQQIB3xI4xQI4xQI4x")  # GSP_FMC_BOOT_PARAMS
_META: Final = struct.Struct("<26Q4IQ2I4BIQ")  # GspFwWprMeta
_META_BYTES: Final = 256
_FIELDS: Final = (
    *("magic", "revision", "sysmemAddrOfRadix3Elf", "sizeOfRadix3Elf", "sysmemAddrOfBootloader"),
    *("sizeOfBootloader", "bootloaderCodeOffset", "bootloaderDataOffset"),
    *("bootloaderManifestOffset", "sysmemAddrOfSignature", "sizeOfSignature", "gspFwRsvdStart"),
    *("nonWprHeapOffset", "nonWprHeapSize", "gspFwWprStart", "gspFwHeapOffset", "gspFwHeapSize"),
    *("gspFwOffset", "bootBinOffset", "frtsOffset", "frtsSize", "gspFwWprEnd", "fbSize"),
    *("vgaWorkspaceOffset", "vgaWorkspaceSize", "bootCount", "rpc0", "rpc1", "rpc2", "rpc3"),
    *("sysmemAddrOfCrashReportQueue", "sizeOfCrashReportQueue", "lsUcodeVersion"),
    *("gspFwHeapVfPartitionCount", "flags", "pad0", "pad1", "pmuReservedSize", "verified"),
)
_CHOSEN: Final = (  # by the FMC
    *("gspFwRsvdStart", "nonWprHeapOffset", "gspFwWprStart", "gspFwHeapOffset", "gspFwOffset"),
    *("bootBinOffset", "frtsOffset", "gspFwWprEnd", "vgaWorkspaceOffset", "fbSize"),
)
_UNUSED: Final = (
    *("bootCount", "rpc0", "rpc1", "rpc2", "rpc3", "lsUcodeVersion", "gspFwHeapVfPartitionCount"),
    *("flags", "pad0", "pad1", "verified"),
)
_MIB, _PAGE = 1 << 20, 4096
_LEAST_HEAP: Final = 88 * _MIB  # gsp_fw_heap.h
_VGA: Final = 128 << 10
_ALIGNMENT: Final = 128 << 10
_SYSTEM: Final = (1, 2)  # coherent or not


class Booted(NamedTuple):
    """What RM starts with.

    Attributes:
        arguments: where libos' regions are listed.
        wpr2, frts, non_wpr_heap: parts of video memory.
    """

    arguments: int
    wpr2: range
    frts: range
    non_wpr_heap: range


def boot(chip: Silicon, known: Known, address: int) -> Booted:
    """Checks everything and lays memory out. Raises Halt."""
    if address % _PAGE:
        raise Halt(f"boot parameters at {address:#x}, not at a page")
    params = _PARAMS.unpack(chip.fetch(address, _PARAMS.size, "boot parameters"))
    for why in _why_params(params):
        raise Halt(f"boot parameters: {why}")
    place, arguments = params[3], params[8]
    data = chip.fetch(place, _META_BYTES, "WPR meta")
    meta = dict(zip(_FIELDS, _META.unpack(data), strict=True))
    for why in _why_meta(chip, known, meta):
        raise Halt(f"WPR meta: {why}")
    _check_bootloader(chip, known, meta)
    _check_signature(chip, known, meta)
    _check_image(chip, known, meta)
    return _lay_out(chip, meta, arguments)


def _why_params(params: tuple[int, ...]) -> Iterator[str]:
    """What is wrong with `GSP_FMC_BOOT_PARAMS`."""
    regkeys, target, size, _, carveout, carveout_size, is_rm, rm_target = params[:8]
    if regkeys or any(params[9:]):
        yield "regkeys and SPDM are of confidential computing"
    if target not in _SYSTEM:
        yield f"target {target} of WPR meta: system memory is 1 or 2"
    if size != _META_BYTES:
        yield f"WPR meta has {size:#x} bytes, {_META_BYTES:#x} wanted"
    if carveout or carveout_size:
        yield "the FMC chooses where WPR2 is"
    if is_rm != 1:
        yield "bIsGspRmBoot is not 1"
    if rm_target not in _SYSTEM:
        yield f"target {rm_target} of RM's arguments: system memory is 1 or 2"


def _why_meta(chip: Silicon, known: Known, meta: dict[str, int]) -> Iterator[str]:
    """What is wrong with `GspFwWprMeta`."""
    board = chip.board
    if meta["magic"] != MAGIC:
        yield f"magic {meta['magic']:#x}"
    if meta["revision"] != 1:
        yield f"revision {meta['revision']}, 1 wanted"
    for name in _CHOSEN:
        if meta[name]:
            yield f"{name} is {meta[name]:#x}: the FMC chooses it, 0 is wanted"
    for name in _UNUSED:
        if meta[name]:
            yield f"{name} is {meta[name]:#x}, 0 wanted"
    wanted = {
        "sizeOfRadix3Elf": known.image[0],
        "sizeOfBootloader": known.bootloader[0],
        "bootloaderCodeOffset": known.offsets[0],
        "bootloaderDataOffset": known.offsets[1],
        "bootloaderManifestOffset": known.offsets[2],
        "frtsSize": len(chip.wpr2),
        "vgaWorkspaceSize": _VGA,
        "pmuReservedSize": board.pmu_reserved,
        "nonWprHeapSize": board.non_wpr_heap,
    }
    for name, size in wanted.items():
        if meta[name] != size:
            yield f"{name} is {meta[name]:#x}, {size:#x} wanted"
    if meta["gspFwHeapSize"] < _LEAST_HEAP or meta["gspFwHeapSize"] % _MIB:
        yield f"gspFwHeapSize is {meta['gspFwHeapSize']:#x}: MiB, from {_LEAST_HEAP:#x} on"
    if meta["sizeOfSignature"] < len(known.signature):
        yield f"sizeOfSignature is {meta['sizeOfSignature']:#x} for {len(known.signature):#x}"
    for name in ("Radix3Elf", "Bootloader", "Signature", "CrashReportQueue"):
        if meta[f"sysmemAddrOf{name}"] % _PAGE:
            yield f"sysmemAddrOf{name} is {meta[f'sysmemAddrOf{name}']:#x}, not at a page"
    queue = meta["sysmemAddrOfCrashReportQueue"], meta["sizeOfCrashReportQueue"]
    if bool(queue[0]) != bool(queue[1]):
        yield f"a queue of crash reports at {queue[0]:#x} with {queue[1]:#x} bytes"


def _check_bootloader(chip: Silicon, known: Known, meta: dict[str, int]) -> None:
    size, digest = known.bootloader
    data = chip.fetch(meta["sysmemAddrOfBootloader"], size, "the bootloader")
    if hashlib.sha256(data).digest() != digest:
        raise Halt("the bootloader is not this release's")


def _check_signature(chip: Silicon, known: Known, meta: dict[str, int]) -> None:
    found = chip.fetch(meta["sysmemAddrOfSignature"], meta["sizeOfSignature"], "the signature")
    if not found.startswith(known.signature):
        raise Halt(f"the signature is not that of {chip.board.family}")


def _check_image(chip: Silicon, known: Known, meta: dict[str, int]) -> None:
    """Walks the tables of pages (kgspCreateRadix3_IMPL): three levels, then the image."""
    size, digest = known.image
    counts = [-(-size // _PAGE)]
    for _ in range(2):
        counts.insert(0, -(-counts[0] // (_PAGE // 8)))
    pages = [meta["sysmemAddrOfRadix3Elf"]]
    for level, count in enumerate(counts):
        entries: list[int] = []
        for page in pages:
            table = chip.fetch(page, _PAGE, f"level {level} of the image's tables")
            entries += struct.unpack("<512Q", table)
        for entry in entries[:count]:
            if entry % _PAGE or not entry:
                raise Halt(f"the image's tables: level {level} has {entry:#x}, which is no page")
        pages = entries[:count]
    found, left = hashlib.sha256(), size
    for page in pages:
        found.update(chip.fetch(page, min(left, _PAGE), "a page of the image"))
        left -= _PAGE
    if found.digest() != digest:
        raise Halt("RM's image is not this release's")


def _lay_out(chip: Silicon, meta: dict[str, int], arguments: int) -> Booted:
    frts = chip.wpr2
    at = frts.start
    for size in (meta["sizeOfBootloader"], meta["sizeOfRadix3Elf"], meta["gspFwHeapSize"], _PAGE):
        at = (at - size) & -_PAGE
    start = (at & -_ALIGNMENT) - _ALIGNMENT
    heap = range(start - align_up(meta["nonWprHeapSize"], _ALIGNMENT), start)
    return Booted(arguments, range(start, frts.stop), frts, heap)
