"""exp and its kin, log2: exponents by integers of the encoding, mantissas by polynomials."""

from __future__ import annotations

import math
from typing import TypeVar

from gpu.compiler.lower.transcendental.builder import Term, polynomial
from gpu.compiler.lower.transcendental.formats import Format

V = TypeVar("V")


def expand_exp2(x: Term[V], fmt: Format) -> Term[V]:
    """2**x for float32 or float64: ``x = n + f`` with an integer n, then ``2**f * 2**n``.

    NaN passes through.
    """
    # Beyond these the result is certainly 0 or infinity; within them both scales are normal or 0.
    x = _clamped(x, float(-2 * fmt.bias), float(fmt.bias + 2))
    anchored = x + fmt.anchor
    f = x - (anchored - fmt.anchor)
    # f/2 is exact, so that only the rest of f's coefficient is rounded.
    power = f.times_plus(polynomial(f, fmt.exp2), f * 0.5) + 1.0
    return _scaled(power, anchored, fmt)


def expand_exp(x: Term[V], fmt: Format) -> Term[V]:
    """e**x for float32 or float64: ``x = n*log(2) + r`` with an integer n, then ``e**r * 2**n``.

    Not 2**(x * log2(e)): that product is rounded in proportion to x, which costs as many units in
    the last place as x has. NaN passes through.
    """
    x = _clamped(x, -2 * fmt.bias * math.log(2), (fmt.bias + 2) * math.log(2))
    anchored, r = _without_powers(x, fmt)
    power = (r * r).times_plus(polynomial(r, fmt.exp), r) + 1.0
    return _scaled(power, anchored, fmt)


def expand_expm1(x: Term[V], fmt: Format) -> Term[V]:
    """e**x - 1 for float32 or float64, ``(e**r - 1) * 2**n + (2**n - 1)``.

    NaN passes through.
    """
    sign = x.bitcast(fmt.unsigned) & fmt.sign_bit
    # Below the first the result is -1, and above the second infinity; half of 2**n is finite.
    x = _clamped(x, -(fmt.mantissa + 3) * math.log(2), (fmt.bias + 1.25) * math.log(2))
    anchored, r = _without_powers(x, fmt)
    more = r * r * polynomial(r, fmt.exp)
    half = _power_of_two(anchored.bitcast(fmt.signed), fmt, fmt.bias - 1)
    result = more.times_plus(half, r.times_plus(half, half - 0.5))
    # Halves would lose a bit of the smallest numbers, and sums lose the sign of zero.
    result = anchored.equals(fmt.anchor).select(r + more, result + result)
    return (result.bitcast(fmt.unsigned) | sign).bitcast(fmt.dtype)


def _without_powers(x: Term[V], fmt: Format) -> tuple[Term[V], Term[V]]:
    """x as a number n of log(2), to which `Format.anchor` was added, and what is left of it."""
    anchored = x.times_plus(1 / math.log(2), fmt.anchor)
    n = anchored - fmt.anchor
    high, low = fmt.log_two  # n * high is exact, and so is its difference from x
    return anchored, n.times_plus(-low, n.times_plus(-high, x))


def _clamped(x: Term[V], lowest: float, highest: float) -> Term[V]:
    """x within bounds; NaN compares false, so is not clamped."""
    x = (x < lowest).select(x.constant(lowest), x)
    return (x.constant(highest) < x).select(x.constant(highest), x)


def _scaled(power: Term[V], anchored: Term[V], fmt: Format) -> Term[V]:
    """``power * 2**n`` for a power in [0.7, 1.5] and n, to which `Format.anchor` was added.

    Of n = -2 * bias both factors have the encoding of 0. That takes a CPU no longer than another
    product; one that is rounded to 0, or to a subnormal number, takes some a hundred cycles.
    """
    # Two factors, as 2**n itself may be subnormal or overflow. The first product is exact, so that
    # a subnormal result is rounded once. What the anchor left of n, in the bits and their half,
    # lies above those that stay in an exponent.
    bits = anchored.bitcast(fmt.signed)
    half = bits >> 1
    first, second = (_power_of_two(part, fmt, fmt.bias) for part in (half, bits - half))
    return power * first * second


def _power_of_two(exponent: Term[V], fmt: Format, bias: int) -> Term[V]:
    """2 to the power of an exponent, and of what `bias` has more than the format's."""
    return ((exponent + bias) << fmt.mantissa).bitcast(fmt.dtype)


def expand_log2(x: Term[V], fmt: Format) -> Term[V]:
    """log2(x) for float32 or float64: ``x = m * 2**e``, m within a factor sqrt(2) of 1."""
    f, exponent = _split(x, fmt)
    # log2(1 + f) = 1.5 f - 0.75 f**2 + f * (-0.06 + 0.03 f + ...): 1.5 f and 0.75 f are exact for
    # such f, so that only small terms are rounded; and near x = 1, where e = 0, the error is
    # relative.
    small_terms = (f * -0.75).times_plus(f, f * polynomial(f, fmt.log2))
    result = exponent + (f * 1.5 + small_terms)
    result = (x < math.inf).select(result, x)  # x itself where it is infinity or NaN
    not_positive = x.equals(0.0).select(x.constant(-math.inf), x.constant(math.nan))
    return (x.constant(0.0) < x).select(result, not_positive)


def _split(x: Term[V], fmt: Format) -> tuple[Term[V], Term[V]]:
    """``(m - 1, e)`` of a positive finite x, as floats; without meaning for other x."""
    raised = fmt.mantissa + 1  # powers of two that make every subnormal normal
    is_small = x < fmt.smallest_normal
    bits = is_small.select(x * 2.0**raised, x).bitcast(fmt.signed)
    # Encodings a factor of two apart differ by 1 << mantissa: counted from that of sqrt(1/2), whole
    # steps are e, and taking them off leaves m in [sqrt(1/2), sqrt(2)).
    exponent = (bits - fmt.root_half_bits) >> fmt.mantissa
    m = (bits - (exponent << fmt.mantissa)).bitcast(fmt.dtype)
    offset = is_small.select(x.constant(-float(raised)), x.constant(0.0))
    return m - 1.0, exponent.cast(fmt.dtype) + offset
