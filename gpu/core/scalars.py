"""Python's numbers beside tensors: which dtype they take, whether they fit it, how they compare."""

from __future__ import annotations

import math
from typing import Final

from gpu.core.dtype import KIND_ORDER, DType, Number, complex_of, dtypes
from gpu.core.errors import DTypeError, NumberOverflow

_MOST_BITS_SHOWN: Final = 128  # of a number, in messages


def promote_scalar(array: DType, value: Number) -> DType:
    """The dtype an array and a scalar combine to: the array's unless the scalar's kind wins.

    Raises NumberOverflow as `check_fits`.
    """
    kind = 0 if isinstance(value, bool) else 1 if isinstance(value, int) else 2
    if isinstance(value, complex):
        found = complex_of(array)
    elif kind <= KIND_ORDER[array.kind]:
        found = array.element
    else:
        found = dtypes.of(value)
    check_fits(value, found)
    return found


def check_fits(value: Number, dtype: DType) -> None:
    """Raises NumberOverflow for a number that `dtype` cannot hold, even rounded.

    Integers take what truncates to one of theirs. Floats take any float, of which the largest
    become infinity, and whole numbers that are no larger than those. Bools take everything. Raises
    DTypeError for a complex number where `dtype` is of real ones.
    """
    if isinstance(value, complex):
        if not dtype.is_complex and dtype is not dtypes.bool:
            raise DTypeError(f"{dtype.name} holds no complex number, got {value}; take complex64")
    elif dtype.is_int:
        known = isinstance(value, int) or math.isfinite(value)
        if not (known and dtype.min <= math.trunc(value) <= dtype.max):
            raise NumberOverflow(_does_not_fit(value, dtype))
    elif isinstance(value, int) and (dtype.is_float or dtype.is_complex):
        try:
            float(value)
        except OverflowError as error:
            raise NumberOverflow(f"{_shown(value)} is larger than any float") from error


def _does_not_fit(value: float, dtype: DType) -> str:
    if isinstance(value, float):
        return f"{value} does not fit {dtype.name}; clamp it, or take a dtype of floats"
    if not dtypes.int64.min <= value <= dtypes.uint64.max:
        return (
            f"{_shown(value)} does not fit 64 bits, so no {dtype.name} can be made of it; write it "
            "as a float, or give a dtype of floats"
        )
    wider = dtypes.of(value).name
    return (
        f"{value} does not fit {dtype.name}, which holds {dtype.min} to {dtype.max}; cast the "
        f"tensor to {wider} first, or give {wider} as the dtype"
    )


def _shown(value: int) -> str:
    bits = value.bit_length()
    return f"an int of {bits} bits" if bits > _MOST_BITS_SHOWN else str(value)


def compared(op: str, dtype: DType, value: float) -> tuple[str, int] | bool:
    """How integers or bools x of `dtype` compare with any number, as the numbers that they are.

    Args:
        op: one of lt, le, eq, ne, gt and ge, for `x op value`.
        dtype: of x.
        value: infinities and NaN included.

    Returns:
        An operation and an integer that `dtype` holds with which it gives the same for every x; or
        what it gives, where that is the same for all.
    """
    if isinstance(value, float) and math.isnan(value):
        return op == "ne"
    if value > dtype.max:
        return op in ("lt", "le", "ne")
    if value < dtype.min:
        return op in ("gt", "ge", "ne")
    whole = math.floor(value)
    if whole == value:
        return op, whole
    if op in ("eq", "ne"):
        return op == "ne"
    return "le" if op in ("lt", "le") else "gt", whole
