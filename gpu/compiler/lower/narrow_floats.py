"""Conversions between float32 and the narrow floats, for devices that have none.

Branch-free, on bit patterns held in uint32, so that results do not depend on how a device treats
subnormals. Rounding is to nearest, ties to even. Formats: float16 is IEEE 754 binary16, bfloat16
the upper half of a float32, fp8e4m3 and fp8e5m2 are E4M3 and E5M2 of the OCP 8-bit Floating Point
Specification 1.0. A value too large becomes infinity, or NaN in E4M3, which has no infinity.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from gpu.compiler.ir.builder import Builder
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import DTypeError

V = TypeVar("V")

_MANTISSA: Final = 23  # of float32, as the next four
_BIAS: Final = 127
_MAGNITUDE: Final = 0x7FFF_FFFF
_INFINITY: Final = 0x7F80_0000
_QUIET_NAN: Final = 0x7FC0_0000


class Format(NamedTuple):
    """The layout of a narrow float: a sign bit, the exponent, then the mantissa.

    Attributes:
        bits: the unsigned integer of the same width.
        mantissa: bits of the mantissa.
        bias: of the exponent.
        overflow: magnitude that values too large round to: infinity, or NaN where there is none.
        nan: magnitude of the quiet NaN.
    """

    bits: DType
    mantissa: int
    bias: int
    overflow: int
    nan: int

    @property
    def dropped(self) -> int:
        """Bits by which its mantissa is shorter than that of float32."""
        return _MANTISSA - self.mantissa

    @property
    def rebias(self) -> int:
        """What to add to its exponent field to get that of float32."""
        return _BIAS - self.bias


FORMATS: Final = {
    dtypes.float16: Format(dtypes.uint16, 10, 15, 0x7C00, 0x7E00),
    dtypes.bfloat16: Format(dtypes.uint16, 7, 127, 0x7F80, 0x7FC0),
    dtypes.fp8e4m3: Format(dtypes.uint8, 3, 7, 0x7F, 0x7F),
    dtypes.fp8e5m2: Format(dtypes.uint8, 2, 15, 0x7C, 0x7E),
}


def _format(dtype: DType) -> Format:
    if dtype not in FORMATS:
        known = ", ".join(d.name for d in FORMATS)
        raise DTypeError(f"{dtype.name} is not a narrow float; expected one of {known}")
    return FORMATS[dtype]


def from_float32(b: Builder[V], x: V, target: DType) -> V:
    """Float32 `x` rounded to `target`; NaN gives the quiet NaN of its sign.

    Raises DTypeError if `target` is not a narrow float or `x` not a float32.
    """
    fmt = _format(target)
    if b.dtype(x) is not dtypes.float32:
        raise DTypeError(f"from_float32 takes a float32, got {b.dtype(x).name}; cast it first")
    bits = b.bitcast(x, dtypes.uint32)
    magnitude = b.op("and", bits, b.like(bits, _MAGNITUDE))
    if fmt.rebias == 0:
        rounded = _round_off(b, magnitude, b.like(bits, fmt.dropped))
    else:
        rounded = _round_rebiased(b, magnitude, fmt)
    is_nan = b.lt(b.like(bits, _INFINITY), magnitude)
    rounded = b.where(is_nan, b.like(bits, fmt.nan), rounded)
    sign = b.op("shr", bits, b.like(bits, 31))
    sign = b.op("shl", sign, b.like(bits, fmt.bits.bits - 1))
    return b.bitcast(b.cast(b.op("or", sign, rounded), fmt.bits), target)


def _round_off(b: Builder[V], value: V, count: V) -> V:
    """uint32 `value` without its lowest `count` bits (1 to 31), rounded to nearest even."""
    one = b.like(value, 1)
    last_kept = b.op("and", b.op("shr", value, count), one)
    just_below_half = b.sub(b.op("shl", one, b.sub(count, one)), one)
    return b.op("shr", b.add(value, b.add(just_below_half, last_kept)), count)


def _round_rebiased(b: Builder[V], magnitude: V, fmt: Format) -> V:
    """The magnitude bits of `fmt` for those of a float32 that is not NaN."""

    def const(value: int) -> V:
        return b.like(magnitude, value)

    exponent = b.op("shr", magnitude, const(_MANTISSA))
    # Below the smallest normal exponent, that exponent stays and the significand moves right.
    smallest = const(fmt.rebias + 1)
    kept_exponent = b.op("max", exponent, smallest)
    # Dropping 25 bits rounds every 24-bit significand to 0, as is right for all that small; so it
    # does not matter that float32 subnormals have no leading 1.
    count = b.add(b.sub(kept_exponent, exponent), const(fmt.dropped))
    count = b.op("min", count, const(_MANTISSA + 2))
    fraction = b.op("and", magnitude, const((1 << _MANTISSA) - 1))
    significand = _round_off(b, b.op("or", fraction, const(1 << _MANTISSA)), count)
    # The leading 1 of a normal significand and a carry out of rounding each add 1 to the field.
    field = b.op("shl", b.sub(kept_exponent, smallest), const(fmt.mantissa))
    return b.op("min", b.add(field, significand), const(fmt.overflow))


def to_float32(b: Builder[V], x: V) -> V:
    """The narrow float `x` as a float32, exactly. Raises DTypeError if `x` is not a narrow float.

    A bfloat16 NaN keeps its payload, and so stays signalling if it was; other signalling NaNs too.
    """
    fmt = _format(b.dtype(x))
    bits = b.cast(b.bitcast(x, fmt.bits), dtypes.uint32)
    if fmt.rebias == 0:
        return b.bitcast(b.op("shl", bits, b.like(bits, fmt.dropped)), dtypes.float32)
    magnitude = b.op("and", bits, b.like(bits, (1 << (fmt.bits.bits - 1)) - 1))
    sign = b.op("shl", b.op("shr", bits, b.like(bits, fmt.bits.bits - 1)), b.like(bits, 31))
    return b.bitcast(b.op("or", sign, _widen(b, magnitude, fmt)), dtypes.float32)


def _widen(b: Builder[V], magnitude: V, fmt: Format) -> V:
    """The magnitude bits of the float32 equal to the `fmt` value with these magnitude bits."""

    def const(value: int) -> V:
        return b.like(magnitude, value)

    shifted = b.op("shl", magnitude, const(fmt.dropped))
    normal = b.add(shifted, const(fmt.rebias << _MANTISSA))
    # A subnormal has no leading 1: put one on and subtract it again in float32. That is exact, and
    # its operands and result are normal or 0, so a device that flushes subnormals cannot spoil it.
    with_one = b.add(shifted, const((fmt.rebias + 1) << _MANTISSA))
    minus_one = b.const(dtypes.float32, -(2.0 ** (1 - fmt.bias)))
    subnormal = b.bitcast(b.add(b.bitcast(with_one, dtypes.float32), minus_one), dtypes.uint32)
    finite = b.where(b.lt(magnitude, const(1 << fmt.mantissa)), subnormal, normal)
    if fmt.overflow == fmt.nan:
        special = const(_QUIET_NAN)
    else:
        special = b.op("or", shifted, const(_INFINITY))
    return b.where(b.lt(magnitude, const(fmt.overflow)), finite, special)
