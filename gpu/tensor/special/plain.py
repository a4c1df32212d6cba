"""Functions of `torch.special` that are made of a few operations, or are methods of tensors."""

from __future__ import annotations

import math
from typing import TypeVar

from gpu.core.dtype import DType
from gpu.tensor.elementwise import Elementwise
from gpu.tensor.special.slopes import of_tensor, of_two, with_slope
from gpu.tensor.tensor import Tensor

T = TypeVar("T", bound=Elementwise)


@with_slope(lambda x, value: x.log().add(1).neg())
def entr(input: T) -> T:
    """-input * log(input); 0 at 0, -infinity below."""
    positive = input.gt(0)
    found = positive.where(input, 1).log().mul(input).neg()
    outside = input.eq(0).where(0, input.isnan().where(input, -math.inf))
    return positive.where(found, outside)


@of_two
def xlogy(input: T, other: T) -> T:
    """input * log(other); 0 where input is 0 and `other` is not NaN."""
    return input.xlogy(other)


@of_two
def xlog1py(input: T, other: T) -> T:
    """input * log(1 + other); 0 where input is 0 and `other` is not NaN."""
    none = other.le(-1).bitwise_or(other.eq(math.inf)).bitwise_and(input.eq(0))
    return input.mul(none.where(0, other).log1p())


@of_tensor
def erf(input: Tensor) -> Tensor:
    """`Tensor.erf`."""
    return input.erf()


@of_tensor
def exp2(input: Tensor) -> Tensor:
    """`Tensor.exp2`."""
    return input.exp2()


@of_tensor
def expit(input: Tensor) -> Tensor:
    """`Tensor.sigmoid`."""
    return input.sigmoid()


@of_tensor
def expm1(input: Tensor) -> Tensor:
    """`Tensor.expm1`."""
    return input.expm1()


@of_tensor
def log1p(input: Tensor) -> Tensor:
    """`Tensor.log1p`."""
    return input.log1p()


@of_tensor
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """`Tensor.logit`."""
    return input.logit(eps)


@of_tensor
def sinc(input: Tensor) -> Tensor:
    """`Tensor.sinc`."""
    return input.sinc()


@of_tensor
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """`Tensor.round`."""
    return input.round(decimals=decimals)


@of_tensor
def logsumexp(input: Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> Tensor:
    """`Tensor.logsumexp`."""
    return input.logsumexp(dim, keepdim)


@of_tensor
def softmax(input: Tensor, dim: int, *, dtype: DType | str | None = None) -> Tensor:
    """`Tensor.softmax`."""
    return input.softmax(dim, dtype)


@of_tensor
def log_softmax(input: Tensor, dim: int, *, dtype: DType | str | None = None) -> Tensor:
    """`Tensor.log_softmax`."""
    return input.log_softmax(dim, dtype)
