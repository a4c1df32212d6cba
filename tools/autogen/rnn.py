"""Registers and packets of Adreno GPUs from Mesa's descriptions of them (rules-ng-ng, as XML).

Only what one generation has is kept; `variants` says so as in ``A5XX-`` or ``A2XX-A4XX``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from .recipe import AutogenError

RnnField = tuple[int, int, int, str]
"""Lowest bit, width, by how many bits its value is to be shifted left, and its enumeration."""
_GENERATION: Final = re.compile(r"A([0-9])XX")
_SPACE: Final = "{http://nouveau.freedesktop.org/}"


@dataclass(frozen=True)
class Word:
    """A register, or a dword of a packet: its place, its bits and their fields by name."""

    name: str
    offset: int
    bits: int
    fields: dict[str, RnnField]


@dataclass(frozen=True)
class Description:
    """What the descriptions of a generation say.

    Attributes:
        registers: in order of their offsets.
        opcodes: packets of type 7 by name.
        packets: the dwords behind the header, of the packets that are described.
        enumerations: those that fields name.
    """

    registers: list[Word]
    opcodes: dict[str, int]
    packets: dict[str, list[Word]]
    enumerations: dict[str, dict[str, int]] = field(default_factory=dict)


def parse_rnn(texts: Sequence[str], generation: int, domain: str, opcodes: str) -> Description:
    """What a generation has, of the registers of a domain and of the packets whose opcodes are an
    enumeration.

    Raises AutogenError where one of these is not there, and for one name at two places.
    """
    roots = [ElementTree.fromstring(text) for text in texts]
    reader = _Reader(generation, roots)
    found = reader.enumeration(opcodes)
    registers = sorted(reader.words(reader.domain(domain)), key=lambda word: word.offset)
    places: dict[str, int] = {}
    for word in registers:
        if places.setdefault(word.name, word.offset) != word.offset:
            raise AutogenError(f"{word.name} is at {places[word.name]:#x} and {word.offset:#x}")
    known = reader.domains.keys() & found.keys()
    packets = {name: list(reader.words(reader.domains[name])) for name in found if name in known}
    words = [*registers, *(word for packet in packets.values() for word in packet)]
    named = {kind for word in words for _, _, _, kind in word.fields.values() if kind}
    return Description(
        registers,
        found,
        {name: packet for name, packet in packets.items() if packet},
        {name: reader.enumeration(name) for name in sorted(named)},
    )


class _Reader:
    """Definitions of some files, for one generation."""

    def __init__(self, generation: int, roots: Sequence[Element]) -> None:
        self.generation = generation
        every = [one for root in roots for one in root.iter()]
        self.bitsets = {one.get("name", ""): one for one in every if _tag(one) == "bitset"}
        self.domains = {one.get("name", ""): one for one in every if _tag(one) == "domain"}
        self.enumerations: dict[str, list[Element]] = {}
        for one in every:
            if _tag(one) == "enum":
                self.enumerations.setdefault(one.get("name", ""), []).append(one)

    def domain(self, name: str) -> Element:
        if name not in self.domains:
            raise AutogenError(f"there is no domain {name}")
        return self.domains[name]

    def enumeration(self, name: str) -> dict[str, int]:
        """Values by name. Raises AutogenError for one that is not there."""
        if name not in self.enumerations:
            raise AutogenError(f"there is no enumeration {name}")
        return {
            value.get("name", ""): _number(value, "value")
            for one in self.enumerations[name]
            for value in one
            if _tag(value) == "value" and value.get("value") and self.has(value)
        }

    def has(self, one: Element) -> bool:
        """Whether the generation has what this describes."""
        variants = one.get("variants")
        if variants is None:
            return True
        first, dash, last = variants.partition("-")
        found = _GENERATION.fullmatch(first)
        if found is None:  # of another set: what a packet's own fields choose
            return False
        end = _GENERATION.fullmatch(last)
        low = int(found[1])
        high = int(end[1]) if end else self.generation if dash else low
        return low <= self.generation <= high

    def words(self, parent: Element, base: int = 0, prefix: str = "") -> Iterator[Word]:
        """All registers below an element, those of arrays by their number."""
        for one in parent:
            if not self.has(one):
                continue
            tag = _tag(one)
            if tag in ("reg32", "reg64"):
                bits = 64 if tag == "reg64" else 32
                name = prefix + one.get("name", "")
                yield Word(name, base + _number(one, "offset"), bits, self.fields(one, bits))
            elif tag == "stripe":
                yield from self.words(one, base + int(one.get("offset", "0"), 0), prefix)
            elif tag == "array":
                yield from self._array(one, base, prefix)

    def _array(self, one: Element, base: int, prefix: str) -> Iterator[Word]:
        name = one.get("name", "")
        if "offset" not in one.keys():  # noqa: SIM118  # an Element is no dict
            return  # with an offset for each: none that is wanted
        at, stride = base + _number(one, "offset"), _number(one, "stride")
        for number in range(_number(one, "length")):
            start, called = at + number * stride, f"{prefix}{name}[{number}]"
            members = list(self.words(one, start, f"{called}."))
            yield from members or [Word(called, start, 32, {})]

    def fields(self, one: Element, bits: int) -> dict[str, RnnField]:
        """Bit fields: those written here, and those of the set that is its type."""
        kind = one.get("type", "")
        found: dict[str, RnnField] = {}
        if kind in self.bitsets:
            found |= self._bitfields(self.bitsets[kind])
        found |= self._bitfields(one)
        shift = int(one.get("shr", "0"))
        if not found and (shift or kind in self.enumerations or one.get("high")):
            low, high = int(one.get("low", "0")), int(one.get("high", str(bits - 1)))
            found["VALUE"] = (low, high - low + 1, shift, kind * (kind in self.enumerations))
        return found

    def _bitfields(self, parent: Element) -> dict[str, RnnField]:
        found = {}
        for one in parent:
            if _tag(one) != "bitfield" or not self.has(one):
                continue
            low = int(one.get("pos") or one.get("low") or "0")
            high = int(one.get("pos") or one.get("high") or "31")
            kind = one.get("type", "")
            known = kind if kind in self.enumerations else ""
            found[one.get("name", "")] = (low, high - low + 1, int(one.get("shr", "0")), known)
        return found


def _tag(one: Element) -> str:
    return str(one.tag).removeprefix(_SPACE)


def _number(one: Element, name: str) -> int:
    value = one.get(name)
    if value is None:
        raise AutogenError(f"{_tag(one)} {one.get('name')} has no {name}")
    return int(value, 0)
