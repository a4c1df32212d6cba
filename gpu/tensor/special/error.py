"""The error function's complement, its inverse, and the normal distribution."""

from __future__ import annotations

import math
from typing import Final, TypeVar

from gpu.tensor import coefficients
from gpu.tensor.elementwise import Elementwise
from gpu.tensor.special import pairs
from gpu.tensor.special.pieces import piecewise
from gpu.tensor.special.slopes import with_slope
from gpu.tensor.special.tables import error as tables

T = TypeVar("T", bound=Elementwise)

_ROOT_HALF: Final = math.sqrt(0.5)
_ROOT_2: Final = math.sqrt(2)
_ROOT_2_PI: Final = math.sqrt(2 * math.pi)
_ROOT_PI: Final = math.sqrt(math.pi)
# From here on exp(-x**2 / 2) is 0, and exp(x**2) infinite, in float64 too.
_FAR: Final = 40
# Below it the tables of quantiles are right, as are those of the center up to 0.75.
_TAIL: Final = 0.125


def _power_of_square(x: T, factor: float) -> T:
    """exp(factor * x**2) for 1, -1 or -0.5, though x**2 has a rounding error that matters there."""
    limited = x.clamp(-_FAR, _FAR)
    square = pairs.product(limited, limited)
    return pairs.Pair(square.high.mul(factor), square.low.mul(factor)).exp()


def scaled_tail(m: T) -> T:
    """erfcx(m) for m >= 0."""
    limited = m.minimum(1e30)
    place = limited.sub(3).div(limited.add(3))
    return piecewise(place, tables.ERFCX).div(m.mul(2).add(1))


def _near_complement(x: T) -> T:
    """erfc(x) for |x| < 1; more exact than `scaled_tail` up to 1/2."""
    return x.mul(x.square()._polynomial(coefficients.ERF_NEAR)).sub(1, reverse=True)


def _normal_tail(m: T) -> T:
    """The share of a normal distribution that lies above m >= 0."""
    x = m.mul(_ROOT_HALF)
    far = _power_of_square(m, -0.5).mul(scaled_tail(x))
    return x.lt(0.5).where(_near_complement(x), far).mul(0.5)


def _quantile(y: T) -> T:
    """-ndtri(y) for y up to `_TAIL`; infinite at 0, NaN below."""
    s = y.log().neg().sqrt()
    found = y.ge(0).where(piecewise(s, tables.QUANTILE), math.nan)
    return y.eq(0).where(math.inf, found)


def _central_inverse(x: T) -> T:
    """erfinv(x) for |x| of at most 0.75."""
    return x.mul(piecewise(x.square(), tables.ERFINV_CENTER))


@with_slope(lambda x, value: _power_of_square(x, -1).mul(-2 / _ROOT_PI))
def erfc(input: T) -> T:
    """1 - erf(input), also where that is close to 0."""
    m = input.abs()
    tail = _power_of_square(m, -1).mul(scaled_tail(m))
    far = input.lt(0).where(tail.sub(2, reverse=True), tail)
    return m.lt(0.5).where(_near_complement(input), far)


@with_slope(lambda x, value: x.mul(value).mul(2).sub(2 / _ROOT_PI))
def erfcx(input: T) -> T:
    """exp(input**2) * erfc(input), finite wherever the result is."""
    m = input.abs()
    grown, scaled = _power_of_square(input, 1), scaled_tail(m)
    far = input.lt(0).where(grown.mul(2).sub(scaled), scaled)
    return m.lt(0.5).where(grown.mul(_near_complement(input)), far)


@with_slope(lambda x, value: value.square().exp().mul(_ROOT_PI / 2))
def erfinv(input: T) -> T:
    """The inverse of erf: infinite at -1 and 1, NaN beyond."""
    m = input.abs()
    tail = _quantile(m.sub(1, reverse=True).mul(0.5)).mul(_ROOT_HALF)
    return m.le(0.75).where(_central_inverse(input), input._odd(tail))


@with_slope(lambda x, value: _power_of_square(x, -0.5).mul(1 / _ROOT_2_PI))
def ndtr(input: T) -> T:
    """The share of a normal distribution that lies below input."""
    tail = _normal_tail(input.abs())
    return input.lt(0).where(tail, tail.sub(1, reverse=True))


@with_slope(lambda x, value: value.square().mul(0.5).exp().mul(_ROOT_2_PI))
def ndtri(input: T) -> T:
    """The inverse of `ndtr`: infinite at 0 and 1, NaN outside."""
    above = input.gt(0.5)
    y = above.where(input.sub(1, reverse=True), input)
    tail = _quantile(y)
    center = _central_inverse(input.mul(2).sub(1)).mul(_ROOT_2)
    return y.gt(_TAIL).where(center, above.where(tail, tail.neg()))


@with_slope(lambda x, value: erfcx(x.mul(-_ROOT_HALF)).reciprocal().mul(_ROOT_2 / _ROOT_PI))
def log_ndtr(input: T) -> T:
    """The logarithm of `ndtr`, also where that is 0."""
    m = input.abs()
    tail = _normal_tail(m)
    below = scaled_tail(m.mul(_ROOT_HALF)).mul(0.5).log().sub(m.square().mul(0.5))
    return input.lt(-1).where(below, input.lt(0).where(tail.log(), tail.neg().log1p()))
