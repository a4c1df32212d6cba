"""The card's ROM: its images, the table of what the VBIOS has (BIT), and FWSEC's code within.

    IFR header? | image (0xAA55, PCIR, NPDE) | image | ...      BIT -> Falcon data -> table -> FWSEC

All of it is hostile until it is checked: every offset against the ROM's bytes. Pointers to Falcon
data count from the images as if those of other firmware (EFI) between were not there.

Sources: kernel_gsp_vbios_tu102.c, kernel_gsp_fwsec.c, kernel_gsp_frts_tu102.c and
pci_exp_table.h of open-gpu-kernel-modules at tag 570.144.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu.autogen.nv import ucode
from gpu.core.bits import align_up
from gpu.core.errors import FormatError
from gpu.drivers.nv.pci.images import FalconCode, cut, read

MAX_SIZE: Final = 1 << 20
_IFR: Final = 0x4947564E  # "NVGI"
_DIRECTORY: Final = 0x44524652  # "RFRD"
_IMAGE_SIGNATURES: Final = (0xAA55, 0xBB77, 0x4E56)
_PCI_SIGNATURES: Final = (b"PCIR", b"NPDS", b"RGIS")
_EXTENSION: Final = b"NPDE"
_BLOCK: Final = 512
_LAST: Final = 0x80
_BASE, _EXTENDED = 0x00, 0xE0  # code types
_BIT: Final = struct.pack("<H", 0xB8FF) + b"BIT\0"
_BIT_SIZE: Final = 12
_FALCON_DATA: Final = 0x70
_FWSEC: Final = (0x05, 0x85)  # applications of the table
_DESC_SIZE: Final = ctypes.sizeof(ucode.FALCON_UCODE_DESC_V3)
_DMEM_MAPPER: Final = 4
_MAPPER: Final = struct.Struct("<IHH12I")
_COMMAND_IN: Final = 8  # offset within it; then its size
_INIT_COMMAND: Final = 44
FRTS, SB = 0x15, 0x19
"""What FWSEC is told to do: to make FRTS in protected memory; to give the card back."""
_READ_VBIOS: Final = struct.pack("<IIQII", 1, 24, 0, 0, 2)
_MEDIA_FB: Final = 2
_FRTS_PAGES: Final = 0x100


@dataclass(frozen=True, slots=True)
class Vbios:
    """The ROM's images, from the first.

    Attributes:
        data: the bytes.
        gap: what is added to pointers to Falcon data.
        images: where in the ROM each is.
    """

    data: bytes
    gap: int
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True)
class Fwsec:
    """FWSEC's code, and where in its data its interface is described."""

    code: FalconCode
    interface: int


class Image(NamedTuple):
    """An image of the ROM: where it is, its bytes, what it is, and whether it is the last."""

    start: int
    size: int
    kind: int
    is_last: bool


def read_vbios(word: Callable[[int], int]) -> Vbios:
    """Reads the ROM; ``word`` gives the 32 bits at an offset. Raises FormatError."""
    rom = _Rom(word)
    start = 0
    if rom.get(0, 2) not in _IMAGE_SIGNATURES:
        start = _skip_ifr(rom)
        if rom.get(start, 2) not in _IMAGE_SIGNATURES:
            raise FormatError(f"VBIOS: no image at {start:#x}: {rom.get(start, 2):#x} is there")
    images = list(_images(rom, start))
    end = images[-1].start + images[-1].size
    base = next((image for image in images if image.kind == _BASE and image.size), None)
    extended = next((image for image in images[1:] if image.kind == _EXTENDED), None)
    gap = extended.start - start - base.size if base and extended else 0
    return Vbios(rom.load(start, end - start), gap, tuple(images))


class _Rom:
    """The ROM, read once where it is needed, by words."""

    def __init__(self, word: Callable[[int], int]):
        self._word = word
        self._seen: dict[int, bytes] = {}

    def load(self, start: int, size: int) -> bytes:
        """Bytes of it. Raises FormatError beyond its end."""
        if start < 0 or start + size > MAX_SIZE:
            raise FormatError(f"VBIOS: {size:#x} bytes at {start:#x}: the ROM has {MAX_SIZE:#x}")
        words = []
        for at in range(start - start % 4, start + size, 4):
            if at not in self._seen:
                self._seen[at] = self._word(at).to_bytes(4, "little")
            words.append(self._seen[at])
        return b"".join(words)[start % 4 :][:size]

    def get(self, start: int, size: int) -> int:
        """A number."""
        return int.from_bytes(self.load(start, size), "little")


