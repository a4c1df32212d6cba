"""Layers that bring values to mean 0 and variance 1, or to one magnitude.

Their weights are called and shaped as in torch, and start as ones and zeros. Statistics of float16
and bfloat16 are formed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from gpu.core.dtype import accumulator, dtypes
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.nn import norms
from gpu.tensor.nn.applied import Applied
from gpu.tensor.nn.module import Module
from gpu.tensor.nn.parameters import count, filled, state
from gpu.tensor.tensor import Tensor


class BatchNorm(Module):
    """Each channel brought to mean 0 and variance 1 over the batch and all spatial axes.

    x and the result have the shape (batch, sz) or (batch, sz, *spatial): one class for 1, 2 and 3
    spatial axes. While `Tensor.training` is set the statistics are those of x, and running ones
    are updated; otherwise the running ones are used, unless they are not tracked.

    Running statistics are tensors with `requires_grad` False: give them to the optimiser with the
    parameters, as `get_parameters` does, and each step computes them along with the rest.

    Attributes:
        weight, bias: shape (sz,), or None without `affine`.
        running_mean, running_var: shape (sz,), float32, or None without `track_running_stats`;
            the variance is the one with Bessel's correction.
        num_batches_tracked: how often they were updated, or None; 0-d, int64.
    """

    def __init__(
        self,
        sz: int,
        eps: float = 1e-5,
        affine: bool = True,
        track_running_stats: bool = True,
        momentum: float = 0.1,
    ):
        self.channels = count(sz, "sz")
        self.eps, self.momentum, self.track_running_stats = eps, momentum, track_running_stats
        self.weight = filled(1, sz) if affine else None
        self.bias = filled(0, sz) if affine else None
        self.running_mean = self.running_var = self.num_batches_tracked = None
        if track_running_stats:
            self.running_mean, self.running_var = state(0, sz), state(1, sz)
            self.num_batches_tracked = state(0, dtype=dtypes.int64)

    def forward(self, x: Tensor) -> Tensor:
        """x normalised, in its shape and dtype."""
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ShapeError(
                f"BatchNorm({self.channels}) takes [batch, {self.channels}, *spatial], "
                f"got {list(x.shape)}"
            )
        mean, variance = self.calc_stats(x.cast(accumulator(x.dtype)))
        return norms.by_statistics(x, mean, variance, self.weight, self.bias, self.eps)

    def calc_stats(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and variance of each channel that x is normalised with, each of shape (sz,).

        Updates the running ones in training. Raises InvalidValue for a batch of one value then.
        """
        if not Tensor.training and self.running_mean is not None and self.running_var is not None:
            return self.running_mean, self.running_var
        if math.prod(x.shape[:1] + x.shape[2:]) < 2 and Tensor.training:
            raise InvalidValue(
                f"BatchNorm in training needs more than one value in each channel, got an input "
                f"of shape {list(x.shape)}"
            )
        tracked = Tensor.training and self.track_running_stats
        moved = (self.running_mean, self.running_var) if tracked else (None, None)
        statistics = norms.batch_statistics(x, *moved, self.momentum)
        if tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.assign(self.num_batches_tracked + 1)
        return statistics


BatchNorm1d = BatchNorm2d = BatchNorm3d = BatchNorm


