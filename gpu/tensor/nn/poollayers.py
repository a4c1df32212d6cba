"""Pools as layers: what `functional` has, with settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gpu.tensor.nn import fractional, pools
from gpu.tensor.nn.applied import Applied
from gpu.tensor.nn.module import Module
from gpu.tensor.tensor import Tensor
from gpu.tensor.windows import Each


class AvgPool1d(Applied, function=pools.avg_pool1d):
    """`functional.avg_pool1d`."""


class AvgPool2d(Applied, function=pools.avg_pool2d):
    """`functional.avg_pool2d`."""


class AvgPool3d(Applied, function=pools.avg_pool3d):
    """`functional.avg_pool3d`."""


class LPPool1d(Applied, function=pools.lp_pool1d):
    """`functional.lp_pool1d`."""


class LPPool2d(Applied, function=pools.lp_pool2d):
    """`functional.lp_pool2d`."""


class LPPool3d(Applied, function=pools.lp_pool3d):
    """`functional.lp_pool3d`."""


class AdaptiveAvgPool1d(Applied, function=pools.adaptive_avg_pool1d):
    """`functional.adaptive_avg_pool1d`."""


class AdaptiveAvgPool2d(Applied, function=pools.adaptive_avg_pool2d):
    """`functional.adaptive_avg_pool2d`."""


class AdaptiveAvgPool3d(Applied, function=pools.adaptive_avg_pool3d):
    """`functional.adaptive_avg_pool3d`."""


class AdaptiveMaxPool1d(Applied, function=pools.adaptive_max_pool1d):
    """`functional.adaptive_max_pool1d`."""


class AdaptiveMaxPool2d(Applied, function=pools.adaptive_max_pool2d):
    """`functional.adaptive_max_pool2d`."""


class AdaptiveMaxPool3d(Applied, function=pools.adaptive_max_pool3d):
    """`functional.adaptive_max_pool3d`."""


class FractionalMaxPool2d(Applied, function=fractional.fractional_max_pool2d):
    """`functional.fractional_max_pool2d`."""


class FractionalMaxPool3d(Applied, function=fractional.fractional_max_pool3d):
    """`functional.fractional_max_pool3d`."""


class _MaxPool(Module):
    """A pool for the largest elements; torch's layers have another order than its functions."""

    function: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Each = 0,
        dilation: Each = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ):
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.dilation, self.return_indices, self.ceil_mode = dilation, return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        """The largest element of each window and, with `return_indices`, where it lies."""
        window = (self.kernel_size, self.stride, self.padding, self.dilation)
        return self.function(input, *window, self.ceil_mode, self.return_indices)


class MaxPool1d(_MaxPool):
    """`functional.max_pool1d`."""

    function = staticmethod(pools.max_pool1d)


class MaxPool2d(_MaxPool):
    """`functional.max_pool2d`."""

    function = staticmethod(pools.max_pool2d)


class MaxPool3d(_MaxPool):
    """`functional.max_pool3d`."""

    function = staticmethod(pools.max_pool3d)


class _MaxUnpool(Module):
    """What a pool took put back to where it was."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, kernel_size: Each, stride: Each | None = None, padding: Each = 0):
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(
        self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        """input where `indices` say it was, 0 elsewhere."""
        window = (self.kernel_size, self.stride, self.padding)
        return self.function(input, indices, *window, output_size)


class MaxUnpool1d(_MaxUnpool):
    """`functional.max_unpool1d`."""

    function = staticmethod(pools.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """`functional.max_unpool2d`."""

    function = staticmethod(pools.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """`functional.max_unpool3d`."""

    function = staticmethod(pools.max_unpool3d)
