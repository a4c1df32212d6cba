"""Made-up firmware in true containers, and what the card knows of images: their hashes.

Firmware is signed code that no model can run, so the model takes what it knows and acts as that
would. It knows the images of the files that a machine is given: those made here, or real ones.
Containers: ELF files as kernel_gsp.c and Linux's nouveau, gsp/gh100.c and gsp/tu102.c, read them;
nvfw/fw.h, nvfw/hs.h; rmRiscvUcode.h; nouveau/extract-firmware-nouveau.py. Numbers of ucodes are
made up, as are the versions of fuses that images are signed for (U). Contents are random bytes that
differ from chip to chip.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gpu.core.files import atomic_write
from gpu.sim.nv.pci.boards import BOARDS, Board, FalconFacts, FspFacts, find_board
from gpu.sim.nv.pci.signed import SIGNATURE_BYTES, Engine, Signed

VERSION: Final = "570.144"
GSP_NAME: Final = f"nvidia/ga102/gsp/gsp-{VERSION}.bin"
"""One file serves all chips; each has a signature of its own in it."""
APP_VERSION: Final = 0x23A51E07
_IMAGE_BYTES, _FMC_BYTES, _BOOTLOADER_BYTES = 0x10E40, 0x2468, 0x1A00
_SIGNATURE_BYTES: Final = 4096
_FMC_FLAGS: Final = 0xF0000000 | 0x0FF00000 | 0x100 | 2  # PROC, OS, NONCONFORMING, ALLOC
_PROGBITS, _STRTAB, _STRINGS = 1, 3, 0x20
_BIN_MAGIC: Final = 0x10DE
_CODE, _DATA, _MANIFEST = 0x0, 0x1200, 0x1800  # of the made bootloader


class Fmc(NamedTuple):
    """The first code of GSP: how long it is, and what signs it."""

    size: int
    key: bytes
    signature: bytes


class Known(NamedTuple):
    """The images that a card takes.

    Attributes:
        fmcs: by their SHA-384, where FSP starts GSP.
        signed: for SEC2, where a driver does.
        image: bytes and SHA-256 of RM's.
        signature: what signs that for this chip.
        bootloader: bytes and SHA-256.
        offsets: of the bootloader's code, data and manifest.
        app_version: of the bootloader.
    """

    fmcs: Mapping[bytes, Fmc]
    signed: tuple[Signed, ...]
    image: tuple[int, bytes]
    signature: bytes
    bootloader: tuple[int, bytes]
    offsets: tuple[int, int, int]
    app_version: int


def names(board: Board) -> tuple[str, ...]:
    """The files that a card needs: RM, its bootloader, the FMC or what is for SEC2."""
    folder = f"nvidia/{board.name}/gsp"
    parts = ("fmc",) if isinstance(board.start, FspFacts) else _for_sec2(board.start)
    return GSP_NAME, *(f"{folder}/{part}-{VERSION}.bin" for part in ("bootloader", *parts))


def facts_of(board: Board) -> FspFacts:
    """What FSP wants of a board that has it."""
    assert isinstance(board.start, FspFacts)
    return board.start


def _for_sec2(facts: FalconFacts) -> tuple[str, ...]:
    return tuple(_UCODES)[: 2 + facts.has_scrubber]


def make_images(board: Board, image_bytes: int = _IMAGE_BYTES) -> dict[str, bytes]:
    """The files that a driver of a card may ask for, by their names; RM's has so many bytes."""
    image, bootloader, *others = names(board)
    made = {image: _make_gsp(image_bytes), bootloader: _make_bootloader(board)}
    if isinstance(board.start, FspFacts):
        return made | {others[0]: _make_fmc(board, board.start)}
    kinds = _for_sec2(board.start)
    return made | {
        name: _make_signed(board, kind) for name, kind in zip(others, kinds, strict=True)
    }


def write_images(folder: Path, chip: str) -> dict[str, str]:
    """Writes the files of a chip below `folder`; the SHA-256 of each by its name."""
    hashes = {}
    for name, data in make_images(find_board(chip)).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, data)
        hashes[name] = hashlib.sha256(data).hexdigest()
    return hashes


