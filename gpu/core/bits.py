"""Bit fields of integers, alignment and powers of two.

Bits are numbered from 0, the least significant; a field ``hi:lo`` includes both ends, as in the
manuals. Addresses and sizes are plain non-negative integers of any width.
"""

from __future__ import annotations

from gpu.core.errors import InvalidValue


def mask(hi: int, lo: int = 0) -> int:
    """Ones in the bits ``hi:lo``, zeros elsewhere: ``mask(7, 4) == 0xF0``."""
    assert hi >= lo >= 0, f"bits {hi}:{lo}"
    return (1 << (hi + 1)) - (1 << lo)


def bits(value: int, hi: int, lo: int) -> int:
    """The field ``hi:lo`` of a value: ``bits(0xABC, 7, 4) == 0xB``."""
    return (value & mask(hi, lo)) >> lo


def insert(value: int, hi: int, lo: int, field: int) -> int:
    """The value with its bits ``hi:lo`` replaced by ``field``, which must fit (`InvalidValue`)."""
    if field < 0 or field >> (hi - lo + 1):
        raise InvalidValue(f"{field:#x} does not fit bits {hi}:{lo}: give 0 to {mask(hi - lo):#x}")
    return value & ~mask(hi, lo) | field << lo


def align_down(value: int, align: int) -> int:
    """The largest multiple of ``align``, a positive number, that is not above ``value``."""
    return value - value % align


def align_up(value: int, align: int) -> int:
    """The smallest multiple of ``align``, a positive number, that is not below ``value``."""
    return value + -value % align


def lo32(value: int) -> int:
    """The low 32 bits, as a packet's low address word wants them."""
    return value & 0xFFFF_FFFF


def hi32(value: int) -> int:
    """Bits 63:32, as a packet's high address word wants them."""
    return value >> 32 & 0xFFFF_FFFF


def is_power_of_two(value: int) -> bool:
    """Whether ``value`` is 1, 2, 4, 8, ...; 0 and negative numbers are not."""
    return value > 0 and value & (value - 1) == 0


def round_up_power_of_two(value: int) -> int:
    """The smallest power of two that is not below ``value``; 1 for 0 and 1."""
    assert value >= 0, f"no power of two above {value}"
    return 1 << max(value - 1, 0).bit_length()
