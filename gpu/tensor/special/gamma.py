"""The gamma function's logarithm and its derivatives."""

from __future__ import annotations

import math
from typing import Final, TypeVar

from gpu.core.errors import InvalidValue
from gpu.tensor.arguments import integer
from gpu.tensor.elementwise import Elementwise
from gpu.tensor.special import pairs
from gpu.tensor.special.pieces import piecewise
from gpu.tensor.special.slopes import with_slope
from gpu.tensor.special.tables import gamma as tables
from gpu.tensor.special.zeta import zeta

T = TypeVar("T", bound=Elementwise)

# From here on Stirling's series is the shorter one.
_STIRLING: Final = 8
_DIGAMMA_FAR: Final = 10
# B2, B4, ...: what is left out is less than an ulp of float64 from `_DIGAMMA_FAR` on.
_BERNOULLI: Final = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_HALF_LOG_2_PI: Final = math.log(2 * math.pi) / 2


def fraction(x: T) -> T:
    """x less the nearest whole number, within -1/2..1/2: what sin(pi * x) depends on."""
    return x.sub(x.round())


def log_gamma(m: T) -> T:
    """lgamma(m) for m > 0."""
    return _beside(m)[0]


def _beside(m: T) -> tuple[T, T]:
    """lgamma(m), and lgamma(m) or for m < 1/2 lgamma(m + 1), which is not large."""
    small = m.lt(0.5)
    near = piecewise(small.where(m.add(1), m), tables.LGAMMA)
    far = pairs.log(m).plus(m._filled(-1)).times(m.sub(0.5))
    series = piecewise(m.square().reciprocal(), tables.STIRLING).div(m).add(_HALF_LOG_2_PI - 0.5)
    stirling = far.high.add(far.low.add(series))
    next_ = m.eq(math.inf).where(m, m.lt(_STIRLING).where(near, stirling))
    return small.where(near.sub(m.log()), next_), next_


def _slope_of_lgamma(x: T, value: T) -> T:
    return digamma(x)


@with_slope(_slope_of_lgamma)
def lgamma(input: T) -> T:
    """The logarithm of the gamma function's magnitude; infinite at 0, -1, -2 and so on."""
    m = input.abs()
    above, next_ = _beside(m)
    sine = fraction(m).mul(math.pi).sin().abs()
    # lgamma(-m) = log(pi / (m * sin(pi * m))) - lgamma(m), and m * gamma(m) = gamma(m + 1).
    below = m.lt(0.5).where(sine, sine.mul(m)).reciprocal().mul(math.pi).log().sub(next_)
    whole = input.le(0).bitwise_and(fraction(m).eq(0)).bitwise_or(m.eq(math.inf))
    return whole.where(math.inf, input.lt(0).where(below, above))


def _slope_of_digamma(x: T, value: T) -> T:
    return polygamma(1, x)


@with_slope(_slope_of_digamma)
def digamma(input: T) -> T:
    """The derivative of `lgamma`: infinite at 0, NaN at -1, -2 and so on."""
    m = input.abs()
    inverse, small = m.reciprocal(), m.lt(1)
    near = piecewise(small.where(m.add(1), m), tables.DIGAMMA)
    rest = piecewise(inverse.square(), tables.DIGAMMA_FAR).mul(inverse).add(0.5).mul(inverse)
    next_ = m.lt(_DIGAMMA_FAR).where(near, m.log().sub(rest))
    above = small.where(near.sub(inverse), next_)
    angle = fraction(m).mul(math.pi)
    # digamma(-m) = digamma(m) + 1 / m + pi / tan(pi * m), of which the first two are that of m + 1.
    turned = angle.cos().div(angle.sin()).mul(math.pi)
    below = small.where(next_, next_.add(inverse)).add(turned)
    below = angle.eq(0).where(math.nan, below)
    return input.eq(0).where(input.reciprocal().neg(), input.lt(0).where(below, above))


def polygamma(n: int, input: T) -> T:
    """The derivative number `n` of `digamma`; infinite at 0, -1, -2 and so on for n above 0."""
    order = integer(n, "n")
    if order < 0:
        raise InvalidValue(f"n of polygamma must not be negative, got {n}")
    if order < 2:
        return trigamma(input) if order else digamma(input)
    try:
        size = math.gamma(order + 1)
    except OverflowError:
        size = math.inf
    sign = 1 if order % 2 else -1
    values: T = zeta(order + 1, input)
    most = 3e38 if values.dtype.bits < 64 else math.inf
    return values.mul(sign * (size if size < most else math.inf))


@with_slope(lambda x, value: polygamma(2, x))
def trigamma(input: T) -> T:
    """`polygamma` of n = 1, by its recurrence up to where its asymptotic series is exact."""
    below = input.lt(0)
    # trigamma(x) + trigamma(1 - x) = (pi / sin(pi * x))**2
    z = below.where(input.sub(1, reverse=True), input)
    far = z.add(_DIGAMMA_FAR)
    inverse = far.reciprocal()
    square = inverse.square()
    # 1/z + 1/(2 z**2) and the Bernoulli numbers over z to the odd powers from 3 on
    tail = square._filled(0)
    for bernoulli in reversed(_BERNOULLI):
        tail = tail.add(bernoulli).mul(square)
    series = tail.add(1).add(inverse.mul(0.5)).mul(inverse)
    for number in reversed(range(_DIGAMMA_FAR)):
        series = series.add(z.add(number).square().reciprocal())
    angle = fraction(input).mul(math.pi)
    whole = angle.eq(0).bitwise_and(input.le(0))
    turned = angle.sin().reciprocal().mul(math.pi).square().sub(series)
    return whole.where(math.inf, below.where(turned, series))


def multigammaln(input: T, p: int) -> T:
    """The logarithm of the gamma function of `p` dimensions.

    Raises InvalidValue unless `p` is at least 1.
    """
    count = integer(p, "p")
    if count < 1:
        raise InvalidValue(f"p of multigammaln must be at least 1, got {p}")
    result = lgamma(input)
    for number in range(1, count):
        result = result.add(lgamma(input.sub(number / 2)))
    return result.add(count * (count - 1) / 4 * math.log(math.pi))
