"""Command streams of Adreno 6xx GPUs as text: packets and registers by Mesa's names."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple

from gpu.drivers.kgsl.pm4 import REGISTER_WRITE, Header
from gpu.drivers.listing import Line, raw

_WORD: Final = 4
_LOAD_STATE: Final = "CP_LOAD_STATE6"
_Field = tuple[int, int, int, str]
_Row = tuple[int, int, dict[str, _Field]]


class _Entry(NamedTuple):
    """A word that is known.

    Attributes:
        name: of the register or of the packet's word; that of a high half ends in ``_HI``.
        fields: (lowest bit, width, shift, enumeration) by name; None in halves of 64 bits.
    """

    name: str
    fields: Mapping[str, _Field]


class _Tables(NamedTuple):
    opcodes: Mapping[int, str]
    registers: Mapping[int, _Entry]
    packets: Mapping[str, Mapping[int, _Entry]]
    values: Mapping[str, Mapping[int, str]]


@cache
def _tables() -> _Tables:
    """The generated tables by number."""
    from gpu.autogen import adreno_a6xx as a6xx  # large

    return _Tables(
        {number: name for name, number in reversed(a6xx.OPCODES.items())},
        _by_offset(a6xx.REGISTERS),
        {name: _by_offset(words) for name, words in a6xx.PACKETS.items()},
        {n: {value: name for name, value in kind.items()} for n, kind in a6xx.ENUMERATIONS.items()},
    )


def _by_offset(rows: Mapping[str, _Row]) -> dict[int, _Entry]:
    """Entries by offset. Where halves have names of their own those are kept: they have fields."""
    found: dict[int, _Entry] = {}
    for name, (offset, bits, fields) in sorted(rows.items(), key=lambda row: row[1][1]):
        if bits == 64:
            found.setdefault(offset, _Entry(name, {}))
            found.setdefault(offset + 1, _Entry(f"{name}_HI", {}))
        else:
            found.setdefault(offset, _Entry(name, fields))
    return found


def decode_a6xx(data: bytes) -> list[Line]:
    """A line for each word of a ring or of an indirect buffer."""
    return list(_lines(data))


def register_name(offset: int) -> str | None:
    """What the register at an offset in dwords is called, if it is known."""
    entry = _tables().registers.get(offset)
    return entry.name if entry else None


def _lines(data: bytes) -> Iterator[Line]:
    count = len(data) // _WORD
    words = struct.unpack(f"<{count}I", data[: count * _WORD])
    at = 0
    while at < count:
        header = Header.parse(words[at])
        if header is None:
            known = words[at] >> 28 in (4, 7)
            why = "its parity is wrong" if known else f"of type {words[at] >> 28}"
            yield Line(at * _WORD, _WORD, words[at], f"not known: no header of a packet, {why}")
            at += 1
            continue
        body = words[at + 1 : at + 1 + header.words]
        yield Line(at * _WORD, _WORD, words[at], _head(header, len(body)))
        for number, word in enumerate(body):
            text = _word(header, number, word)
            yield Line((at + 1 + number) * _WORD, _WORD, word, f"  {text}".rstrip())
        at += 1 + len(body)
    yield from raw(data[count * _WORD :], count * _WORD, "no word", len(data) % _WORD or 1)


def _head(header: Header, words: int) -> str:
    cut = f", cut off: {header.words} words should follow" if words < header.words else ""
    if header.type == REGISTER_WRITE:
        return f"write {header.words} register{'s' * (header.words != 1)}{cut}"
    name = _tables().opcodes.get(header.number)
    return (name or f"not known: opcode {header.number:#x}") + cut


def _word(header: Header, number: int, word: int) -> str:
    tables = _tables()
    if header.type == REGISTER_WRITE:
        offset = header.number + number
        entry = tables.registers.get(offset)
        if entry is None:
            return f"register {offset:#x}: not known"
        return _value(entry, word, tables.values)
    name = tables.opcodes.get(header.number, "")
    if name.startswith(_LOAD_STATE):  # _FRAG and _GEOM, which are loaded in other places
        name = _LOAD_STATE
    entry = tables.packets.get(name, {}).get(number)
    return "" if entry is None else _value(entry, word, tables.values)


def _value(entry: _Entry, word: int, values: Mapping[str, Mapping[int, str]]) -> str:
    """A word by name, with the fields that are not 0."""
    if not entry.fields:
        return _named(entry.name, f"{word:#x}")
    shown: list[str] = []
    left = word
    for name, (low, width, shift, kind) in entry.fields.items():
        number = word >> low & (1 << width) - 1
        left &= ~(((1 << width) - 1) << low)
        known = values.get(kind, {}).get(number)
        if known is not None or number:
            shown.append(f"{name} {known or f'{number << shift:#x}'}")
    if left:
        shown.append(f"bits without a name {left:#x}")
    return _named(entry.name, ", ".join(shown) or "0")


def _named(name: str, value: str) -> str:
    """A value with its name; words of packets are often called by their number alone."""
    return value if name.isdigit() else f"{name}: {value}"
