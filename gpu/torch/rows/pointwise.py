"""Rows of what is done to each element by itself."""

from __future__ import annotations

import math
from typing import Any, Final

from gpu.core.dtype import dtypes
from gpu.tensor.tensor import Tensor
from gpu.torch.table import row

Number = int | float | bool | complex

# Overloads with the method of the same arguments. Integers become what torch says of the result.
_METHODS: Final = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "exp2", "expm1"),
    *("log", "log10", "log1p", "log2", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
    *("erf", "erfc", "erfinv", "reciprocal", "neg", "relu", "floor", "ceil", "trunc", "sign"),
    *("square", "lgamma", "digamma", "bitwise_not", "atan2", "maximum", "minimum"),
    *("fmax", "fmin", "hypot", "copysign", "nextafter"),
)
for _name in _METHODS:
    row(_name, operands="result")(getattr(Tensor, _name))

_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
for _name in _COMPARISONS:
    row(f"{_name}.Tensor", f"{_name}.Scalar", operands="common")(getattr(Tensor, _name))

for _name in (
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "abs",
    "isnan",
    "isinf",
    "signbit",
):
    row(_name)(getattr(Tensor, _name))

for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    row(f"{_name}.Tensor", f"{_name}.Scalar", operands="result")(getattr(Tensor, _name))
for _name in ("bitwise_left_shift", "bitwise_right_shift"):
    row(f"{_name}.Tensor", f"{_name}.Tensor_Scalar", operands="result")(getattr(Tensor, _name))

for _name in ("fmod", "remainder"):
    row(f"{_name}.Tensor", f"{_name}.Scalar", operands="result")(getattr(Tensor, _name))


@row("add.Tensor", "add.Scalar", operands="result")
def add(x: Tensor, other: Any, alpha: Number = 1) -> Tensor:
    """x + alpha * other; of bools their or, as in torch."""
    if x.dtype is dtypes.bool:
        return x.bitwise_or(other) if alpha else x
    return x.add(other if alpha == 1 else other * alpha)


@row("sub.Tensor", "sub.Scalar", operands="result")
def sub(x: Tensor, other: Any, alpha: Number = 1) -> Tensor:
    """x - alpha * other."""
    return x.sub(other if alpha == 1 else other * alpha)


@row("rsub.Tensor", "rsub.Scalar", operands="result")
def rsub(x: Tensor, other: Any, alpha: Number = 1) -> Tensor:
    """other - alpha * x."""
    return (x if alpha == 1 else x.mul(alpha)).sub(other, reverse=True)


@row("mul.Tensor", "mul.Scalar", operands="result")
def mul(x: Tensor, other: Any) -> Tensor:
    """x * other; of bools their and."""
    return x.bitwise_and(other) if x.dtype is dtypes.bool else x.mul(other)


@row("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", operands="result")
def div(x: Tensor, other: Any, rounding_mode: str | None = None) -> Tensor:
    """x / other, rounded to zero ("trunc"), down ("floor") or not at all."""
    return x.div(other, rounding_mode=rounding_mode)


@row("pow.Tensor_Tensor", "pow.Tensor_Scalar", operands="result")
def power(x: Tensor, exponent: Any) -> Tensor:
    """x to the power of `exponent`."""
    return x.pow(exponent)


@row("pow.Scalar", operands="result")
def power_of(base: Number, exponent: Tensor) -> Tensor:
    """A number to the power of `exponent`."""
    return exponent.full_like(base).pow(exponent)


@row("atan2.out", operands="result")
def atan2_out(x: Tensor, other: Tensor, out: Tensor) -> Tensor:
    """The angle of (other, x); graphs have no memory that `out` could be, so it is the result."""
    return x.atan2(other)


@row("clamp", "clamp.Tensor", operands="result")
def clamp(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """x, not below `low` and not above `high`; NaN stays, and a bound of NaN gives NaN."""
    for bound in (low, high):
        if isinstance(bound, float) and math.isnan(bound):
            return x.full_like(bound)
    return x.clamp(low, high)


@row("round", operands="result")
def rounded(x: Tensor) -> Tensor:
    """To the nearest integer, of two the even one."""
    return x if not x.dtype.is_float else x.round()


@row("round.decimals", operands="result")
def rounded_to(x: Tensor, decimals: int = 0) -> Tensor:
    """To so many decimals."""
    return x if not x.dtype.is_float else x.round(decimals=decimals)


@row("gelu", operands="result")
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution's function of x."""
    return x.gelu(approximate)


@row("elu", operands="result")
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """scale * (x, or below 0 alpha * (exp(input_scale * x) - 1))."""
    below = (x * input_scale).minimum(0).expm1() * (alpha * scale)
    return x.gt(0).where(x * scale, below)


@row("leaky_relu", operands="result")
def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """x, below 0 times `slope`."""
    return x.leaky_relu(slope)


@row("hardtanh", operands="result")
def hardtanh(x: Tensor, low: Number = -1, high: Number = 1) -> Tensor:
    """x between `low` and `high`."""
    return x.clamp(low, high)


@row("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", takes_result=True)
def where(condition: Tensor, x: Any, other: Any, result: Any) -> Tensor:
    """x where `condition` holds, else `other`."""
    x, other = (v.cast(result.dtype) if isinstance(v, Tensor) else v for v in (x, other))
    if not isinstance(x, Tensor) and not isinstance(other, Tensor):
        x = condition.full_like(x, dtype=result.dtype)
    return condition.cast(dtypes.bool).where(x, other)


@row("polar", "complex")
def complex_of(x: Tensor, other: Tensor) -> Tensor:
    """x + i other."""
    return x.complex(other)


row("polar")(Tensor.polar)
for _name in ("real", "imag", "view_as_real", "view_as_complex", "angle"):
    row(_name)(getattr(Tensor, _name))
row("conj_physical", "_conj_physical", "_conj")(Tensor.conj)
