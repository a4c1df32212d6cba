"""Packets of the copy engine as text."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gpu.drivers.am.encode.sdma_packets import SdmaPacket, sdma_version
from gpu.drivers.am.target import Version
from gpu.drivers.dwords import WORD
from gpu.drivers.listing import Line, raw, register_text


def decode_sdma(data: bytes, version: Version) -> list[Line]:
    """A line for each word of a ring or an indirect buffer.

    Raises Unsupported for a version of the engine that is not known.
    """
    return list(_Decoder(data, version).lines())


class _Decoder:
    """Walks over the packets. After one that is not known nothing tells where the next begins."""

    def __init__(self, data: bytes, version: Version):
        whole = len(data) // WORD
        self._words = struct.unpack(f"<{whole}I", data[: whole * WORD])
        self._rest = data[whole * WORD :]
        self._packets = sdma_version(version).by_operation

    def lines(self) -> Iterator[Line]:
        at = 0
        while at < len(self._words):
            op, sub_op = self._words[at] & 0xFF, self._words[at] >> 8 & 0xFF
            kind = self._packets.get((op, sub_op))
            if kind is None:
                yield self._line(at, f"not known: operation {op:#x}, sub-operation {sub_op:#x}")
                for rest in range(at + 1, len(self._words)):
                    yield self._line(rest, "  ?")
                break
            size = self._size(at, kind)
            yield from self._packet(at, kind, size)
            at += size
        yield from raw(self._rest, WORD * len(self._words), "no word", len(self._rest) or 1)

    def _line(self, at: int, text: str) -> Line:
        return Line(WORD * at, WORD, self._words[at], text)

    def _size(self, at: int, kind: SdmaPacket) -> int:
        """How many words a packet has, the header included."""
        if kind.name == "NOP":
            return 1 + kind.words[0].parse(self._words[at])["count"]
        if kind.name == "WRITE_UNTILED" and at + 3 < len(self._words):
            return 5 + kind.words[3].parse(self._words[at + 3])["count"]
        return len(kind.words)

    def _packet(self, at: int, kind: SdmaPacket, size: int) -> Iterator[Line]:
        left = len(self._words) - at
        head = register_text(kind.words[0].parse(self._words[at])).partition(": ")[2]
        cut = f", cut off: it has {size} words" if left < size else ""
        yield self._line(at, f"{kind.name}, {_without_operation(head)}".rstrip(", ") + cut)
        for index in range(1, min(size, left)):
            cls = kind.words[min(index, len(kind.words) - 1)]
            yield self._line(at + index, f"  {register_text(cls.parse(self._words[at + index]))}")


def _without_operation(fields: str) -> str:
    kept = (f for f in fields.split(", ") if f.split(" ")[0] not in ("op", "sub_op"))
    return ", ".join(kept)
