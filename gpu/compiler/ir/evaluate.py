"""What each scalar operation means, in numpy. Every edge case the op table fixes is fixed here.

Integers wrap. Division by zero gives 0 in `tdiv` and `tmod`. A shift by the width or more gives
0, or the sign for `shr` of a signed integer; a negative shift count counts as such. `max` and
`min` return NaN if either side is NaN; which of two zeros of unlike sign they return is not fixed.
`fmod` is exact: C's, with the sign of its first operand for zeros too.
A float cast to an integer truncates, saturates, and sends NaN to 0. Narrow floats (fp8, float16,
bfloat16) are computed in float32 and rounded once. Casts to them round through float32, as those
of numpy and ml_dtypes do, except that float64 to float16 rounds once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.core.dtype import DType, dtypes

Array = npt.NDArray[Any]


def truncating_division(a: Array, b: Array) -> Array:
    """C division of integers, rounding toward zero; x / 0 is 0."""
    return np.asarray(np.floor_divide(a - np.fmod(a, b), b))


def cast(x: Array, source: DType, target: DType) -> Array:
    """`x` of element type `source` converted by value."""
    if target is dtypes.bool:
        return np.asarray(x != 0)
    if target.is_complex and not source.is_complex:
        x = x.astype(target.real.np)
    if source.is_float and target.is_int:
        return _saturate(x, target)
    if source is dtypes.float64 and target in (dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2):
        x = x.astype(np.float32)
    return np.asarray(x.astype(target.np))


def _saturate(x: Array, target: DType) -> Array:
    wide = x.astype(np.float64)
    finite = np.where(np.isnan(wide), 0.0, np.trunc(wide))
    # 2.0**63 and 2.0**64 are exact, the largest int64 and uint64 are not: compare before
    # converting.
    too_high, too_low = finite >= float(target.max) + 1.0, finite < float(target.min)
    inside = np.where(too_high | too_low, 0.0, finite).astype(target.np)
    clamped = np.where(too_low, np.array(target.min, target.np), inside)
    return np.asarray(np.where(too_high, np.array(target.max, target.np), clamped))


def bitcast(x: Array, target: DType) -> Array:
    """The bits of `x` read as `target`, of the same width."""
    return np.ascontiguousarray(x).view(target.np).reshape(x.shape)


def _shift_count(a: Array, b: Array) -> Array:
    """Shift counts in which every count outside [0, bits) is the width, which numpy shifts out
    whole.
    """
    bits = a.dtype.itemsize * 8
    outside = (b < 0) | (b >= bits)
    return np.where(outside, np.array(bits, b.dtype), b)


def shift_left(a: Array, b: Array) -> Array:
    """a << b; counts outside [0, bits) give 0."""
    return np.asarray(np.left_shift(a, _shift_count(a, b)))


def shift_right(a: Array, b: Array) -> Array:
    """a >> b, arithmetic for signed integers; counts outside [0, bits) give 0 or the sign."""
    return np.asarray(np.right_shift(a, _shift_count(a, b)))


def logical_not(x: Array) -> Array:
    """Bitwise complement; logical for bool."""
    return np.asarray(np.logical_not(x) if x.dtype == np.bool_ else np.invert(x))


def through_float32(function: Any) -> Any:
    """`function` for floats, computed in float32 for narrower ones:

    ml_dtypes lacks some of them.
    """

    def run(*args: Array) -> Array:
        dtype = args[0].dtype
        if dtype.itemsize >= 4:
            return np.asarray(function(*args))
        return np.asarray(function(*(a.astype(np.float32) for a in args)).astype(dtype))

    return run


def multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded twice; a device may round once."""
    return np.asarray(a * b + c)


def dot(first: DType, second: DType) -> Callable[[Array, Array, Array], Array]:
    """The products of the elements of two words, one after the other added to a third operand."""

    def run(a: Array, b: Array, total: Array) -> Array:
        factors = (_elements(w, d, total) for w, d in ((a, first), (b, second)))
        for x, y in zip(*factors, strict=True):
            total = total + x * y
        return np.asarray(total)

    return run


def _elements(words: Array, dtype: DType, total: Array) -> Array:
    """The elements of `dtype` in words, the first ones first, as numbers like `total`."""
    elements = np.ascontiguousarray(words)[..., None].view(dtype.np)
    return np.moveaxis(elements, -1, 0).astype(total.dtype)
