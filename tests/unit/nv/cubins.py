"""Writes cubins, byte by byte, as nvcc lays them out."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

PROGBITS, SYMTAB, STRTAB, RELA, NOBITS, REL = 1, 2, 3, 4, 8, 9
NV_INFO = 0x7000_0000
WRITE, ALLOC, EXEC, INFO_LINK = 1, 2, 4, 0x40
OBJECT, FUNC = 1, 2
BASES = {80: 0x160, 86: 0x160, 89: 0x160, 90: 0x210, 100: 0x380, 120: 0x380}


@dataclass
class _Section:
    name: str
    type: int
    flags: int
    content: bytes
    size: int
    link: int
    info: int
    align: int


def sized(attribute: int, *words: int) -> bytes:
    """An .nv.info record with a payload of words."""
    return struct.pack(f"<BBH{len(words)}I", 4, attribute, 4 * len(words), *words)


def half(attribute: int, value: int, form: int = 3) -> bytes:
    """An .nv.info record with its value in it."""
    return struct.pack("<BBH", form, attribute, value)


class CubinWriter:
    """Collects sections and symbols; `data` is the file."""

    def __init__(self, sm: int = 90, *, old: bool = False):
        self.sm = sm
        self.old = old
        self.sections = [_Section("", 0, 0, b"", 0, 0, 0, 0)]
        self._symbols = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
        self._strings = b"\0"
        self.info = b""

    def section(
        self,
        name: str,
        content: bytes = b"",
        *,
        type: int = PROGBITS,
        flags: int = ALLOC,
        size: int | None = None,
        link: int = 0,
        info: int = 0,
        align: int = 4,
    ) -> int:
        """Adds a section; its index."""
        whole = len(content) if size is None else size
        self.sections.append(_Section(name, type, flags, content, whole, link, info, align))
        return len(self.sections) - 1

    def symbol(
        self, name: str, section: int, value: int = 0, type: int = OBJECT, binding: int = 1
    ) -> int:
        """Adds a symbol; its index."""
        at = len(self._strings)
        self._strings += name.encode() + b"\0"
        entry = struct.pack("<IBBHQQ", at, binding << 4 | type, 0, section, value, 0)
        self._symbols.append(entry)
        return len(self._symbols) - 1

    def relocate(self, section: int, offset: int, kind: int, symbol: int, addend: int = 0) -> None:
        """Adds a section with one relocation, with an addend."""
        entry = struct.pack("<QQq", offset, symbol << 32 | kind, addend)
        name = ".rela" + self.sections[section].name
        self.section(name, entry, type=RELA, flags=INFO_LINK, info=section, align=8)

    def relocate_implicit(self, section: int, offset: int, kind: int, symbol: int) -> None:
        """Adds a section with one relocation, whose addend is at the place."""
        entry = struct.pack("<QQ", offset, symbol << 32 | kind)
        name = ".rel" + self.sections[section].name
        self.section(name, entry, type=REL, flags=INFO_LINK, info=section, align=8)

    def kernel(
        self,
        name: str,
        *,
        code: bytes = bytes(256),
        registers: int = 16,
        stack: int = 0,
        parameters: Sequence[tuple[int, int]] = (),
        shared: int | None = None,
        records: bytes = b"",
        flags: int = 0,
    ) -> int:
        """Adds what a kernel consists of; ``parameters`` are (offset, size). Its .text's index."""
        text = self.section(
            f".text.{name}",
            code,
            flags=ALLOC | EXEC | flags,
            align=128,
            info=(registers & 0xFF) << 24,
        )
        symbol = self.symbol(name, text, type=FUNC)
        self.info += sized(0x2F, symbol, registers) + sized(0x12, symbol, stack)
        base = BASES[self.sm]
        size = max((offset + width for offset, width in parameters), default=0)
        own = records
        for ordinal, (offset, width) in enumerate(parameters):
            own += sized(0x17, 0, ordinal | offset << 16, width << 18 | 0x1F000)
        if parameters:
            own += sized(0x0A, symbol, base | size << 16) + half(0x19, size)
        self.section(f".nv.info.{name}", own, type=NV_INFO, flags=INFO_LINK, info=text)
        self.section(f".nv.constant0.{name}", bytes(base + size), info=text)
        if shared is not None:
            self.section(
                f".nv.shared.{name}", type=NOBITS, flags=ALLOC | WRITE, size=shared, info=text
            )
        return text

    def data(self) -> bytes:
        """The whole file."""
        sections = list(self.sections)
        sections.append(_Section(".nv.info", NV_INFO, 0, self.info, len(self.info), 0, 0, 4))
        symbols = b"".join(self._symbols)
        strings = len(sections) + 1
        sections.append(_Section(".symtab", SYMTAB, 0, symbols, len(symbols), strings, 0, 8))
        sections.append(_Section(".strtab", STRTAB, 0, self._strings, len(self._strings), 0, 0, 1))
        names = b"\0"
        places = []
        for section in (*sections, _Section(".shstrtab", STRTAB, 0, b"", 0, 0, 0, 1)):
            places.append(len(names) if section.name else 0)
            names += section.name.encode() + b"\0" if section.name else b""
        sections.append(_Section(".shstrtab", STRTAB, 0, names, len(names), 0, 0, 1))
        return self._file(sections, places)

    def _file(self, sections: list[_Section], names: list[int]) -> bytes:
        body = bytearray(64)
        headers = b""
        for section, name in zip(sections, names, strict=True):
            body += bytes(-len(body) % max(section.align, 1))
            headers += struct.pack(
                "<IIQQQQIIQQ",
                *(name, section.type, section.flags, 0, len(body), section.size),
                *(section.link, section.info, section.align, 0),
            )
            body += section.content
        body += bytes(-len(body) % 8)
        if self.old:
            ident, flags = b"\x7fELF\x02\x01\x01\x33\x07", self.sm << 16 | 0x500 | self.sm
        else:
            ident, flags = b"\x7fELF\x02\x01\x01\x41\x08", 0x6000004 | self.sm << 8
        header = struct.pack(
            "<16sHHIQQQIHHHHHH",
            *(ident, 2, 190, 1, 0, 0, len(body), flags),
            *(64, 56, 0, 64, len(sections), len(sections) - 1),
        )
        body[:64] = header
        return bytes(body) + headers


def simple(sm: int = 90, *, old: bool = False) -> CubinWriter:
    """Two kernels, banks 3 and 4, variables with and without contents, relocations of all kinds."""
    writer = CubinWriter(sm, old=old)
    table = writer.section(".nv.constant3", bytes(range(64)))
    addresses = writer.section(".nv.constant4", bytes(16), align=8)
    filled = writer.section(".nv.global.init", b"\x11" * 32, flags=ALLOC | WRITE, align=16)
    zeros = writer.section(".nv.global", type=NOBITS, flags=ALLOC | WRITE, size=4096, align=16)
    writer.symbol("table", table)
    counter = writer.symbol("counter", zeros, 8)
    numbers = writer.symbol("numbers", filled, 4)
    first = writer.kernel(
        "first", parameters=[(0, 8), (8, 4)], shared=0x400 + 0x40 if sm >= 90 else 0x40, stack=24
    )
    writer.section(".nv.constant2.first", b"\x22" * 24, info=first)
    writer.kernel("second", registers=40, code=bytes(range(256)) * 2)
    writer.relocate(addresses, 0, 2, counter, 16)
    writer.relocate(first, 0x10, 0x38, numbers, 4)
    writer.relocate(first, 0x20, 0x39, numbers, 4)
    return writer
