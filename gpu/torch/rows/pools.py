"""Rows of pools over windows, of their gradients, and of patches as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.nn import functional as F
from gpu.tensor.tensor import Tensor
from gpu.torch.rows.layers import pulled
from gpu.torch.table import row

Sizes = Sequence[int]


def _each(value: int | Sizes, axes: int) -> tuple[int, ...]:
    """A setting for each axis; one counts for all."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * axes if len(values) == 1 else values


def _batched(x: Tensor, axes: int, function: Callable[[Tensor], Any]) -> Any:
    """What `function` makes of a batch, for a sample that lacks the axis too."""
    if x.ndim == axes + 2:
        return function(x)
    found = function(x.unsqueeze(0))
    if isinstance(found, tuple):
        return tuple(each.squeeze(0) for each in found)
    return found.squeeze(0)


def _max_pool(axes: int) -> Callable[..., Any]:
    def pool(
        x: Tensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: int | Sizes = 0,
        dilation: int | Sizes = 1,
        ceil_mode: bool = False,
    ) -> Any:
        kernel, span = _each(kernel, axes), _each(dilation, axes)
        step, pad = _each(stride, axes) or kernel, _each(padding, axes)
        return _batched(
            x, axes, lambda batch: batch.max_pool2d(kernel, step, span, pad, ceil_mode, True)
        )

    return pool


row("max_pool2d_with_indices")(_max_pool(2))
row("max_pool3d_with_indices")(_max_pool(3))


def _max_pool_backward(axes: int) -> Callable[..., Tensor]:
    """The gradient by computing the pool again: windows that overlap need no scattered adds."""
    pool = _max_pool(axes)

    def backward(
        grad: Tensor,
        x: Tensor,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        def again(given: Tensor) -> Tensor:
            first: Tensor = pool(given, kernel, stride, padding, dilation, ceil_mode)[0]
            return first

        return pulled(again, grad, x)[0]

    return backward


row("max_pool2d_with_indices_backward")(_max_pool_backward(2))
row("max_pool3d_with_indices_backward")(_max_pool_backward(3))


def _avg_pool(axes: int) -> Callable[..., Tensor]:
    def pool(
        x: Tensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: int | Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        kernel = _each(kernel, axes)
        step, pad = _each(stride, axes) or kernel, _each(padding, axes)
        found: Tensor = _batched(
            x,
            axes,
            lambda batch: batch.avg_pool2d(
                kernel, step, 1, pad, ceil_mode, count_include_pad, divisor_override
            ),
        )
        return found

    return pool


_POOLS = {axes: _avg_pool(axes) for axes in (1, 2, 3)}
for _axes, _pool in _POOLS.items():
    row(f"avg_pool{_axes}d")(_pool)


def _avg_pool_backward(axes: int) -> Callable[..., Tensor]:
    def backward(grad: Tensor, x: Tensor, *how: Any) -> Tensor:
        return pulled(lambda given: _POOLS[axes](given, *how), grad, x)[0]

    return backward


row("avg_pool2d_backward")(_avg_pool_backward(2))
row("avg_pool3d_backward")(_avg_pool_backward(3))

_ADAPTIVE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
row("adaptive_avg_pool1d")(lambda x, size: F.adaptive_avg_pool1d(x, tuple(size)))
row("_adaptive_avg_pool2d")(lambda x, size: F.adaptive_avg_pool2d(x, tuple(size)))
row("_adaptive_avg_pool3d")(lambda x, size: F.adaptive_avg_pool3d(x, tuple(size)))


def _adaptive_backward(axes: int) -> Callable[[Tensor, Tensor], Tensor]:
    def backward(grad: Tensor, x: Tensor) -> Tensor:
        size = tuple(grad.shape[-axes:])
        return pulled(lambda given: _ADAPTIVE[axes](given, size), grad, x)[0]

    return backward


row("_adaptive_avg_pool2d_backward")(_adaptive_backward(2))
row("_adaptive_avg_pool3d_backward")(_adaptive_backward(3))


@row("im2col")
def columns(x: Tensor, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Tensor:
    """Windows of pictures as columns."""
    return F.unfold(x, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))


@row("col2im")
def pictures(
    x: Tensor, size: Sizes, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Tensor:
    """Columns added up to pictures."""
    return F.fold(x, tuple(size), tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))
