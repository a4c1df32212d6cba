"""The derivative of each scalar operation, written over `Builder`.

A rule takes the operands, the result and the gradient of the result, and gives for each operand
what makes its gradient when called, or None for an operand that has none: most graphs want that of
some operands only. An operation without a rule says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

from gpu.compiler.ir.builder import Builder
from gpu.core.dtype import COMPLEXES, DType, dtypes

V = TypeVar("V")

Part = Callable[[], V]
# (builder, operands, result, gradient of the result) -> what makes the gradient of each operand.
Rule = Callable[[Builder[Any], tuple[Any, ...], Any, Any], "tuple[Part[Any] | None, ...]"]


def _abs(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    (x,) = args
    zero = b.like(x, 0)
    signed = b.where(b.lt(x, zero), b.neg(g), g)
    return (lambda: b.where(b.eq(x, zero), zero, signed),)


def _exp(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    return (lambda: b.mul(g, out),)


def _exp2(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    return (lambda: b.mul(g, b.mul(out, b.like(out, math.log(2)))),)


def _log2(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    (x,) = args
    return (lambda: b.div(g, b.mul(x, b.like(x, math.log(2)))),)


def _sin(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    (x,) = args
    return (lambda: b.mul(g, b.op("sin", b.add(x, b.like(x, math.pi / 2)))),)


def _sqrt(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    return (lambda: b.div(g, b.mul(out, b.like(out, 2))),)


def _mul(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    x, y = args
    return lambda: b.mul(g, y), lambda: b.mul(g, x)


def _div(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    x, y = args
    return lambda: b.div(g, y), lambda: b.neg(b.mul(b.div(g, y), b.div(x, y)))


def _fmod(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    x, y = args
    return lambda: g, lambda: b.neg(b.mul(g, b.op("trunc", b.div(x, y))))


def _larger(b: Builder[V], x: V, y: V, g: V) -> V:
    """The share of `g` that goes to `x` in max(x, y): half of it where both are equal."""
    half = b.mul(g, b.like(g, 0.5))
    return b.where(b.lt(y, x), g, b.where(b.eq(x, y), half, b.like(g, 0)))


def _max(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    x, y = args
    return lambda: _larger(b, x, y, g), lambda: _larger(b, y, x, g)


def _min(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    x, y = args
    return (
        lambda: _larger(b, b.neg(x), b.neg(y), g),
        lambda: _larger(b, b.neg(y), b.neg(x), g),
    )


def _where(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    zero = b.like(g, 0)
    return None, lambda: b.where(args[0], g, zero), lambda: b.where(args[0], zero, g)


def _flat(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[Part[V] | None, ...]:
    return (lambda: b.like(g, 0),)


RULES: Final[dict[str, Rule]] = {
    "neg": lambda b, args, out, g: (lambda: b.neg(g),),
    "abs": _abs,
    "exp": _exp,
    "exp2": _exp2,
    "expm1": lambda b, args, out, g: (lambda: b.mul(g, b.op("exp", args[0])),),
    "log2": _log2,
    "sin": _sin,
    "sqrt": _sqrt,
    "floor": _flat,
    "rint": _flat,
    "trunc": _flat,
    "add": lambda b, args, out, g: (lambda: g, lambda: g),
    "sub": lambda b, args, out, g: (lambda: g, lambda: b.neg(g)),
    "mul": _mul,
    "div": _div,
    "fmod": _fmod,
    "max": _max,
    "min": _min,
    "where": _where,
    "fma": lambda b, args, out, g: (
        lambda: b.mul(g, args[1]),
        lambda: b.mul(g, args[0]),
        lambda: g,
    ),
}

_DISCRETE: Final = "its result is not a float, or it takes integers only"
NO_RULE: Final = dict.fromkeys(
    ("not", "tdiv", "tmod", "and", "or", "xor", "shl", "shr", "lt", "le", "eq", "ne"), _DISCRETE
)


_CARRYING: Final = frozenset(
    {dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64, *COMPLEXES}
)


def has_gradient(dtype: DType) -> bool:
    """Whether values of a dtype carry gradients: floats and complex numbers do, images too."""
    return dtype in _CARRYING or dtype.is_image
