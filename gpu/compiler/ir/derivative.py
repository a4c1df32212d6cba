"""The derivative of each scalar operation, written over `Builder`.

A rule takes the operands, the result and the gradient of the result, and gives the gradient of each
operand, or None for an operand that has none. An operation without a rule says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

from gpu.compiler.ir.builder import Builder
from gpu.core.dtype import DType, dtypes

V = TypeVar("V")

# (builder, operands, result, gradient of the result) -> gradient of each operand.
Rule = Callable[[Builder[Any], tuple[Any, ...], Any, Any], tuple[Any, ...]]


def _abs(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    (x,) = args
    zero = b.like(x, 0)
    signed = b.where(b.lt(x, zero), b.neg(g), g)
    return (b.where(b.eq(x, zero), zero, signed),)


def _exp(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    return (b.mul(g, out),)


def _exp2(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    return (b.mul(g, b.mul(out, b.like(out, math.log(2)))),)


def _log2(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    (x,) = args
    return (b.div(g, b.mul(x, b.like(x, math.log(2)))),)


def _sin(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    (x,) = args
    return (b.mul(g, b.op("sin", b.add(x, b.like(x, math.pi / 2)))),)


def _sqrt(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    return (b.div(g, b.mul(out, b.like(out, 2))),)


def _mul(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    x, y = args
    return b.mul(g, y), b.mul(g, x)


def _div(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    x, y = args
    over = b.div(g, y)
    return over, b.neg(b.mul(over, b.div(x, y)))


def _fmod(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    x, y = args
    return g, b.neg(b.mul(g, b.op("trunc", b.div(x, y))))


def _larger(b: Builder[V], x: V, y: V, g: V) -> V:
    """The share of `g` that goes to `x` in max(x, y): half of it where both are equal."""
    half = b.mul(g, b.like(g, 0.5))
    return b.where(b.lt(y, x), g, b.where(b.eq(x, y), half, b.like(g, 0)))


def _max(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    x, y = args
    return _larger(b, x, y, g), _larger(b, y, x, g)


def _min(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    x, y = args
    return _larger(b, b.neg(x), b.neg(y), g), _larger(b, b.neg(y), b.neg(x), g)


def _where(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    zero = b.like(g, 0)
    return None, b.where(args[0], g, zero), b.where(args[0], zero, g)


def _flat(b: Builder[V], args: tuple[V, ...], out: V, g: V) -> tuple[V | None, ...]:
    return (b.like(g, 0),)


RULES: Final[dict[str, Rule]] = {
    "neg": lambda b, args, out, g: (b.neg(g),),
    "abs": _abs,
    "exp": _exp,
    "exp2": _exp2,
    "log2": _log2,
    "sin": _sin,
    "sqrt": _sqrt,
    "floor": _flat,
    "rint": _flat,
    "trunc": _flat,
    "add": lambda b, args, out, g: (g, g),
    "sub": lambda b, args, out, g: (g, b.neg(g)),
    "mul": _mul,
    "div": _div,
    "fmod": _fmod,
    "max": _max,
    "min": _min,
    "where": _where,
    "fma": lambda b, args, out, g: (b.mul(g, args[1]), b.mul(g, args[0]), g),
}

_DISCRETE: Final = "its result is not a float, or it takes integers only"
NO_RULE: Final = dict.fromkeys(
    ("not", "tdiv", "tmod", "and", "or", "xor", "shl", "shr", "lt", "le", "eq", "ne"), _DISCRETE
)


def has_gradient(dtype: DType) -> bool:
    """Whether values of a dtype carry gradients: floats do, those in images too."""
    return dtype.element in (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
