"""Bessel functions of orders 0 and 1.

Those that oscillate are exact to a few units in the last place up to their third zero or so, and
beyond to as many of sqrt(2 / (pi x)), which is how far they swing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeVar

from gpu.tensor.coefficients import Table
from gpu.tensor.elementwise import Elementwise
from gpu.tensor.special.pieces import Piece, piecewise
from gpu.tensor.special.slopes import with_slope
from gpu.tensor.special.tables import bessel as tables

T = TypeVar("T", bound=Elementwise)
Pieces = Sequence[Piece]

# Where the series of modified functions ends and the asymptotic one begins.
_NEAR: Final = 8
# Factors after which the series has converged at `_NEAR`, in float32 and float64.
_TERMS: Final = (20, 28)


def _series(order: int) -> Table:
    """I(x) / (x / 2)**order in (x / 2)**2. All factors are positive, so nothing cancels."""
    factors = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(max(_TERMS))]
    return Table(*(tuple(factors[:count]) for count in _TERMS))


_I0_NEAR: Final = _series(0)
_I1_NEAR: Final = _series(1)


def _near(x: T, table: Table) -> T:
    return x.mul(0.5).square()._polynomial(table)


def _far(m: T, pieces: Pieces) -> T:
    """A modified function times or over exp(m), far from 0."""
    return piecewise(m.reciprocal(), pieces).div(m.sqrt())


def _grown(m: T, scaled: T) -> T:
    """exp(m) * scaled, finite wherever that is: exp(m) alone overflows before."""
    return m.sub(_NEAR).exp().mul(scaled.mul(math.exp(_NEAR)))


def _at_zero(x: T, elsewhere: T) -> T:
    """The slope of functions of order 1: 1 / 2 at 0."""
    return x.eq(0).where(0.5, elsewhere)


def _slope_of_i0(x: T, value: T) -> T:
    return i1(x)


@with_slope(_slope_of_i0)
def i0(input: T) -> T:
    """The modified Bessel function of the first kind, of order 0."""
    m = input.abs()
    grown = m.eq(math.inf).where(m, _grown(m, _far(m, tables.I0_FAR)))
    return m.gt(_NEAR).where(grown, _near(m, _I0_NEAR))


def _slope_of_i0e(x: T, value: T) -> T:
    return i1e(x).sub(x.sign().mul(value))


@with_slope(_slope_of_i0e)
def i0e(input: T) -> T:
    """exp(-|input|) times `i0`."""
    m = input.abs()
    near = _near(m, _I0_NEAR).mul(m.neg().exp())
    return m.gt(_NEAR).where(_far(m, tables.I0_FAR), near)


def _slope_of_i1(x: T, value: T) -> T:
    return _at_zero(x, i0(x).sub(value.div(x)))


@with_slope(_slope_of_i1)
def i1(input: T) -> T:
    """The modified Bessel function of the first kind, of order 1."""
    m = input.abs()
    near = _near(m, _I1_NEAR).mul(input.mul(0.5))
    grown = m.eq(math.inf).where(m, _grown(m, _far(m, tables.I1_FAR)))
    return m.gt(_NEAR).where(input._odd(grown), near)


def _slope_of_i1e(x: T, value: T) -> T:
    return _at_zero(x, i0e(x).sub(value.mul(x.sign())).sub(value.div(x)))


@with_slope(_slope_of_i1e)
def i1e(input: T) -> T:
    """exp(-|input|) times `i1`."""
    m = input.abs()
    near = _near(m, _I1_NEAR).mul(input.mul(0.5)).mul(m.neg().exp())
    return m.gt(_NEAR).where(input._odd(_far(m, tables.I1_FAR)), near)


def _defined(x: T, value: T) -> T:
    """Of a function of the second kind: infinite at 0, where `value` may be NaN, NaN below."""
    return x.eq(0).where(math.inf, x.lt(0).where(math.nan, value))


def _k0_near(x: T) -> T:
    return piecewise(x.square(), tables.K0_NEAR).sub(x.log().mul(_near(x, _I0_NEAR)))


def _k1_near(x: T) -> T:
    rest = piecewise(x.square(), tables.K1_NEAR)
    slow = x.log().mul(_near(x, _I1_NEAR)).mul(0.5).sub(rest)
    return x.reciprocal().add(x.mul(slow))


def _slope_of_modified_bessel_k0(x: T, value: T) -> T:
    return modified_bessel_k1(x).neg()


@with_slope(_slope_of_modified_bessel_k0)
def modified_bessel_k0(input: T) -> T:
    """The modified Bessel function of the second kind, of order 0."""
    far = input.neg().exp().mul(_far(input, tables.K0_FAR))
    return _defined(input, input.le(1).where(_k0_near(input), far))


def _slope_of_modified_bessel_k1(x: T, value: T) -> T:
    return modified_bessel_k0(x).add(value.div(x)).neg()


@with_slope(_slope_of_modified_bessel_k1)
def modified_bessel_k1(input: T) -> T:
    """The modified Bessel function of the second kind, of order 1."""
    far = input.neg().exp().mul(_far(input, tables.K1_FAR))
    return _defined(input, input.le(1).where(_k1_near(input), far))


def _slope_of_scaled_modified_bessel_k0(x: T, value: T) -> T:
    return value.sub(scaled_modified_bessel_k1(x))


@with_slope(_slope_of_scaled_modified_bessel_k0)
def scaled_modified_bessel_k0(input: T) -> T:
    """exp(input) times `modified_bessel_k0`."""
    near = _k0_near(input).mul(input.exp())
    return _defined(input, input.le(1).where(near, _far(input, tables.K0_FAR)))


def _slope_of_scaled_modified_bessel_k1(x: T, value: T) -> T:
    return value.sub(scaled_modified_bessel_k0(x)).sub(value.div(x))


@with_slope(_slope_of_scaled_modified_bessel_k1)
def scaled_modified_bessel_k1(input: T) -> T:
    """exp(input) times `modified_bessel_k1`."""
    near = _k1_near(input).mul(input.exp())
    return _defined(input, input.le(1).where(near, _far(input, tables.K1_FAR)))


def _swinging(m: T, p: Pieces, q: Pieces) -> tuple[T, T]:
    """sqrt(2 / (pi m)) times (P cos(z) - Q sin(z)) and (P sin(z) + Q cos(z)), z = m - pi / 4.

    Those are J and Y of order 0. Of order 1, a quarter turn behind, they are -Y and J.
    """
    inverse = m.reciprocal()
    square = inverse.square()
    even, odd = piecewise(square, p), piecewise(square, q).mul(inverse)
    sine, cosine = m.sin(), m.cos()
    # cos(z) and sin(z), times sqrt(2)
    ahead, behind = cosine.add(sine), sine.sub(cosine)
    size = inverse.mul(1 / math.pi).sqrt()
    first = even.mul(ahead).sub(odd.mul(behind)).mul(size)
    second = even.mul(behind).add(odd.mul(ahead)).mul(size)
    infinite = m.eq(math.inf)
    return infinite.where(0, first), infinite.where(0, second)


def _j0(m: T) -> T:
    far, _ = _swinging(m, tables.P0, tables.Q0)
    return m.lt(_NEAR).where(piecewise(m, tables.J0), far)


def _j1(m: T) -> T:
    _, far = _swinging(m, tables.P1, tables.Q1)
    return m.lt(_NEAR).where(m.mul(piecewise(m, tables.J1)), far)


def _slope_of_bessel_j0(x: T, value: T) -> T:
    return bessel_j1(x).neg()


@with_slope(_slope_of_bessel_j0)
def bessel_j0(input: T) -> T:
    """The Bessel function of the first kind, of order 0."""
    return _j0(input.abs())


def _slope_of_bessel_j1(x: T, value: T) -> T:
    return _at_zero(x, bessel_j0(x).sub(value.div(x)))


@with_slope(_slope_of_bessel_j1)
def bessel_j1(input: T) -> T:
    """The Bessel function of the first kind, of order 1."""
    return input._odd(_j1(input.abs()))


def _with_logarithm(x: T, j: T, pieces: Pieces, order: int) -> T:
    """Y up to its second zero: 2 / pi * log(x / root) * J and the rest, exact close to the root."""
    assert pieces[0].root is not None
    near, rest = pieces[0].root
    scale = 1 / (near + rest)
    distance = x.sub(near).sub(rest).mul(scale)
    beside = distance.abs().lt(0.5)
    logarithm = beside.where(beside.where(distance, 0).log1p(), x.mul(scale).log())
    smooth = piecewise(x, pieces)
    return j.mul(2 / math.pi).mul(logarithm).add(smooth.div(x) if order else smooth)


def _slope_of_bessel_y0(x: T, value: T) -> T:
    return bessel_y1(x).neg()


@with_slope(_slope_of_bessel_y0)
def bessel_y0(input: T) -> T:
    """The Bessel function of the second kind, of order 0: -infinity at 0, NaN below."""
    first = _with_logarithm(input, _j0(input), tables.Y0_NEAR, order=0)
    near = input.lt(tables.Y0[0].low).where(first, piecewise(input, tables.Y0))
    _, far = _swinging(input, tables.P0, tables.Q0)
    return _defined(input, input.lt(_NEAR).where(near, far).neg()).neg()


def _slope_of_bessel_y1(x: T, value: T) -> T:
    return bessel_y0(x).sub(value.div(x))


@with_slope(_slope_of_bessel_y1)
def bessel_y1(input: T) -> T:
    """The Bessel function of the second kind, of order 1: -infinity at 0, NaN below."""
    first = _with_logarithm(input, _j1(input), tables.Y1_NEAR, order=1)
    near = input.lt(tables.Y1[0].low).where(first, piecewise(input, tables.Y1))
    far, _ = _swinging(input, tables.P1, tables.Q1)
    return _defined(input, input.lt(_NEAR).where(near, far.neg()).neg()).neg()


def _slope_of_spherical_bessel_j0(x: T, value: T) -> T:
    return x.eq(0).where(0, x.cos().sub(value).div(x))


@with_slope(_slope_of_spherical_bessel_j0)
def spherical_bessel_j0(input: T) -> T:
    """sin(input) / input; 1 at 0."""
    zero = input.eq(0)
    value = input.sin().div(zero.where(1, input))
    return zero.where(1, input.isinf().where(0, value))
