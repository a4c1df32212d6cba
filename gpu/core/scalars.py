"""Python's numbers beside tensors: which dtype they take, and whether they fit it."""

from __future__ import annotations

from typing import Final

from gpu.core.dtype import KIND_ORDER, DType, PyScalar, dtypes
from gpu.core.errors import NumberOverflow

_MOST_BITS_SHOWN: Final = 128  # of a number, in messages


def promote_scalar(array: DType, value: PyScalar) -> DType:
    """The dtype an array and a scalar combine to: the array's unless the scalar's kind wins.

    Raises NumberOverflow as `check_fits`.
    """
    kind = 0 if isinstance(value, bool) else 1 if isinstance(value, int) else 2
    if kind <= KIND_ORDER[array.kind]:
        found = array.element
    else:
        found = dtypes.default_int if kind == 1 else dtypes.default_float
    if kind == 1 and not dtypes.int64.min <= value <= dtypes.int64.max:
        check_fits(value, found)
    return found


def check_fits(value: PyScalar, dtype: DType) -> None:
    """Raises NumberOverflow for a whole number that is too large to become a `dtype`.

    Narrow integers take what 64 bits hold and wrap, as a cast does; what 64 bits do not hold, or a
    float, is a mistake.
    """
    if not isinstance(value, int):
        return
    bits = value.bit_length()
    shown = f"an int of {bits} bits" if bits > _MOST_BITS_SHOWN else str(value)
    if dtype.is_float:
        try:
            float(value)
        except OverflowError as error:
            raise NumberOverflow(f"{shown} is larger than any float") from error
    elif dtype.is_int:
        most = dtypes.uint64.max if dtype is dtypes.uint64 else dtypes.int64.max
        if not dtypes.int64.min <= value <= most:
            raise NumberOverflow(
                f"{shown} does not fit 64 bits, so no {dtype.name} can be made of it; write it as a"
                " float, or give a dtype of floats"
            )
