"""The numbers the expansions need, for float32 and for float64.

How the polynomials were obtained, for whoever wants to redo them: Remez exchange on a grid of 1500
Chebyshev nodes in 200-bit arithmetic (mpmath), then each coefficient rounded to the format. The
last column is the largest weighted error before that rounding, as its binary logarithm. Float32's
log2 was then improved by random steps of its coefficients that made the largest error near sqrt(2)
smaller.

=====  ===========================  ==========================  =====================  ============
field  fits                         over                        weight of the error    reached
=====  ===========================  ==========================  =====================  ============
exp    (e**r - 1 - r) / r**2        |r| <= 1.0005 log(2)/2      r**2 / e**r            -28.3, -57.9
exp2   (2**f - 1)/f - 1/2           -1/2 <= f <= 1/2            1                      -27.0, -56.2
log2   log2(1+f)/f - 3/2 + 3/4 f    2**-0.5 <= 1+f <= 2**0.5    f / log2(1+f)          -27.9, -56.8
sin    (sin(r)/r - 1) / z           0 <= z = r**2 <= 1          (z + 0.02) r / sin(r)  -33.8, -62.9
cos    (cos(r) - 1 + z/2) / z**2    0 <= r <= 1.00005 pi/4      1                      -28.9, -59.4
=====  ===========================  ==========================  =====================  ============
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gpu.core.dtype import DType, dtypes


@dataclass(frozen=True)
class Format:
    """A binary floating point format of IEEE 754, the integers as wide as it, and its polynomials.

    Attributes:
        mantissa: explicit mantissa bits.
        bias: what is added to the exponent in the encoding.
        log_two: so many bits of log(2) that their product with any exponent is exact (16 beside 8
            of an exponent, 42 beside 11), and the rest of it.
        exp, exp2, log2, sin, cos: coefficients, lowest power first; the table above says of what.
    """

    dtype: DType
    signed: DType
    unsigned: DType
    mantissa: int
    bias: int
    log_two: tuple[float, float]
    exp: tuple[float, ...]
    exp2: tuple[float, ...]
    log2: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]

    @property
    def bits(self) -> int:
        """Width of the format and of its integers."""
        return self.dtype.bits

    @property
    def sign_bit(self) -> int:
        """The bit of the sign, as an unsigned integer."""
        return 1 << (self.bits - 1)

    @property
    def one_bits(self) -> int:
        """The encoding of 1.0."""
        return self.bias << self.mantissa

    @property
    def root_half_bits(self) -> int:
        """The encoding of sqrt(1/2), rounded down."""
        one = 1 << self.mantissa
        root_two = math.isqrt(2 * one * one)
        return self.one_bits - one + (root_two - one)

    @property
    def infinity_bits(self) -> int:
        """The encoding of infinity: those of positive finite numbers are below it."""
        return (2 * self.bias + 1) << self.mantissa

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with a full mantissa."""
        return 2.0 ** (1 - self.bias)

    @cached_property
    def inverse_turn_words(self) -> tuple[int, ...]:
        """Words, most significant first, of the fraction ``2**-mantissa / (2*pi)``.

        Enough of them for the largest exponent (`bias`) and three words from there on.
        """
        count = (self.bias + 1) // self.bits + 3
        precision = count * self.bits
        fraction = (1 << (2 * precision - self.mantissa - 1)) // pi_fixed_point(precision)
        mask = (1 << self.bits) - 1
        return tuple((fraction >> (precision - (i + 1) * self.bits)) & mask for i in range(count))

    @property
    def anchor(self) -> float:
        """What rounds a number to an integer, which is then the lower part of the sum's bits.

        The spacing of numbers there is 1, also for a sum with a negative integer. For what the
        format holds of exponents the bits of the anchor itself, and their half, end in zeros.
        """
        return 1.5 * 2.0**self.mantissa

    @property
    def head_bits(self) -> int:
        """Half of the mantissa's length: a product of two numbers of so many bits is exact."""
        return (self.mantissa + 1) // 2

    @cached_property
    def turn_parts(self) -> tuple[float, float, float]:
        """``2*pi / 2**bits``, its first `head_bits` bits, and what those leave."""
        extra = 200
        pi = pi_fixed_point(self.head_bits - 2 + extra)
        head = pi >> extra
        rest = (pi - (head << extra)) / (1 << extra)
        unit = 2.0 ** (1 - self.bits - (self.head_bits - 2))
        return pi / (1 << extra) * unit, head * unit, rest * unit

    @property
    def most_by_parts(self) -> float:
        """A number of radians that is less quarter turns than have `head_bits` less one."""
        return 1.5 * 2.0 ** (self.head_bits - 1)

    @cached_property
    def quarter_parts(self) -> tuple[float, ...]:
        """Half of pi as the sum of four numbers of `head_bits` and a last one."""
        count, extra = 4, self.mantissa + 1
        rest, place = pi_fixed_point(count * self.head_bits + extra), count * self.head_bits + extra
        parts = []
        for part in range(1, count + 1):
            unit = 1 << (place + 2 - part * self.head_bits)
            parts.append(rest // unit * unit * 2.0 ** (-1 - place))
            rest %= unit
        return (*parts, rest * 2.0 ** (-1 - place))


def pi_fixed_point(fraction_bits: int) -> int:
    """``floor(pi * 2**fraction_bits)``, by Machin's ``pi = 16 atan(1/5) - 4 atan(1/239)``."""
    guard = 32
    one = 1 << (fraction_bits + guard)
    return (16 * _atan_of_inverse(5, one) - 4 * _atan_of_inverse(239, one)) >> guard


def _atan_of_inverse(n: int, one: int) -> int:
    power = total = one // n
    divisor, sign = 1, 1
    while power:
        power //= n * n
        divisor, sign = divisor + 2, -sign
        total += sign * (power // divisor)
    return total


FLOAT32: Final = Format(
    dtypes.float32, dtypes.int32, dtypes.uint32, mantissa=23, bias=127,
    log_two=(0.693145751953125, 1.4286068203094173e-06),
    exp=(0.49999994, 0.16666521, 0.04166839, 0.008368745, 0.001381454),
    exp2=(0.19314718, 0.2402265, 0.05550357, 0.009618031, 0.0013390867, 0.00015469735),
    log2=(
        -0.057304963, 0.02865265, 0.48089823, -0.3606966, 0.28856742,
        -0.23961747, 0.20460063, -0.1910613, 0.18617466, -0.10994269,
    ),
    sin=(-0.16666667, 0.008333317, -0.0001983627, 2.6955597e-06),
    cos=(0.041666664, -0.0013888304, 2.4548015e-05),
)  # fmt: skip

FLOAT64: Final = Format(
    dtypes.float64, dtypes.int64, dtypes.uint64, mantissa=52, bias=1023,
    log_two=(0.6931471805598903, 5.497923018708371e-14),
    exp=(
        0.5000000000000011, 0.1666666666666641, 0.041666666666529725, 0.008333333333494982,
        0.0013888888943760053, 0.00019841269505763468, 2.4801492949578704e-05,
        2.755758681412301e-06, 2.7630306260847273e-07, 2.5000015350348537e-08,
    ),
    exp2=(
        0.19314718055994531, 0.24022650695910097, 0.05550410866482166,
        0.009618129107606887, 0.0013333558146395995, 0.00015403530441738812,
        1.5252733853290228e-05, 1.3215442586443145e-06, 1.0178051723732434e-07,
        7.072586212580779e-09, 4.456676160552984e-10,
    ),
    log2=(
        -0.05730495911103659, 0.028652479555517654, 0.48089834696298184, -0.36067376022184855,
        0.2885390081792207, -0.2404491735526664, 0.2060992914568168, -0.18033687420394948,
        0.16029944905655194, -0.1442697693353301, 0.13115435941075795, -0.12021769604074606,
        0.11096381759344404, -0.1031531009158764, 0.09645974501576224, -0.08935849411429984,
        0.0816244645259718, -0.08193126033547887, 0.09425707326810594, -0.08667271463927419,
        0.03774221120233899,
    ),
    sin=(
        -0.16666666666666666, 0.008333333333333175, -0.00019841269841123002,
        2.755731916129054e-06, -2.5052094280794686e-08, 1.6057313927128448e-10,
        -7.537648154039256e-13,
    ),
    cos=(
        0.041666666666666664, -0.0013888888888887398, 2.4801587298765916e-05,
        -2.75573172717598e-07, 2.087614626041983e-09, -1.1382631029830746e-11,
    ),
)  # fmt: skip
