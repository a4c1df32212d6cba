"""Taking an object of several functions apart into one object for each function.

Each function must be in a section of its own (``-ffunction-sections``). Its object gets that
section and all that it refers to, directly or not; constants that several functions share are
copied to each. Layouts: System V ABI, "Object Files" (ELF-64).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from gpu.core import elf
from gpu.core.elf import ElfObject, Relocation, Section, Symbol
from gpu.core.errors import InvalidValue

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL: Final = struct.Struct("<IBBHQQ")  # Elf64_Sym
_RELA: Final = struct.Struct("<QQq")  # Elf64_Rela
_IDENT: Final = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
_GLOBAL: Final = 1  # STB_GLOBAL


def exported_functions(whole: ElfObject) -> dict[str, int]:
    """The numbers of the symbols of an object's functions, by name."""
    return {
        symbol.name: number
        for number, symbol in enumerate(whole.symbols)
        if symbol.binding == _GLOBAL and elf.SHN_UNDEF < symbol.section < elf.SHN_LORESERVE
    }


def split_functions(whole: ElfObject, names: Mapping[str, str]) -> dict[str, bytes]:
    """An object for each function in `names`, in which it is called by its new name.

    Raises InvalidValue where the object lacks one of them.
    """
    functions = exported_functions(whole)
    if missing := sorted(names.keys() - functions.keys()):
        raise InvalidValue(f"the object defines no {', '.join(missing)}, only {list(functions)}")
    relocations: dict[int, list[Relocation]] = {}
    for relocation in whole.relocations:
        relocations.setdefault(relocation.section, []).append(relocation)
    return {old: _extract(whole, relocations, functions[old], new) for old, new in names.items()}


def _extract(
    whole: ElfObject, relocations: Mapping[int, list[Relocation]], function: int, name: str
) -> bytes:
    """The object of the function with this symbol number."""
    kept = _reached(whole, relocations, whole.symbols[function].section)
    used = {r.symbol for index in kept for r in relocations.get(index, ())}
    chosen = {number: whole.symbols[number] for number in sorted(used)}
    chosen[function] = whole.symbols[function]._replace(name=name)
    # ELF wants local symbols before all others.
    symbols = dict(sorted(chosen.items(), key=lambda item: item[1].binding != elf.STB_LOCAL))
    place = {old: new for new, old in enumerate(kept, 1)}
    number = {old: new for new, old in enumerate(symbols, 1)}
    writer = _Writer()
    for index in kept:
        writer.add(whole.sections[index])
    for index in kept:
        if found := relocations.get(index):
            writer.add_relocations(place[index], found, number)
    writer.add_symbols(list(symbols.values()), place)
    return writer.finish(whole.machine)


def _reached(
    whole: ElfObject, relocations: Mapping[int, list[Relocation]], first: int
) -> list[int]:
    """The section `first`, and every one that it refers to, directly or not."""
    kept = [first]
    for index in kept:  # which grows meanwhile
        for relocation in relocations.get(index, ()):
            target = whole.symbols[relocation.symbol].section
            if elf.SHN_UNDEF < target < elf.SHN_LORESERVE and target not in kept:
                kept.append(target)
    return kept


class _Header(NamedTuple):
    """What of a section header the writer does not work out itself."""

    name: str
    type: int
    flags: int = 0
    size: int = 0
    link: int = 0
    info: int = 0
    align: int = 1
    entry: int = 0


class _Writer:
    """Collects the sections of an object, in order; the first, of number 0, is empty."""

    def __init__(self) -> None:
        self._sections: list[tuple[_Header, bytes]] = [(_Header("", 0, align=0), b"")]
        self._tables: list[int] = []

    def add(self, section: Section) -> None:
        """A section as it is; what it says about merging is of no use to a loader."""
        flags = section.flags & (elf.SHF_WRITE | elf.SHF_ALLOC | elf.SHF_EXECINSTR | elf.SHF_TLS)
        header = _Header(section.name, section.type, flags, section.size, align=section.align)
        self._sections.append((header, section.content))

    def add_relocations(
        self, section: int, found: list[Relocation], number: Mapping[int, int]
    ) -> None:
        """A table of the relocations of a section; `number` maps old symbols to new ones."""
        content = b"".join(
            _RELA.pack(r.offset, number[r.symbol] << 32 | r.type, r.addend) for r in found
        )
        name = f".rela{self._sections[section][0].name}"
        self._tables.append(len(self._sections))
        header = _Header(name, elf.SHT_RELA, 0, len(content), 0, section, 8, _RELA.size)
        self._sections.append((header, content))

    def add_symbols(self, symbols: list[Symbol], place: Mapping[int, int]) -> None:
        """The symbol table and its strings; `place` maps old sections to new ones."""
        strings = bytearray(b"\0")
        entries = [bytes(_SYMBOL.size)]
        for symbol in symbols:
            named = symbol.type != elf.STT_SECTION
            at = len(strings) if named else 0
            if named:
                strings += symbol.name.encode() + b"\0"
            section = place.get(symbol.section, symbol.section)
            info = symbol.binding << 4 | symbol.type
            entries.append(_SYMBOL.pack(at, info, 0, section, symbol.value, 0))
        table = len(self._sections)
        for position in self._tables:
            header, content = self._sections[position]
            self._sections[position] = (header._replace(link=table), content)
        locals_end = 1 + sum(s.binding == elf.STB_LOCAL for s in symbols)
        content = b"".join(entries)
        header = _Header(
            ".symtab", elf.SHT_SYMTAB, 0, len(content), table + 1, locals_end, 8, _SYMBOL.size
        )
        self._sections.append((header, content))
        self._sections.append((_Header(".strtab", elf.SHT_STRTAB, 0, len(strings)), bytes(strings)))

    def finish(self, machine: int) -> bytes:
        """The file: its header, the sections' contents, the section headers."""
        names = bytearray(b"\0")
        self._sections.append((_Header(".shstrtab", elf.SHT_STRTAB), b""))
        starts = []
        for header, _ in self._sections:
            starts.append(len(names) if header.name else 0)
            names += header.name.encode() + b"\0" if header.name else b""
        last = self._sections[-1][0]._replace(size=len(names))
        self._sections[-1] = (last, bytes(names))
        body = bytearray(_HEADER.size)
        headers = []
        for start, (header, content) in zip(starts, self._sections, strict=True):
            body += bytes(-len(body) % max(1, header.align))
            headers.append(_pack_section(start, len(body), header))
            body += content
        body += bytes(-len(body) % 8)
        count = len(self._sections)
        table = len(body)
        body[: _HEADER.size] = _HEADER.pack(
            *(_IDENT, elf.ET_REL, machine, 1, 0, 0, table, 0),
            *(_HEADER.size, 0, 0, _SECTION.size, count, count - 1),
        )
        return bytes(body) + b"".join(headers)


def _pack_section(name: int, offset: int, header: _Header) -> bytes:
    return _SECTION.pack(
        *(name, header.type, header.flags, 0, offset, header.size),
        *(header.link, header.info, header.align, header.entry),
    )
