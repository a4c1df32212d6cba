"""Torch's normalisations by torch's names and in its argument order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpu.core.dtype import accumulator
from gpu.core.errors import InvalidValue, ShapeError
from gpu.core.floatlimits import limits_of
from gpu.tensor.nn.parameters import count
from gpu.tensor.nn.pools import avg_pool2d
from gpu.tensor.tensor import Tensor


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """`Tensor.normalize`: input over its p-norm along `dim`, or over `eps` where that is larger."""
    return input.normalize(p, dim, eps)


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The last axes, of `normalized_shape`, brought to mean 0 and variance 1.

    `weight` and `bias` have that shape.
    """
    axes = _last_axes(input, normalized_shape, "layer_norm")
    result = input.layernorm(axes, eps)
    result = result if weight is None else result.mul(weight)
    return result if bias is None else result.add(bias)


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """The last axes, of `normalized_shape`, over the root of their mean square plus `eps`.

    Without `eps` it is the distance from 1 to the next number of input's dtype, as in torch.
    """
    axes = _last_axes(input, normalized_shape, "rms_norm")
    wide = input.cast(accumulator(input.dtype))
    small = limits_of(input.dtype).eps if eps is None else eps
    result = wide.mul(wide.square().mean(axes, keepdim=True).add(small).rsqrt()).cast(input.dtype)
    return result if weight is None else result.mul(weight)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel brought to mean 0 and variance 1 over the batch and all spatial axes.

    Args:
        input: (batch, channels) or (batch, channels, *spatial).
        running_mean, running_var: of shape (channels,); moved by `momentum` towards what is found
            in training, and used in its place otherwise.
        weight, bias: a number for each channel.
        training: whether the statistics are those of the batch.
        momentum: the share of what is found in the running statistics.
        eps: what is added to the variance.
    """
    if input.ndim < 2:
        raise ShapeError(f"batch_norm takes (batch, channels, *spatial), got {list(input.shape)}")
    if not training:
        return _by_running(input, running_mean, running_var, weight, bias, eps)
    if math.prod(input.shape[:1] + input.shape[2:]) == 1:
        raise InvalidValue(
            "batch_norm in training needs more than one value of each channel, got an input of "
            f"shape {list(input.shape)}"
        )
    wide = input.cast(accumulator(input.dtype))
    mean, variance = batch_statistics(wide, running_mean, running_var, momentum)
    return by_statistics(input, mean, variance, weight, bias, eps)


def batch_statistics(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel over the batch and all spatial axes.

    Those running are moved by `momentum` towards them, the variance with Bessel's correction.
    """
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    mean, variance = x.mean(axes), x.var(axes, correction=0)
    number = math.prod(x.shape[axis] for axis in axes)
    _move(running_mean, mean.detach(), momentum)
    if running_var is not None:
        _move(running_var, variance.detach() * (number / (number - 1)), momentum)
    return mean, variance


def by_statistics(
    input: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Each channel of `input` brought from this mean and variance to 0 and 1, in its dtype."""
    wide = input.cast(accumulator(input.dtype))
    inverse = variance.cast(wide.dtype).add(eps).rsqrt()
    return wide.batchnorm(weight, bias, mean, inverse).cast(input.dtype)


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
    _move(running_mean, wide.mean(axes).mean(0), momentum)
    _move(running_var, wide.var(axes).mean(0), momentum)
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
        raise InvalidValue("running_mean and running_var are needed where the input's are not used")
    return by_statistics(input, mean, variance, weight, bias, eps)


def _move(running: Tensor | None, found: Tensor, momentum: float) -> None:
    """Moves a running statistic towards what was found."""
    if running is not None:
        running.assign((running * (1 - momentum) + found * momentum).cast(running.dtype))


def _last_axes(input: Tensor, normalized_shape: int | Sequence[int], name: str) -> tuple[int, ...]:
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not sizes or input.shape[-len(sizes) :] != sizes:
        raise ShapeError(
            f"{name} over {list(sizes)} takes a tensor whose last sizes are these, got "
            f"{list(input.shape)}"
        )
    return tuple(range(-len(sizes), 0))


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
