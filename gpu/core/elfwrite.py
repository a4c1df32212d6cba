"""Writing ELF64 little-endian shared objects whose file offsets are addresses.

Layouts: System V ABI, "Object Files" (ELF-64).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.core import elf
from gpu.core.elf import ElfObject, Section, Symbol

_KINDS: Final = elf.SHF_EXECINSTR | elf.SHF_WRITE
_PROTECTIONS: Final = {
    0: elf.PF_R,
    elf.SHF_EXECINSTR: elf.PF_R | elf.PF_X,
    elf.SHF_WRITE: elf.PF_R | elf.PF_W,
}
MAX_SEGMENTS: Final = len(_PROTECTIONS)
_VISIBLE: Final = elf.SHF_ALLOC | _KINDS


class Placed(NamedTuple):
    """A section of an object, and its address in the image."""

    section: Section
    address: int


def shared_object(
    source: ElfObject,
    image: bytes,
    placed: Sequence[Placed],
    symbols: Sequence[tuple[Symbol, int]],
    page: int,
) -> bytes:
    """An ET_DYN file for the machine of `source`.

    Args:
        source: gives machine, ABI and flags.
        image: everything that is loaded; its start is room for the headers.
        placed: where the sections are in it, sorted by address and grouped by their flags.
        symbols: with their addresses, in `placed` sections.
        page: alignment of segments.
    """
    names, strings = _Strings(), _Strings()
    table = _symbol_table(placed, symbols, strings)
    headers = [bytes(elf.SECTION.size)]
    for section, address in placed:
        kind, flags = section.type, section.flags & _VISIBLE
        where = (address, address, section.size)
        name = names.add(section.name)
        headers.append(elf.SECTION.pack(name, kind, flags, *where, 0, 0, section.align, 0))
    data = bytearray(image) + bytes(-len(image) % 8)
    # Behind the sections that are loaded: symbols, their names, the names of sections.
    link = len(headers) + 1
    kinds = (elf.SHT_SYMTAB, elf.SHT_STRTAB, elf.SHT_STRTAB)
    more = ((link, 1, 8, elf.SYMBOL.size), (0, 0, 1, 0), (0, 0, 1, 0))
    titles = [names.add(title) for title in (".symtab", ".strtab", ".shstrtab")]
    contents = (table, strings.content, names.content)
    for title, kind, content, rest in zip(titles, kinds, contents, more, strict=True):
        headers.append(elf.SECTION.pack(title, kind, 0, 0, len(data), len(content), *rest))
        data += content
    data += bytes(-len(data) % 8)
    segments = _segments(placed, page)
    start = _header(source, len(segments), len(data), len(headers)) + b"".join(segments)
    data[: len(start)] = start
    return bytes(data) + b"".join(headers)


def _symbol_table(
    placed: Sequence[Placed], symbols: Sequence[tuple[Symbol, int]], strings: _Strings
) -> bytes:
    index = {p.section.index: number for number, p in enumerate(placed, 1)}
    table = bytes(elf.SYMBOL.size)
    for symbol, address in symbols:
        info = symbol.binding << 4 | symbol.type
        place = index[symbol.section]
        table += elf.SYMBOL.pack(strings.add(symbol.name), info, 0, place, address, symbol.size)
    return table


def _header(source: ElfObject, segments: int, sections_at: int, sections: int) -> bytes:
    ident = elf.IDENT + bytes((source.abi, source.abi_version)) + bytes(7)
    sizes = (elf.HEADER.size, elf.PROGRAM.size, segments, elf.SECTION.size)
    return elf.HEADER.pack(
        *(ident, elf.ET_DYN, source.machine, 1, 0, elf.HEADER.size, sections_at, source.flags),
        *(*sizes, sections, sections - 1),
    )


def _segments(placed: Sequence[Placed], page: int) -> list[bytes]:
    """Program headers: what has the same protection, and the headers with what is only read."""
    headers = []
    for kind, protection in _PROTECTIONS.items():
        inside = [p for p in placed if p.section.flags & _KINDS == kind]
        if inside:
            start = inside[0].address if kind else 0
            size = inside[-1].address + inside[-1].section.size - start
            where = (start, start, start, size, size)
            headers.append(elf.PROGRAM.pack(elf.PT_LOAD, protection, *where, page))
    return headers


class _Strings:
    """A string table."""

    def __init__(self) -> None:
        self.content = b"\0"

    def add(self, text: str) -> int:
        """The offset of a string."""
        at = len(self.content)
        self.content += text.encode() + b"\0"
        return at
