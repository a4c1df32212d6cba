"""Reads operands and literals of PTX."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Final

from gpu.sim.isa.ptx.syntax import (
    Address,
    Both,
    Number,
    Operand,
    Pack,
    Part,
    Register,
    Sink,
    Symbol,
)

_NAME: Final = r"[A-Za-z_$%][\w$%]*(?:\.[xyzw])?"
_WORD: Final = re.compile(rf"(!?)\s*({_NAME})")
_INTEGER: Final = re.compile(r"([+-]?)\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?")
_BITS: Final = re.compile(r"(-?)0([fFdD])([0-9a-fA-F]{8}|[0-9a-fA-F]{16})")
_FRACTION: Final = re.compile(r"[+-]?(?:\d+\.\d*|\d*\.\d+|\d+)(?:[eE][+-]?\d+)?")
_ADDRESS: Final = re.compile(rf"\s*({_NAME}|0[xX][0-9a-fA-F]+|\d+)\s*(?:([+-])\s*(\S.*))?\s*")
_BOTH: Final = re.compile(rf"({_NAME}|_)\s*\|\s*({_NAME}|_)")
_PART: Final = re.compile(rf"({_NAME})\.(b[0-7]{{1,4}}|h[0-3]{{1,2}})")
_INDEXED: Final = re.compile(rf"({_NAME})\s*\[([^\[\]]+)\]")
_SUM: Final = re.compile(rf"({_NAME})\s*([+-])\s*(.+)")


def split(text: str) -> list[str]:
    """Parts between commas that are in no bracket."""
    if not ("{" in text or "(" in text or "[" in text):
        return [part.strip() for part in text.split(",")] if text.strip() else []
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in "{([":
            depth += 1
        elif letter in "})]":
            depth -= 1
            if depth < 0:
                raise ValueError("a bracket closes that never opened")
        elif letter == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    if depth:
        raise ValueError("a bracket is never closed")
    last = text[start:].strip()
    return [*parts, last] if parts or last else []


def integer(text: str) -> int:
    """An integer literal. Raises ValueError."""
    found = _INTEGER.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text.strip()!r} is no integer")
    digits = found[2]
    base = {"x": 16, "b": 2}.get(digits[1:2].lower(), 8 if digits[0] == "0" else 10)
    value = int(digits, base)
    if value >> 64:
        raise ValueError(f"{text.strip()!r} has more than 64 bits")
    return -value if found[1] == "-" else value


def number(text: str) -> Number:
    """A literal. Raises ValueError."""
    pattern = _BITS.fullmatch(text)
    if pattern:
        form = "f32" if pattern[2] in "fF" else "f64"
        if len(pattern[3]) != (8 if form == "f32" else 16):
            raise ValueError(f"{text!r} has the wrong number of digits")
        sign = 1 << (31 if form == "f32" else 63) if pattern[1] else 0
        return Number(int(pattern[3], 16) ^ sign, form)
    if _INTEGER.fullmatch(text):
        return Number(integer(text))
    if _FRACTION.fullmatch(text):
        return Number(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    raise ValueError(f"{text!r} is no literal")


def _name(text: str) -> Register | Symbol:
    return Register(text) if text.startswith("%") else Symbol(text)


def _address(text: str) -> Address:
    found = _ADDRESS.fullmatch(text)
    if not found:
        raise ValueError(f"[{text}] is no address")
    sign = -1 if found[2] == "-" else 1
    offset = sign * integer(found[3]) if found[3] else 0
    base = found[1]
    if base[0].isdigit():
        return Address(Number(integer(base)), offset)
    return Address(_name(base), offset)


@lru_cache(maxsize=8192)
def operand(text: str) -> Operand:
    """One operand; a name may be a register that has no percent sign. Raises ValueError."""
    if text == "_":
        return Sink()
    word = _WORD.fullmatch(text)
    if word:
        if word[1]:
            return Register(word[2], negated=True)
        return _name(word[2])
    if text[:1] == "[" and text[-1:] == "]":
        return _address(text[1:-1])
    if (text[:1], text[-1:]) in (("{", "}"), ("(", ")")):
        return Pack(tuple(operand(part) for part in split(text[1:-1])))
    both = _BOTH.fullmatch(text)
    if both:
        return Both(Register(both[1]), Register(both[2]))
    total = _SUM.fullmatch(text)
    if total:
        sign = -1 if total[2] == "-" else 1
        return Symbol(total[1], sign * integer(total[3]))
    part = _PART.fullmatch(text)
    if part:
        return Part(_name(part[1]), part[2])
    indexed = _INDEXED.fullmatch(text)
    if indexed:
        return Symbol(indexed[1], index=integer(indexed[2]))
    return number(text)
