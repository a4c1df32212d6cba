"""What of a cubin goes into memory: its layout, and its bytes once the address is known.

Code lies behind data and banks, each function aligned to 256 bytes for prefetching. Behind it
`AFTER_CODE` bytes are kept: SMs fetch instructions ahead. Data that starts as zero is last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from gpu.core.bits import align_up, hi32, lo32
from gpu.core.elf import (
    SHN_ABS,
    SHN_UNDEF,
    SHT_NOBITS,
    STB_WEAK,
    ElfObject,
    ImplicitRelocation,
    Relocation,
    Section,
    Symbol,
)
from gpu.core.errors import FormatError, InvalidValue, Unsupported

IMAGE_ALIGN: Final = 256
AFTER_CODE: Final = 4096
MAX_ALIGN: Final = 4096
MAX_IMAGE: Final = 1 << 40
_ADDRESS_LIMIT: Final = 1 << 49
_MASK64: Final = (1 << 64) - 1


class RelocationType(IntEnum):
    """How a place is patched; numbers as ptxas writes them."""

    NONE = 0
    ABSOLUTE = 2  # 8 bytes
    GENERIC = 4  # 8 bytes; generic addresses of global memory are plain ones
    LOW = 0x38  # the low half, into the second word of an instruction
    HIGH = 0x39  # the high half, there


@dataclass(frozen=True, slots=True)
class Image:
    """Where sections lie.

    Attributes:
        offsets: by the section's index.
        size: bytes of memory that it takes.
        data_size: bytes of it that `link_image` gives; the others are zero.
    """

    offsets: Mapping[int, int]
    size: int
    data_size: int


def lay_out(data: Iterable[Section], code: Iterable[Section], zeros: Iterable[Section]) -> Image:
    """Places sections in that order. Raises FormatError for absurd alignments and sizes."""
    offsets: dict[int, int] = {}
    end = 0
    for section in (*data, *code):
        end = _place(section, end, offsets)
    data_size = end
    end += AFTER_CODE
    for section in zeros:
        end = _place(section, end, offsets)
    return Image(offsets, align_up(end, IMAGE_ALIGN), data_size)


def _place(section: Section, end: int, offsets: dict[int, int]) -> int:
    """Notes where a section begins, and gives where it ends."""
    if section.align > MAX_ALIGN:
        raise FormatError(
            f"{section.name} is aligned to {section.align:#x}: {MAX_ALIGN:#x} at most"
        )
    start = align_up(end, max(section.align, IMAGE_ALIGN))
    if start + section.size > MAX_IMAGE:
        raise FormatError(f"{section.name} of {section.size:#x} bytes makes it all too large")
    offsets[section.index] = start
    return start + section.size


def link_image(
    elf: ElfObject, image: Image, address: int, symbols: Mapping[str, int] | None = None
) -> bytes:
    """The bytes for memory at ``address``, a multiple of 4096; ``symbols`` are defined outside.

    Raises Unsupported for a kind of relocation that is not known and a symbol that nobody defines,
    FormatError for relocations outside of their section.
    """
    if address % MAX_ALIGN or not 0 <= address < _ADDRESS_LIMIT:
        raise InvalidValue(f"a cubin at {address:#x}: give a multiple of {MAX_ALIGN:#x}")
    out = bytearray(image.data_size)
    for index, offset in image.offsets.items():
        content = elf.sections[index].content
        out[offset : offset + len(content)] = content
    linker = _Linker(elf, image, address, symbols or {}, out)
    for relocation in elf.relocations:
        if relocation.section in image.offsets:
            linker.apply(relocation)
    return bytes(out)


class _Linker:
    """Applies relocations to the bytes of an image."""

    def __init__(
        self,
        elf: ElfObject,
        image: Image,
        address: int,
        outside: Mapping[str, int],
        out: bytearray,
    ):
        self._elf = elf
        self._image = image
        self._address = address
        self._outside = outside
        self._out = out

    def apply(self, relocation: Relocation) -> None:
        section = self._elf.sections[relocation.section]
        symbol = self._elf.symbols[relocation.symbol]
        where = (
            f"relocation {relocation.type:#x} at {section.name}+{relocation.offset:#x}"
            f" to {symbol.name!r}"
        )
        try:
            kind = RelocationType(relocation.type)
        except ValueError:
            raise Unsupported(
                f"{where} is of a kind that is not known here: functions that are called, textures"
                " and debug builds need others; build whole programs with optimisation"
            ) from None
        if kind is RelocationType.NONE:
            return
        layout = "<Q" if kind in (RelocationType.ABSOLUTE, RelocationType.GENERIC) else "<I"
        skip = 0 if layout == "<Q" else 4
        if section.type == SHT_NOBITS or not 0 <= relocation.offset <= section.size - 8:
            raise FormatError(f"{where} is outside of it, of {section.size:#x} bytes")
        at = self._image.offsets[section.index] + relocation.offset + skip
        addend = relocation.addend
        if isinstance(relocation, ImplicitRelocation):
            addend = struct.unpack_from(layout, self._out, at)[0]
            if addend and layout == "<I":
                raise Unsupported(f"{where} has the addend {addend:#x} in an instruction")
        value = self._resolve(symbol, where) + addend & _MASK64
        word = {RelocationType.LOW: lo32(value), RelocationType.HIGH: hi32(value)}.get(kind, value)
        struct.pack_into(layout, self._out, at, word)

    def _resolve(self, symbol: Symbol, where: str) -> int:
        if symbol.section == SHN_ABS:
            return symbol.value
        if symbol.section == SHN_UNDEF:
            if symbol.name in self._outside:
                return self._outside[symbol.name]
            if symbol.binding == STB_WEAK:
                return 0
            raise Unsupported(f"{where}: nothing here provides that function or variable")
        start = self._image.offsets.get(symbol.section)
        if start is None:
            raise Unsupported(f"{where}: that lies in no section that is loaded")
        section = self._elf.sections[symbol.section]
        if symbol.value > section.size:
            raise FormatError(f"{where}: that is at {symbol.value:#x} of {section.name}")
        return self._address + start + symbol.value
