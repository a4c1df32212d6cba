"""Hurwitz's zeta function, by the formula of Euler and Maclaurin."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final, TypeVar

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes
from gpu.tensor.elementwise import Elementwise
from gpu.tensor.special import pairs
from gpu.tensor.special.slopes import with_slopes

T = TypeVar("T", bound=Elementwise)

# Terms that are summed one by one; and of the asymptotic rest, in float32 and float64.
_SUMMED: Final = 10
_RESTS: Final = {dtypes.float32: 5, dtypes.float64: 12}


def _bernoulli(count: int) -> list[Fraction]:
    """The first Bernoulli numbers."""
    numbers: list[Fraction] = []
    for n in range(count):
        known = sum((math.comb(n + 1, k) * b for k, b in enumerate(numbers)), Fraction(0))
        numbers.append(-known / (n + 1) if n else Fraction(1))
    return numbers


_RATIOS: Final = [
    float(b / math.factorial(2 * j)) for j, b in enumerate(_bernoulli(25)[2::2], start=1)
]


def _apart(x: T, count: int) -> tuple[T, T]:
    """x repeated along a new last axis, and numbers along it: sums over it are loops."""
    shape = (*x.shape, count)
    repeated = x._wrap(G.expand(G.reshape(x._node, (*x.shape, 1)), shape))
    return repeated, repeated._index_along(len(x.shape), shape).cast(x.dtype)


def _sum(x: T) -> T:
    """The sum over the last axis, without it."""
    *shape, _ = x.shape
    return x._wrap(G.reshape(G.reduce("add", x._node, (len(shape),)), tuple(shape)))


def _above(s: T, q: T) -> T:
    """zeta(s, q) for s > 1 and q > 0."""
    end = q.add(_SUMMED)
    logarithm = pairs.log(end)
    exponent = logarithm.times(s.neg()).plus(logarithm.high)
    # end**(1 - s), which is the integral of what is not summed times s - 1
    power = pairs.Pair(exponent.high, exponent.low.add(logarithm.low)).exp()
    term = power.mul(s.div(end)).div(end)
    rest = term.mul(_RATIOS[0])
    for j, ratio in enumerate(_RATIOS[1 : _RESTS[s.dtype]], start=1):
        # As a multiple of the one before, 0 stays 0 where a factor is infinite.
        growth = s.add(2 * j - 1).div(end).mul(s.add(2 * j).div(end))
        term = term.eq(0).where(0, term.mul(growth))
        rest = rest.add(term.mul(ratio))
    integral = s.sub(1).reciprocal().add(end.reciprocal().mul(0.5))
    tail = power.eq(0).where(0, power.mul(integral).add(rest))
    each, number = _apart(q, _SUMMED)
    # The smallest terms first.
    places = each.add(number.sub(_SUMMED - 1, reverse=True))
    terms = pairs.power(places, _apart(s, _SUMMED)[0].neg())
    return tail.add(_sum(terms))


def _hurwitz(s: T, q: T) -> T:
    """The same for all q, by what the sum over all whole numbers k of (q + k)**-s depends on.

    That is the fraction of q alone; for s that are whole, each of its halves is a zeta function.
    """
    # Of -q, so that the fraction is exact.
    part = q.ceil().sub(q)
    even = s.mul(0.5).sub(s.mul(0.5).floor()).eq(0)
    arguments, number = _apart(part, 3)
    first, second = number.eq(0), number.eq(1)
    given, _ = _apart(q, 3)
    below, sign = given.lt(0), _apart(even.where(1, part._filled(-1)), 3)[0]
    direct = below.where(arguments.sub(1, reverse=True), given)
    places = first.where(direct, second.where(arguments, given.sub(1, reverse=True)))
    values = _above(_apart(s, 3)[0], places)
    weighted = first.where(values, second.where(values.mul(sign), values.mul(sign).neg()))
    return _sum(first.bitwise_or(below).where(weighted, 0))


def _slope(s: T, q: T, value: T) -> T:
    found: T = zeta(s.add(1), q)
    return s.neg().mul(found)


@with_slopes(None, _slope)
def zeta(input: T, other: T) -> T:
    """The sum of (other + k)**-input over k = 0, 1, 2 and so on.

    Infinite where input is 1, or other 0, -1, -2 and so on; NaN where input is less than 1, or
    other negative and input not whole.
    """
    s, q = input, other
    found = q.eq(math.inf).where(0, s.eq(math.inf).where(_limit(q), _hurwitz(s, q)))
    found = q.lt(0).bitwise_and(s.ne(s.floor())).where(math.nan, found)
    found = q.le(0).bitwise_and(q.eq(q.floor())).where(math.inf, found)
    outside = s.lt(1).bitwise_or(s.isnan()).bitwise_or(q.isnan())
    return s.eq(1).where(math.inf, outside.where(math.nan, found))


def _limit(q: T) -> T:
    """zeta(inf, q)."""
    return q.lt(1).where(math.inf, q.eq(1).where(1, 0))
