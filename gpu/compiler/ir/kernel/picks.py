"""Places that are data, and conditions on places as data."""

from __future__ import annotations

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Mask
from gpu.core.dtype import dtypes


def pick_value(index: K.Value, size: int) -> K.Value:
    """An index as an int64: `size`, one past the last element, where it is out of range."""
    wide = K.cast(index, dtypes.int64)
    above = K.alu("le", K.const(dtypes.int64, 0), wide)
    below = K.alu("lt", wide, K.const(dtypes.int64, size))
    return K.alu("where", K.alu("and", above, below), wide, K.const(dtypes.int64, size))


def mask_value(mask: Mask) -> K.Value:
    """A mask as a bool value."""
    zero = K.const(dtypes.int64, 0)
    result: K.Value | None = None
    for constraint in mask.constraints:
        holds = K.alu("le", zero, K.index(constraint))
        result = holds if result is None else K.alu("and", result, holds)
    return K.const(dtypes.bool, True) if result is None else result
