"""Functions of tensors and numbers of every dtype, whose derivative is given beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from gpu.core.errors import InvalidType
from gpu.tensor.arguments import Operand
from gpu.tensor.base import TensorBase
from gpu.tensor.elementwise import Elementwise
from gpu.tensor.gradients import check_tensor
from gpu.tensor.precision import float_function, float_operation
from gpu.tensor.sloped import Slope, sloped

T = TypeVar("T", bound=Elementwise)
P = ParamSpec("P")
_OfOne = Callable[[T], T]


def with_slope(slope: Slope | None) -> Callable[[_OfOne[T]], _OfOne[T]]:
    """Decorates a function of float32 and float64, which then takes every dtype.

    Args:
        slope: the derivative, of the argument and the function's value there; None where torch has
            none.
    """

    def decorate(function: _OfOne[T]) -> _OfOne[T]:
        return of_tensor(float_function(sloped(function, [slope])))

    return decorate


def with_slopes(*slopes: Slope | None) -> Callable[[Callable[[T, T], T]], Callable[..., Any]]:
    """The same for a function of two numbers, of which one may be a Python number.

    Args:
        slopes: the derivatives by each, of the arguments and the value; None as above.
    """

    def decorate(function: Callable[[T, T], T]) -> Callable[..., Any]:
        return of_two(sloped(function, slopes))

    return decorate


def of_tensor(function: Callable[Concatenate[T, P], T]) -> Callable[Concatenate[T, P], T]:
    """A function that refuses a first argument that is no tensor by its name."""

    @wraps(function)
    def run(input: T, *args: P.args, **kwargs: P.kwargs) -> T:
        check_tensor(input, f"the input of {function.__name__}")
        return function(input, *args, **kwargs)

    return cast("Callable[Concatenate[T, P], T]", run)


def of_two(function: Callable[[T, T], T]) -> Callable[[T | Operand, T | Operand], T]:
    """A function of two tensors that takes a number in the place of either, and every dtype."""
    promoted = float_operation(function)

    @wraps(function)
    def run(input: Any, other: Any) -> Any:
        if not isinstance(input, TensorBase):
            if not isinstance(other, TensorBase):
                raise InvalidType(f"{function.__name__} takes a tensor, got {input!r}, {other!r}")
            input = other._lift(input)  # type: ignore[attr-defined]
        return promoted(input, other)

    return run
