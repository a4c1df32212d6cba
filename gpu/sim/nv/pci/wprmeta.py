"""What a driver tells of RM's image and of video memory: `GspFwWprMeta`, and what it points to.

gsp_fw_wpr_meta.h; kgspCreateRadix3_IMPL. Who reads it differs: the FMC where FSP starts GSP, booter
where a driver starts the falcons.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu.sim.nv.pci.images import Known
from gpu.sim.nv.pci.silicon import Halt, Silicon

MAGIC: Final = 0xDC3AAE21371A60B3
META_BYTES: Final = 256
VGA: Final = 128 << 10
_META: Final = struct.Struct("<26Q4IQ2I4BIQ")
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
_UNUSED: Final = (
    *("bootCount", "rpc0", "rpc1", "rpc2", "rpc3", "lsUcodeVersion", "gspFwHeapVfPartitionCount"),
    *("pad0", "pad1", "verified"),
)
_MIB, PAGE = 1 << 20, 4096
_LEAST_HEAP: Final = 88 * _MIB  # gsp_fw_heap.h


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


def read_meta(chip: Silicon, address: int) -> dict[str, int]:
    """Its fields by their names. Raises Halt."""
    data = chip.fetch(address, META_BYTES, "WPR meta")
    return dict(zip(_FIELDS, _META.unpack(data), strict=True))


def why_meta(known: Known, meta: dict[str, int], wanted: dict[str, int]) -> Iterator[str]:
    """What is wrong with it, whoever reads it; `wanted` are further fields by their values."""
    if meta["magic"] != MAGIC:
        yield f"magic {meta['magic']:#x}"
    if meta["revision"] != 1:
        yield f"revision {meta['revision']}, 1 wanted"
    for name in _UNUSED:
        if meta[name]:
            yield f"{name} is {meta[name]:#x}, 0 wanted"
    own = {
        "sizeOfRadix3Elf": known.image[0],
        "sizeOfBootloader": known.bootloader[0],
        "bootloaderCodeOffset": known.offsets[0],
        "bootloaderDataOffset": known.offsets[1],
        "bootloaderManifestOffset": known.offsets[2],
    }
    for name, size in (own | wanted).items():
        if meta[name] != size:
            yield f"{name} is {meta[name]:#x}, {size:#x} wanted"
    if meta["gspFwHeapSize"] < _LEAST_HEAP or meta["gspFwHeapSize"] % _MIB:
        yield f"gspFwHeapSize is {meta['gspFwHeapSize']:#x}: MiB, from {_LEAST_HEAP:#x} on"
    if meta["sizeOfSignature"] < len(known.signature):
        yield f"sizeOfSignature is {meta['sizeOfSignature']:#x} for {len(known.signature):#x}"
    for name in ("Radix3Elf", "Bootloader", "Signature", "CrashReportQueue"):
        if meta[f"sysmemAddrOf{name}"] % PAGE:
            yield f"sysmemAddrOf{name} is {meta[f'sysmemAddrOf{name}']:#x}, not at a page"
    queue = meta["sysmemAddrOfCrashReportQueue"], meta["sizeOfCrashReportQueue"]
    if bool(queue[0]) != bool(queue[1]):
        yield f"a queue of crash reports at {queue[0]:#x} with {queue[1]:#x} bytes"


def check_images(chip: Silicon, known: Known, meta: dict[str, int]) -> None:
    """Whether the bootloader, the signature and RM are what they should be. Raises Halt."""
    _check_bootloader(chip, known, meta)
    _check_signature(chip, known, meta)
    _check_image(chip, known, meta)


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
    counts = [-(-size // PAGE)]
    for _ in range(2):
        counts.insert(0, -(-counts[0] // (PAGE // 8)))
    pages = [meta["sysmemAddrOfRadix3Elf"]]
    for level, count in enumerate(counts):
        entries: list[int] = []
        for page in pages:
            table = chip.fetch(page, PAGE, f"level {level} of the image's tables")
            entries += struct.unpack("<512Q", table)
        for entry in entries[:count]:
            if entry % PAGE or not entry:
                raise Halt(f"the image's tables: level {level} has {entry:#x}, which is no page")
        pages = entries[:count]
    found, left = hashlib.sha256(), size
    for page in pages:
        found.update(chip.fetch(page, min(left, PAGE), "a page of the image"))
        left -= PAGE
    if found.digest() != digest:
        raise Halt("RM's image is not this release's")
