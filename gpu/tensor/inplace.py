"""Torch's methods that write into the tensor they are called on, as ``x.add_(y)``.

Most are the method without the underscore, whose result replaces the elements: by the rules of
``x += y``, so that shape and dtype stay and a leaf with requires_grad=True is written to under
`Tensor.no_grad` alone. Those that would change the shape, as torch's ``t_``, do not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, Self, TypeVar

import numpy as np

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import PyScalar, dtypes
from gpu.core.errors import ShapeError
from gpu.tensor.arguments import Operand
from gpu.tensor.base import TensorBase, broadcast_to
from gpu.tensor.operators import Operators

# The methods that have one: of one tensor, of several, and those that write at places.
_NAMES: Final = """
    abs absolute acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh
    bitwise_not ceil conj_physical cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 fix
    floor frac i0 lgamma log log10 log1p log2 logical_not logit mvlgamma nan_to_num neg
    negative polygamma rad2deg reciprocal relu round rsqrt sgn sigmoid sign sin sinc sinh sqrt
    square tan tanh tril triu trunc cumprod cumsum renorm add addbmm addcdiv addcmul addmm
    addmv addr arctan2 atan2 baddbmm bitwise_and bitwise_left_shift bitwise_or
    bitwise_right_shift bitwise_xor clamp clamp_max clamp_min clip copysign div divide eq
    float_power floor_divide fmod gcd ge greater greater_equal gt heaviside hypot igamma
    igammac lcm ldexp le lerp less less_equal logical_and logical_or logical_xor lt masked_fill
    mul multiply ne nextafter not_equal pow remainder sub subtract true_divide xlogy index_add
    index_copy index_fill index_put index_reduce masked_scatter put scatter scatter_add
    scatter_reduce
"""

C = TypeVar("C", bound=type[Any])


class InPlace(Operators):
    """Methods in place that are not named after another one."""

    __slots__ = ()

    def copy_(self, src: Operand, non_blocking: bool = False) -> Self:
        """The elements of `src`, which broadcasts and is cast, from wherever it is."""
        self._refuse_leaf()
        here = src.to(self.device) if isinstance(src, TensorBase) else src
        return self._overwritten(here)

    def fill_(self, value: PyScalar | Self) -> Self:
        """`value` everywhere."""
        self._refuse_leaf()
        if isinstance(value, TensorBase) and value.ndim:
            raise ShapeError(f"fill_ takes one number, got shape {list(value.shape)}; copy_ copies")
        return self._overwritten(value)

    def _overwritten(self, value: Operand) -> Self:
        node = broadcast_to(self._as_node(value), self.shape)
        self._set(G.cast(node, self.dtype.element))
        return self

    def zero_(self) -> Self:
        """0 everywhere."""
        return self.fill_(0)

    def fill_diagonal_(self, fill_value: PyScalar, wrap: bool = False) -> Self:
        """`fill_value` where all indices are equal.

        With `wrap` the diagonal of a tall matrix begins anew behind the row below its end. Raises
        ShapeError for more axes than two of which the sizes differ.
        """
        if self.ndim < 2 or (self.ndim > 2 and len(set(self.shape)) > 1):
            raise ShapeError(
                f"fill_diagonal_ takes a matrix, or axes of one size, got shape {list(self.shape)}"
            )
        apart = 1 + int(np.cumprod(self.shape[:0:-1]).sum())
        end = self.shape[1] ** 2 if self.ndim == 2 and not wrap else self.numel()
        count = self.numel()
        place = self._wrap(G.iota(count, dtypes.of(count), self.device))
        there = place.mod(apart).eq(0).bitwise_and(place.lt(end))
        return self._take(self._wrap(G.reshape(there._node, self.shape)).where(fill_value, self))


def with_methods_in_place(cls: C) -> C:
    """Gives the class ``name_`` for each of `_NAMES`."""
    for name in _NAMES.split():
        setattr(cls, f"{name}_", _in_place(getattr(cls, name), name))
    return cls


def _in_place(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._take(method(self, *args, **kwargs))

    call.__name__ = f"{name}_"
    call.__doc__ = f"`{name}`, written into self, which is returned."
    return call
