"""Pushbuffers and ring entries as text, for dumps.

Made for bytes that may be damaged: what makes no sense is shown as such, and nothing raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpu.drivers.nv.encode.methods import host
from gpu.drivers.nv.encode.methods.compute import COMPUTE_CLASSES
from gpu.drivers.nv.encode.methods.copy import COPY_CLASSES
from gpu.drivers.nv.encode.methods.method import HOST_METHODS_END, Engine, MethodSet
from gpu.drivers.nv.encode.pushbuf import ENTRY_SIZE, GpEntry, Header, Opcode

_WORD: Final = 4
_CLASSES: Final[dict[int, MethodSet]] = {**COMPUTE_CLASSES, **COPY_CLASSES}
_COUNTED: Final[dict[int, Callable[[int], int]]] = {
    Opcode.INC: lambda index: index,
    Opcode.NON_INC: lambda index: 0,
    Opcode.ONE_INC: lambda index: min(index, 1),
}
"""Headers that words follow: which method the word of an index goes to, from the header's on."""
_CONTROLS: Final = {0: "NOP", 1: "ILLEGAL", 2: "GP_CRC", 3: "PB_CRC", 4: "SET_EXTENDED_BASE"}


@dataclass(frozen=True, slots=True)
class Line:
    """One word: its offset in bytes, its value, and what it means."""

    offset: int
    word: int
    text: str

    def __str__(self) -> str:
        return f"{self.offset:6x}  {self.word:08x}  {self.text}"


def decode_pushbuffer(data: bytes, classes: Mapping[int, int] | None = None) -> list[Line]:
    """A line for each word.

    ``classes`` are those bound to subchannels before, by subchannel; SET_OBJECT adds to them.
    """
    return list(_Decoder(data, dict(classes or {})).lines())


def written_methods(data: bytes) -> Iterator[tuple[int, int, int]]:
    """What a pushbuffer writes: subchannel, address of the method in bytes, and its data."""
    words = struct.unpack(f"<{len(data) // _WORD}I", data[: len(data) // _WORD * _WORD])
    at = 0
    while at < len(words):
        header = Header.parse(words[at])
        at += 1
        if header.OPCODE not in _COUNTED:
            if header.OPCODE == Opcode.IMMD:
                yield header.SUBCHANNEL, header.ADDRESS << 2, header.COUNT
            continue
        for index, word in enumerate(words[at : at + header.COUNT]):
            step = _COUNTED[header.OPCODE](index)
            yield header.SUBCHANNEL, (header.ADDRESS + step) << 2, word
        at += header.COUNT


def bound_classes(compute: int | None = None, copy: int | None = None) -> dict[int, int]:
    """The ``classes`` of a channel of ours."""
    both = ((Engine.COMPUTE, compute), (Engine.COPY, copy))
    return {engine: number for engine, number in both if number is not None}


class _Decoder:
    """Walks over the words; ``classes`` changes as objects are bound."""

    def __init__(self, data: bytes, classes: dict[int, int]):
        whole = len(data) // _WORD
        self._words = struct.unpack(f"<{whole}I", data[: whole * _WORD])
        self._rest = data[whole * _WORD :]
        self._classes = classes

    def lines(self) -> Iterator[Line]:
        at = 0
        while at < len(self._words):
            header = Header.parse(self._words[at])
            count = yield from self._one(at, header)
            at += 1 + count
        if self._rest:
            number = int.from_bytes(self._rest, "little")
            yield Line(len(self._words) * _WORD, number, f"{len(self._rest)} bytes are no word")

    def _one(self, at: int, header: Header) -> Generator[Line, None, int]:
        """The lines of a header and its data; returns how many words of data there are."""
        offset, word = at * _WORD, header.value
        if word == 0:
            yield Line(offset, word, "no operation")
            return 0
        try:
            opcode = Opcode(header.OPCODE)
        except ValueError:
            yield Line(offset, word, f"unknown opcode {header.OPCODE}")
            return 0
        subchannel, address = header.SUBCHANNEL, header.ADDRESS << 2
        if opcode is Opcode.END_PB_SEGMENT:
            yield Line(offset, word, "end of segment")
            return 0
        if opcode is Opcode.IMMD:
            yield Line(offset, word, f"IMMD {self._method(subchannel, address, header.COUNT)}")
            return 0
        count = min(header.COUNT, len(self._words) - at - 1)
        cut = f", cut off after {count}" if count < header.COUNT else ""
        yield Line(
            offset, word, f"{opcode.name} subchannel {subchannel}, {header.COUNT} words{cut}"
        )
        for index in range(count):
            data = self._words[at + 1 + index]
            text = self._method(subchannel, address + _WORD * _COUNTED[opcode](index), data)
            yield Line(offset + (1 + index) * _WORD, data, "  " + text)
        return count

    def _method(self, subchannel: int, address: int, data: int) -> str:
        """A method with its data; binds classes on the way."""
        methods = host.HOST
        if address >= HOST_METHODS_END:
            class_id = self._classes.get(subchannel)
            if class_id is None:
                return f"method {address:#x} of subchannel {subchannel}, which has no class"
            if class_id not in _CLASSES:
                return f"method {address:#x} of class {class_id:#x}, which is unknown here"
            methods = _CLASSES[class_id]
        found = methods.find(address)
        if found is None:
            return f"method {address:#x}, which {methods.name} has not here"
        method, index = found
        if method is host.SET_OBJECT:
            self._classes[subchannel] = host.SET_OBJECT.parse(data).NVCLASS
        name = f"{method.__name__}[{index}]" if method.count > 1 else method.__name__
        return repr(method.parse(data)).replace(method.__name__, name, 1)


def decode_gp_entries(data: bytes) -> list[Line]:
    """A line for each entry of a ring; ``word`` is the whole entry."""
    lines = []
    for offset in range(0, len(data), ENTRY_SIZE):
        some = data[offset : offset + ENTRY_SIZE]
        number = int.from_bytes(some, "little")
        if len(some) < ENTRY_SIZE:
            text = f"{len(some)} bytes are no entry"
        else:
            text = _describe_entry(GpEntry.parse(number))
        lines.append(Line(offset, number, text))
    return lines


def _describe_entry(entry: GpEntry) -> str:
    if not entry.LENGTH:
        opcode = entry.value >> 32 & 0xFF
        return f"control entry {_CONTROLS.get(opcode, f'with unknown opcode {opcode:#x}')}"
    notes = (
        (entry.FETCH_CONDITIONAL, "conditional"),
        (entry.SUBROUTINE, "subroutine"),
        (entry.SYNC_WAIT, "waits"),
    )
    extra = "".join(f", {note}" for flag, note in notes if flag)
    return f"{entry.LENGTH} words at {entry.GET << 2:#x}{extra}"
