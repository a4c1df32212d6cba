"""What of a cubin goes into memory: its layout, and its bytes once the address is known.

Code lies behind data and banks, each function aligned to 256 bytes for prefetching. Behind it
`AFTER_CODE` bytes are kept: SMs fetch instructions ahead. Data that starts as zero is last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from gpu.core.bits import align_up, bits, insert, mask
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
    """How a place is patched; numbers as ptxas writes them.

    In brackets what NVIDIA's tools call those that code calls functions with.
    """

    NONE = 0
    ABSOLUTE = 2
    GENERIC = 4  # generic addresses of global memory are plain ones
    LOW = 0x38  # the low half, into the second word of an instruction
    HIGH = 0x39  # the high half, there
    CALL = 0x3A  # up to sm_89 (R_CUDA_ABS47_34)
    CALL_FAR = 0x4B  # from sm_90 on (R_CUDA_ABS55_16_34)
    CALL_FARTHER = 0x72  # R_CUDA_ABS56_16_34


class Part(NamedTuple):
    """Bits of a place, from ``position`` on: the value's from ``shift`` on, ``width`` of them."""

    position: int
    width: int
    shift: int


_PARTS: Final[dict[RelocationType, tuple[Part, ...]]] = {
    RelocationType.ABSOLUTE: (Part(0, 64, 0),),
    RelocationType.GENERIC: (Part(0, 64, 0),),
    RelocationType.LOW: (Part(32, 32, 0),),
    RelocationType.HIGH: (Part(32, 32, 32),),
    RelocationType.CALL: (Part(34, 47, 2),),
    RelocationType.CALL_FAR: (Part(16, 8, 2), Part(34, 47, 10)),
    RelocationType.CALL_FARTHER: (Part(16, 8, 2), Part(34, 48, 10)),
}
_DATA: Final = (RelocationType.ABSOLUTE, RelocationType.GENERIC)
_CALLS: Final = (RelocationType.CALL, RelocationType.CALL_FAR, RelocationType.CALL_FARTHER)
_INSTRUCTION: Final = 16  # bytes that a call is patched in; others are in 8


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


def _found(word: int, kind: RelocationType) -> int:
    """The value in a place."""
    return sum(
        bits(word, part.position + part.width - 1, part.position) << part.shift
        for part in _PARTS[kind]
    )


def _patched(word: int, kind: RelocationType, value: int) -> int:
    """A place with a value."""
    for part in _PARTS[kind]:
        high = part.position + part.width - 1
        field = value >> part.shift & mask(part.width - 1)
        word = insert(word, high, part.position, field)
    return word


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
                f"{where} is of a kind that is not known here: textures and debug builds need"
                " others; build with optimisation"
            ) from None
        if kind is RelocationType.NONE:
            return
        size = _INSTRUCTION if kind in _CALLS else 8
        if section.type == SHT_NOBITS or not 0 <= relocation.offset <= section.size - size:
            raise FormatError(f"{where} is outside of it, of {section.size:#x} bytes")
        start = self._image.offsets[section.index] + relocation.offset
        place = slice(start, start + size)
        word, addend = int.from_bytes(self._out[place], "little"), relocation.addend
        if isinstance(relocation, ImplicitRelocation):
            addend = _found(word, kind)
            if addend and kind not in _DATA:
                raise Unsupported(f"{where} has the addend {addend:#x} in an instruction")
        value = self._resolve(symbol, where) + addend & _MASK64
        self._out[place] = _patched(word, kind, value).to_bytes(size, "little")

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
