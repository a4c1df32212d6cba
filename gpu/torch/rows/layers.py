"""Rows of convolutions and of normalisations, and of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpu.core.dtype import dtypes
from gpu.tensor.func.derivatives import vjp
from gpu.tensor.tensor import Tensor
from gpu.torch.table import row
from gpu.torch.types import TORCHS

Sizes = Sequence[int]


def pulled(function: Callable[..., Any], grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The gradients of `inputs` where `function` of them has the gradient `grad`."""
    value, pull = vjp(function, *inputs)
    return tuple(pull(grad.cast(value.dtype)))


@row("convolution")
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    """A convolution over all axes behind batch and channels, or its transpose."""
    axes = weight.ndim - 2
    steps, pads, spans, rest = (
        tuple(each) * (axes if len(each) == 1 else 1)
        for each in (stride, padding, dilation, output_padding)
    )
    batch = x if x.ndim == weight.ndim else x.unsqueeze(0)
    if transposed:
        found = batch.conv_transpose2d(weight, bias, groups, steps, spans, pads, rest)
    else:
        found = batch.conv2d(weight, bias, groups, steps, spans, pads)
    return found if batch is x else found.squeeze(0)


@row("convolution_backward")
def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sizes | None,
    *how: Any,
) -> tuple[Tensor | None, ...]:
    """The gradients of a convolution's input, weight and bias, of those that are asked for."""
    *form, mask = how
    asked = [each for each, wanted in zip((x, weight), mask, strict=False) if wanted]

    def again(*given: Tensor) -> Tensor:
        remaining = iter(given)
        first, second = (
            next(remaining) if wanted else each
            for each, wanted in zip((x, weight), mask, strict=False)
        )
        return convolution(first, second, None, *form)

    found = iter(pulled(again, grad, *asked) if asked else ())
    grads = [next(found) if wanted else None for wanted in mask[:2]]
    axes = tuple(axis for axis in range(grad.ndim) if axis != grad.ndim - weight.ndim + 1)
    return (*grads, grad.sum(axes) if mask[2] else None)


def _statistics(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) over axes, which stay, in float32 at least."""
    wide = x.cast(dtypes.float32) if x.dtype.itemsize < 4 else x
    return wide.mean(axes, True), (wide.var(axes, True, correction=0) + eps).rsqrt()


@row("native_layer_norm")
def layer_norm(
    x: Tensor, shape: Sizes, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    """Normalised over the last axes; with what it was shifted and scaled by."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean, scale = _statistics(x, axes, eps)
    return _affine((x - mean) * scale, weight, bias).cast(x.dtype), mean, scale


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@row("native_layer_norm_backward")
def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: Sizes,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The gradients of input, weight and bias, of those that are asked for."""
    inner = tuple(range(x.ndim - len(shape), x.ndim))
    outer = tuple(range(x.ndim - len(shape)))
    normal = (x - mean) * scale
    scaled = grad if weight is None else grad * weight
    into = _centred(scaled, normal, inner) * scale
    of_weight, of_bias = (each.sum(outer) if outer else each for each in (grad * normal, grad))
    grads = (into, of_weight, of_bias)
    return tuple(each if wanted else None for each, wanted in zip(grads, mask, strict=True))


def _centred(grad: Tensor, normal: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A gradient less what a normalisation over axes does not let through."""
    return grad - grad.mean(axes, True) - normal * (grad * normal).mean(axes, True)


@row("native_group_norm")
def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    inner: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, ...]:
    """Normalised over groups of channels; with what it was shifted and scaled by."""
    grouped = x.reshape(batch, groups, -1)
    mean, scale = _statistics(grouped, (2,), eps)
    normal = ((grouped - mean) * scale).reshape(x.shape)
    per_channel = (channels,) + (1,) * (x.ndim - 2)
    weight, bias = (None if v is None else v.reshape(per_channel) for v in (weight, bias))
    result = _affine(normal, weight, bias).cast(x.dtype)
    return result, mean.reshape(batch, groups), scale.reshape(batch, groups)


@row("native_group_norm_backward")
def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    batch: int,
    channels: int,
    inner: int,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The gradients of input, weight and bias, of those that are asked for."""
    form = (batch, groups, channels // groups, inner)
    shift, factor = (each.reshape(batch, groups, 1, 1) for each in (mean, scale))
    normal, given = (x.reshape(form) - shift) * factor, grad.reshape(form)
    scaled = given if weight is None else given * weight.reshape(1, groups, -1, 1)
    into = (_centred(scaled, normal, (2, 3)) * factor).reshape(x.shape)
    of_weight, of_bias = (each.sum((0, 3)).reshape(channels) for each in (given * normal, given))
    grads = (into, of_weight, of_bias)
    return tuple(each if wanted else None for each, wanted in zip(grads, mask, strict=True))


def _over_channels(x: Tensor, values: Tensor | None) -> Tensor | None:
    return None if values is None else values.reshape(-1, *(1,) * (x.ndim - 2))


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, scale: Tensor
) -> Tensor:
    normal = (x - mean) * scale
    return _affine(normal, _over_channels(x, weight), _over_channels(x, bias)).cast(x.dtype)


@row("_native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Normalised over all but the channels, by the statistics of x, which are given too."""
    mean, scale = _statistics(x, _but_channels(x), eps)
    return _batch_norm(x, weight, bias, mean, scale), mean.reshape(-1), scale.reshape(-1)


def _but_channels(x: Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


@row("_native_batch_norm_legit_functional", "_native_batch_norm_legit")
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Normalised over all but the channels; the running statistics as they are afterwards too.

    Of the form that writes to them only what it gives is made: graphs have the functional one.
    """
    if not training:
        found = batch_norm_at_rest(x, weight, bias, mean, var, momentum, eps)
        return (*found, mean, var)
    result, now, scale = batch_norm_of_batch(x, weight, bias, True, momentum, eps)
    count = x.numel() // x.shape[1]
    wide = x.cast(now.dtype)
    spread = wide.var(_but_channels(x), correction=0) * (count / max(count - 1, 1))
    mean, var = (
        old * (1 - momentum) + new.cast(old.dtype) * momentum
        for old, new in ((mean, now), (var, spread))
    )
    return result, now, scale, mean, var


@row("_native_batch_norm_legit_no_training")
def batch_norm_at_rest(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Normalised by the running statistics; none of its own, as in torch on CPUs."""
    shift, spread = _over_channels(x, mean), _over_channels(x, var)
    assert shift is not None and spread is not None
    result = _batch_norm(x, weight, bias, shift, (spread + eps).rsqrt())
    none = Tensor.full((0,), 0.0, dtype=mean.dtype, device=x.device)
    return result, none, none


@row("_fused_rms_norm")
def rms_norm(
    x: Tensor, shape: Sizes, weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Divided by the root of the mean square over the last axes; with what it was scaled by."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    wide = x.cast(dtypes.float32) if x.dtype.itemsize < 4 else x
    least = torch.finfo(TORCHS[wide.dtype]).eps if eps is None else eps
    scale = (wide.square().mean(axes, True) + least).rsqrt()
    return _affine(wide * scale, weight, None).cast(x.dtype), scale
