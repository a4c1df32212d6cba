"""ONNX's operators on each element. Parameters are named as inputs and attributes are."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

from gpu.core.dtype import dtypes
from gpu.tensor.nn import activations as F
from gpu.tensor.onnx.values import Value, dtype_of, number_of, one
from gpu.tensor.tensor import Tensor

_GELU = {b"none": "none", b"tanh": "tanh"}


def div(a: Tensor, b: Tensor) -> Tensor:
    """Of integers toward zero, as in C."""
    return a / b if a.dtype.is_float or a.dtype.is_complex else a.div(b, rounding_mode="trunc")


def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """With the divisor's sign, or with `fmod` the dividend's."""
    return a.fmod(b) if fmod else a % b


def pow_(x: Tensor, y: Tensor) -> Tensor:
    """Of the first operand's dtype."""
    if not x.dtype.is_float and y.dtype.is_float:
        return x.cast(y.dtype).pow(y).cast(x.dtype)
    return x.pow(y.cast(x.dtype))


def max_(*data: Tensor) -> Tensor:
    """The largest of each place."""
    return reduce(Tensor.maximum, data)


def min_(*data: Tensor) -> Tensor:
    """The least of each place."""
    return reduce(Tensor.minimum, data)


def sum_(*data: Tensor) -> Tensor:
    """The sum over the operands."""
    return reduce(Tensor.add, data)


def mean(*data: Tensor) -> Tensor:
    """The mean over the operands."""
    return sum_(*data) / len(data)


def clip(
    input: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None
) -> Tensor:
    """Between two bounds, each of which may be missing; the upper one wins."""
    if min is not None:
        input = input.maximum(min)
    return input if max is None else input.minimum(max)


def bit_shift(x: Tensor, y: Tensor, *, direction: bytes) -> Tensor:
    """Left or right; by as many places as there are bits and more, only the sign is left."""
    most = x.dtype.bits - 1
    if direction == b"RIGHT":
        moved = x >> y.minimum(most)
        return moved if x.dtype.is_signed else (y <= most).where(moved, 0)
    return (y <= most).where(x << y.minimum(most), 0)


def gelu(x: Tensor, *, approximate: bytes = b"none") -> Tensor:
    """x times the normal distribution's cumulative function, or that by a tanh."""
    return F.gelu(x, _GELU[approximate])


def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """Whether it is an infinity of one of the signs that are looked for."""
    found = x.isinf()
    if not detect_negative:
        found = found & (x > 0)
    return found if detect_positive else found & (x < 0)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """x, where it is below 0 times a slope."""
    return (x < 0).where(x * slope, x)


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """A line from 0 to 1."""
    return (x * alpha + beta).clamp(0, 1)


def hard_swish(x: Tensor) -> Tensor:
    """x times a line from 0 to 1."""
    return x * hard_sigmoid(x, alpha=1 / 6)


def selu(
    x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    """`Tensor.selu` with ONNX's factors."""
    return x.selu(alpha, gamma)


def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """x, below 0 times alpha."""
    return x.leaky_relu(alpha)


def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x, 0 up to alpha."""
    return (x > alpha).where(x, 0)


def shrink(input: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """0 within lambd of 0, outside nearer to it by `bias`."""
    outside = (input > lambd).where(input - bias, 0)
    return (input < -lambd).where(input + bias, outside).cast(input.dtype)


def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x sigmoid(alpha x)."""
    return x * (x * alpha).sigmoid()


def softplus(x: Tensor) -> Tensor:
    """log(exp(x) + 1)."""
    return x.softplus()


def softmax(input: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    """Along an axis; before version 13 over all axes from it on."""
    if opset >= 13:
        return input.softmax(-1 if axis is None else axis)
    return _rows(input, axis).softmax(-1).reshape(input.shape)


def log_softmax(input: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    """The logarithm of `softmax`."""
    if opset >= 13:
        return input.log_softmax(-1 if axis is None else axis)
    return _rows(input, axis).log_softmax(-1).reshape(input.shape)


def hardmax(input: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    """1 at the first of the largest, 0 elsewhere."""
    rows = _rows(input, axis) if opset < 13 else input.moveaxis(-1 if axis is None else axis, -1)
    marked = rows.argmax(-1).one_hot(rows.shape[-1]).cast(input.dtype)
    if opset < 13:
        return marked.reshape(input.shape)
    return marked.moveaxis(-1, -1 if axis is None else axis)


def _rows(input: Tensor, axis: int | None) -> Tensor:
    axis = 1 if axis is None else axis % max(1, input.ndim)
    return input.reshape(math.prod(input.shape[:axis]), -1)


def cast(input: Tensor, *, to: int, saturate: int = 1, round_mode: bytes = b"up") -> Tensor:
    """To another dtype. Raises Unsupported for one that is not computed with here."""
    dtype = dtype_of(to)
    if dtype in (dtypes.fp8e4m3, dtypes.fp8e5m2) and saturate:
        most = 448.0 if dtype is dtypes.fp8e4m3 else 57344.0
        wide = input.cast(dtypes.float32)
        input = wide.isnan().where(wide, wide.clamp(-most, most))
    return input.cast(dtype)


def cast_like(input: Tensor, target_type: Tensor, *, saturate: int = 1, **ignored: Any) -> Tensor:
    """To the dtype of another tensor."""
    return cast(input, to=number_of(target_type), saturate=saturate)


def bit_cast(input: Tensor, *, to: int) -> Tensor:
    """The same bits as another dtype."""
    return input.bitcast(dtype_of(to))


def dropout(
    data: Tensor,
    ratio: Value | float = None,
    training_mode: Value = None,
    *,
    seed: int = 0,
    is_test: int = 0,
    opset: int,
) -> tuple[Tensor, Tensor]:
    """With `training_mode` a share of the elements is 0 and the others larger; and which are not.

    A seed of the model's is not followed.
    """
    kind = dtypes.bool if opset >= 10 else data.dtype
    share = 0.5 if ratio is None else float(one(ratio, "ratio"))
    if training_mode is None or not one(training_mode, "training_mode") or not share:
        return data, Tensor.ones_like(data, dtype=kind)
    kept = Tensor.rand_like(data, dtype=dtypes.float32) >= share
    return kept.where(data / (1 - share), 0).cast(data.dtype), kept.cast(kind)
