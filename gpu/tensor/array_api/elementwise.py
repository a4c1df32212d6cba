"""Element-wise functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gpu.tensor.array_api.arguments import Operand, pair_of, tensor_of
from gpu.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
_OfOne = Callable[[Tensor], Tensor]
_OfTwo = Callable[[Operand, Operand], Tensor]


def _of_one(name: str, method: Callable[..., Any]) -> _OfOne:
    """The function of one tensor that a method is."""

    def function(x: Tensor, /) -> Tensor:
        result: Tensor = method(tensor_of(x))
        return result

    return _named(function, name, method)


def _of_two(name: str, method: Callable[..., Any]) -> _OfTwo:
    """The function of two operands that a method is: one of them may be a number."""

    def function(x1: Operand, x2: Operand, /) -> Tensor:
        first, second = pair_of(x1, x2)
        result: Tensor = method(first, second)
        return result

    return _named(function, name, method)


def _through_zero(name: str, method: Callable[..., Any]) -> _OfOne:
    """The same for a function that is like its argument near 0: of -0.0 it is -0.0."""

    def function(x: Tensor, /) -> Tensor:
        result: Tensor = method(tensor_of(x))
        return result if x.dtype.is_complex else x.eq(0).where(x, result)

    return _named(function, name, method)


def _named(function: F, name: str, method: Callable[..., Any]) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = method.__doc__ or f"The operator of `Tensor`, {method.__name__}."
    return function


abs = _of_one("abs", Tensor.abs)
acos = _of_one("acos", Tensor.acos)
acosh = _of_one("acosh", Tensor.acosh)
add = _of_two("add", Tensor.add)
asin = _of_one("asin", Tensor.asin)
asinh = _through_zero("asinh", Tensor.asinh)
atan = _of_one("atan", Tensor.atan)
atan2 = _of_two("atan2", Tensor.atan2)
atanh = _through_zero("atanh", Tensor.atanh)
bitwise_and = _of_two("bitwise_and", Tensor.bitwise_and)
bitwise_invert = _of_one("bitwise_invert", Tensor.bitwise_not)
bitwise_left_shift = _of_two("bitwise_left_shift", Tensor.lshift)
bitwise_or = _of_two("bitwise_or", Tensor.bitwise_or)
bitwise_right_shift = _of_two("bitwise_right_shift", Tensor.rshift)
bitwise_xor = _of_two("bitwise_xor", Tensor.bitwise_xor)
ceil = _of_one("ceil", Tensor.ceil)
conj = _of_one("conj", Tensor.conj)
copysign = _of_two("copysign", Tensor.copysign)
cos = _of_one("cos", Tensor.cos)
cosh = _of_one("cosh", Tensor.cosh)
divide = _of_two("divide", Tensor.div)
equal = _of_two("equal", Tensor.eq)
exp = _of_one("exp", Tensor.exp)
expm1 = _through_zero("expm1", Tensor.expm1)
floor = _of_one("floor", Tensor.floor)
greater = _of_two("greater", Tensor.gt)
greater_equal = _of_two("greater_equal", Tensor.ge)
hypot = _of_two("hypot", Tensor.hypot)
isfinite = _of_one("isfinite", Tensor.isfinite)
isinf = _of_one("isinf", Tensor.isinf)
isnan = _of_one("isnan", Tensor.isnan)
less = _of_two("less", Tensor.lt)
less_equal = _of_two("less_equal", Tensor.le)
log = _of_one("log", Tensor.log)
log10 = _of_one("log10", Tensor.log10)
log1p = _through_zero("log1p", Tensor.log1p)
log2 = _of_one("log2", Tensor.log2)
logaddexp = _of_two("logaddexp", Tensor.logaddexp)
logical_and = _of_two("logical_and", Tensor.logical_and)
logical_not = _of_one("logical_not", Tensor.logical_not)
logical_or = _of_two("logical_or", Tensor.logical_or)
logical_xor = _of_two("logical_xor", Tensor.logical_xor)
maximum = _of_two("maximum", Tensor.maximum)
minimum = _of_two("minimum", Tensor.minimum)
multiply = _of_two("multiply", Tensor.mul)
negative = _of_one("negative", Tensor.neg)
nextafter = _of_two("nextafter", Tensor.nextafter)
not_equal = _of_two("not_equal", Tensor.ne)
positive = _of_one("positive", Tensor.__pos__)
pow = _of_two("pow", Tensor.pow)
reciprocal = _of_one("reciprocal", Tensor.reciprocal)
remainder = _of_two("remainder", Tensor.mod)
round = _of_one("round", Tensor.round)
signbit = _of_one("signbit", Tensor.signbit)
sin = _of_one("sin", Tensor.sin)
sinh = _through_zero("sinh", Tensor.sinh)
sqrt = _of_one("sqrt", Tensor.sqrt)
square = _of_one("square", Tensor.square)
subtract = _of_two("subtract", Tensor.sub)
tan = _of_one("tan", Tensor.tan)
tanh = _through_zero("tanh", Tensor.tanh)
trunc = _of_one("trunc", Tensor.trunc)


def clip(
    x: Tensor,
    /,
    min: Operand | None = None,
    max: Operand | None = None,
) -> Tensor:
    """`Tensor.clamp`, which without any limit copies here."""
    if min is None and max is None:
        return tensor_of(x).clone()
    return tensor_of(x).clamp(min, max)


def floor_divide(x1: Operand, x2: Operand, /) -> Tensor:
    """`Tensor.__floordiv__`; with zeros and infinities of floats, the quotient rounded down."""
    first, second = pair_of(x1, x2)
    whole: Tensor = first // second
    if not whole.dtype.is_float:
        return whole
    limit = first.eq(0).bitwise_or(first.isinf()).bitwise_or(first._lift(second).isinf())
    return limit.where(first.div(second).floor(), whole)


def imag(x: Tensor, /) -> Tensor:
    """`Tensor.imag`, apart from what it is of. Raises DTypeError where that is not complex."""
    return tensor_of(x).imag._same()


def real(x: Tensor, /) -> Tensor:
    """`Tensor.real`, apart from what it is of."""
    return tensor_of(x).real._same()


def sign(x: Tensor, /) -> Tensor:
    """`Tensor.sign`, but NaN of NaN, and 0.0 of -0.0."""
    return tensor_of(x).isnan().where(x, x.eq(0).where(0, x.sign()))