class GroupNorm(Module):
    """Each group of channels of each sample brought to mean 0 and variance 1.

    x and the result have the shape (batch, num_channels, *spatial).

    Attributes:
        weight, bias: shape (num_channels,), or None without `affine`.
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True):
        if count(num_channels, "num_channels") % count(num_groups, "num_groups"):
            raise InvalidValue(f"num_groups must divide {num_channels} channels, got {num_groups}")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = filled(1, num_channels) if affine else None
        self.bias = filled(0, num_channels) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """x normalised, in its shape."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"this layer takes [batch, {self.num_channels}, *spatial], got {list(x.shape)}"
            )
        return norms.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class InstanceNorm(GroupNorm):
    """Each channel of each sample brought to mean 0 and variance 1: a `GroupNorm` of one channel.

    x and the result have the shape (batch, num_features, *spatial).

    Attributes:
        weight, bias: shape (num_features,), or None without `affine`.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True):
        super().__init__(num_features, num_features, eps, affine)


class _InstanceNorm(Module):
    """`functional.instance_norm` by torch's arguments, over a fixed number of spatial axes.

    With `track_running_stats` running statistics are moved while `Tensor.training` is set, and used
    otherwise. An input without a batch axis is taken as one sample.

    Attributes:
        weight, bias: shape (num_features,), or None without `affine`.
        running_mean, running_var: the same, or None without `track_running_stats`.
        num_batches_tracked: 0, or None; 0-d, int64. Torch has it in the state, and never counts.
    """

    axes: ClassVar[int]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
    ):
        self.num_features, self.eps, self.momentum = (
            count(num_features, "num_features"),
            eps,
            momentum,
        )
        self.weight = filled(1, num_features) if affine else None
        self.bias = filled(0, num_features) if affine else None
        self.running_mean = self.running_var = self.num_batches_tracked = None
        if track_running_stats:
            self.running_mean, self.running_var = state(0, num_features), state(1, num_features)
            self.num_batches_tracked = state(0, dtype=dtypes.int64)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, num_features, *spatial), or without batch, normalised."""
        if x.ndim == self.axes + 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if x.ndim != self.axes + 2 or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__} takes (batch, {self.num_features}, *spatial) with "
                f"{self.axes} spatial axes, or no batch, got {list(x.shape)}"
            )
        by_input = Tensor.training or self.running_mean is None
        return norms.instance_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            by_input,
            self.momentum,
            self.eps,
        )


class InstanceNorm1d(_InstanceNorm):
    """(batch, num_features, length), each channel of each sample brought to mean 0, variance 1."""

    axes = 1


class InstanceNorm2d(_InstanceNorm):
    """The same of (batch, num_features, height, width)."""

    axes = 2


class InstanceNorm3d(_InstanceNorm):
    """The same of (batch, num_features, depth, height, width)."""

    axes = 3


class LocalResponseNorm(Applied, function=norms.local_response_norm):
    """`functional.local_response_norm`."""


class LayerNorm(Module):
    """The last axes, whose sizes are `normalized_shape`, brought to mean 0 and variance 1.

    Attributes:
        weight, bias: of shape `normalized_shape`, or None without `elementwise_affine`; the latter
            also without `bias`.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ):
        sizes = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape = tuple(count(size, "normalized_shape") for size in sizes)
        self.axis, self.eps = tuple(range(-len(self.normalized_shape), 0)), eps
        self.weight = filled(1, *self.normalized_shape) if elementwise_affine else None
        self.bias = filled(0, *self.normalized_shape) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x normalised, in its shape."""
        if x.shape[-len(self.axis) :] != self.normalized_shape:
            raise ShapeError(
                f"LayerNorm({list(self.normalized_shape)}) takes a tensor whose last sizes are "
                f"these, got {list(x.shape)}"
            )
        return norms.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class LayerNorm2d(LayerNorm):
    """A `LayerNorm` over the channels of (batch, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) normalised over the channels."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm(Module):
    """The last axis, of size `dim`, divided by the root of its mean square plus `eps`.

    Attributes:
        weight: shape (dim,), or None without `elementwise_affine`.
    """

    def __init__(self, dim: int, eps: float = 1e-6, elementwise_affine: bool = True):
        self.dim, self.eps = count(dim, "dim"), eps
        self.weight = filled(1, dim) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        """x normalised, in its shape."""
        if x.shape[-1:] != (self.dim,):
            raise ShapeError(
                f"RMSNorm({self.dim}) normalises an axis of {self.dim} elements, "
                f"the last of {list(x.shape)} is another"
            )
        return norms.rms_norm(x, self.dim, self.weight, self.eps)
