"""The incomplete gamma functions, as shares of the whole one.

Below the mean, about `a`, the lower one is a series; above, the upper one is a continued fraction;
around the mean of a large `a` both are Temme's expansion by the normal distribution (sections 8.7,
8.9 and 8.12 of the Digital Library of Mathematical Functions).
"""

from __future__ import annotations

import math
from typing import Final, TypeVar

from gpu.core.dtype import DType, dtypes
from gpu.tensor.elementwise import Elementwise
from gpu.tensor.special import pairs
from gpu.tensor.special.error import scaled_tail
from gpu.tensor.special.gamma import log_gamma
from gpu.tensor.special.pieces import piecewise
from gpu.tensor.special.slopes import with_slopes
from gpu.tensor.special.tables import gamma as tables

T = TypeVar("T", bound=Elementwise)

# From this `a` on Temme's expansion is used for x / a - 1 in these limits.
_LARGE: Final = 20
_LIMITS: Final = (-0.69, 1.35)
# Below this x the series are, whatever `a`.
_SMALL: Final = 1.1
# So close to the mean the exponent is less exact as a difference of logarithms.
_CLOSE: Final = 1 / 16
# Terms, in float32 and float64, of the series, the continued fraction, and the series of small x.
_TERMS: Final[dict[DType, tuple[int, int, int]]] = {
    dtypes.float32: (36, 28, 12),
    dtypes.float64: (54, 90, 20),
}


def _decay(a: T, x: T, distance: T) -> tuple[T, T]:
    """exp(-a * f) and f = d - log(1 + d), where d is `distance`, x / a - 1."""
    f = distance.square().mul(piecewise(distance, tables.LOG1P_REST))
    ratio = pairs.log(x)
    own = pairs.log(a)
    difference = pairs.total(ratio.high, own.high.neg())
    exact = pairs.Pair(difference.high, difference.low.add(ratio.low.sub(own.low)))
    apart = pairs.total(a, x.neg())
    exponent = exact.times(a).plus(apart.high)
    exponent = pairs.Pair(exponent.high, exponent.low.add(apart.low))
    near = distance.abs().lt(_CLOSE)
    return near.where(f.mul(a).neg().exp(), exponent.exp()), f


def _density(a: T, x: T, decay: T) -> T:
    """x**a * exp(-x) / gamma(a + 1)."""
    small = pairs.log(x).times(a).plus(x.neg()).exp().mul(piecewise(a, tables.RECIPROCAL))
    scale = piecewise(a.reciprocal(), tables.SCALED).div(a.mul(2 * math.pi).sqrt())
    return a.lt(1).where(small, decay.mul(scale))


def _series(a: T, x: T) -> T:
    """The lower function over the density, for x up to `a` or little more."""
    count, _, _ = _TERMS[a.dtype]
    result = a._filled(1)
    for n in reversed(range(1, count)):
        result = result.mul(x.div(a.add(n))).add(1)
    return result


def _continued_fraction(a: T, x: T) -> T:
    """The upper function over the density, for x above `a`."""
    _, count, _ = _TERMS[a.dtype]
    base = x.sub(a)
    result = base.add(2 * count + 1)
    for n in reversed(range(1, count + 1)):
        result = base.add(2 * n - 1).add(a.sub(n).mul(n).div(result))
    return a.div(result)


def _upper_of_small(a: T, x: T) -> T:
    """The upper function of x and `a` up to `_SMALL`."""
    _, _, count = _TERMS[a.dtype]
    exponent = x.log().sub(piecewise(a, tables.LGAMMA_ONE)).mul(a)
    rest = a.add(count).reciprocal()
    for n in reversed(range(1, count)):
        rest = a.add(n).reciprocal().sub(rest.mul(x).mul(1 / (n + 1)))
    return a.mul(x).mul(rest).mul(exponent.exp()).sub(exponent.expm1())


def _tail(a: T, decay: T, f: T, sign: T) -> T:
    """Temme's expansion of what is beyond x, seen from the mean: above it for `sign` 1."""
    eta = f.mul(2).sqrt().mul(sign)
    inverse, wide = a.reciprocal(), a.dtype is dtypes.float64
    found = a._filled(0)
    for table in reversed(tables.TEMME):
        if table.wide if wide else table.narrow:
            found = found.mul(inverse).add(eta._polynomial(table))
    rest = found.mul(sign).div(a.mul(2 * math.pi).sqrt())
    return decay.mul(scaled_tail(f.mul(a).sqrt()).mul(0.5).add(rest))


def _shares(a: T, x: T) -> tuple[T, T]:
    """The lower and the upper function of finite a and x above 0."""
    distance = x.sub(a).div(a)
    decay, f = _decay(a, x, distance)
    density = _density(a, x, decay)
    below = x.le(a.maximum(_SMALL))
    lower = density.mul(_series(a, x))
    upper = density.mul(_continued_fraction(a, x))
    low, high = _LIMITS
    normal = a.gt(_LARGE).bitwise_and(distance.gt(low)).bitwise_and(distance.lt(high))
    above = x.gt(a)
    tail = _tail(a, decay, f, above.where(1, above._filled(False).cast(a.dtype).sub(1)))
    lower = normal.where(tail, lower)
    upper = normal.where(tail, upper)
    small = x.le(_SMALL).bitwise_and(a.lt(_SMALL))
    is_lower = normal.where(above.logical_not(), below)
    complement = small.where(_upper_of_small(a, x), lower.sub(1, reverse=True))
    return is_lower.where(lower, upper.sub(1, reverse=True)), is_lower.where(complement, upper)


def _limits(a: T, x: T, value: T, at_zero: float) -> T:
    """`value`, or what it is at the ends: `at_zero` where x is 0, 1 - `at_zero` where infinite."""
    value = x.eq(0).bitwise_or(a.eq(math.inf)).where(at_zero, value)
    far = x.eq(math.inf).bitwise_or(a.eq(0))
    value = far.where(1 - at_zero, value)
    both = x.eq(0).bitwise_and(a.eq(0)).bitwise_or(far.bitwise_and(a.eq(math.inf)))
    outside = x.lt(0).bitwise_or(a.lt(0)).bitwise_or(x.isnan()).bitwise_or(a.isnan())
    return both.bitwise_or(outside).where(math.nan, value)


def _slope(a: T, x: T) -> T:
    slope = a.sub(1).xlogy(x).sub(x).sub(log_gamma(a)).exp()
    return x.lt(0).bitwise_or(a.lt(0)).where(math.nan, slope)


@with_slopes(None, lambda a, x, value: _slope(a, x))
def gammainc(input: T, other: T) -> T:
    """The share of the integral of t**(input - 1) * exp(-t) that is below `other`."""
    return _limits(input, other, _shares(input, other)[0], 0)


@with_slopes(None, lambda a, x, value: _slope(a, x).neg())
def gammaincc(input: T, other: T) -> T:
    """The share that is above `other`: 1 - `gammainc`, also where that is close to 0."""
    return _limits(input, other, _shares(input, other)[1], 1)
