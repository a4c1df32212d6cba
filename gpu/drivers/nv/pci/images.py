"""Firmware files of NVIDIA's, taken apart: GSP's image, its loader, the FMC, code for Falcons.

All that a file says is checked before it is used. Sources: open-gpu-kernel-modules at tag 570.144,
kernel_gsp.c (_kgspFwContainer*), kernel_gsp_booter.c; Linux's nouveau, gsp/gh100.c (the FMC's ELF
file), include/nvfw/*.h. That an FMC's hash is the SHA-384 of its image was seen of the files for
gh100, gb100 and gb202 (M).
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from gpu.autogen.nv import gsp, ucode
from gpu.core.elf import parse_sections
from gpu.core.errors import FormatError, Unsupported
from gpu.drivers.nv.pci.chips import Chip

_HASH_SIZE: Final = 48  # SHA-384
_ELF32: Final = struct.Struct("<16sHHIIIIIHHHHHH")
_SECTION32: Final = struct.Struct("<10I")
_IDENT32: Final = b"\x7fELF\x01\x01\x01"
_WORD: Final = struct.Struct("<I")
S = TypeVar("S", bound=ctypes.Structure)


@dataclass(frozen=True, slots=True)
class GspImage:
    """What RM's firmware file has for one family: the image, and its signature."""

    image: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Bootloader:
    """The code that starts RM's image, and where within it are its parts."""

    image: bytes
    code_offset: int
    data_offset: int
    manifest_offset: int
    app_version: int


@dataclass(frozen=True, slots=True)
class Fmc:
    """What FSP verifies and starts on GSP."""

    image: bytes
    hash: bytes
    key: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class FalconCode:
    """Signed code for a Falcon.

    Attributes:
        image: code and data, with room for a signature.
        code, data: offset and size of each within it.
        code_address: where the code begins to run, and is in its address space.
        patch: where within the image the signature goes.
        signatures: for versions of fuses, the newest last.
        versions: of which fuse version each signature is, as bits; 0 where only the newest counts.
        fuse_version: of the newest.
        engine_mask, ucode_id: whom the boot ROM asks for the fuse.
    """

    image: bytes
    code: tuple[int, int]
    data: tuple[int, int]
    code_address: int
    patch: int
    signatures: tuple[bytes, ...]
    versions: int
    fuse_version: int
    engine_mask: int
    ucode_id: int


def read(struct_type: type[S], data: bytes, offset: int, what: str) -> S:
    """A structure at an offset. Raises FormatError where the bytes end before it does."""
    size = ctypes.sizeof(struct_type)
    if offset + size > len(data):
        raise FormatError(
            f"{what}: {struct_type.__name__} at offset {offset:#x} needs {size} bytes,"
            f" there are {len(data):#x}"
        )
    return struct_type.from_buffer_copy(data, offset)


def cut(data: bytes, offset: int, size: int, what: str) -> bytes:
    """So many bytes at an offset. Raises FormatError where there are fewer."""
    if offset + size > len(data):
        raise FormatError(
            f"{what}: {size:#x} bytes at offset {offset:#x} of {len(data):#x} that are there"
        )
    return data[offset : offset + size]


def parse_gsp(data: bytes, chip: Chip) -> GspImage:
    """RM's firmware file, for a family. Raises FormatError; Unsupported for another version."""
    sections = {section.name: section.content for section in parse_sections(data)}
    for name in (".fwversion", ".fwimage", chip.signature_section):
        if not sections.get(name):
            raise FormatError(f"GSP firmware: there is no section {name}, or it is empty")
    version = sections[".fwversion"].rstrip(b"\0").decode("ascii", "backslashreplace")
    if version != gsp.VERSION:
        raise Unsupported(
            f"GSP firmware is of version {version[:32]!r}, this driver speaks {gsp.VERSION}:"
            " structures differ between versions"
        )
    return GspImage(sections[".fwimage"], sections[chip.signature_section])


def _file(data: bytes, what: str) -> tuple[ucode.nvfw_bin_hdr, bytes]:
    """The head of a file, and its data."""
    head = read(ucode.nvfw_bin_hdr, data, 0, what)
    if head.bin_magic != ucode.NVFW_BIN_MAGIC:
        raise FormatError(
            f"{what}: bin_magic at offset 0 is {head.bin_magic:#x}, not {ucode.NVFW_BIN_MAGIC:#x}"
        )
    return head, cut(data, head.data_offset, head.data_size, f"{what}: data_offset and data_size")


