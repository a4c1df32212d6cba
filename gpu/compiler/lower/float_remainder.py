"""The remainder of floats, exactly, from sums, products, quotients and roundings.

The remainder of x by y is a whole number of units in the last place of y, smaller than y, and so a
float. It is found by taking whole multiples away from |x|, as many at a time as can be done without
rounding: with y in two halves of its bits, high and low, and a whole q of no more bits than half of
them, q * high, q * low and what they leave of a remainder are all floats. (Where a device fuses one
of those products with the difference it rounds once what need not be rounded.) A quotient is
rounded to nearest, so that a small error of a division does no harm: what is left is between -y / 2
and y / 2, and a whole y more at the end if it is negative.

A quotient of almost twice as many bits takes two such steps, by a multiple of y and by y, and they
are always taken. For larger ones, in any lane, y is first multiplied by the power of two that
brings it next to x, and divided step by step until it is y again. So it is for the largest x, of
which multiples of y could overflow: steps on large ones are made with a quarter of both.

On devices that take subnormal numbers for zero, where y is so small that its lower half may be one,
all is done with both times a power of two. A dividend that is too large for that is brought near to
y times that power first, which is a multiple of y.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, TypeVar

from gpu.compiler.ir.builder import Builder
from gpu.core.dtype import DType, dtypes

V = TypeVar("V")


class _Format(NamedTuple):
    """How a float is laid out, and its remainders are found.

    Attributes:
        bits: the integer of its width.
        mantissa: bits of it that are stored.
        bias: the exponent that stands for 1.
        low: bits of the lower half of a mantissa.
        quotient: bits that a step takes off a quotient.
        shift: two to this power is less than `quotient`, so that a shift may divide in its place.
        scale: the largest power of two that y is multiplied by at once.
        lift: the power of two that both are multiplied by where y is small.
    """

    bits: DType
    mantissa: int
    bias: int
    low: int
    quotient: int
    shift: int
    scale: int
    lift: int

    @property
    def most(self) -> int:
        """Steps that the largest by the smallest float takes."""
        return ((2 * self.bias + self.mantissa) >> self.shift) + 1


_FORMATS: Final = {
    dtypes.float32: _Format(dtypes.int32, 23, 127, 12, 12, 3, 120, 64),
    dtypes.float64: _Format(dtypes.int64, 52, 1023, 27, 26, 4, 1000, 512),
}
_SCALINGS: Final = 3  # by powers of two, from the smallest float to the largest


def fmod(b: Builder[Any], x: Any, y: Any, *, flushes: bool = False) -> Any:
    """C's fmod: exact, with the sign of `x`; NaN where `x` is infinite or `y` is 0.

    With `flushes` also on a device that takes subnormal numbers for zero.
    """
    dtype = b.dtype(x)
    if dtype.bits < dtypes.float32.bits:
        wide = b.op("fmod", b.cast(x, dtypes.float32), b.cast(y, dtypes.float32))
        return b.cast(wide, dtype)
    form = _FORMATS[dtype]
    size, by = b.op("abs", x), b.op("abs", y)
    begun, one, infinity = size, b.like(x, 1), b.like(x, math.inf)
    defined = b.op("and", b.lt(size, infinity), b.lt(b.like(y, 0), by))
    if flushes:
        lift = b.like(x, 2.0**form.lift)
        small = b.lt(by, b.like(y, 2.0 ** (4 - form.lift)))
        lifted = b.where(small, lift, one)
        first = b.where(b.lt(size, b.like(x, 2.0 ** (form.lift - 4))), lifted, one)
        deep = b.op("and", defined, b.lt(first, lifted))
        by, begun = b.mul(by, lifted), b.mul(size, first)
    near = b.mul(begun, b.like(x, 2.0 ** (1 - 2 * form.quotient)))
    large = b.op("le", b.like(x, 2.0 ** (form.bias - 1)), size)
    far = b.op("and", defined, b.op("or", b.op("le", by, near), large))

    def bring(rest: Any) -> Any:
        return _brought_near(b, form, rest, by, defined)

    if flushes:
        rounds = b.add(b.cast(far, dtypes.int32), b.cast(deep, dtypes.int32))
        carried = begun, b.where(deep, lift, one)
        (rest, _) = b.repeat(rounds, 2, carried, lambda r, later: (b.mul(bring(r), later), one))
    else:
        (rest,) = b.repeat(far, 1, (begun,), lambda r: (bring(r),))
    upper = b.mul(by, b.like(x, 2.0**form.quotient))
    rest = _step(b, form, rest, b.where(b.lt(upper, infinity), upper, by))
    rest = _step(b, form, rest, by)
    rest = b.where(b.lt(rest, b.like(x, 0)), b.add(rest, by), rest)
    if flushes:
        rest = b.mul(rest, b.where(small, b.like(x, 2.0**-form.lift), one))
    rest = b.where(b.lt(by, infinity), rest, size)
    sign = b.op("and", b.bitcast(x, form.bits), b.const(form.bits, form.bits.min))
    signed = b.bitcast(b.op("or", b.bitcast(rest, form.bits), sign), dtype)
    return b.where(defined, signed, b.like(x, math.nan))


def _step(b: Builder[V], form: _Format, rest: V, by: V) -> V:
    """`rest` less the multiple of `by` that is next to it."""
    quotient = b.op("rint", b.div(rest, by))
    upper = b.op("and", b.bitcast(by, form.bits), b.const(form.bits, -1 << form.low))
    high = b.bitcast(upper, b.dtype(by))
    low = b.sub(by, high)
    return b.sub(b.sub(rest, b.mul(quotient, high)), b.mul(quotient, low))


def _brought_near(b: Builder[V], form: _Format, rest: V, by: V, defined: V) -> V:
    """`rest`, where it is `defined`, less a multiple of `by`: at most a few times `by` is left."""
    zero = b.const(form.bits, 0)
    size = b.op("abs", rest)
    distance = b.sub(_exponent(b, form, size), _exponent(b, form, by))
    distance = b.op("max", b.where(defined, distance, zero), zero)
    quartered = b.lt(b.like(rest, 1), size)
    part = b.where(quartered, b.like(rest, 0.25), b.like(rest, 1))
    scaled, left = by, distance
    for _ in range(_SCALINGS):
        power = b.op("min", left, b.like(left, form.scale))
        left = b.sub(left, power)
        scaled = b.mul(scaled, _power_of_two(b, form, power, b.dtype(by)))
    less = b.like(by, 2.0**-form.quotient)

    def step(rest: V, scaled: V) -> tuple[V, V]:
        return _step(b, form, rest, scaled), b.op("max", b.mul(scaled, less), by)

    steps = b.add(b.op("shr", distance, b.like(distance, form.shift)), b.like(distance, 1))
    first = (b.mul(rest, part), b.mul(scaled, part))
    (rest, _) = b.repeat(b.cast(steps, dtypes.int32), form.most, first, step)
    return b.where(quartered, b.mul(rest, b.like(rest, 4)), rest)


def _exponent(b: Builder[V], form: _Format, size: V) -> V:
    """The exponent of a float without sign as stored, and as if there were no subnormal ones."""
    digits = form.mantissa + 1
    raised = _field(b, form, b.mul(size, b.like(size, 2.0**digits)))
    normal = b.like(size, 2.0 ** (1 - form.bias))
    lowered = b.sub(raised, b.like(raised, digits))
    return b.where(b.lt(size, normal), lowered, _field(b, form, size))


def _field(b: Builder[V], form: _Format, size: V) -> V:
    return b.op("shr", b.bitcast(size, form.bits), b.const(form.bits, form.mantissa))


def _power_of_two(b: Builder[V], form: _Format, power: V, dtype: DType) -> V:
    biased = b.add(power, b.like(power, form.bias))
    return b.bitcast(b.op("shl", biased, b.like(biased, form.mantissa)), dtype)
