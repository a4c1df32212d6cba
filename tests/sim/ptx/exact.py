"""Floating-point numbers as fractions, and rounding written from its definition."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import Final, NamedTuple


class Format(NamedTuple):
    """A binary format: bits of the whole and of the fraction."""

    bits: int
    fraction: int

    @property
    def bias(self) -> int:
        """Of the exponent."""
        return (1 << (self.bits - self.fraction - 2)) - 1

    @property
    def infinity(self) -> int:
        """The pattern of it."""
        return (1 << (self.bits - 1)) - (1 << self.fraction)


FORMATS: Final = {
    "f16": Format(16, 10),
    "bf16": Format(16, 7),
    "f32": Format(32, 23),
    "f64": Format(64, 52),
}


def is_finite(pattern: int, kind: str) -> bool:
    """Whether it is a number."""
    form = FORMATS[kind]
    return pattern & form.infinity != form.infinity


def is_nan(pattern: int, kind: str) -> bool:
    """Whether it is none."""
    form = FORMATS[kind]
    return pattern & ((1 << (form.bits - 1)) - 1) > form.infinity


def value(pattern: int, kind: str) -> Fraction:
    """What a finite pattern means."""
    form = FORMATS[kind]
    sign = -1 if pattern >> (form.bits - 1) else 1
    exponent = (pattern & form.infinity) >> form.fraction
    digits = pattern & ((1 << form.fraction) - 1)
    if exponent:
        digits |= 1 << form.fraction
    return sign * Fraction(digits) * Fraction(2) ** (max(exponent, 1) - form.bias - form.fraction)


def rounded(x: Fraction, kind: str, mode: str = "rn", negative_zero: bool = False) -> int:
    """The pattern of a number in a format; ``rn rz rm rp``, and ``rna`` away from zero."""
    form = FORMATS[kind]
    negative = x < 0 or (x == 0 and negative_zero)
    size = abs(x)
    lowest = 1 - form.bias
    exponent = lowest
    if size:
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        if Fraction(2) ** exponent > size:
            exponent -= 1
    unit = Fraction(2) ** (max(exponent, lowest) - form.fraction)
    steps, rest = divmod(size, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and steps % 2 == 1),
        "rna": rest * 2 >= unit,
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    pattern = int(steps) + up + (max(exponent, lowest) - lowest) * (1 << form.fraction)
    if pattern >= form.infinity:  # beyond the largest number
        stays = mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
        pattern = form.infinity - 1 if stays else form.infinity
    return pattern | negative << (form.bits - 1)


def root(x: Fraction, kind: str, mode: str = "rn") -> int:
    """The square root of a number that is not negative, rounded."""
    scale = 1400  # enough for the smallest double, and 60 digits more
    whole = (x.numerator << 2 * scale) // x.denominator
    digits = isqrt(whole)
    exact = digits * digits == whole and not (x.numerator << 2 * scale) % x.denominator
    # A half more stands for all that is lost: it is on the same side of every number to round to.
    return rounded((Fraction(digits) + (0 if exact else Fraction(1, 2))) / 2**scale, kind, mode)
