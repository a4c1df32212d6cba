"""Made-up VBIOSes in true formats, as a ROM has them, with FWSEC in them.

A ROM may begin with what the chip reads itself (IFR, with a directory from version 3 on), then
comes a chain of PCI images (PCI Firmware Specification 3.0, chapter 5; NPDE for their true
lengths): the VBIOS, one for UEFI, and the VBIOS' own further ones. Addresses in it are as though
the further ones came right behind the first. BIT is a table of tables; that of falcons has FWSEC
(kernel_gsp_vbios_tu102.c, kernel_gsp_fwsec.c, kernel_gsp_frts_tu102.c, pci_exp_table.h).
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

from gpu.core.bits import align_up
from gpu.sim.nv.pci.boards import Board, FalconFacts
from gpu.sim.nv.pci.signed import SIGNATURE_BYTES, Engine, Signed

ROM_BYTES: Final = 1 << 20
FRTS, SB = 0x15, 0x19
_SECTOR: Final = 512
_HEADERS: Final = 0x60  # of an image: ROM header, PCI data structure, NPDE
_TABLE_BYTES: Final = 0x80
_BASE, _UEFI, _EXTENSION = 0x00, 0x03, 0xE0
_LAST: Final = 0x80
_UCODE_ID: Final = 9
_VERSIONS: Final = (0, 2, 3)  # of fuses, for which there are signatures
_ENTRY, _CODE_BYTES, _DATA_BYTES = 0x0, 0x900, 0x800
_INTERFACE, _MAPPER, _COMMANDS, _SIGNATURE = 0x40, 0x80, 0x200, 0x400
_COMMAND_BYTES: Final = 0x80
_INIT_CMD_AT: Final = 44
_BIOS_BYTES, _UEFI_BYTES = 0xA00, 0x300
_BIT_AT, _FALCON_DATA_AT = 0x1B0, 0x300


class Rom(NamedTuple):
    """What is in it.

    Attributes:
        data: all its bytes.
        fwsec: the falcon's code.
        command_at, buffer_at: where in its data it finds what it is to do, and with what.
    """

    data: bytes
    fwsec: Signed
    command_at: int
    buffer_at: int


def make_rom(board: Board) -> Rom:
    """The ROM of a board."""
    facts = board.start
    assert isinstance(facts, FalconFacts)
    fwsec = _make_fwsec(board)
    images = [
        (_BASE, _make_bios(board, _BIOS_BYTES + _HEADERS)),
        (_UEFI, _random(f"UEFI of {board.name}", _UEFI_BYTES)),
    ]
    images += [(_EXTENSION, each) for each in _make_ucodes(_BIOS_BYTES, fwsec, facts.extensions)]
    chain = b"".join(
        _make_image(board, kind, data, number == len(images) - 1)
        for number, (kind, data) in enumerate(images)
    )
    data = _make_ifr(facts.ifr, chain)
    return Rom(data.ljust(ROM_BYTES, b"\xff"), fwsec, _MAPPER + _INIT_CMD_AT, _COMMANDS)


def _random(seed: str, size: int) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(size)


def _make_fwsec(board: Board) -> Signed:
    """`FALCON_APPLICATION_INTERFACE_*` in its data, with the mapper of commands."""
    data = bytearray(_random(f"data of FWSEC of {board.name}", _DATA_BYTES))
    entries = ((0x1, 0x700), (0x4, _MAPPER))
    struct.pack_into("<4B", data, _INTERFACE, 1, 4, 8, len(entries))
    for number, entry in enumerate(entries):
        struct.pack_into("<II", data, _INTERFACE + 4 + 8 * number, *entry)
    places = (_COMMANDS, _COMMAND_BYTES, _COMMANDS + _COMMAND_BYTES, 0x40, 0, 0, 0)
    mapper = (0x50414D44, 3, 64, *places, 0x20200101, 0x1234, 0, 0, 1 << FRTS | 1 << SB, 0, 0)
    struct.pack_into("<IHH14I", data, _MAPPER, *mapper)
    data[_SIGNATURE : _SIGNATURE + SIGNATURE_BYTES] = bytes(SIGNATURE_BYTES)
    signatures = {
        version: _random(f"FWSEC of {board.name}, fuse version {version}", SIGNATURE_BYTES)
        for version in _VERSIONS
    }
    code = _random(f"FWSEC of {board.name}", _CODE_BYTES)
    command = _MAPPER + _INIT_CMD_AT
    return Signed(
        *("FWSEC", Engine.GSP, _UCODE_ID, code, bytes(data), _ENTRY, _SIGNATURE, signatures),
        changeable=(range(command, command + 4), range(_COMMANDS, _COMMANDS + _COMMAND_BYTES)),
    )


def _make_ucodes(first: int, fwsec: Signed, extensions: int) -> list[bytes]:
    """The falcons' table and FWSEC: what the further images have in them.

    Addresses are those of a VBIOS whose first image has `first` bytes: the table comes right behind
    the headers of the next.
    """
    signatures = b"".join(fwsec.signatures.values())
    size = 44 + len(signatures)
    versions = sum(1 << version for version in fwsec.signatures)
    stored = len(fwsec.code) + len(fwsec.data)
    descriptor = struct.pack(
        "<9IHBBHH",
        *(1 | 3 << 8 | size << 16, stored, fwsec.signature_at, _INTERFACE),
        *(0, len(fwsec.code), fwsec.entry, 0, len(fwsec.data)),
        *(fwsec.engine.value, fwsec.ucode_id, len(fwsec.signatures), versions, 0),
    )
    whole = descriptor + signatures + fwsec.code + fwsec.data
    end = align_up(_HEADERS + _TABLE_BYTES, _SECTOR)
    place = first + (_HEADERS + _TABLE_BYTES if extensions == 1 else end + _HEADERS)
    entries = ((0x01, 7, first + _HEADERS + 0x40), (0x45, 7, first + _HEADERS), (0x85, 7, place))
    table = struct.pack("<6B", 1, 6, 6, len(entries), 3, 44)
    table += b"".join(struct.pack("<BBI", *entry) for entry in entries)
    table = table.ljust(_TABLE_BYTES, b"\0")
    return [table + whole] if extensions == 1 else [table, whole]


def _make_image(board: Board, kind: int, data: bytes, last: bool) -> bytes:
    """An image with its headers; where the chain ends NPDE tells alone, the other says "here"."""
    whole = align_up(_HEADERS + len(data), _SECTOR)
    sectors, ids = whole // _SECTOR, board.ids
    head = bytearray(_HEADERS)
    head[:3] = 0x55, 0xAA, sectors
    struct.pack_into("<H", head, 0x18, 0x20)
    pcir = (b"PCIR", ids.vendor, ids.device, 0, 24, 3, b"\0\0\3", sectors, 1, kind, _LAST, 0)
    struct.pack_into("<4sHHHHB3sHHBBH", head, 0x20, *pcir)
    struct.pack_into("<4sHHHBB", head, 0x40, b"NPDE", 0x0101, 12, sectors, _LAST * last, 0)
    return (bytes(head) + data).ljust(whole, b"\0")


def _make_bios(board: Board, table: int) -> bytes:
    """The first image's contents: BIT, and what it points to."""
    head = _HEADERS
    data = bytearray(_random(f"VBIOS of {board.name}", _BIOS_BYTES - head))
    data[0x100 - head : _FALCON_DATA_AT + 8 - head] = bytes(_FALCON_DATA_AT + 8 - 0x100)
    # Something like a BIT whose sum is wrong comes first: it is none.
    data[0x120 - head : 0x12C - head] = b"\xff\xb8BIT\0\0\x01\x0c\x06\x01\x00"
    tokens = ((0x42, 2, 6, 0x280), (0x70, 1, 4, 0x200), (0x70, 2, 4, _FALCON_DATA_AT))
    bit = bytearray(b"\xff\xb8BIT\0\0\x01" + bytes((12, 6, len(tokens), 0)))
    bit[11] = -sum(bit) & 0xFF
    bit += b"".join(struct.pack("<BBHH", *token) for token in tokens)
    data[_BIT_AT - head : _BIT_AT - head + len(bit)] = bit
    struct.pack_into("<I", data, _FALCON_DATA_AT - head, table)
    return bytes(data)


def _make_ifr(version: int, chain: bytes) -> bytes:
    """What comes before the chain of images."""
    if version < 3:
        at, extended = 0x400, 0x20
        out = bytearray(at)
        struct.pack_into("<4sI", out, 0, b"NVGI", version << 8 | extended << 16)
        struct.pack_into("<II", out, extended, 0, at)
        return bytes(out) + chain
    total, status = 0x80, 0x1000
    directory = status + 0x1000
    at = directory + 0x400
    out = bytearray(at)
    struct.pack_into("<4sII", out, 0, b"NVGI", version << 8, total)
    struct.pack_into("<I", out, total, status)
    struct.pack_into("<4sII", out, directory, b"RFRD", 1, at)
    return bytes(out) + chain
