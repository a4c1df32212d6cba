"""V_TRIG_PREOP_F64: the bits of 2 / pi that matter for the sine of a large number.

AMD, "RDNA3 Instruction Set Architecture", section 16.12: 2 / pi has 1201 bits behind its point, of
which 53 are taken, further behind for larger numbers and for each segment.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa.rdna import float_parts as parts
from gpu.sim.isa.values import Value

_BITS: Final = 1201
_TAKEN: Final = 53
_WORD: Final = 64
_WORDS: Final = 1 << 6  # shifts below 4096, of which 2613 is the largest
_NAME: Final = "@two_over_pi"


def _inverse_tangent(x: int, one: int) -> int:
    """atan(1 / x) as a multiple of 1 / `one`, by its series."""
    total, power, divisor, sign = 0, one // x, 1, 1
    while power:
        total += sign * (power // divisor)
        power, divisor, sign = power // (x * x), divisor + 2, -sign
    return total


def two_over_pi() -> int:
    """The first 1201 bits of 2 / pi behind the point; pi by Machin's formula."""
    one = 1 << _BITS + _WORD
    pi = 4 * (4 * _inverse_tangent(5, one) - _inverse_tangent(239, one))
    return (2 * one << _BITS) // pi


def _table() -> str:
    """The bits as words, the first in the highest bit of the first; zeros follow."""
    bits = two_over_pi() << _WORDS * _WORD - _BITS
    words = [bits >> _WORD * (_WORDS - 1 - n) & (1 << _WORD) - 1 for n in range(_WORDS)]
    values = ", ".join(f"i64 {word}" for word in words)
    return f"{_NAME} = private constant [{_WORDS} x i64] [{values}], align 8"


def _word(index: Value) -> Value:
    """Elements of the table."""
    e = index.emitter
    kinds, pointers, active = e.type("i64"), f"<{e.lanes} x ptr>", e.type("i1")
    name = f"@llvm.masked.gather.{e.mangled('i64')}.v{e.lanes}p0"
    e.declarations.add(_table())
    e.declarations.add(f"declare {kinds} {name}({pointers}, i32, {active}, {kinds})")
    places = e.raw(f"getelementptr i64, ptr {_NAME}, {e.type('i32')} {index.text}")
    arguments = f"{pointers} {places}, i32 8, {active} splat (i1 true), {kinds} poison"
    return e.value("i64", f"call {kinds} {name}({arguments})")


def trig_preop(x: Value, segment: Value) -> Value:
    """The bits of a segment of 2 / pi, for a number as large as `x`."""
    exponent = (x.bits().lshr(52) & 0x7FF).to("i32")
    shift = (segment & 31) * _TAKEN + (exponent - 1077).smax(0)
    index, count = shift.lshr(6), (shift & 63).to("i64")
    bits = x.emitter.call("i64", "fshl", _word(index), _word(index + 1), count)
    scale = exponent.icmp("uge", 1968).select(x.emitter.const("i32", 128 - _TAKEN), -_TAKEN)
    return parts.scale(bits.lshr(_WORD - _TAKEN).from_unsigned("f64"), scale - shift)
