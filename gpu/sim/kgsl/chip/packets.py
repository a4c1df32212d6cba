"""Headers of packets, as the command processor reads them."""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.autogen.adreno_a6xx import OPCODES
from gpu.core.bits import bits
from gpu.sim.kgsl.chip.errors import CpError

OPCODE_NAMES: Final = {number: name for name, number in reversed(OPCODES.items())}


class Header(NamedTuple):
    """What a header says.

    Attributes:
        kind: 4 writes registers, 7 is an operation.
        dwords: how many are behind it.
        target: the first register, or the operation.
    """

    kind: int
    dwords: int
    target: int


def odd_parity(value: int) -> int:
    """The bit that makes the number of ones odd."""
    return ~value.bit_count() & 1


def parse_header(word: int) -> Header:
    """Reads a header. Raises CpError for another type, and for parities that are wrong."""
    kind = word >> 28
    if kind == 4:
        header = Header(4, bits(word, 6, 0), bits(word, 25, 8))
        parities = (bits(word, 7, 7), bits(word, 27, 27))
        reserved = bits(word, 26, 26)
    elif kind == 7:
        header = Header(7, bits(word, 13, 0), bits(word, 22, 16))
        parities = (bits(word, 15, 15), bits(word, 23, 23))
        reserved = bits(word, 14, 14) | bits(word, 27, 24)
    else:
        raise CpError(f"{word:#010x} is a packet of type {kind}; there are 4 and 7")
    if parities != (odd_parity(header.dwords), odd_parity(header.target)):
        raise CpError(f"the parity of the header {word:#010x} is wrong")
    if reserved:
        raise CpError(f"the header {word:#010x} has bits that no field has")
    if kind == 4 and not header.dwords:
        raise CpError(f"the header {word:#010x} writes no register")
    return header