def _skip_ifr(rom: _Rom) -> int:
    """Where the images begin behind the header with which a board's maker sets up the card."""
    if (found := rom.get(0, 4)) != _IFR:
        raise FormatError(f"VBIOS: offset 0 has neither an image nor an IFR header: {found:#x}")
    version = rom.get(5, 1)
    if version in (1, 2):
        start = rom.get((rom.get(4, 4) >> 16 & 0x7FFF) + 4, 4)
    elif version == 3:
        directory = rom.get(rom.get(8, 4) & 0xF_FFFF, 4) + 4096
        if (found := rom.get(directory, 4)) != _DIRECTORY:
            raise FormatError(f"VBIOS: no ROM directory at {directory:#x}: {found:#x} is there")
        start = rom.get(directory + 8, 4)
    else:
        raise FormatError(f"VBIOS: IFR header of version {version} at offset 5: 1 to 3 are known")
    if start % 4:
        raise FormatError(f"VBIOS: IFR says that images begin at {start:#x}, which is no word")
    return start


def _images(rom: _Rom, start: int) -> Iterator[Image]:
    """All images, until one says that it is the last. Raises FormatError."""
    is_last = False
    while not is_last:
        table = start + rom.get(start + 0x18, 2)
        if rom.load(table, 4) not in _PCI_SIGNATURES:
            raise FormatError(f"VBIOS: image at {start:#x}: no PCI data at {table:#x}")
        blocks, kind = rom.get(table + 0x10, 2), rom.get(table + 0x14, 1)
        is_last = bool(rom.get(table + 0x15, 1) & _LAST)
        extension = align_up(table + rom.get(table + 0xA, 2), 16)
        if rom.load(extension, 4) == _EXTENSION and rom.get(extension + 4, 2) in (0x100, 0x101):
            whole, blocks = blocks, rom.get(extension + 8, 2)
            if rom.get(extension + 6, 2) > 10:
                is_last = bool(rom.get(extension + 10, 1) & _LAST)
            elif blocks < whole:
                is_last = False
        if not blocks:
            raise FormatError(f"VBIOS: image at {start:#x} has no bytes")
        yield Image(start, blocks * _BLOCK, kind, is_last)
        start += blocks * _BLOCK


def find_fwsec(vbios: Vbios) -> Fwsec:
    """FWSEC's code in a VBIOS. Raises FormatError where there is none, or it is not whole."""
    for pointer in _falcon_tables(vbios.data):
        table = pointer + vbios.gap
        version, head, entry, count = cut(vbios.data, table, 4, "VBIOS: Falcon table")
        if version != 1 or head < 6 or entry < 6:
            continue
        for index in range(count):
            at = table + head + index * entry
            data = cut(vbios.data, at, 6, f"VBIOS: Falcon table's entry {index}")
            if data[0] in _FWSEC:
                return _parse_desc(vbios.data, int.from_bytes(data[2:], "little") + vbios.gap)
    raise FormatError("VBIOS: no entry of BIT leads to FWSEC")


def _falcon_tables(data: bytes) -> Iterator[int]:
    """What entries of BIT for Falcon data point to."""
    at = _find_bit(data)
    head, size, count = data[at + 8], data[at + 9], data[at + 10]
    if size < 6:
        raise FormatError(f"VBIOS: BIT at {at:#x} has entries of {size} bytes (TokenSize)")
    for index in range(count):
        token = cut(data, at + head + index * size, min(size, 8), f"VBIOS: BIT's entry {index}")
        length = int.from_bytes(token[2:4], "little")
        if token[0] == _FALCON_DATA and token[1] == 2 and length >= 4:
            pointer = int.from_bytes(token[4:8], "little")
            data_at = cut(data, pointer, 4, f"VBIOS: Falcon data of BIT's entry {index}")
            yield int.from_bytes(data_at, "little")


