"""Functions of floats that are formed in float32 at least."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

from gpu.core.dtype import dtypes, promote
from gpu.core.errors import DTypeError
from gpu.tensor.arguments import Operand
from gpu.tensor.base import TensorBase

T = TypeVar("T", bound=TensorBase)
P = ParamSpec("P")


def float_operation(method: Callable[[T, T], T]) -> Callable[[T, Operand], T]:
    """The same of two operands, which broadcast and are promoted first."""

    @wraps(method)
    def run(x: T, /, other: Operand) -> T:
        a, b = x._operands(other)
        if a.dtype.is_complex:
            raise DTypeError(f"{method.__name__} is not defined for {a.dtype.name}")
        dtype = a.dtype if a.dtype.is_float else dtypes.default_float
        wide = promote(dtype, dtypes.float32)
        return method(x._wrap(a).cast(wide), x._wrap(b).cast(wide)).cast(dtype)

    return run


def float_function(method: Callable[Concatenate[T, P], T]) -> Callable[Concatenate[T, P], T]:
    """A method that is defined for float32 and float64, made to take every dtype.

    Integers and bools become float32, narrower floats do so in between: the result is rounded to
    their dtype once. Of complex numbers it is what `gpu/tensor/complexmath.py` has by its name.
    """

    @wraps(method)
    def run(x: T, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if x.dtype.is_complex:
            from gpu.tensor.complexmath import apply  # only now: few programs need it

            return cast(T, apply(method.__name__, x))
        wide = promote(x.dtype, dtypes.float32)
        result = method(x.cast(wide), *args, **kwargs)
        return result.cast(x.dtype) if x.dtype.is_float else result

    return run
