"""Atomic operations of the packet processor and the copy engine, by their TC_OP number.

Numbers: Linux 6.12 include/v9_structs.h and gc enums `TC_OP`: 32-bit operations that return the
old value from 0x07, 64-bit ones 0x20 above, those that return nothing 0x40 above.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.port import Port

_Operation = Callable[[int, int, int, int], int]  # old value, source, compare, bits


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def _increment(old: int, source: int, compare: int, bits: int) -> int:
    return 0 if old >= source else old + 1


def _decrement(old: int, source: int, compare: int, bits: int) -> int:
    return source if old == 0 or old > source else old - 1


_OPERATIONS: Final[dict[int, _Operation]] = {
    0x07: lambda old, src, cmp, bits: src,
    0x08: lambda old, src, cmp, bits: src if old == cmp else old,
    0x0F: lambda old, src, cmp, bits: old + src,
    0x10: lambda old, src, cmp, bits: old - src,
    0x11: lambda old, src, cmp, bits: min(old, src, key=lambda v: _signed(v, bits)),
    0x12: lambda old, src, cmp, bits: min(old, src),
    0x13: lambda old, src, cmp, bits: max(old, src, key=lambda v: _signed(v, bits)),
    0x14: lambda old, src, cmp, bits: max(old, src),
    0x15: lambda old, src, cmp, bits: old & src,
    0x16: lambda old, src, cmp, bits: old | src,
    0x17: lambda old, src, cmp, bits: old ^ src,
    0x18: _increment,
    0x19: _decrement,
}
_WIDE: Final = 0x20
_NO_RETURN: Final = 0x40
COMPARE_SWAP: Final = 0x08


class Atomic(NamedTuple):
    """An operation and its width in bytes."""

    code: int
    width: int

    def apply(self, port: Port, address: int, source: int, compare: int) -> int:
        """Does it; returns the old value. Raises PageFault, PacketError for misalignment."""
        if address % self.width:
            raise PacketError(f"{8 * self.width}-bit atomic at {address:#x}: misaligned")
        mask = (1 << 8 * self.width) - 1
        old = port.read_word(address, self.width)
        operation = _OPERATIONS[self.code]
        new = operation(old, source & mask, compare & mask, 8 * self.width) & mask
        port.write_word(address, self.width, new)
        return old


def find_atomic(number: int) -> Atomic:
    """The operation of a TC_OP number. Raises PacketError for others."""
    code = number & ~(_WIDE | _NO_RETURN)
    if code not in _OPERATIONS or number >> 7:
        raise PacketError(f"atomic operation {number:#x} is not known")
    return Atomic(code, 8 if number & _WIDE else 4)
