"""Torch's rearrangements of images: windows as columns and back, channels as pixels and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.nn.parameters import count
from gpu.tensor.tensor import Tensor
from gpu.tensor.windows import Each, Window, each


def unfold(
    input: Tensor, kernel_size: Each, dilation: Each = 1, padding: Each = 0, stride: Each = 1
) -> Tensor:
    """Windows over the two last axes as columns.

    (batch, channels, height, width) to (batch, channels * taps, windows), or both without batch.
    Padding counts as 0.
    """
    if input.ndim not in (3, 4):
        raise ShapeError(
            f"unfold takes (batch, channels, height, width) or (channels, height, width), got "
            f"shape {list(input.shape)}"
        )
    window = _window(kernel_size, dilation, padding, stride)
    counts, n = window.counts(input.shape[-2:]), input.ndim - 2
    windows = input._windows(window, counts, 0).permute(*range(n), n + 1, n + 3, n, n + 2)
    columns = input.shape[-3] * math.prod(window.taps)
    return windows.reshape(*input.shape[:-3], columns, math.prod(counts))


def fold(
    input: Tensor,
    output_size: Each,
    kernel_size: Each,
    dilation: Each = 1,
    padding: Each = 0,
    stride: Each = 1,
) -> Tensor:
    """Columns added up where `unfold` of an image of `output_size` with these arguments reads them.

    (batch, channels * taps, windows) to (batch, channels, *output_size), or both without batch.
    """
    sizes = each(output_size, 2, "output_size", 1)
    window = _window(kernel_size, dilation, padding, stride)
    places, plane = _columns(window, sizes)
    taps, windows = places.shape
    if input.ndim not in (2, 3) or input.shape[-2] % taps or input.shape[-1] != windows:
        raise ShapeError(
            f"fold to {list(sizes)} takes (batch, channels * {taps}, {windows}) or no batch, got "
            f"shape {list(input.shape)}"
        )
    lead = (*input.shape[:-2], input.shape[-2] // taps)
    image = Tensor.zeros(*lead, math.prod(plane), dtype=input.dtype, device=input.device)
    columns = input.reshape(*lead, places.size)
    image = image.index_add(-1, Tensor(places.ravel(), device=input.device), columns)
    cut = [(0, n) for n in lead]
    cut += [(lo, lo + n) for n, (lo, _) in zip(sizes, window.padding, strict=True)]
    return image.reshape(*lead, *plane).shrink(cut)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(..., channels * r**2, height, width) to (..., channels, height * r, width * r)."""
    factor, lead = _factor(input, upscale_factor, "upscale_factor"), input.shape[:-3]
    channels, height, width = input.shape[-3:]
    if channels % factor**2:
        raise ShapeError(
            f"pixel_shuffle by {factor} takes channels in multiples of {factor**2}, got "
            f"shape {list(input.shape)}"
        )
    apart = input.reshape(*lead, channels // factor**2, factor, factor, height, width)
    n = len(lead)
    paired = apart.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return paired.reshape(*lead, channels // factor**2, height * factor, width * factor)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(..., channels, height * r, width * r) to (..., channels * r**2, height, width)."""
    factor, lead = _factor(input, downscale_factor, "downscale_factor"), input.shape[:-3]
    channels, height, width = input.shape[-3:]
    if height % factor or width % factor:
        raise ShapeError(
            f"pixel_unshuffle by {factor} takes a height and a width in multiples of it, got "
            f"shape {list(input.shape)}"
        )
    apart = input.reshape(*lead, channels, height // factor, factor, width // factor, factor)
    n = len(lead)
    paired = apart.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return paired.reshape(*lead, channels * factor**2, height // factor, width // factor)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """The first channel of each group, then the second of each, and so on; channels are axis 1."""
    if input.ndim < 3:
        raise ShapeError(
            f"channel_shuffle takes (batch, channels, *spatial), got shape {list(input.shape)}"
        )
    channels = input.shape[1]
    if channels % count(groups, "groups"):
        raise InvalidValue(f"groups must divide {channels} channels, got {groups}")
    return input.unflatten(1, (groups, channels // groups)).transpose(1, 2).reshape(input.shape)


def _factor(input: Tensor, factor: int, name: str) -> int:
    if input.ndim < 3:
        raise ShapeError(
            f"pixels are shuffled of (..., channels, height, width), got shape {list(input.shape)}"
        )
    return count(factor, name)


def _window(kernel_size: Each, dilation: Each, padding: Each, stride: Each) -> Window:
    around = each(padding, 2, "padding")
    return Window(
        each(kernel_size, 2, "kernel_size", 1),
        each(stride, 2, "stride", 1),
        each(dilation, 2, "dilation", 1),
        tuple((n, n) for n in around),
    )


def _columns(window: Window, sizes: Sequence[int]) -> tuple[npt.NDArray[np.int64], tuple[int, ...]]:
    """Where each tap of each window lies in the padded plane, (taps, windows), and its sizes."""
    plane = tuple(lo + n + hi for n, (lo, hi) in zip(sizes, window.padding, strict=True))
    counts = window.counts(tuple(sizes))
    axes = zip(window.taps, window.dilation, counts, window.stride, strict=True)
    high, wide = (np.arange(k)[:, None] * d + np.arange(n) * step for k, d, n, step in axes)
    places = high[:, None, :, None] * plane[1] + wide[None, :, None, :]
    return places.reshape(math.prod(window.taps), math.prod(counts)), plane
