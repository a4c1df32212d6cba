"""Divisions and conversions of integers of 64 bits, in words of 32."""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.linear import Inst
from gpu.compiler.lower.int64.words import Bounds, Wide, Words
from gpu.core.dtype import DType, dtypes

_WORD: Final = 32
_BITS: Final = 64
_MANTISSA: Final = 23  # of float32
_BIAS: Final = 127


def divide(words: Words, name: str, a: Wide, b: Wide) -> Wide:
    """`tdiv` or `tmod`: rounded toward zero, 0 where `b` is 0; the least value / -1 wraps."""
    bounds = _bounds(name, a, b)
    if not takes_a_loop(name, a, b):
        assert bounds is not None
        word = words.b.op(name, words.signed(a.low), words.signed(b.low))
        return words.make(a.dtype, words.retype(word, dtypes.uint32), None, bounds)
    zero = words.const(a.dtype, 0)
    quotient, rest = _long_division(words, magnitude(words, a), magnitude(words, b))
    negative = words.compare("lt", a, zero)
    if name == "tdiv":
        result = quotient._replace(dtype=a.dtype, lo=int(a.dtype.min), hi=int(a.dtype.max))
        flip = words.b.op("xor", negative, words.compare("lt", b, zero))
    else:
        result, flip = (
            rest._replace(dtype=a.dtype, lo=int(a.dtype.min), hi=int(a.dtype.max)),
            negative,
        )
    if a.dtype.is_signed:
        result = words.where(flip, words.neg(result), result)
    result = words.where(words.compare("eq", b, zero), zero, result)
    return result if bounds is None else words.make(a.dtype, result.low, result.upper, bounds)


def takes_a_loop(name: str, a: Wide, b: Wide) -> bool:
    """Whether the division is a long one, and no instruction."""
    return not (a.is_small and b.is_small and _bounds(name, a, b) is not None)


def magnitude(words: Words, x: Wide) -> Wide:
    """|x| as a uint64, which has one for the least int64 too."""
    if not x.dtype.is_signed:
        return x
    absolute = words.abs(x)
    return words.unknown(dtypes.uint64, absolute.low, words.high(absolute))


