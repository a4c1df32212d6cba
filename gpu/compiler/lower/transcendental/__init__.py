"""exp, exp2, expm1, log2 and sin as basic operations, since the compiler has no libm.

Written over an abstract `Builder`, they hold lane-wise on any device: those for float32 use no
64-bit type, and none depends on whether `fma` rounds once or twice. Narrower floats are computed
in float32. They count on IEEE 754 addition and multiplication and on expressions not being
reassociated; a device that flushes subnormal numbers flushes them here too.

    >>> from gpu.compiler.lower.transcendental import UlpBounds
    >>> from gpu.core.dtype import dtypes
    >>> UlpBounds["sin", dtypes.float32]
    1.5
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from gpu.compiler.lower.transcendental.builder import Builder, Term
from gpu.compiler.lower.transcendental.exponential import (
    expand_exp,
    expand_exp2,
    expand_expm1,
    expand_log2,
)
from gpu.compiler.lower.transcendental.formats import FLOAT32, FLOAT64, Format
from gpu.compiler.lower.transcendental.sine import expand_sin
from gpu.core.dtype import FLOATS, DType, dtypes
from gpu.core.errors import DTypeError

__all__ = ["Builder", "UlpBounds", "exp", "exp2", "expm1", "log2", "sin"]

V = TypeVar("V")

_WIDE: Final = {
    ("exp", dtypes.float32): 1.0,
    ("exp2", dtypes.float32): 1.0,
    ("expm1", dtypes.float32): 1.5,
    ("log2", dtypes.float32): 1.0,
    ("sin", dtypes.float32): 1.5,
    ("exp", dtypes.float64): 2.0,
    ("exp2", dtypes.float64): 2.0,
    ("expm1", dtypes.float64): 1.5,
    ("log2", dtypes.float64): 2.0,
    ("sin", dtypes.float64): 2.0,
}
_ROUNDED_FROM_FLOAT32: Final = {
    (name, dtype): 0.51
    for name in ("exp", "exp2", "expm1", "log2", "sin")
    for dtype in FLOATS
    if dtype.bits < dtypes.float32.bits
}

UlpBounds: Final[Mapping[tuple[str, DType], float]] = MappingProxyType(
    _WIDE | _ROUNDED_FROM_FLOAT32
)
"""Largest error by ``(name, dtype)``, whatever the argument, in units in the last place.

The unit is the spacing of the dtype's numbers where the exact result lies, so the smallest
subnormal number near zero.
"""


def exp(b: Builder[V], x: V) -> V:
    """e**x: 1 for both zeros, subnormal results rounded once.

    Raises DTypeError if x is not a float.
    """
    return _expand("exp", expand_exp, b, x)


def exp2(b: Builder[V], x: V) -> V:
    """2**x: exact powers for integers, subnormal results rounded once.

    Raises DTypeError if x is not a float.
    """
    return _expand("exp2", expand_exp2, b, x)


def expm1(b: Builder[V], x: V) -> V:
    """e**x - 1, as precise near 0, of which it keeps the sign.

    Raises DTypeError if x is not a float.
    """
    return _expand("expm1", expand_expm1, b, x)


def log2(b: Builder[V], x: V) -> V:
    """Logarithm to base 2: exact for powers of two, -inf for both zeros, NaN below them.

    Raises DTypeError if x is not a float.
    """
    return _expand("log2", expand_log2, b, x)


def sin(b: Builder[V], x: V) -> V:
    """Sine of any finite number of radians: keeps the sign of zero, NaN for infinities.

    Raises DTypeError if x is not a float.
    """
    return _expand("sin", expand_sin, b, x)


def _expand(name: str, expansion: Callable[[Term[V], Format], Term[V]], b: Builder[V], x: V) -> V:
    dtype = b.dtype(x)
    if not dtype.is_float:
        raise DTypeError(
            f"{name} is defined for floats, not for {dtype.name}; cast the operand first"
        )
    if dtype is dtypes.float64:
        return expansion(Term(b, x), FLOAT64).value
    if dtype is dtypes.float32:
        return expansion(Term(b, x), FLOAT32).value
    return expansion(Term(b, x).cast(dtypes.float32), FLOAT32).cast(dtype).value
