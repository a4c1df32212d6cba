"""Sources and destinations of ir3 instructions, from their fields to text.

Fields and forms: Mesa 25.0, src/freedreno/isa/ir3-common.xml, ir3-cat1.xml and ir3-cat3.xml.
Registers are counted in components: r1.y is 5. Those of halves have numbers of their own.
"""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple

ADDRESS: Final = 61
PREDICATE: Final = 62
"""Numbers of vectors that stand for a0 and p0."""
LAST_NAMED: Final = 0xF7
"""The last destination that may be half: behind it are p0 and r63, which have one size."""
COMPONENTS: Final = "xyzw"
_FLUT: Final = (
    *("(0.0)", "(0.5)", "(1.0)", "(2.0)", "(e)", "(pi)", "(1/pi)", "(1/log2(e))", "(log2(e))"),
    *("(1/log2(10))", "(log2(10))", "(4.0)"),
)
FLUT: Final = (
    *(0.0, 0.5, 1.0, 2.0, 2.718281828459045, 3.141592653589793, 0.3183098861837907),
    *(0.6931471805599453, 1.4426950408889634, 0.30102999566398114, 3.321928094887362, 4.0),
)
"""Floats that immediates of a table name."""
TYPES: Final = ("f16", "f32", "u16", "u32", "s16", "s32", "u8", "u8_32")
HALF_TYPES: Final = ("f16", "u16", "s16", "u8")


class Bad(Exception):
    """A field has a value that no instruction has; the text says which."""


class Operand(NamedTuple):
    """A source or destination.

    Attributes:
        kind: ``gpr``, ``const``, ``imm``, ``flut``, ``rel_gpr`` or ``rel_const``; the offset from
            a0.x of the last two is `number`.
        number: of a component, or the value of an immediate.
        half: whether it has 16 bits.
        negated, absolute: what is done to it before.
        repeats: whether it is the next component with each repetition.
        last: whether nothing reads it again.
    """

    kind: str
    number: int
    half: bool = False
    negated: bool = False
    absolute: bool = False
    repeats: bool = False
    last: bool = False

    @property
    def is_predicate(self) -> bool:
        """Whether it is a component of p0."""
        return self.kind == "gpr" and self.number >> 2 == PREDICATE

    @property
    def is_address(self) -> bool:
        """Whether it is a0 or a1."""
        return self.kind == "gpr" and self.number >> 2 == ADDRESS

    def text(self) -> str:
        """As Mesa writes it."""
        sign = ("", "(neg)", "(abs)", "(absneg)")[self.negated | self.absolute << 1]
        before = "(last)" * self.last + sign + "(r)" * self.repeats
        return before + self.bare()

    def bare(self) -> str:
        """The same without what is done to it."""
        h = "h" * self.half
        if self.kind == "imm":
            return f"h({self.number})" if self.half else str(self.number)
        if self.kind == "flut":
            return h + _FLUT[self.number]
        if self.kind.startswith("rel"):
            further = f" + {self.number}" if self.number else ""
            return f"{h}{'r' if self.kind == 'rel_gpr' else 'c'}<a0.x{further}>"
        return h + register(self.number, "c" if self.kind == "const" else "r")


def register(number: int, letter: str = "r") -> str:
    """The name of a component."""
    vector, component = number >> 2, COMPONENTS[number & 3]
    if letter == "r" and vector in (ADDRESS, PREDICATE):
        letter, vector = "a" if vector == ADDRESS else "p", 0
    return f"{letter}{vector}.{component}"


def field(word: int, low: int, high: int) -> int:
    """The bits from `low` up to and with `high`."""
    return word >> low & (1 << high - low + 1) - 1


def signed(value: int, bits: int) -> int:
    """The same bits as a signed number."""
    return value - (1 << bits) if value >> bits - 1 else value


def source(value: int, full: bool, repeats: bool) -> Operand:
    """A source of categories 2 and 4: 16 bits. Raises Bad."""
    made = _unmarked(value, full)
    negated, absolute = bool(value >> 14 & 1), bool(value >> 15)
    return made._replace(negated=negated, absolute=absolute, repeats=repeats)


def _unmarked(value: int, full: bool) -> Operand:
    form = field(value, 11, 13)
    if form == 4:
        return Operand("imm", signed(field(value, 0, 10), 11), not full)
    if form == 5:
        if (number := field(value, 0, 9)) >= len(_FLUT):
            raise Bad(f"{number} is not in the table of floats")
        return Operand("flut", number, bool(value >> 10 & 1))
    if form == 0:
        if field(value, 8, 9):
            raise Bad("bits 8 and 9 of a register")
        return Operand("gpr", field(value, 0, 7), not full, last=bool(value >> 10 & 1))
    if form & 3 == 2:
        return Operand("const", field(value, 0, 10), not full)
    if form == 1:
        kind = "rel_const" if value >> 10 & 1 else "rel_gpr"
        return Operand(kind, signed(field(value, 0, 9), 10), not full)
    raise Bad(f"form {form} of a source")


def short_source(value: int, full: bool, immediates: bool) -> Operand:
    """Sources 1 and 3 of category 3: 13 bits; it has `immediates` or constants. Raises Bad."""
    if value >> 12:
        if immediates:
            return Operand("imm", field(value, 0, 11))
        if value >> 11 & 1:
            raise Bad("bit 11 of a constant")
        return Operand("const", field(value, 0, 10), not full)
    if value >> 11:
        kind = "rel_const" if value >> 10 & 1 else "rel_gpr"
        return Operand(kind, signed(field(value, 0, 9), 10), not full)
    if field(value, 8, 9):
        raise Bad("bits 8 and 9 of a register")
    return Operand("gpr", field(value, 0, 7), not full, last=bool(value >> 10 & 1))


def destination(number: int, half: bool) -> Operand:
    """A register that is written; p0 and those behind it have one size."""
    return Operand("gpr", number, half and number <= LAST_NAMED)


def immediate_text(value: int, kind: str) -> str:
    """The immediate of a move of a type."""
    if kind in ("f16", "f32"):
        bits = int(kind[1:])
        held = (value & (1 << bits) - 1).to_bytes(4, "little")
        number = struct.unpack_from("<e" if bits == 16 else "<f", held)[0]
        sign = "-" * (math.isnan(number) and value >> bits - 1 & 1)
        return f"{'h' * (bits == 16)}({sign}{number:f})"
    if kind == "u32" and value > 0x1000:
        return f"{value:#x}"
    if kind in ("s16", "s32"):
        bits = int(kind[1:])
        return str(signed(value & (1 << bits) - 1, bits))
    return str(value)