def _find_bit(data: bytes) -> int:
    """Where the table is whose head has the right sum; its mark may be elsewhere by chance."""
    at = data.find(_BIT)
    while at >= 0:
        if at + _BIT_SIZE <= len(data):
            head = data[at : at + data[at + 8]]
            if len(head) == data[at + 8] >= _BIT_SIZE and sum(head) & 0xFF == 0:
                return at
        at = data.find(_BIT, at + 1)
    raise FormatError("VBIOS: there is no BIT whose head has the sum 0")


def _parse_desc(data: bytes, at: int) -> Fwsec:
    what = f"FWSEC at {at:#x}"
    desc = read(ucode.FALCON_UCODE_DESC_V3, data, at, what)
    version, size = desc.vDesc >> 8 & 0xFF, desc.vDesc >> 16
    if not desc.vDesc & 1 or version != 3 or size < _DESC_SIZE:
        raise FormatError(f"{what}: vDesc is {desc.vDesc:#x}: version 3 is wanted")
    signed = cut(data, at + _DESC_SIZE, size - _DESC_SIZE, f"{what}: signatures")
    each = ucode.BCRT30_RSA3K_SIG_SIZE
    if desc.SignatureCount * each > len(signed) or not desc.SignatureCount:
        raise FormatError(f"{what}: SignatureCount {desc.SignatureCount} of {len(signed)} bytes")
    signatures = tuple(signed[n * each : (n + 1) * each] for n in range(desc.SignatureCount))
    image = cut(data, at + size, align_up(desc.StoredSize, 256), f"{what}: StoredSize")
    code, values = (0, desc.IMEMLoadSize), (desc.IMEMLoadSize, desc.DMEMLoadSize)
    cut(image, *code, f"{what}: IMEMLoadSize")
    dmem = cut(image, *values, f"{what}: DMEMLoadSize")
    cut(dmem, desc.PKCDataOffset, each, f"{what}: PKCDataOffset")
    if desc.SignatureVersions.bit_count() > desc.SignatureCount:
        raise FormatError(
            f"{what}: SignatureVersions is {desc.SignatureVersions:#x}, of {desc.SignatureCount}"
        )
    return Fwsec(
        FalconCode(
            *(image, code, values, desc.IMEMVirtBase, desc.IMEMLoadSize + desc.PKCDataOffset),
            *(signatures, desc.SignatureVersions, 0, desc.EngineIdMask, desc.UcodeId),
        ),
        desc.InterfaceOffset,
    )


def with_command(fwsec: Fwsec, command: int, frts_offset: int = 0) -> FalconCode:
    """FWSEC's code with a command in its data; FRTS goes to an offset in video memory.

    Raises FormatError where its data has no place for it.
    """
    code = fwsec.code
    start, size = code.data
    dmem = bytearray(code.image[start : start + size])
    mapper = _find_mapper(bytes(dmem), fwsec.interface)
    argument = _READ_VBIOS
    if command == FRTS:
        argument += struct.pack("<5I", 1, 20, frts_offset >> 12, _FRTS_PAGES, _MEDIA_FB)
    place, room = struct.unpack_from("<II", dmem, mapper + _COMMAND_IN)
    if room < len(argument):
        raise FormatError(f"FWSEC: cmd_in_buffer_size is {room}, {len(argument)} are wanted")
    cut(bytes(dmem), place, len(argument), "FWSEC: cmd_in_buffer_offset")
    struct.pack_into("<I", dmem, mapper + _INIT_COMMAND, command)
    dmem[place : place + len(argument)] = argument
    image = code.image[:start] + bytes(dmem) + code.image[start + size :]
    return FalconCode(
        *(image, code.code, code.data, code.code_address, code.patch, code.signatures),
        *(code.versions, code.fuse_version, code.engine_mask, code.ucode_id),
    )


def _find_mapper(dmem: bytes, interface: int) -> int:
    """Where in FWSEC's data its commands are described."""
    head = cut(dmem, interface, 4, "FWSEC: InterfaceOffset")
    for index in range(head[3]):
        entry = cut(dmem, interface + 4 + 8 * index, 8, f"FWSEC: interface {index}")
        kind, place = (int(word) for word in struct.unpack("<II", entry))
        if kind == _DMEM_MAPPER:
            cut(dmem, place, _MAPPER.size, "FWSEC: its DMEM mapper")
            return place
    raise FormatError(f"FWSEC: none of its {head[3]} interfaces is a DMEM mapper")
