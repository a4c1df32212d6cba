"""Bit fields at the places that the compiler chose, in fields that ctypes puts there too.

Compilers put a bit field behind the last one even where the two have types of different sizes;
ctypes, where it lays fields out as Microsoft's compilers do, begins a new unit there. So bit fields
are gathered into units of 1, 2, 4 or 8 bytes here, each of them filled to its last bit: how units
follow each other is then the same by every rule that a version of Python knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .recipe import AutogenError

_BYTE = 8


@dataclass(frozen=True)
class Member:
    """A member as the compiler places it, counted in bits from the structure's beginning.

    `ctype` and `annotation` are those of `clang.Field`, where it is no bit field. A bit field
    without a name is not a member: the place is free.
    """

    name: str
    start: int
    width: int
    ctype: str = ""
    annotation: str = "int"
    signed: bool = False

    @property
    def is_bits(self) -> bool:
        """Whether it is a bit field."""
        return not self.ctype

    @property
    def end(self) -> int:
        """The bit behind it."""
        return self.start + self.width


@dataclass(frozen=True)
class Placed:
    """A field to write: name, ctypes expression, Python type, and the bits of a bit field."""

    name: str
    ctype: str
    annotation: str
    bits: int = 0


def place(structure: str, members: Sequence[Member], size: int) -> list[Placed]:
    """The fields, padding among them, of a structure of `size` bytes with bit fields in it.

    Raises:
        AutogenError: a bit field is in no unit that ctypes can have.
    """
    fields = _Fields()
    rest, at, unit = list(members), 0, 0
    while rest:
        first = rest[0].start // _BYTE * _BYTE
        if first > at:
            fields.pad(first - at)
        if not rest[0].is_bits:
            member = rest.pop(0)
            fields.add(member.name, member.ctype, member.annotation)
            at, unit = member.end, 0
            continue
        width = _unit(structure, rest, first, size * _BYTE)
        if unit not in (0, width) and first == at:
            fields.pad(0)  # ends the unit before: some versions of ctypes would make that longer
        inside = [member for member in rest if member.start < first + width]
        fields.fill(inside, first, width)
        del rest[: len(inside)]
        at, unit = first + width, width
    if size * _BYTE > at:
        fields.pad(size * _BYTE - at)
    return fields.placed


def overlay(members: Sequence[Member], size: int) -> list[Placed]:
    """The fields of a union of `size` bytes with bit fields in it, and padding for its size."""
    fields = _Fields()
    for member in members:
        if member.is_bits:
            ctype = _integer(_container(member.width), member.signed)
            fields.add(member.name, ctype, "int", member.width)
        else:
            fields.add(member.name, member.ctype, member.annotation)
    fields.pad(size * _BYTE)
    return fields.placed


def _container(width: int) -> int:
    return next(bits for bits in (8, 16, 32, 64) if width <= bits)


def _unit(structure: str, rest: Sequence[Member], first: int, end: int) -> int:
    """The bits of the largest unit from `first` on that cuts nothing and holds bit fields alone."""
    for width in (64, 32, 16, 8):
        last = first + width
        inside = [member for member in rest if member.start < last]
        if last <= end and all(member.is_bits and member.end <= last for member in inside):
            return width
    raise AutogenError(
        f"{structure}.{rest[0].name}: bits {rest[0].start} to {rest[0].end - 1} are in no unit of"
        " 1, 2, 4 or 8 bytes that ctypes could have there"
    )


class _Fields:
    """Fields as they are added, with the names of padding."""

    def __init__(self) -> None:
        self.placed: list[Placed] = []
        self._paddings = 0

    def add(self, name: str, ctype: str, annotation: str, bits: int = 0) -> None:
        self.placed.append(Placed(name, ctype, annotation, bits))

    def pad(self, bits: int) -> None:
        self.add(
            self._padding(), f"ctypes.c_uint8 * {bits // _BYTE}", "ctypes.Array[ctypes.c_uint8]"
        )

    def fill(self, members: Sequence[Member], first: int, width: int) -> None:
        """Bit fields of one unit, in order, and what is free between and behind them."""
        at = first
        for member in members:
            self._free(member.start - at, width)
            self.add(member.name, _integer(width, member.signed), "int", member.width)
            at = member.end
        self._free(first + width - at, width)

    def _free(self, bits: int, width: int) -> None:
        if bits:
            self.add(self._padding(), _integer(width, signed=False), "int", bits)

    def _padding(self) -> str:
        self._paddings += 1
        return f"PADDING_{self._paddings - 1}"


def _integer(width: int, signed: bool) -> str:
    return f"ctypes.c_{'' if signed else 'u'}int{width}"
