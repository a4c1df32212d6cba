"""Torch's normalisations by torch's names and in its argument order."""

from __future__ import annotations

import math

from gpu.core.dtype import accumulator
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.nn.parameters import count
from gpu.tensor.nn.pools import avg_pool2d
from gpu.tensor.tensor import Tensor


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Each group of channels of each sample brought to mean 0 and variance 1.

    input and the result have the shape (batch, channels, *spatial); `weight` and `bias` have a
    number for each channel.
    """
    if input.ndim < 2:
        raise ShapeError(f"group_norm takes (batch, channels, *spatial), got {list(input.shape)}")
    channels = input.shape[1]
    if channels % count(num_groups, "num_groups"):
        raise InvalidValue(f"num_groups must divide {channels} channels, got {num_groups}")
    apart = (input.shape[0], num_groups, channels // num_groups, *input.shape[2:])
    groups = input.reshape(apart).layernorm(tuple(range(2, len(apart))), eps)
    return _scaled(groups.reshape(input.shape), weight, bias)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of each sample brought to mean 0 and variance 1.

    Args:
        input: (batch, channels, *spatial).
        running_mean, running_var: of shape (channels,); moved by `momentum` towards the means over
            the batch of what is found, or used in its place without `use_input_stats`.
        weight, bias: a number for each channel.
        use_input_stats: whether the statistics are those of each sample.
        momentum: the share of what is found in the running statistics.
        eps: what is added to the variance.
    """
    if input.ndim < 3:
        raise ShapeError(
            f"instance_norm takes (batch, channels, *spatial), got {list(input.shape)}"
        )
    if not use_input_stats:
        return _by_running(input, running_mean, running_var, weight, bias, eps)
    size = math.prod(input.shape[2:])
    if size == 1:
        raise InvalidValue(
            "instance_norm needs more than one element of each channel, got an input of shape "
            f"{list(input.shape)}"
        )
    axes = tuple(range(2, input.ndim))
    wide = input.detach().cast(accumulator(input.dtype))
    found = ((running_mean, wide.mean(axes)), (running_var, wide.var(axes)))
    for running, value in found:
        if running is not None:
            mixed = running * (1 - momentum) + value.mean(0) * momentum
            running.assign(mixed.cast(running.dtype))
    return _scaled(input.layernorm(axes, eps), weight, bias)


def _by_running(
    input: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    if mean is None or variance is None:
        raise InvalidValue("running_mean and running_var are needed without use_input_stats")
    wide = input.cast(accumulator(input.dtype))
    inverse = variance.cast(wide.dtype).add(eps).rsqrt()
    return wide.batchnorm(weight, bias, mean, inverse).cast(input.dtype)


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """input over (k + alpha * m)**beta, where m is the mean square of `size` channels around.

    input has the shape (batch, channels, *spatial); channels beyond the ends count as 0.
    """
    if input.ndim < 3:
        raise ShapeError(
            f"local_response_norm takes (batch, channels, *spatial), got {list(input.shape)}"
        )
    around = count(size, "size")
    if not input.numel():
        return input
    batch, channels, *spatial = input.shape
    squares = input.square().reshape(batch, 1, channels, math.prod(spatial))
    padded = squares.pad(((0, 0), (0, 0), (around // 2, (around - 1) // 2), (0, 0)))
    means = avg_pool2d(padded, (around, 1), stride=1).reshape(input.shape)
    return input.div(means.mul(alpha).add(k).pow(beta))


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x * weight + bias with a number for each channel, in the promoted dtype."""
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None and given.shape != x.shape[1:2]:
            raise ShapeError(
                f"{name} must have a number for each of {x.shape[1]} channels, got shape "
                f"{list(given.shape)}"
            )
    across = (-1, *(1,) * (x.ndim - 2))
    if weight is not None:
        x = x.mul(weight.reshape(across))
    return x if bias is None else x.add(bias.reshape(across))
