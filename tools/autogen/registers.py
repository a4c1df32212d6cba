"""Registers and their fields from AMD's ``*_offset.h`` and ``*_sh_mask.h``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from typing import Final

from .recipe import AutogenError, Patterns

Field = tuple[int, int]  # lowest bit, width
Register = tuple[int, int, dict[str, Field]]  # segment, offset in dwords, fields

# gc_10_3_0 and older headers say mm where newer ones say reg.
_OFFSET: Final = re.compile(
    r"^#define[ \t]+(?:reg|mm)(\w+?)(_BASE_IDX)?[ \t]+(0x[0-9a-fA-F]+|\d+)[ \t]*$", re.MULTILINE
)
_FIELD: Final = re.compile(
    r"^#define[ \t]+(\w+?)__(\w+?)(__SHIFT|_MASK)[ \t]+(0x[0-9a-fA-F]+)L?[ \t]*$", re.MULTILINE
)


def parse_registers(
    offsets: str, masks: str, names: Patterns, incomplete: Collection[str] = ()
) -> dict[str, Register]:
    """The registers that match, by name, in the order of the header.

    Raises:
        AutogenError: a register without a segment, one name at two places, or what `parse_fields`
            finds.
    """
    fields = parse_fields(masks, names, incomplete)
    places: dict[str, dict[bool, int]] = defaultdict(dict)
    for name, index, value in _OFFSET.findall(offsets):
        if name not in names:
            continue
        number = int(value, 0)
        if places[name].setdefault(bool(index), number) != number:
            raise AutogenError(f"{name}{index} is both {places[name][bool(index)]:#x} and {value}")
    result = {}
    for name, place in places.items():
        if set(place) != {False, True}:
            raise AutogenError(f"{name} lacks its offset or its segment (_BASE_IDX)")
        result[name] = (place[True], place[False], fields.get(name, {}))
    return result


def parse_fields(
    masks: str, names: Patterns, incomplete: Collection[str] = ()
) -> dict[str, dict[str, Field]]:
    """Fields by register and name: (lowest bit, width), lowest first.

    `incomplete` are the fields (REGISTER__FIELD) that are known to lack shift or mask; they are
    left out.

    Raises:
        AutogenError: other fields lack one of the two, or the two disagree.
    """
    shifts: dict[tuple[str, str], int] = {}
    bits: dict[tuple[str, str], int] = {}
    for register, name, kind, value in _FIELD.findall(masks):
        if register in names:
            (shifts if kind == "__SHIFT" else bits)[register, name] = int(value, 16)
    halves = sorted("__".join(key) for key in shifts.keys() ^ bits.keys())
    if halves != sorted(incomplete):
        raise AutogenError(f"shift or mask is missing: {halves}, expected: {sorted(incomplete)}")
    result: dict[str, dict[str, Field]] = defaultdict(dict)
    for register, name in sorted(
        shifts.keys() & bits.keys(), key=lambda key: (key[0], shifts[key])
    ):
        shift = shifts[register, name]
        result[register][name] = field(f"{register}__{name}", shift, bits[register, name])
    return result


def field(what: str, shift: int, mask: int) -> Field:
    """(lowest bit, width) of a mask without holes whose lowest bit is `shift`."""
    width = mask.bit_length() - shift
    if mask != (1 << width) - 1 << shift:
        raise AutogenError(f"{what}: shift {shift} does not fit mask {mask:#x}")
    return shift, width


def parse_bits(text: str, pattern: str) -> dict[str, dict[str, Field]]:
    """Fields by register and name where a pattern's four groups say both, lowest bit and width."""
    result: dict[str, dict[str, Field]] = defaultdict(dict)
    for register, name, shift, width in re.findall(pattern, text):
        result[register][name] = (int(shift), int(width))
    return result
