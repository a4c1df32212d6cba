"""A linker for AMD GPU kernels: one relocatable object becomes a code object that can be loaded.

A code object is a position-independent ELF shared object (LLVM, "User Guide for AMDGPU Backend",
"Code Object"). In ours every byte that is loaded lies at a file offset that is also its address, so
that the file itself, up to the end of its last segment, is the image: put it at a multiple of
`PAGE`, and nothing is left to relocate. Symbols and section headers follow for tools.
"""

from __future__ import annotations

import struct
from typing import Final

from gpu.compiler.targets.amd import CHIPS
from gpu.core import elf
from gpu.core.bits import align_up
from gpu.core.elf import ElfObject, Relocation, Section, Symbol
from gpu.core.elfwrite import MAX_SEGMENTS, Placed, shared_object
from gpu.core.errors import FormatError

PAGE: Final = 4096
_MACHINES: Final = frozenset(chip.machine for chip in CHIPS.values())
_ABIS: Final = (2, 3, 4)  # ELFABIVERSION_AMDGPU_HSA_V4 to V6, which differ in their metadata alone
_OSABI_HSA: Final = 64
_MACHINE_MASK: Final = 0xFF

# Relocation types ("Relocation Records"): what is stored at the place P for symbol S, addend A.
_REL32: Final = 4
_REL64: Final = 5
_REL32_LO: Final = 10
_REL32_HI: Final = 11
_FORMATS: Final = {
    _REL32: struct.Struct("<i"),
    _REL64: struct.Struct("<q"),
    _REL32_LO: struct.Struct("<I"),
    _REL32_HI: struct.Struct("<I"),
}


def link(data: bytes) -> bytes:
    """The code object of a relocatable object that depends on nothing else.

    Raises FormatError for a malformed object, one that is not AMD's, for symbols that are not
    defined and for relocations that depend on where the image lies.
    """
    found = elf.parse_object(data)
    _check_machine(found)
    header = align_up(elf.HEADER.size + MAX_SEGMENTS * elf.PROGRAM.size, 64)
    placed = _place(found, header)
    image = bytearray(max((p.address + p.section.size for p in placed), default=header))
    for p in placed:
        image[p.address : p.address + len(p.section.content)] = p.section.content
    places = {p.section.index: p for p in placed}
    for relocation in found.relocations:
        if relocation.section in places:
            _relocate(image, found, places, relocation)
    symbols = [
        (symbol, places[symbol.section].address + symbol.value)
        for symbol in found.symbols
        if symbol.binding != elf.STB_LOCAL and symbol.section in places
    ]
    return shared_object(found, bytes(image), placed, symbols, PAGE)


def _check_machine(found: ElfObject) -> None:
    if (found.machine, found.abi) != (elf.EM_AMDGPU, _OSABI_HSA) or found.abi_version not in _ABIS:
        raise FormatError(
            f"ELF machine {found.machine}, ABI {found.abi} version {found.abi_version}; code for"
            f" AMD's GPUs is {elf.EM_AMDGPU}, {_OSABI_HSA} version {_ABIS[0]} to {_ABIS[-1]}"
        )
    if found.flags & _MACHINE_MASK not in _MACHINES:
        raise FormatError(f"ELF flags {found.flags:#x} name no chip of {', '.join(CHIPS)}")


def _place(found: ElfObject, start: int) -> list[Placed]:
    """Where loaded sections go: what is only read first, then code, then data, on pages of their
    own.
    """
    placed: list[Placed] = []
    address = start
    kinds = (0, elf.SHF_EXECINSTR, elf.SHF_WRITE)
    for kind in kinds:
        if kind:
            address = align_up(address, PAGE)
        for section in found.sections:
            if section.flags & elf.SHF_ALLOC and section.size and _kind(section) == kind:
                if section.flags & elf.SHF_TLS or section.align > PAGE:
                    raise FormatError(
                        f"section {section.name}: flags {section.flags:#x}, alignment"
                        f" {section.align}: no thread-local data, at most {PAGE}"
                    )
                address = align_up(address, section.align)
                placed.append(Placed(section, address))
                address += section.size
                if address > 1 << 31:
                    raise FormatError(f"section {section.name} of {section.size:#x} bytes")
    return placed


def _kind(section: Section) -> int:
    kind = section.flags & (elf.SHF_EXECINSTR | elf.SHF_WRITE)
    if kind == elf.SHF_EXECINSTR | elf.SHF_WRITE:
        raise FormatError(f"section {section.name} is writable code")
    return kind


def _relocate(
    image: bytearray, found: ElfObject, places: dict[int, Placed], relocation: Relocation
) -> None:
    symbol = found.symbols[relocation.symbol]
    where = places[relocation.section]
    layout = _FORMATS.get(relocation.type)
    if layout is None:
        raise FormatError(
            f"relocation type {relocation.type} of symbol {symbol.name!r}: only those relative to"
            f" their place ({', '.join(map(str, _FORMATS))}) are resolved"
        )
    if relocation.offset + layout.size > len(where.section.content):
        raise FormatError(
            f"relocation at {relocation.offset:#x} of {where.section.name}, which has"
            f" {len(where.section.content):#x} bytes"
        )
    place = where.address + relocation.offset
    value = _address(symbol, places) + relocation.addend - place
    if relocation.type == _REL32_LO:
        value &= 0xFFFFFFFF
    elif relocation.type == _REL32_HI:
        value = value >> 32 & 0xFFFFFFFF
    try:
        layout.pack_into(image, place, value)
    except struct.error as error:
        raise FormatError(f"symbol {symbol.name!r} is {value:#x} away from a reference") from error


def _address(symbol: Symbol, places: dict[int, Placed]) -> int:
    if symbol.section not in places:
        raise FormatError(
            f"symbol {symbol.name!r} is not defined in the object: kernels are linked alone"
        )
    return places[symbol.section].address + symbol.value
