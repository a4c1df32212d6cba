"""Instruction formats: how to tell them apart, and where their fields lie.

The formats of each generation of chips are in gpu/sim/isa/rdna/encodings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

LITERAL: Final = 255
"""Source code of a 32-bit constant that follows the instruction."""
DPP16: Final = 250
DPP8: Final = 233
DPP8_FI: Final = 234
SDWA: Final = 249
"""Source 0 codes that say that a DPP or SDWA dword follows, which names the true source 0."""
VCC_LO: Final = 106
NULL: Final = 124
M0: Final = 125
EXEC: Final = 126
VGPR: Final = 256
"""Sources from here on are vector registers."""
ACCUMULATOR: Final = 256
"""Numbers of vector registers from here on are accumulators, of CDNA."""


@dataclass(frozen=True)
class Format:
    """One encoding.

    Attributes:
        name: as in the manual, lower case; the segments of FLAT are formats of their own.
        size: bytes, without literals and DPP dwords.
        match: the value of the first dword under `mask`, by which the format is known.
        opcode: the field that holds it, "" for one of several (VOPD).
        fields: name -> (highest bit, lowest bit) of the little-endian instruction.
        signed: fields that are numbers with a sign.
    """

    name: str
    size: int
    mask: int
    match: int
    opcode: str
    fields: Mapping[str, tuple[int, int]]
    signed: frozenset[str] = frozenset()

    @cached_property
    def extractors(self) -> tuple[tuple[str, int, int], ...]:
        """(name, shift, mask) of every field."""
        return tuple((n, lo, (1 << (hi - lo + 1)) - 1) for n, (hi, lo) in self.fields.items())

    def split(self, word: int) -> dict[str, int]:
        """The fields of an instruction."""
        found = {name: word >> shift & mask for name, shift, mask in self.extractors}
        for name in self.signed:
            high, low = self.fields[name]
            found[name] -= (found[name] >> high - low) << high - low + 1
        return found

    def join(self, fields: Mapping[str, int]) -> int:
        """An instruction with these fields, the others zero. Raises KeyError for an unknown one."""
        word = self.match
        for name, value in fields.items():
            high, low = self.fields[name]
            assert 0 <= value < 1 << (high - low + 1), (self.name, name, value)
            word |= value << low
        return word


def make_format(name: str, size: int, prefix: str, fields: str, opcode: str = "op") -> Format:
    """A format; `prefix` is the highest bits of the first dword.

    `fields` are ``name=high:low``, with a ``+`` before the name of those that have a sign.
    """
    places, signed = {}, set()
    for item in fields.split():
        field, _, bits = item.partition("=")
        high, _, low = bits.partition(":")
        if field.startswith("+"):
            field = field[1:]
            signed.add(field)
        places[field] = (int(high), int(low or high))
    shift = 32 - len(prefix)
    mask = ((1 << len(prefix)) - 1) << shift
    value = int(prefix or "0", 2) << shift
    return Format(name, size, mask, value, opcode, places, frozenset(signed))


DPP16_FIELDS: Final = make_format(
    *("dpp16", 4, ""),
    "vsrc0=7:0 ctrl=16:8 fi=18 bc=19 neg0=20 abs0=21 neg1=22 abs1=23 bank=27:24 row=31:28",
)
DPP8_FIELDS: Final = make_format("dpp8", 4, "", "vsrc0=7:0 lanes=31:8")
_SELECTED: Final = (
    "sel0=18:16 sext0=19 neg0=20 abs0=21 scalar0=23 sel1=26:24 sext1=27 neg1=28 abs1=29 scalar1=31"
)
SDWA_FIELDS: Final = make_format(
    "sdwa", 4, "", f"vsrc0=7:0 dst=10:8 unused=12:11 clamp=13 omod=15:14 {_SELECTED}"
)
SDWAB_FIELDS: Final = make_format("sdwab", 4, "", f"vsrc0=7:0 sdst=14:8 named=15 {_SELECTED}")
"""That of comparisons, which may name a result other than VCC."""


@dataclass(frozen=True)
class Encoding:
    """How a generation of chips encodes instructions.

    Attributes:
        formats: the first whose bits match counts.
        segments: names of those that are told apart by bits below the first nine.
        vop3sd: the format of opcodes of VOP3 that have a second result, a lane mask, in the place
            of `abs` and `opsel`.
        vop3sd_opcodes: which these are.
        mai: the format of those opcodes of VOP3P that multiply matrices.
        mai_opcodes: which these are.
        refused: formats that are not decoded, with what they are for.
        without: what fields hold where no scalar register is an offset or a base.
        codes: of scalar operands those that are not RDNA3's, and what they are there.
        adapt: makes other fields what they are on RDNA3, by the name of the instruction.
        has_long_literals: whether a 32-bit constant may follow VOP3 and the like.
        has_dpp8: whether DPP may name each of 8 lanes, and fetch from inactive ones.
        has_sdwa: whether vector instructions may choose bytes and halves of their operands.
        cmpx_bit: of VOPC's opcodes the bit of those that write EXEC and nothing else.
    """

    formats: tuple[Format, ...]
    segments: tuple[str, ...]
    vop3sd: Format
    vop3sd_opcodes: frozenset[int]
    refused: Mapping[str, str]
    without: Mapping[str, int] = field(default_factory=lambda: {"saddr": NULL, "soffset": NULL})
    codes: Mapping[int, int] = field(default_factory=dict)
    adapt: Callable[[str, dict[str, int]], None] = lambda name, fields: None
    has_long_literals: bool = True
    has_dpp8: bool = True
    has_sdwa: bool = False
    mai: Format | None = None
    mai_opcodes: frozenset[int] = frozenset()
    cmpx_bit: int = 0x80

    def format_of(self, word: int) -> Format | None:
        """The format of an instruction, by its first dword; None where none matches."""
        form = self._by_top[word >> 23]
        if form is not None and form.name in self.segments:
            return next((f for f in self._segments if word & f.mask == f.match), None)
        return form

    @cached_property
    def by_name(self) -> Mapping[str, Format]:
        """All formats."""
        matrices = () if self.mai is None else (self.mai,)
        return {form.name: form for form in (*self.formats, self.vop3sd, *matrices)}

    def refined(self, form: Format, opcode: int) -> Format:
        """The format of an opcode, of those that are told apart by it."""
        if form.name == "vop3" and opcode in self.vop3sd_opcodes:
            return self.vop3sd
        if self.mai is not None and form.name == "vop3p" and opcode in self.mai_opcodes:
            return self.mai
        return form

    @cached_property
    def _segments(self) -> tuple[Format, ...]:
        return tuple(f for f in self.formats if f.name in self.segments)

    @cached_property
    def _by_top(self) -> list[Format | None]:
        top = 0xFF800000
        return [
            next((f for f in self.formats if (bits << 23) & f.mask & top == f.match & top), None)
            for bits in range(1 << 9)
        ]
