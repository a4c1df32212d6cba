"""Instruction formats of RDNA3 (gfx11): how to tell them apart, and where their fields lie.

From AMD, "RDNA3 Instruction Set Architecture", chapter 15 ("Microcode Formats"). Image, export
and parameter interpolation formats are left out: compute kernels have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

LITERAL: Final = 255
"""Source code of a 32-bit constant that follows the instruction."""
DPP16: Final = 250
DPP8: Final = 233
DPP8_FI: Final = 234
"""Source 0 codes that say that a DPP dword follows, which names the true source 0."""
VCC_LO: Final = 106
NULL: Final = 124
M0: Final = 125
EXEC: Final = 126
VGPR: Final = 256
"""Sources from here on are vector registers."""


@dataclass(frozen=True)
class Format:
    """One encoding.

    Attributes:
        name: as in the manual, lower case; the segments of FLAT are formats of their own.
        size: bytes, without literals and DPP dwords.
        match: the value of the first dword under `mask`, by which the format is known.
        opcode: the field that holds it, "" for one of several (VOPD).
        fields: name -> (highest bit, lowest bit) of the little-endian instruction.
    """

    name: str
    size: int
    mask: int
    match: int
    opcode: str
    fields: Mapping[str, tuple[int, int]]

    @cached_property
    def extractors(self) -> tuple[tuple[str, int, int], ...]:
        """(name, shift, mask) of every field."""
        return tuple((n, lo, (1 << (hi - lo + 1)) - 1) for n, (hi, lo) in self.fields.items())

    def split(self, word: int) -> dict[str, int]:
        """The fields of an instruction."""
        return {name: word >> shift & mask for name, shift, mask in self.extractors}

    def join(self, fields: Mapping[str, int]) -> int:
        """An instruction with these fields, the others zero. Raises KeyError for an unknown one."""
        word = self.match
        for name, value in fields.items():
            high, low = self.fields[name]
            assert 0 <= value < 1 << (high - low + 1), (self.name, name, value)
            word |= value << low
        return word


def _format(name: str, size: int, prefix: str, fields: str, opcode: str = "op") -> Format:
    """`prefix` is the highest bits of the first dword; `fields` are ``name=high:low``."""
    places = {}
    for item in fields.split():
        field, _, bits = item.partition("=")
        high, _, low = bits.partition(":")
        places[field] = (int(high), int(low or high))
    shift = 32 - len(prefix)
    mask = ((1 << len(prefix)) - 1) << shift
    return Format(name, size, mask, int(prefix or "0", 2) << shift, opcode, places)


_VOP3 = "vdst=7:0 op=25:16 src0=40:32 src1=49:41 src2=58:50 omod=60:59 neg=63:61 clamp=15"
_FLAT = (
    "offset=12:0 dlc=13 glc=14 slc=15 seg=17:16 op=24:18 addr=39:32 data=47:40 saddr=54:48 sve=55"
    " vdst=63:56"
)


def _segment(name: str, number: int) -> Format:
    base = _format(name, 8, "110111", _FLAT)
    return Format(name, 8, base.mask | 3 << 16, base.match | number << 16, "op", base.fields)


# The first whose bits match counts, so that longer prefixes stand before shorter ones.
FORMATS: Final[tuple[Format, ...]] = (
    _format("sop1", 4, "101111101", "ssrc0=7:0 op=15:8 sdst=22:16"),
    _format("sopc", 4, "101111110", "ssrc0=7:0 ssrc1=15:8 op=22:16"),
    _format("sopp", 4, "101111111", "simm16=15:0 op=22:16"),
    _format("sopk", 4, "1011", "simm16=15:0 sdst=22:16 op=27:23"),
    _format("sop2", 4, "10", "ssrc0=7:0 ssrc1=15:8 sdst=22:16 op=29:23"),
    _format(
        *("smem", 8, "111101"),
        "sbase=5:0 sdata=12:6 dlc=13 glc=14 op=25:18 offset=52:32 soffset=63:57",
    ),
    _format("vop1", 4, "0111111", "src0=8:0 op=16:9 vdst=24:17"),
    _format("vopc", 4, "0111110", "src0=8:0 vsrc1=16:9 op=24:17"),
    _format("vop2", 4, "0", "src0=8:0 vsrc1=16:9 vdst=24:17 op=30:25"),
    _format(
        *("vop3p", 8, "11001100"),
        "vdst=7:0 neg_hi=10:8 opsel=13:11 opsel_hi2=14 clamp=15 op=22:16 src0=40:32 src1=49:41"
        " src2=58:50 opsel_hi=60:59 neg=63:61",
    ),
    _format(
        *("vopd", 8, "110010"),
        "src0x=8:0 vsrc1x=16:9 opy=21:17 opx=25:22 src0y=40:32 vsrc1y=48:41 vdsty=55:49"
        " vdstx=63:56",
        "",
    ),
    _format("vop3", 8, "110101", f"{_VOP3} abs=10:8 opsel=14:11"),
    _format(
        *("ds", 8, "110110"),
        "offset0=7:0 offset1=15:8 gds=17 op=25:18 addr=39:32 data0=47:40 data1=55:48 vdst=63:56",
    ),
    _segment("flat", 0),
    _segment("scratch", 1),
    _segment("global", 2),
    _format(
        *("mubuf", 8, "111000"),
        "offset=11:0 slc=12 dlc=13 glc=14 op=25:18 vaddr=39:32 vdata=47:40 srsrc=52:48 tfe=53"
        " offen=54 idxen=55 soffset=63:56",
    ),
)
BY_NAME: Final[dict[str, Format]] = {format.name: format for format in FORMATS}

VOP3SD: Final = _format("vop3sd", 8, "110101", f"{_VOP3} sdst=14:8")
"""VOP3 with a second result, a lane mask, in the place of `abs` and `opsel`."""
VOP3SD_OPCODES: Final = frozenset((*range(0x120, 0x123), *range(0x2FC, 0x303)))
"""The opcodes of VOP3 that are VOP3SD (section 15.3.5)."""


@dataclass(frozen=True)
class Encoding:
    """How a generation of chips encodes instructions.

    Attributes:
        formats: the first whose bits match counts.
        segments: names of those that are told apart by bits below the first nine.
        vop3sd: opcodes of VOP3 that have a second result in the place of `abs` and `opsel`.
    """

    formats: tuple[Format, ...]
    segments: tuple[str, ...]
    vop3sd: frozenset[int]

    def format_of(self, word: int) -> Format | None:
        """The format of an instruction, by its first dword; None where none matches."""
        form = self._by_top[word >> 23]
        if form is not None and form.name in self.segments:
            return next((f for f in self._segments if word & f.mask == f.match), None)
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


GFX11: Final = Encoding(FORMATS, ("flat", "scratch", "global"), VOP3SD_OPCODES)
ENCODINGS: Final = {"gfx1100": GFX11}
"""By chip."""

DPP16_FIELDS: Final = _format(
    *("dpp16", 4, ""),
    "vsrc0=7:0 ctrl=16:8 fi=18 bc=19 neg0=20 abs0=21 neg1=22 abs1=23 bank=27:24 row=31:28",
)
DPP8_FIELDS: Final = _format("dpp8", 4, "", "vsrc0=7:0 lanes=31:8")
