"""Reads declarations: registers, variables and what they hold at first."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from gpu.sim.isa.ptx.operands import integer, number, operand, split
from gpu.sim.isa.ptx.syntax import TYPES, Number, Symbol, Variable

_REGISTER: Final = re.compile(r"\.reg\s+\.(\w+)\s+(.+)", re.S)
_RANGE: Final = re.compile(r"([A-Za-z_$%][\w$%]*)<(\d+)>")
_NAME: Final = re.compile(r"[A-Za-z_$%][\w$%]*")
_VARIABLE: Final = re.compile(
    r"\.(global|const|shared|local|param)\b((?:\s*\.[\w]+(?:\s+\d+)?)*?)"
    r"\s*\.(\w+)\s*((?:\.ptr(?:\s*\.\w+)*?(?:\s*\.align\s+\d+)?)?)\s+([A-Za-z_$%][\w$%]*)"
    r"\s*((?:\[\s*\w*\s*\]\s*)*)(?:=\s*(.+))?",
    re.S,
)
_ALIGN: Final = re.compile(r"\.align\s+(\d+)")
_MAX_REGISTERS: Final = 1 << 16
_MAX_BYTES: Final = 1 << 30


def declared_registers(text: str) -> Iterator[tuple[str, str]]:
    """(name, type) of each register of a ``.reg``. Raises ValueError."""
    found = _REGISTER.fullmatch(text)
    if not found or found[1] not in TYPES or TYPES[found[1]] > 64:
        raise ValueError("this declares no registers of a known type")
    for part in split(found[2]):
        several = _RANGE.fullmatch(part)
        if several:
            if int(several[2]) > _MAX_REGISTERS:
                raise ValueError(f"{several[2]} registers are more than {_MAX_REGISTERS}")
            for index in range(int(several[2])):
                yield f"{several[1]}{index}", found[1]
        elif _NAME.fullmatch(part):
            yield part, found[1]
        else:
            raise ValueError(f"{part!r} is no name of a register")


def declared_variable(text: str) -> Variable:
    """A variable or parameter. Raises ValueError."""
    found = _VARIABLE.fullmatch(text.strip())
    if not found:
        raise ValueError("this is no declaration that is known")
    space, before, kind, _, name, sizes, initial = found.groups()
    lanes = 4 if ".v4" in before else 2 if ".v2" in before else 1
    if kind not in TYPES or kind == "pred":
        raise ValueError(f".{kind} is no type of a variable")
    element = TYPES[kind] // 8
    count = lanes
    for size in re.findall(r"\[\s*(\w*)\s*\]", sizes):
        count *= integer(size) if size else 0
    if count * element > _MAX_BYTES:
        raise ValueError(f"{count * element} bytes are too many for a variable")
    align = _ALIGN.search(before)
    aligned = int(align[1]) if align else element * lanes
    if aligned & (aligned - 1) or not 0 < aligned <= 1 << 16:
        raise ValueError(f"an alignment of {aligned} is no power of two up to 65536")
    data, pointers = _initial(initial, kind, element) if initial else (b"", ())
    total = count * element
    if len(data) > total and initial:
        if total:
            raise ValueError(f"{name} has {total} bytes and {len(data)} to begin with")
        total = len(data)
    return Variable(space, name, total, aligned, element * lanes, data, pointers)


def _initial(text: str, kind: str, element: int) -> tuple[bytes, tuple[tuple[int, Symbol], ...]]:
    """The bytes of an initialiser, and the addresses among them."""
    inner = text.strip()
    parts = split(re.sub(r"[{}]", " ", inner)) if inner[:1] == "{" else [inner]
    data = bytearray()
    pointers = []
    for part in parts:
        value = operand(part) if part else Number(0)
        if isinstance(value, Symbol):
            if element != 8:
                raise ValueError(f"{part} is an address, which takes 8 bytes")
            pointers.append((len(data), value))
            data += bytes(8)
        else:
            data += _element(number(part), kind, element)
    return bytes(data), tuple(pointers)


def _element(value: Number, kind: str, element: int) -> bytes:
    bits = value.bits
    if value.form == "int" and kind in ("f32", "f64"):
        return struct.pack("<f" if kind == "f32" else "<d", bits)
    if value.form == "f64" and kind == "f32":
        return struct.pack("<f", struct.unpack("<d", bits.to_bytes(8, "little"))[0])
    return (bits & (1 << 8 * element) - 1).to_bytes(element, "little")
