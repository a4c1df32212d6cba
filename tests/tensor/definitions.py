"""What functions of floats are, in float64: the reference where torch's vector code is none.

At infinities, NaNs, zeros, subnormals and huge numbers what a library's vector code gives depends
on the processor that it runs on. Here are the functions' definitions, evaluated as they are written
by IEEE arithmetic, which is torch's convention as well where a limit would be another value:
`silu(-inf)` is -inf times 0, and so NaN. The sign of NaN is 0, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Definition = Callable[[Array], Array]

erf: Final = np.vectorize(math.erf, otypes=[np.float64])


def by_definition(definition: Callable[..., Array], *inputs: Array) -> Array:
    """The function of floats, formed in float64 and rounded once."""
    with np.errstate(all="ignore"):
        exact = definition(*(x.astype(np.float64) for x in inputs))
        return np.asarray(exact).astype(inputs[0].dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))"""
    return 1 / (1 + np.exp(-x))


def softplus(x: Array, beta: float = 1.0) -> Array:
    """log(1 + exp(beta x)) / beta"""
    return np.logaddexp(beta * x, 0) / beta


def gelu_by_tanh(x: Array) -> Array:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))"""
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def elu(x: Array, alpha: float = 1.0, over: float = 1.0) -> Array:
    """x where that is positive, else alpha (exp(x / over) - 1)"""
    return np.where(x > 0, x, alpha * np.expm1(x / over))


def clipped(x: Array, low: float, high: float) -> Array:
    """x between two bounds; NaN stays."""
    return np.minimum(np.maximum(x, low), high)


def softmax(x: Array) -> Array:
    """exp(x) over its sum along the last axis"""
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def log_softmax(x: Array) -> Array:
    """x less the logarithm of the sum of exp(x) along the last axis"""
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def log_sum_exp(x: Array, axis: int) -> Array:
    """The logarithm of the sum of exp(x)."""
    found: Array = np.logaddexp.reduce(x, axis)
    return found


def layernorm(x: Array, axes: tuple[int, ...]) -> Array:
    """x less its mean, over the root of its variance and 1e-5"""
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def normalize(x: Array, p: float = 2.0, axis: int = 1) -> Array:
    """x over its p-norm, or over 1e-12 if that is more"""
    norm = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
    return x / np.maximum(norm, 1e-12)


# By the names of methods; those with arguments are where they are tested.
DEFINITIONS: Final[dict[str, Definition]] = {
    "neg": np.negative,
    "abs": np.abs,
    "square": np.square,
    "sign": lambda x: np.nan_to_num(np.sign(x), nan=0.0),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "erf": erf,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.round,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: clipped(x, 0, 6),
    "sigmoid": sigmoid,
    "logsigmoid": lambda x: -softplus(-x),
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "gelu": gelu_by_tanh,
    "selu": lambda x: 1.0507 * elu(x, 1.67326),
    "hardtanh": lambda x: clipped(x, -1, 1),
    "hardsigmoid": lambda x: clipped(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * clipped(x + 3, 0, 6) / 6,
    "softplus": softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "softmax": softmax,
    "log_softmax": log_softmax,
    "softmin": lambda x: softmax(-x),
}

OF_TWO: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "fmod": np.fmod,
    "trunc div": lambda a, b: np.trunc(a / b),
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "copysign": np.copysign,
    "logaddexp": np.logaddexp,
    "lerp": lambda a, b: a + 0.3 * (b - a),
    "where": lambda a, b: np.where(a < b, a, b),
    "clamp": lambda a, b: np.minimum(np.maximum(a, b), 2),
}

SCANS: Final[dict[str, Callable[[Array, int], Array]]] = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
    "logcumsumexp": np.logaddexp.accumulate,
}

REDUCTIONS: Final[dict[str, Definition]] = {
    "sum": np.sum,
    "sum 1": lambda x: x.sum(1),
    "sum 0,-1": lambda x: x.sum((0, -1), keepdims=True),
    "prod 1": lambda x: x.prod(1),
    "max": np.max,
    "max -1": lambda x: x.max(-1),
    "min 0": lambda x: x.min(0),
    "mean 2": lambda x: x.mean(2, keepdims=True),
    "mean": np.mean,
    "var": lambda x: x.var(ddof=1),
    "var 1": lambda x: x.var(1),
    "std -1": lambda x: x.std(-1, ddof=1, keepdims=True),
    "logsumexp 1": lambda x: log_sum_exp(x, 1),
    "softmax 1": lambda x: softmax(x.swapaxes(1, -1)).swapaxes(1, -1),
    "log_softmax 0": lambda x: log_softmax(x.swapaxes(0, -1)).swapaxes(0, -1),
    "layernorm": lambda x: layernorm(x, (-1,)),
    "layernorm 2": lambda x: layernorm(x, (-2, -1)),
    "normalize": normalize,
    "normalize 1": lambda x: normalize(x, 1, 0),
    "normalize 3": lambda x: normalize(x, 3),
}
