"""Pieces that the semantics of many instructions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa.values import Value, bits_of

CANONICAL_NAN: Final = {"f16": 0x7FFF, "f32": 0x7FFFFFFF}
_FRACTION: Final = {"f16": 10, "f32": 23, "f64": 52}


def both(low: Value, high: Value) -> Value:
    """Two 16-bit values as one word."""
    return low.bits().to("i32") | high.bits().to("i32").shl(16)


def halves(word: Value, kind: str) -> tuple[Value, Value]:
    """The 16-bit values of a word, as ``f16`` or ``i16``."""
    return word.to("i16").bits(kind), word.lshr(16).to("i16").bits(kind)


def on_halves(build: Callable[..., Value], kind: str) -> Callable[..., Value]:
    """An operation on 16 bits as one on pairs of them."""

    def pairs(*words: Value) -> Value:
        split = [halves(word, kind) for word in words]
        return both(*(build(*(pair[number] for pair in split)) for number in range(2)))

    return pairs


def canonical(x: Value) -> Value:
    """A result, of which every NaN is the one that NVIDIA's hardware gives.

    "PTX ISA", 9.7.3: NaN results of single precision are 0x7fffffff; payloads of doubles are kept.
    """
    pattern = CANONICAL_NAN.get(x.kind)
    if pattern is None:
        return x
    return x.is_nan().select(x.emitter.const(x.bits().kind, pattern).bits(x.kind), x)


def exponent_bits(kind: str) -> int:
    """The bits of the exponent, all of them set."""
    fraction = _FRACTION[kind]
    return (1 << bits_of(kind) - 1) - (1 << fraction)


def flush(x: Value) -> Value:
    """A subnormal number as a zero of its sign."""
    pattern = x.bits()
    sign = -(1 << bits_of(x.kind) - 1)
    tiny = (pattern & exponent_bits(x.kind)).eq(0)
    return tiny.select(pattern & sign, pattern).bits(x.kind)


def saturate(x: Value) -> Value:
    """To 0..1; NaN and -0 are +0."""
    positive = x.fcmp("ogt", 0.0).select(x, 0.0)
    return positive.fcmp("ogt", 1.0).select(1.0, positive)


def odd_single(x: Value) -> Value:
    """A double as a single that is rounded to odd, so that it can be rounded once more."""
    single = x.to("f32")
    back = single.to("f64")
    above = back.unary("fabs").fcmp("ogt", x.unary("fabs"))
    truncated = above.select(single.bits() - 1, single.bits())
    return back.fcmp("one", x).select(truncated | 1, single.bits()).bits("f32")


def odd_sum(x: Value, y: Value) -> Value:
    """The sum of two doubles, rounded to odd."""
    total = x + y
    rest = total - x
    error = (x - (total - rest)) + (y - rest)
    even = (total.bits() & 1).eq(0)
    outward = error.fcmp("ogt", 0.0) ^ total.fcmp("olt", 0.0)
    moved = outward.select(total.bits() + 1, total.bits() - 1)
    finite = total.unary("fabs").fcmp("olt", float("inf"))
    fix = error.fcmp("one", 0.0) & even & finite
    return fix.select(moved, total.bits()).bits("f64")


def widen(x: Value) -> Value:
    """A bfloat16, in 16 bits, as a single."""
    return x.to("i32").shl(16).bits("f32")


def narrow(x: Value, rounding: str = "rn") -> Value:
    """A single as a bfloat16; NaN is 0x7fff."""
    pattern = x.bits()
    if rounding == "rz":
        rounded = pattern.lshr(16)
    else:
        rounded = (pattern + 0x7FFF + (pattern.lshr(16) & 1)).lshr(16)
    return x.is_nan().select(0x7FFF, rounded.to("i16"))


def half_of(x: Value) -> Value:
    """A double, rounded once to half."""
    return odd_single(x).to("f16")


def mask_below(count: Value) -> Value:
    """As many low ones as `count` says, up to all of them."""
    bits = bits_of(count.kind)
    one = count.like(1)
    return count.icmp("uge", bits).select(-1, one.shl(count) - 1)


def clamped_shift(value: Value, count: Value, name: str) -> Value:
    """A shift by a count of 32 bits that may be larger than the value is wide."""
    bits = bits_of(value.kind)
    wide = count.umin(bits).to(value.kind) if bits <= 32 else count.to(value.kind).umin(bits)
    if name == "ashr":
        return value.ashr(wide.umin(bits - 1))
    moved = value.shl(wide) if name == "shl" else value.lshr(wide)
    return wide.icmp("ult", bits).select(moved, 0)
