"""sin: the argument reduced by fixed-point arithmetic on its encoding, then two polynomials.

The reduction is M. H. Payne's and R. N. Hanek's ("Radian reduction for trigonometric functions",
ACM SIGNUM Newsletter 18, 1983): a finite x is an integer times a power of two, so of the digits of
1/(2 pi) only a window matters: those before it contribute whole turns, those after it less than is
needed. That is right for every finite argument. A cheaper reduction for moderate ones would not
replace it, only come on top, as without branches every lane computes both.

Fractions of a turn are counted in units of ``2**-bits`` turn, so that integers drop whole turns by
wrapping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gpu.compiler.lower.transcendental.builder import Term, polynomial
from gpu.compiler.lower.transcendental.formats import Format

V = TypeVar("V")

# Bits of the window's second word left to the float part, so that `_high_word` is exact.
_SPARE_BITS: Final = 4


def expand_sin(x: Term[V], fmt: Format) -> Term[V]:
    """sin(x) for float32 or float64, x in radians."""
    bits = x.bitcast(fmt.unsigned)
    magnitude = bits & (fmt.sign_bit - 1)
    is_reduced = magnitude < fmt.one_bits
    turns = _turns(magnitude, is_reduced, fmt)
    head, tail = _radians(turns, fmt)
    head = is_reduced.select(magnitude.bitcast(fmt.dtype), head)

    # The top bits of the fraction, rounded to quarter turns, say whether the cosine of what
    # remains is wanted and with which sign.
    quadrant = turns.units + (fmt.sign_bit >> 2)
    is_cosine = (quadrant & (fmt.sign_bit >> 1)).differs(0)
    r = head + tail
    z = r * r
    # Within a quarter turn around zero the tail matters, as it may be beyond the head's precision.
    sine = head + (tail + r * (z * polynomial(z, fmt.sin)))
    # z/2 is exact, so that of what is added to 1 only the small term is rounded twice.
    cosine = (z * polynomial(z, fmt.cos)).times_plus(z, z * -0.5) + 1.0
    result = is_cosine.select(cosine, sine)
    sign = (quadrant ^ bits) & fmt.sign_bit
    result = (result.bitcast(fmt.unsigned) ^ sign).bitcast(fmt.dtype)
    return (magnitude < fmt.infinity_bits).select(result, x.constant(math.nan))


@dataclass(frozen=True)
class _Turns(Generic[V]):
    """A fraction of a turn: `units`, unsigned and wrapping, and `rest`, a float of about 1 unit."""

    units: Term[V]
    rest: Term[V]


def _turns(magnitude: Term[V], is_reduced: Term[V], fmt: Format) -> _Turns[V]:
    """``|x| / (2 pi)`` without its whole turns; zero where `is_reduced`."""
    place = (magnitude >> fmt.mantissa) - fmt.bias
    high, middle, low = _window(place, fmt)
    implicit_one = 1 << fmt.mantissa
    significand = (magnitude & (implicit_one - 1)) | magnitude.constant(implicit_one)
    significand = is_reduced.select(magnitude.constant(0), significand)

    # significand * window, from the top: whole turns wrap away in the first product.
    factor = middle >> _SPARE_BITS
    product_low = significand * factor
    significand_float = significand.cast(fmt.dtype)
    product_high = _high_word(significand_float * factor.cast(fmt.dtype), product_low, fmt)
    kept_bits = fmt.bits - _SPARE_BITS
    units = significand * high + (product_high << _SPARE_BITS) + (product_low >> kept_bits)

    spare = (middle & ((1 << _SPARE_BITS) - 1)).cast(fmt.dtype)
    below = spare.times_plus(2.0**-fmt.bits, low.cast(fmt.dtype) * 2.0 ** (-2 * fmt.bits))
    product_rest = (product_low & ((1 << kept_bits) - 1)).cast(fmt.dtype)
    rest = significand_float.times_plus(below, product_rest * 2.0**-kept_bits)
    return _Turns(units, rest)


def _window(place: Term[V], fmt: Format) -> tuple[Term[V], Term[V], Term[V]]:
    """Three words of the digits of 1/(2 pi) from `place` on: a barrel shifter, words then bits."""
    words = [place.constant(word) for word in fmt.inverse_turn_words]
    stride = (fmt.bias + 1) // fmt.bits // 2
    while stride:
        shifted = (place & (stride * fmt.bits)).differs(0)
        words = [shifted.select(words[i + stride], words[i]) for i in range(stride + 3)]
        stride //= 2
    left = place & (fmt.bits - 1)
    # A word's neighbour comes in by two shifts, as a single one could be by the full width.
    right = left ^ (fmt.bits - 1)
    high, middle, low = ((words[i] << left) | (words[i + 1] >> 1 >> right) for i in range(3))
    return high, middle, low


def _high_word(product: Term[V], product_low: Term[V], fmt: Format) -> Term[V]:
    """The high word of an integer product, from it as a float and its exact low word.

    Three roundings make the float wrong by under ``3 * 2**-_SPARE_BITS``, 0.19, of the high word's
    unit, for a significand times a factor `_SPARE_BITS` short of a word: less the low word, it is
    next to the right integer.
    """
    without_low = product - product_low.cast(fmt.dtype)
    return without_low.times_plus(2.0**-fmt.bits, 0.5).cast(fmt.unsigned)


def _radians(turns: _Turns[V], fmt: Format) -> tuple[Term[V], Term[V]]:
    """What is left beyond the nearest quarter turn, in radians: an exact head and a small tail.

    Where the head is zero the tail has a relative error of few roundings.
    """
    turn, turn_head, turn_rest = fmt.turn_parts
    # Shifting drops quarter turns; back as signed, it is the distance to the nearest one.
    units = (turns.units << 2).bitcast(fmt.signed) >> 2
    long_bits = fmt.mantissa + 1 - fmt.head_bits
    clear_low = (1 << fmt.bits) - (1 << long_bits)
    head = (units.cast(fmt.dtype).bitcast(fmt.unsigned) & clear_low).bitcast(fmt.dtype)
    tail = (units - head.cast(fmt.signed)).cast(fmt.dtype) + turns.rest
    return head * turn_head, head.times_plus(turn_rest, tail * turn)
