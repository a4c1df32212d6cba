"""Operands of matrix instructions before they were made as wide as their sums."""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import IllegalOpt

NARROW: Final = {
    dtypes.float32: (dtypes.float16, dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2),
    dtypes.int32: (dtypes.int8, dtypes.uint8),
}
"""What operands of matrix instructions are cast to, and what they are before."""


def narrow(operand: K.Value) -> K.Value:
    """What an operand is a cast of: of 16 bits or 8 where it is float32, of 8 where it is int32.

    Raises IllegalOpt where there is no such.
    """
    if operand.kind == "cast" and operand.args[0].dtype in NARROW.get(operand.dtype, ()):
        return operand.args[0]
    is_where = operand.kind == "alu" and operand.attr[0] == "where"
    if is_where and operand.args[2] is _zero(operand.dtype):
        inside = narrow(operand.args[1])
        return K.alu("where", operand.args[0], inside, _zero(inside.dtype))
    raise IllegalOpt(
        "an operand of a product is not of 16 bits or 8, or 8 of an integer; float32 is never"
        " rounded to less"
    )


def _zero(dtype: DType) -> K.Value:
    return K.const(dtype, 0.0 if dtype.is_float else 0)
