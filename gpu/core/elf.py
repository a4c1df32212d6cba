"""Reading ELF64 little-endian objects: relocatable, shared, and executables that keep relocations.

Constants and layouts: System V ABI, "Object Files" (ELF-64), and the AMD64 and AArch64 processor
supplements. Whatever a file says is checked against the file before it is used: a malformed file is
a FormatError, whatever its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gpu.core.errors import FormatError

ET_REL: Final = 1
ET_EXEC: Final = 2
ET_DYN: Final = 3
EM_X86_64: Final = 62
EM_AARCH64: Final = 183
EM_CUDA: Final = 190
EM_AMDGPU: Final = 224
SHT_PROGBITS: Final = 1
SHT_SYMTAB: Final = 2
SHT_STRTAB: Final = 3
SHT_RELA: Final = 4
SHT_NOTE: Final = 7
SHT_NOBITS: Final = 8
SHT_REL: Final = 9
SHT_DYNSYM: Final = 11
SHT_INIT_ARRAY: Final = 14
SHT_FINI_ARRAY: Final = 15
SHT_LOPROC: Final = 0x7000_0000  # from here on, what a processor makes of it
SHF_WRITE: Final = 0x1
SHF_ALLOC: Final = 0x2
SHF_EXECINSTR: Final = 0x4
SHF_TLS: Final = 0x400
SHF_COMPRESSED: Final = 0x800
PT_LOAD: Final = 1
PF_X: Final = 1
PF_W: Final = 2
PF_R: Final = 4
SHN_UNDEF: Final = 0
SHN_LORESERVE: Final = 0xFF00
SHN_ABS: Final = 0xFFF1
STB_LOCAL: Final = 0
STB_WEAK: Final = 2
STT_FUNC: Final = 2
STT_SECTION: Final = 3
STT_FILE: Final = 4
STT_TLS: Final = 6
STT_GNU_IFUNC: Final = 10

HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
SECTION: Final = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
PROGRAM: Final = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
SYMBOL: Final = struct.Struct("<IBBHQQ")  # Elf64_Sym
_REL: Final = struct.Struct("<QQ")  # Elf64_Rel
_RELA: Final = struct.Struct("<QQq")  # Elf64_Rela
_SHARED: Final = 16  # times its size that the strings of a table may take together
IDENT: Final = b"\x7fELF\x02\x01\x01"  # magic, 64-bit, little-endian, version 1


@dataclass(frozen=True, slots=True)
class Section:
    """A section header, with its name read; `content` is empty for SHT_NOBITS.

    `address` is where it is to lie in memory, in objects that are linked.
    """

    index: int
    name: str
    type: int
    flags: int
    size: int
    link: int
    info: int
    align: int
    content: bytes
    address: int = 0


class Symbol(NamedTuple):
    """A symbol: `value` is an offset into section `section`, or an address where that is SHN_ABS.

    `name` is the section's for a section symbol; `size` is 0 where it is not told.
    """

    name: str
    binding: int
    type: int
    section: int
    value: int
    size: int = 0


class Relocation(NamedTuple):
    """A place `offset` bytes into section `section` that depends on a symbol's address."""

    section: int
    offset: int
    type: int
    symbol: int
    addend: int


