"""The .nv.info sections of cubins: attributes of kernels.

Nobody documents them. The form of a record and the meaning of the attributes here were found by
comparing what ptxas 12.4 and 13.0 write for small kernels; others are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from gpu.core.errors import FormatError

_SIZE: Final = 0x4  # of a record without a payload
_SIZE_BITS: Final = 18  # of the last word of KPARAM_INFO: the size begins here


class Attribute(IntEnum):
    """The attributes that launching needs."""

    MAX_THREADS = 0x05
    PARAM_CBANK = 0x0A
    REQNTID = 0x10
    MIN_STACK_SIZE = 0x12
    KPARAM_INFO = 0x17
    CRS_STACK_SIZE = 0x1E
    REGCOUNT = 0x2F
    CTA_PER_CLUSTER = 0x3D
    NUM_BARRIERS = 0x4C


class Form(IntEnum):
    """Where the value of a record is."""

    NONE = 1
    BYTE = 2  # in its third byte
    HALF = 3  # in its last two bytes
    SIZED = 4  # behind it; the last two bytes are its length


class Record(NamedTuple):
    """One record: its number, its value where that is in it, and its payload."""

    attribute: int
    value: int
    payload: bytes

    def words(self, count: int) -> tuple[int, ...]:
        """The first words of the payload. Raises FormatError for a shorter one."""
        if len(self.payload) < 4 * count:
            raise FormatError(
                f".nv.info attribute {self.attribute:#x} has {len(self.payload)} bytes:"
                f" {4 * count} expected"
            )
        return struct.unpack_from(f"<{count}I", self.payload)


class Parameter(NamedTuple):
    """A parameter of a kernel: its place among them, its offset from the first, its bytes."""

    ordinal: int
    offset: int
    size: int


def read_records(name: str, content: bytes) -> Iterator[Record]:
    """The records of a section. Raises FormatError naming the offset of one that is malformed."""
    at = 0
    while at < len(content):
        if at + _SIZE > len(content):
            raise FormatError(f"{name}: a record at {at:#x} is cut off at {len(content):#x}")
        form, attribute, value = struct.unpack_from("<BBH", content, at)
        end = at + _SIZE + (value if form == Form.SIZED else 0)
        if form not in Form.__members__.values() or end > len(content):
            raise FormatError(
                f"{name}: the record at {at:#x} has form {form} and {value:#x} bytes, of"
                f" {len(content):#x}"
            )
        payload = content[at + _SIZE : end] if form == Form.SIZED else b""
        in_record = {Form.BYTE: value & 0xFF, Form.HALF: value}.get(Form(form), 0)
        yield Record(attribute, in_record, payload)
        at = end


def by_symbol(records: list[Record], attribute: Attribute) -> dict[int, int]:
    """The values that an attribute has for symbols, by the symbol's index."""
    found = {}
    for record in records:
        if record.attribute == attribute:
            symbol, value = record.words(2)
            found[symbol] = value
    return found


def find(records: list[Record], attribute: Attribute) -> Record | None:
    """The record of an attribute that a kernel has once."""
    return next((record for record in records if record.attribute == attribute), None)


def read_parameters(records: list[Record]) -> tuple[Parameter, ...]:
    """The parameters of a kernel, in order. Raises FormatError where one is missing."""
    found = []
    for record in records:
        if record.attribute == Attribute.KPARAM_INFO:
            _, place, flags = record.words(3)
            found.append(Parameter(place & 0xFFFF, place >> 16, flags >> _SIZE_BITS))
    found.sort()
    if [parameter.ordinal for parameter in found] != list(range(len(found))):
        raise FormatError(f"parameters of a kernel are numbered {[p.ordinal for p in found]}")
    return tuple(found)