def learn(board: Board, files: Mapping[str, bytes]) -> Known:
    """What a card knows of files. Raises KeyError for one that is missing, or a section."""
    image_file, bootloader_file, *others = (files[name] for name in names(board))
    rm, fmcs = sections(image_file), {}
    signed: tuple[Signed, ...] = ()
    if isinstance(board.start, FspFacts):
        fmc = sections(others[0])
        known = Fmc(len(fmc["image"]), fmc["publickey"], fmc["signature"])
        fmcs = {hashlib.sha384(fmc["image"]).digest(): known}
    else:
        kinds = _for_sec2(board.start)
        signed = tuple(_learn_signed(kind, data) for kind, data in zip(kinds, others, strict=True))
    magic, _, _, header, at, size = struct.unpack_from("<6I", bootloader_file)
    assert magic == _BIN_MAGIC, f"{magic:#x} begins no file of firmware"
    descriptor = struct.unpack_from("<21I", bootloader_file, header)
    bootloader = bootloader_file[at : at + size]
    return Known(
        fmcs,
        signed,
        _identity(rm[".fwimage"]),
        rm[f".fwsignature_{board.family}"],
        _identity(bootloader),
        (descriptor[12], descriptor[10], descriptor[8]),
        descriptor[7],
    )


def sections(data: bytes) -> dict[str, bytes]:
    """The sections of an ELF file, of 32 or 64 bits, by their names."""
    wide = data[4] == 2
    start = struct.unpack_from("<Q", data, 0x28)[0] if wide else _u32(data, 0x20)
    size, count, index = struct.unpack_from("<3H", data, 0x3A if wide else 0x2E)
    places = []
    for number in range(count):
        at = start + number * size
        where = struct.unpack_from("<QQ", data, at + 0x18) if wide else (0, 0)
        offset, length = where if wide else struct.unpack_from("<II", data, at + 0x10)
        places.append((_u32(data, at), data[offset : offset + length]))
    text = places[index][1]
    return {text[name : text.index(b"\0", name)].decode(): part for name, part in places}