def _bounds(name: str, a: Wide, b: Wide) -> Bounds | None:
    """Bounds of the result; None where the least int32 may be divided by -1."""
    largest = max(abs(a.lo), abs(a.hi))
    if name == "tdiv":
        if b.lo >= 1:
            ends = [_truncated(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
            return (min(*ends, 0), max(*ends, 0))
        return None if largest > int(dtypes.int32.max) else (-largest, largest)
    rest = max(abs(b.lo), abs(b.hi), 1) - 1
    return (-min(rest, -a.lo) if a.lo < 0 else 0, min(rest, a.hi) if a.hi > 0 else 0)


def _truncated(a: int, b: int) -> int:
    return a // b if a >= 0 else -(-a // b)


def _long_division(words: Words, a: Wide, b: Wide) -> tuple[Wide, Wide]:
    """Quotient and rest of unsigned values, bit by bit from the top in a loop of 64 rounds."""
    op, zero, one = words.b.op, words.word(0), words.word(1)
    initial = (a.low, words.high(a), zero, zero)
    _, carries = words.emitter.open_loop("serial", _BITS, initial)
    low, high, rest_low, rest_high = carries
    top = words.word(_WORD - 1)
    # The quotient moves in at the bottom as the dividend moves out at the top.
    lost = op("eq", op("shr", rest_high, top), one)
    shifted_rest = _shift_in(words, rest_low, rest_high, op("shr", high, top))
    rest = words.unknown(dtypes.uint64, *shifted_rest)
    fits = op("or", lost, words.compare("le", b, rest))
    less = words.sub(rest, b)
    rest = words.where(fits, less, rest)
    following = _shift_in(words, low, high, words.b.cast(fits, dtypes.uint32))
    results = words.emitter.close_loop((*following, rest.low, words.high(rest)))
    return (
        words.unknown(dtypes.uint64, results[0], results[1]),
        words.unknown(dtypes.uint64, results[2], results[3]),
    )


def _shift_in(words: Words, low: Inst, high: Inst, bit: Inst) -> tuple[Inst, Inst]:
    """A pair of words moved up by one, with `bit` at the bottom."""
    op, one = words.b.op, words.word(1)
    moved = op("shr", low, words.word(_WORD - 1))
    return op("or", op("shl", low, one), bit), op("or", op("shl", high, one), moved)


# Conversions.


def from_narrower(words: Words, x: Inst, dtype: DType) -> Wide:
    """A bool or an integer of at most 32 bits as `dtype`."""
    source = x.dtype
    if source.is_signed:
        word = words.retype(words.b.cast(x, dtypes.int32), dtypes.uint32)
        wide = Wide(dtypes.int64, word, None, int(source.min), int(source.max))
        return words.retyped(wide, dtype)
    word = words.b.cast(x, dtypes.uint32)
    return words.make(dtype, word, words.word(0), (0, int(source.max)))


def to_narrower(words: Words, x: Wide, dtype: DType) -> Inst:
    """A value as a bool or an integer of at most 32 bits, wrapped."""
    if dtype is dtypes.bool:
        bits = x.low if x.is_small else words.b.op("or", x.low, words.high(x))
        return words.b.op("ne", bits, words.word(0))
    if dtype is dtypes.int32:
        return words.signed(x.low)
    return words.b.cast(x.low, dtype)


def to_float32(words: Words, x: Wide) -> Inst:
    """A value as the nearest float32."""
    if x.is_small:
        return words.b.cast(words.signed(x.low), dtypes.float32)
    op = words.b.op
    size = magnitude(words, x)
    high, low, moved = words.high(size), size.low, words.word(0)
    # The first bit that is set goes to the top of the upper word.
    for step in (16, 8, 4, 2, 1):
        room = op("lt", high, words.word(1 << (_WORD - step)))
        count = op("where", room, words.word(step), words.word(0))
        carried = op("shr", low, op("sub", words.word(_WORD), count))
        high = op("or", op("shl", high, count), carried)
        low, moved = op("shl", low, count), op("add", moved, count)
    sticky = words.b.cast(op("ne", low, words.word(0)), dtypes.uint32)
    nearest = words.b.cast(op("or", high, sticky), dtypes.float32)
    exponent = op("sub", words.word(_BIAS + _WORD), moved)
    scale = words.retype(op("shl", exponent, words.word(_MANTISSA)), dtypes.float32)
    result = op("mul", nearest, scale)
    is_word = op("eq", words.high(size), words.word(0))
    result = op("where", is_word, words.b.cast(size.low, dtypes.float32), result)
    if not x.dtype.is_signed:
        return result
    return op("where", words.compare("lt", x, words.const(x.dtype, 0)), op("neg", result), result)


def from_float32(words: Words, x: Inst, dtype: DType) -> Wide:
    """A float32 truncated; saturates, and NaN gives 0."""
    op = words.b.op

    def real(value: float) -> Inst:
        return words.emitter.const(dtypes.float32, value)

    size = op("abs", x)
    high = op("trunc", op("mul", size, real(2.0**-_WORD)))
    # Exact: what is left of the 24 bits of a mantissa.
    low = op("sub", size, op("mul", high, real(2.0**_WORD)))
    result = words.unknown(dtype, *(words.b.cast(part, dtypes.uint32) for part in (low, high)))
    negative = op("lt", x, real(0.0))
    if dtype.is_signed:
        result = words.where(negative, words.neg(result), result)
        too_low = op("lt", x, real(float(dtype.min)))
    else:
        too_low = negative
    too_high = op("le", real(float(int(dtype.max) + 1)), x)
    result = words.where(too_low, words.const(dtype, int(dtype.min)), result)
    return words.where(too_high, words.const(dtype, int(dtype.max)), result)
