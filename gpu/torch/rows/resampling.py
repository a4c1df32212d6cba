"""Rows of pads by what is there, and of pictures in other sizes or looked up at points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gpu.core.errors import Unsupported
from gpu.nn import functional as F
from gpu.tensor.tensor import Tensor
from gpu.torch.rows.layers import pulled
from gpu.torch.table import row

Sizes = Sequence[int]
# Torch's enumerations of native/GridSamplerUtils.h.
_MODES: Final = ("bilinear", "nearest", "bicubic")
_PADDINGS: Final = ("zeros", "border", "reflection")


def _padded(mode: str) -> Callable[[Tensor, Sizes], Tensor]:
    return lambda x, padding: x.pad(list(padding), mode=mode)


def _padded_backward(mode: str) -> Callable[[Tensor, Tensor, Sizes], Tensor]:
    pad = _padded(mode)
    return lambda grad, x, padding: pulled(lambda given: pad(given, padding), grad, x)[0]


for _kind, _mode in (("reflection", "reflect"), ("replication", "replicate")):
    for _axes in (1, 2, 3):
        row(f"{_kind}_pad{_axes}d")(_padded(_mode))
        row(f"{_kind}_pad{_axes}d_backward")(_padded_backward(_mode))


@row("grid_sampler_2d")
def grid_sample(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    """Pictures at points between -1 and 1."""
    return F.grid_sample(x, grid, _MODES[mode], _PADDINGS[padding], align_corners)


@row("grid_sampler_2d_backward")
def grid_sample_backward(
    grad: Tensor,
    x: Tensor,
    grid: Tensor,
    mode: int,
    padding: int,
    align_corners: bool,
    mask: Sequence[bool],
) -> tuple[Any, ...]:
    """The gradients of pictures and points, of those that are asked for."""
    grads = pulled(
        lambda x, grid: grid_sample(x, grid, mode, padding, align_corners), grad, x, grid
    )
    return tuple(each if wanted else None for each, wanted in zip(grads, mask, strict=True))


@row("upsample_nearest2d.vec")
def nearest(x: Tensor, size: Sizes | None, scale: Sequence[float] | None) -> Tensor:
    """Pictures in another size, of the elements nearest."""
    if size is not None:
        return F.interpolate(x, tuple(size), mode="nearest")
    return F.interpolate(x, None, scale, mode="nearest")


@row("upsample_bilinear2d.vec")
def bilinear(
    x: Tensor, size: Sizes | None, align_corners: bool, scale: Sequence[float] | None
) -> Tensor:
    """Pictures in another size, of means of the elements around."""
    if size is not None:
        return F.interpolate(x, tuple(size), mode="bilinear", align_corners=align_corners)
    return F.interpolate(x, None, scale, mode="bilinear", align_corners=align_corners)


@row("upsample_nearest2d_backward", "upsample_bilinear2d_backward")
def upsample_backward(grad: Tensor, size: Sizes, shape: Sizes, *how: Any) -> Tensor:
    """The gradient of a picture before its size changed, which needs no value of that."""
    *corners, high, wide = how if len(how) in (2, 3) else (*how, None, None)
    if (high is None) != (wide is None):
        raise Unsupported("a scale for one of two axes")
    scale = None if high is None else (high, wide)
    wanted = None if scale is not None else tuple(size)
    zeros = Tensor.full(tuple(shape), 0.0, dtype=grad.dtype, device=grad.device)
    if corners:
        return pulled(lambda x: bilinear(x, wanted, corners[0], scale), grad, zeros)[0]
    return pulled(lambda x: nearest(x, wanted, scale), grad, zeros)[0]