class ImplicitRelocation(Relocation):
    """One whose addend is what the place holds; ``addend`` is 0."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ElfObject:
    """A parsed object. Indices in it are checked; types are not.

    ``abi`` and ``abi_version`` are those of its first bytes; ``flags`` are the processor's.
    """

    machine: int
    sections: list[Section]
    symbols: list[Symbol]
    relocations: list[Relocation]
    abi: int = 0
    abi_version: int = 0
    flags: int = 0


def parse_object(data: bytes) -> ElfObject:
    """Reads an ELF64 little-endian ET_REL file. Raises FormatError naming what is wrong."""
    return _parse(data, ET_REL, "relocatable objects")


def parse_executable(data: bytes) -> ElfObject:
    """Reads an ELF64 little-endian ET_EXEC file by its sections; relocations may be implicit.

    Raises FormatError naming what is wrong.
    """
    return _parse(data, ET_EXEC, "executables")


def parse_shared(data: bytes) -> ElfObject:
    """Reads an ELF64 little-endian ET_DYN file by its sections, with its dynamic symbols.

    Values of symbols are addresses, and so are offsets of relocations, whose section is 0. Without
    dynamic symbols it has those of SHT_SYMTAB. Raises FormatError naming what is wrong.
    """
    return _parse(data, ET_DYN, "shared objects")


def parse_sections(data: bytes) -> list[Section]:
    """The sections of an ELF64 little-endian file of any type. Raises FormatError."""
    return _sections_of(data, _unpack(HEADER, data, 0, "ELF header"))


def _sections_of(data: bytes, header: tuple[Any, ...]) -> list[Section]:
    ident, section_offset = header[0], header[6]
    entry_size, count, names_index = header[11], header[12], header[13]
    if not ident.startswith(IDENT):
        raise FormatError(f"not a 64-bit little-endian ELF file: it starts with {ident[:7]!r}")
    if entry_size != SECTION.size:
        raise FormatError(f"ELF section headers of {entry_size} bytes; {SECTION.size} expected")
    headers = [
        _unpack(SECTION, data, section_offset + i * entry_size, f"section header {i}")
        for i in range(count)
    ]
    return _read_sections(data, headers, names_index)


def _parse(data: bytes, wanted: int, what: str) -> ElfObject:
    header = _unpack(HEADER, data, 0, "ELF header")
    ident, kind, machine, flags = *header[:3], header[7]
    if ident.startswith(IDENT) and kind != wanted:
        raise FormatError(f"ELF type {kind} at offset 16; only {what} ({wanted}) are read")
    sections = _sections_of(data, header)
    dynamic = wanted == ET_DYN and any(s.type == SHT_DYNSYM for s in sections)
    symbols = _read_symbols(sections, SHT_DYNSYM if dynamic else SHT_SYMTAB)
    implicit = wanted == ET_EXEC
    relocations = [
        r for s in sections for r in _read_relocations(s, sections, len(symbols), implicit)
    ]
    return ElfObject(machine, sections, symbols, relocations, ident[7], ident[8], flags)


def _unpack(layout: struct.Struct, data: bytes, offset: int, what: str) -> tuple[Any, ...]:
    if offset + layout.size > len(data):
        raise FormatError(
            f"{what} at offset {offset} needs {layout.size} bytes, but the file ends at {len(data)}"
        )
    return layout.unpack_from(data, offset)


def _read_sections(data: bytes, headers: list[tuple[Any, ...]], names: int) -> list[Section]:
    _check_extents(data, headers)
    if names >= len(headers):
        raise FormatError(f"section name table {names} of {len(headers)} sections")
    contents = [_section_content(data, i, header) for i, header in enumerate(headers)]
    sections = []
    strings = _Strings(contents[names])
    for index, header in enumerate(headers):
        name = strings.at(header[0], f"name of section {index}")
        kind, flags, size, link, info = header[1], header[2], header[5], header[6], header[7]
        align = max(header[8], 1)
        if align & (align - 1):
            raise FormatError(f"section {name}: alignment {align} is not a power of two")
        content = contents[index]
        sections.append(
            Section(index, name, kind, flags, size, link, info, align, content, header[3])
        )
    return sections


def _check_extents(data: bytes, headers: list[tuple[Any, ...]]) -> None:
    """Raises FormatError for sections beyond the file, or that together are larger than it.

    Sections of a real object do not overlap, but for those of a processor's own types, which may
    repeat the others. Holding to that bounds all later work by the size of the file.
    """
    totals = {False: 0, True: 0}
    for index, header in enumerate(headers):
        kind, offset, size = header[1], header[4], header[5]
        if _has_no_content(index, kind):
            continue
        if offset + size > len(data):
            raise FormatError(
                f"section {index}: bytes {offset} to {offset + size} of a file of {len(data)}"
            )
        totals[kind >= SHT_LOPROC] += size
    if max(totals.values()) > len(data):
        raise FormatError("sections overlap: together they are larger than the file")


def _has_no_content(index: int, kind: int) -> bool:
    return index == 0 or kind == SHT_NOBITS


def _section_content(data: bytes, index: int, header: tuple[Any, ...]) -> bytes:
    kind, offset, size = header[1], header[4], header[5]
    return b"" if _has_no_content(index, kind) else data[offset : offset + size]


class _Strings:
    """A table of strings, which may share their ends, but not so that they become many times it."""

    def __init__(self, table: bytes):
        self._table = table
        self._left = _SHARED * len(table)

    def at(self, offset: int, what: str) -> str:
        """The string at an offset. Raises FormatError."""
        table = self._table
        end = table.find(b"\0", offset)
        if offset >= len(table) or end < 0:
            raise FormatError(f"{what}: no string at {offset} of a table of {len(table)} bytes")
        self._left -= end - offset
        if self._left < 0:
            raise FormatError(
                f"{what}: strings up to here take over {_SHARED} times their table of"
                f" {len(table)} bytes"
            )
        return table[offset:end].decode("utf-8", "backslashreplace")


def _entries(layout: struct.Struct, section: Section) -> Iterator[tuple[Any, ...]]:
    if len(section.content) % layout.size:
        raise FormatError(
            f"section {section.name}: {len(section.content)} bytes are not a whole number of"
            f" {layout.size}-byte entries"
        )
    return layout.iter_unpack(section.content)


def _read_symbols(sections: list[Section], table_type: int) -> list[Symbol]:
    tables = [s for s in sections if s.type == table_type]
    if not tables:
        return []
    if len(tables) > 1:
        raise FormatError(f"{len(tables)} symbol tables; an object has one")
    table = tables[0]
    if table.link >= len(sections):
        raise FormatError(f"symbol table names strings {table.link} of {len(sections)} sections")
    strings = _Strings(sections[table.link].content)
    symbols = []
    for number, (name, info, _, section, value, size) in enumerate(_entries(SYMBOL, table)):
        if len(sections) <= section < SHN_LORESERVE:
            raise FormatError(f"symbol {number} is in section {section} of {len(sections)}")
        text = strings.at(name, f"name of symbol {number}")
        kind = info & 0xF
        if kind == STT_SECTION and section < len(sections):
            text = text or sections[section].name
        symbols.append(Symbol(text, info >> 4, kind, section, value, size))
    return symbols


def _read_relocations(
    section: Section, sections: list[Section], symbol_count: int, implicit: bool
) -> Iterator[Relocation]:
    if section.type == SHT_REL and not implicit:
        raise FormatError(f"section {section.name}: relocations without addends (SHT_REL)")
    if section.type not in (SHT_REL, SHT_RELA):
        return
    if section.info >= len(sections):
        raise FormatError(f"{section.name} relocates section {section.info} of {len(sections)}")
    is_implicit = section.type == SHT_REL
    for entry in _entries(_REL if is_implicit else _RELA, section):
        offset, symbol, kind = entry[0], entry[1] >> 32, entry[1] & 0xFFFFFFFF
        if symbol >= symbol_count:
            raise FormatError(f"{section.name}: symbol {symbol} of {symbol_count}")
        if is_implicit:
            yield ImplicitRelocation(section.info, offset, kind, symbol, 0)
        else:
            yield Relocation(section.info, offset, kind, symbol, entry[2])
