"""What numbers the floats of a dtype are: largest, smallest, and the parts of their bits."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from gpu.core.dtype import DType
from gpu.core.errors import DTypeError


class FloatLimits(NamedTuple):
    """Limits of a float dtype.

    Attributes:
        bits: width in bits.
        max, min: the largest finite number, and minus that.
        eps: the distance from 1 to the next larger number.
        smallest_normal: the smallest positive number of full precision.
        fraction_bits: bits that are stored of the fraction.
        max_exponent: numbers are below 2 to the power of this.
    """

    bits: int
    max: float
    min: float
    eps: float
    smallest_normal: float
    fraction_bits: int
    max_exponent: int


@cache
def limits_of(dtype: DType) -> FloatLimits:
    """The limits of a float dtype. Raises DTypeError for any other."""
    import ml_dtypes

    if not dtype.is_float:
        raise DTypeError(f"{dtype.name} is not a float")
    info: Any = ml_dtypes.finfo(dtype.np)  # type: ignore[no-untyped-call]
    high, small = float(info.max), float(info.smallest_normal)
    fraction, exponent = int(info.nmant), int(info.maxexp)
    return FloatLimits(dtype.bits, high, -high, float(info.eps), small, fraction, exponent)