def _u32(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")


def _identity(data: bytes) -> tuple[int, bytes]:
    return len(data), hashlib.sha256(data).digest()


def _random(seed: str, size: int) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(size)


def _make_gsp(size: int) -> bytes:
    """ELF64 with RM, and a signature for each family."""
    parts = {".fwversion": VERSION.encode() + b"\0", ".fwimage": _random("RM", size)}
    for family in sorted(board.family for board in BOARDS.values()):
        parts[f".fwsignature_{family}"] = _random(f"RM for {family}", _SIGNATURE_BYTES)
    parts[".shstrtab"] = _names(parts)
    text, at, body, table = parts[".shstrtab"], 64, b"", bytes(64)
    for name, data in parts.items():
        kind = _STRTAB if name == ".shstrtab" else _PROGBITS
        start = at + len(body)
        head = struct.pack("<IIQQQQIIQQ", _name(text, name), kind, 0, 0, start, len(data), *_END)
        table, body = table + head, body + data + bytes(-len(data) % 16)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    numbers = (1, 0xF3, 1, 0, 0, at + len(body), 0, 64, 0, 0, 64, len(parts) + 1, len(parts))
    return ident + struct.pack("<HHIQQQIHHHHHH", *numbers) + body + table


_END: Final = (0, 0, 16, 0)  # link, info, alignment, entry size


def _make_fmc(board: Board, facts: FspFacts) -> bytes:
    """ELF32 with the header that Linux's nouveau wants to the byte, and sums of its sections."""
    image = _random(f"FMC of {board.name}", _FMC_BYTES)
    parts = {
        "hash": hashlib.sha384(image).digest(),
        "publickey": _random(f"key of {board.name}", facts.key_bytes),
        "signature": _random(f"signature of {board.name}", facts.signature_bytes),
        "image": image,
    }
    text = _names({".shstrtab": b"", **parts})
    count = len(parts) + 2
    start = 52 + 40 * count
    table, body = bytes(40), b""
    for name, data in {".shstrtab": text, **parts}.items():
        own = name == ".shstrtab"
        kind, flags = (_STRTAB, _STRINGS) if own else (_PROGBITS, _FMC_FLAGS)
        crc = 0 if own else zlib.crc32(data)
        place = (0, start + len(body), len(data), 0, crc, 4, 0)
        table += struct.pack("<10I", _name(text, name), kind, flags, *place)
        body += data + bytes(-len(data) % 4)
    ident = b"\x7fELF\x01\x01\x01".ljust(16, b"\0")
    numbers = (0, 0, 1, 0, 0, 52, 0, 52, 0, 0, 40, count, 1)
    return ident + struct.pack("<HHIIIIIHHHHHH", *numbers) + table + body


def _make_bootloader(board: Board) -> bytes:
    """`nvfw_bin_hdr`, `RM_RISCV_UCODE_DESC` and the image."""
    image = _random(f"bootloader of {board.name}", _BOOTLOADER_BYTES)
    sizes = (_MANIFEST, 0x200, _DATA, 0x600, _CODE, 0x1200)
    descriptor = struct.pack("<21I", 5, *(0,) * 6, APP_VERSION, *sizes, 1, *(0,) * 6)
    header, at = 24, 0x100
    head = struct.pack("<6I", _BIN_MAGIC, 1, at + len(image), header, at, len(image))
    return (head + descriptor).ljust(at, b"\0") + image


_UCODES: Final = {"booter_load": 3, "booter_unload": 4, "scrubber": 6}
_SIGNATURES: Final = 3  # of each, for fuse versions 2, 1 and 0
_APP_AT, _APP_BYTES, _DATA_AT, _DATA_BYTES, _PATCH_AT = 0x100, 0x1500, 0x1600, 0xA00, 0x1700


def _make_signed(board: Board, kind: str) -> bytes:
    """`nvfw_bin_hdr`, `nvfw_hs_header_v2`, what that points to, and the image."""
    image = bytearray(_random(f"{kind} of {board.name}", _DATA_AT + _DATA_BYTES))
    image[_PATCH_AT : _PATCH_AT + SIGNATURE_BYTES] = bytes(SIGNATURE_BYTES)
    signatures = _random(f"signatures of {kind} of {board.name}", _SIGNATURES * SIGNATURE_BYTES)
    at = 60 + len(signatures)
    head = (60, len(signatures), at, at + 4, at + 8, 12, at + 20, at + 24, 36)
    patch = (_PATCH_AT, 0, 0, Engine.SEC2.value, _UCODES[kind], _SIGNATURES)
    load = (0, _APP_AT, _DATA_AT, _DATA_BYTES, 1, _APP_AT, _APP_BYTES, 0, 0)
    body = struct.pack("<9I", *head) + signatures + struct.pack("<15I", *patch, *load)
    start = 24 + len(body)
    size = start + len(image)
    first = struct.pack("<6I", _BIN_MAGIC, 1, size + -size % 256, 24, start, len(image))
    return first + body + bytes(image)


def _learn_signed(kind: str, data: bytes) -> Signed:
    magic, _, _, header, at, size = struct.unpack_from("<6I", data)
    assert magic == _BIN_MAGIC, f"{magic:#x} begins no file of firmware"
    places = struct.unpack_from("<9I", data, header)
    patch, _ = (_u32(data, place) for place in places[2:4])
    _, engine, ucode = struct.unpack_from("<3I", data, places[4])
    count, step = _u32(data, places[6]), places[1] // _u32(data, places[6])
    load = struct.unpack_from("<9I", data, places[7])
    image = data[at : at + size]
    return Signed(
        *(kind, Engine(engine), ucode, image[load[5] : load[5] + load[6]]),
        *(image[load[2] : load[2] + load[3]], load[5], patch - load[2]),
        {
            count - 1 - n: data[places[0] + n * step : places[0] + (n + 1) * step]
            for n in range(count)
        },
    )


def _names(parts: Mapping[str, bytes]) -> bytes:
    own = {**parts, ".shstrtab": b""}
    return b"\0" + b"\0".join(name.encode() for name in own) + b"\0"


def _name(text: bytes, name: str) -> int:
    return text.index(b"\0" + name.encode() + b"\0") + 1
