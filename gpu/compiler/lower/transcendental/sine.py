"""sin: the argument reduced by a quarter turn in parts, or on its encoding, then two polynomials.

Arguments of up to some thousand radians lose whole quarter turns as W. J. Cody and W. Waite take
them off ("Software Manual for the Elementary Functions", Prentice-Hall 1980): a quarter turn is cut
into parts so short that their products with a number of turns are exact, and the same whether
`fma` rounds once or twice. Where a lane has a larger one, all do what is right for any
finite argument, M. H. Payne's and R. N. Hanek's reduction ("Radian reduction for trigonometric
functions", ACM SIGNUM Newsletter 18, 1983): a finite x is an integer times a power of two, so of
the digits of 1/(2 pi) only a window matters: those before it contribute whole turns, those after
it less than is needed. That is four times as much work as all the rest.

There fractions of a turn are counted in units of ``2**-bits`` turn, so that integers drop whole
turns by wrapping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gpu.compiler.lower.transcendental.builder import Term, polynomial, unless_all
from gpu.compiler.lower.transcendental.formats import Format

V = TypeVar("V")

# Bits of the window's second word left to the float part, so that `_high_word` is exact.
_SPARE_BITS: Final = 4


def expand_sin(x: Term[V], fmt: Format) -> Term[V]:
    """sin(x) for float32 or float64, x in radians."""
    bits = x.bitcast(fmt.unsigned)
    magnitude = (bits & (fmt.sign_bit - 1)).bitcast(fmt.dtype)

    def anywhere(magnitude: Term[V]) -> tuple[Term[V], ...]:
        return _reduced_on_encoding(magnitude, fmt)

    is_near = magnitude < fmt.most_by_parts  # which NaN is not
    near = _reduced_by_parts(magnitude, fmt)
    head, tail, quarters = unless_all(is_near, near, anywhere, magnitude)

    # The number of quarter turns says whether the cosine of what remains is wanted, and with which
    # sign.
    is_cosine = (quarters & 1).differs(0)
    r = head + tail
    z = r * r
    # Within a quarter turn around zero the tail matters, as it may be beyond the head's precision.
    sine = head + (tail + r * (z * polynomial(z, fmt.sin)))
    # z/2 is exact, so that of what is added to 1 only the small term is rounded twice.
    cosine = (z * polynomial(z, fmt.cos)).times_plus(z, z * -0.5) + 1.0
    result = is_cosine.select(cosine, sine)
    sign = ((quarters << (fmt.bits - 2)) ^ bits) & fmt.sign_bit
    return (result.bitcast(fmt.unsigned) ^ sign).bitcast(fmt.dtype)


def _reduced_by_parts(magnitude: Term[V], fmt: Format) -> tuple[Term[V], ...]:
    """What is left beyond the nearest quarter turn, head and tail, and how many there are.

    The number has a bit less than `Format.head_bits`, and each part but the last so many. So what
    the first two parts leave is exact; of the third the tail has what is rounded, and what the
    fourth takes off that is exact again.
    """
    anchored = magnitude.times_plus(2 / math.pi, fmt.anchor)
    count = anchored - fmt.anchor
    first, second, third, fourth, last = fmt.quarter_parts
    left = count.times_plus(-second, count.times_plus(-first, magnitude))
    head = count.times_plus(-third, left)
    tail = count.times_plus(-third, left - head)
    tail = count.times_plus(-last, count.times_plus(-fourth, tail))
    return head, tail, anchored.bitcast(fmt.unsigned)


def _reduced_on_encoding(magnitude: Term[V], fmt: Format) -> tuple[Term[V], ...]:
    """The same of any number from 1 on, in the lowest two bits of how many; NaN of no number."""
    bits = magnitude.bitcast(fmt.unsigned)
    turns = _turns(bits, fmt)
    head, tail = _radians(turns, fmt)
    head = (bits < fmt.infinity_bits).select(head, head.constant(math.nan))
    return head, tail, (turns.units + (fmt.sign_bit >> 2)) >> (fmt.bits - 2)


@dataclass(frozen=True)
class _Turns(Generic[V]):
    """A fraction of a turn: `units`, unsigned and wrapping, and `rest`, a float of about 1 unit."""

    units: Term[V]
    rest: Term[V]


def _turns(magnitude: Term[V], fmt: Format) -> _Turns[V]:
    """``|x| / (2 pi)`` without its whole turns, of the encoding of ``|x|``."""
    place = (magnitude >> fmt.mantissa) - fmt.bias
    high, middle, low = _window(place, fmt)
    implicit_one = 1 << fmt.mantissa
    significand = (magnitude & (implicit_one - 1)) | magnitude.constant(implicit_one)

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