def parse_bootloader(data: bytes) -> Bootloader:
    """A bootloader's file. Raises FormatError."""
    what = "bootloader"
    head, image = _file(data, what)
    desc = read(ucode.RM_RISCV_UCODE_DESC, data, head.header_offset, what)
    for field in ("monitorCode", "monitorData", "manifest"):
        offset, size = getattr(desc, f"{field}Offset"), getattr(desc, f"{field}Size")
        cut(image, offset, size, f"{what}: {field}Offset and {field}Size")
    return Bootloader(
        image, desc.monitorCodeOffset, desc.monitorDataOffset, desc.manifestOffset, desc.appVersion
    )


def parse_fmc(data: bytes, chip: Chip) -> Fmc:
    """An FMC's file. Raises FormatError, also where a hash or a checksum is of other bytes."""
    found = dict(_sections32(data))
    sizes = {"hash": _HASH_SIZE, "publickey": chip.key_size, "signature": chip.signature_size}
    for name in (*sizes, "image"):
        if not found.get(name):
            raise FormatError(f"FMC: there is no section {name}, or it is empty")
    for name, size in sizes.items():
        if len(found[name]) != size:
            raise FormatError(
                f"FMC: section {name} has {len(found[name])} bytes, {chip.family} wants {size}"
            )
    if hashlib.sha384(found["image"]).digest() != found["hash"]:
        raise FormatError("FMC: section hash is not the SHA-384 of section image")
    return Fmc(found["image"], found["hash"], found["publickey"], found["signature"])


def _sections32(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the sections of a 32-bit ELF file, with their checksums checked."""
    if len(data) < _ELF32.size or not data.startswith(_IDENT32):
        raise FormatError(f"FMC: no 32-bit little-endian ELF file: it starts with {data[:7]!r}")
    head = _ELF32.unpack_from(data)
    start, entry, count, names_at = head[6], head[11], head[12], head[13]
    if entry != _SECTION32.size or names_at >= count:
        raise FormatError(
            f"FMC: e_shentsize is {entry} and e_shstrndx {names_at} of {count} sections"
        )
    table = cut(data, start, entry * count, "FMC: e_shoff")
    headers = list(_SECTION32.iter_unpack(table))
    contents = [
        cut(data, each[4], each[5], f"FMC: section {number}") if number else b""
        for number, each in enumerate(headers)
    ]
    names = contents[names_at]
    for number, (each, content) in enumerate(zip(headers, contents, strict=True)):
        end = names.find(b"\0", each[0])
        if each[0] >= len(names) or end < 0:
            raise FormatError(f"FMC: section {number}: no name at {each[0]:#x} of {len(names):#x}")
        name = names[each[0] : end].decode("ascii", "backslashreplace")
        if number and each[7] and zlib.crc32(content) != each[7]:
            raise FormatError(f"FMC: section {name}: its CRC-32 is not {each[7]:#x} (sh_info)")
        yield name, content


def parse_falcon(data: bytes, what: str) -> FalconCode:
    """A file of signed code for a Falcon. Raises FormatError."""
    head, image = _file(data, what)
    hs = read(ucode.nvfw_hs_header_v2, data, head.header_offset, what)
    load = read(ucode.nvfw_hs_load_header_v2, data, hs.header_offset, what)
    app_at = hs.header_offset + ctypes.sizeof(load)
    app = read(ucode.nvfw_hs_load_header_v2_app, data, app_at, what)
    (patch,) = _WORD.unpack(cut(data, hs.patch_loc, 4, f"{what}: patch_loc"))
    (first,) = _WORD.unpack(cut(data, hs.patch_sig, 4, f"{what}: patch_sig"))
    (count,) = _WORD.unpack(cut(data, hs.num_sig, 4, f"{what}: num_sig"))
    fuse, engine, ucode_id = struct.unpack(
        "<III", cut(data, hs.meta_data_offset, 12, f"{what}: meta_data_offset")
    )
    if not count or not hs.sig_prod_size or hs.sig_prod_size % count or load.num_apps != 1:
        raise FormatError(
            f"{what}: num_sig is {count} of {hs.sig_prod_size:#x} bytes, num_apps {load.num_apps}"
        )
    size = hs.sig_prod_size // count
    signed = cut(data, hs.sig_prod_offset + first, hs.sig_prod_size, f"{what}: sig_prod_offset")
    code, values = (app.offset, app.size), (load.os_data_offset, load.os_data_size)
    cut(image, *code, f"{what}: code")
    cut(image, *values, f"{what}: data")
    cut(image, patch, size, f"{what}: the place of the signature")
    if patch < values[0]:
        raise FormatError(f"{what}: its signature goes to {patch:#x}, data is at {values[0]:#x}")
    signatures = tuple(signed[at : at + size] for at in range(0, len(signed), size))
    return FalconCode(
        *(image, code, values, app.offset, patch, signatures, 0, fuse, engine, ucode_id)
    )
