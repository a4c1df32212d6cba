"""PM4 packets as text."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from gpu.drivers.am.encode import pm4_fields as fields
from gpu.drivers.am.encode import pm4_packets as pm4
from gpu.drivers.am.encode.pm4 import packets_of
from gpu.drivers.am.target import Generation
from gpu.drivers.dwords import WORD
from gpu.drivers.listing import Line, raw, register_text


def decode_pm4(data: bytes, generation: Generation) -> list[Line]:
    """A line for each word of a ring or an indirect buffer."""
    return list(_Decoder(data, generation).lines())


class _Decoder:
    """Walks over the packets."""

    def __init__(self, data: bytes, generation: Generation):
        whole = len(data) // WORD
        self._words = struct.unpack(f"<{whole}I", data[: whole * WORD])
        self._rest = data[whole * WORD :]
        self._packets = packets_of(generation)

    def lines(self) -> Iterator[Line]:
        at = 0
        while at < len(self._words):
            header = fields.Header.parse(self._words[at])
            if header.value == pm4.SINGLE_NOP:
                yield self._line(at, "NOP of one word")
                at += 1
            elif header.TYPE != pm4.TYPE:
                yield self._line(at, f"not known: packet of type {header.TYPE}")
                at += 1
            else:
                body = self._words[at + 1 : at + 2 + header.COUNT]
                yield from self._packet(at, header, body)
                at += 1 + len(body)
        yield from raw(self._rest, WORD * len(self._words), "no word", len(self._rest) or 1)

    def _line(self, at: int, text: str) -> Line:
        return Line(WORD * at, WORD, self._words[at], text)

    def _packet(self, at: int, header: fields.Header, body: Sequence[int]) -> Iterator[Line]:
        kind = self._packets.by_opcode.get(header.OPCODE)
        name = kind.name if kind else pm4.opcode_name(header.OPCODE)
        notes = _notes(header, name)
        if len(body) < header.COUNT + 1:
            yield self._line(at, f"{notes}, cut off: {header.COUNT + 1} words should follow")
            kind = None
        elif kind is None:
            yield self._line(at, f"{notes}, whose words are not known here")
        elif len(body) < len(kind.words) or (len(body) > len(kind.words) and not kind.repeats):
            yield self._line(at, f"{notes}, not known: {len(kind.words)} words were expected")
            kind = None
        else:
            yield self._line(at, notes)
        for index, word in enumerate(body):
            text = "?" if kind is None else self._word(kind, body, index, word)
            yield self._line(at + 1 + index, f"  {text}")

    def _word(self, kind: pm4.Packet, body: Sequence[int], index: int, word: int) -> str:
        if kind is pm4.SET_SH_REG and index:
            number = pm4.SH_REGISTERS[0] + fields.RegisterStart.parse(body[0]).OFFSET + index - 1
            name = self._packets.names.get(number)
            if name is None:
                return f"register {number:#x}, which is not known here: {word:#x}"
            return register_text(self._packets.registers[name].parse(word))
        cls = kind.words[min(index, len(kind.words) - 1)]
        return register_text(cls.parse(word))


def _notes(header: fields.Header, name: str | None) -> str:
    """The header in words."""
    marks = ((header.SHADER_TYPE, "compute"), (header.PREDICATE, "predicated"))
    extra = "".join(f", {mark}" for flag, mark in marks if flag)
    return (name or f"packet {header.OPCODE:#x}") + extra
