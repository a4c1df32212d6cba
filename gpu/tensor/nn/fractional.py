"""Pools whose windows lie apart by one of two steps, at random (B. Graham, arXiv 1412.6071)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpu.core.dtype import dtypes
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import check_number
from gpu.tensor.nn.parameters import share
from gpu.tensor.nn.pools import with_indices
from gpu.tensor.tensor import Tensor
from gpu.tensor.windows import Each, each

# A share for each spatial axis, or one for all.
Ratio = float | Sequence[float]


def fractional_max_pool2d(
    input: Tensor,
    kernel_size: Each,
    output_size: Each | None = None,
    output_ratio: Ratio | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest element of each of `output_size` windows of `kernel_size`, which begin at random.

    Args:
        input: (batch, channels, height, width) or (channels, height, width).
        kernel_size: of each window, one number or one for each axis.
        output_size: how many windows; or
        output_ratio: the same as a share of the input's sizes, in 0..1.
        return_indices: gives also where each element lies, as a place in the flattened plane.
        _random_samples: numbers of 0..1 that say where windows begin, (batch, channels, 2), for the
            last axis first; drawn if None.
    """
    window = (kernel_size, output_size, output_ratio)
    order = (1, 0)  # of the samples, as torch has them
    return _pooled(input, window, return_indices, _random_samples, order)


def fractional_max_pool3d(
    input: Tensor,
    kernel_size: Each,
    output_size: Each | None = None,
    output_ratio: Ratio | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`fractional_max_pool2d` over three axes; the samples are in the order of the axes."""
    window = (kernel_size, output_size, output_ratio)
    return _pooled(input, window, return_indices, _random_samples, (0, 1, 2))


fractional_max_pool2d_with_indices = with_indices(fractional_max_pool2d)
fractional_max_pool3d_with_indices = with_indices(fractional_max_pool3d)


def _pooled(
    input: Tensor,
    window: tuple[Each, Each | None, Ratio | None],
    return_indices: bool,
    samples: Tensor | None,
    order: tuple[int, ...],
) -> Tensor | tuple[Tensor, Tensor]:
    rank = len(order)
    if input.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            f"a fractional pool takes (batch, channels, *spatial) with {rank} spatial axes, or one "
            f"sample without the first, got shape {list(input.shape)}"
        )
    batch = input if input.ndim == rank + 2 else input.unsqueeze(0)
    lead, plane = batch.shape[:2], batch.shape[2:]
    taps = each(window[0], rank, "kernel_size", 1)
    counts = _counts(plane, taps, window[1], window[2])
    drawn = Tensor.rand(*lead, rank, device=input.device) if samples is None else samples
    if drawn.shape != (*lead, rank):
        raise ShapeError(
            f"_random_samples must be of shape {[*lead, rank]}, got {list(drawn.shape)}"
        )
    places: Tensor | None = None
    for axis, number in enumerate(order):
        found = _starts(drawn[:, :, number], plane[axis], counts[axis], taps[axis]).unsqueeze(-1)
        found = found + Tensor.arange(taps[axis], device=input.device)
        behind = (1,) * (2 * (rank - 1 - axis))
        found = found.reshape(*lead, *(1,) * 2 * axis, counts[axis], taps[axis], *behind)
        places = found if places is None else places * plane[axis] + found
    assert places is not None
    # Windows first, and what they cover behind them.
    apart = places.permute(0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
    flat = apart.reshape(*lead, math.prod(counts) * math.prod(taps)).cast(dtypes.int64)
    values = batch.reshape(*lead, math.prod(plane)).gather(2, flat)
    rows = values.reshape(*lead, math.prod(counts), math.prod(taps))
    largest, at = rows.max_pool2d((1, math.prod(taps)), return_indices=True)
    shape = (*input.shape[: input.ndim - rank], *counts)
    result = largest.reshape(shape)
    if not return_indices:
        return result
    return result, flat.gather(2, at.reshape(*lead, math.prod(counts))).reshape(shape)


def _counts(
    plane: tuple[int, ...],
    taps: tuple[int, ...],
    output_size: Each | None,
    output_ratio: Ratio | None,
) -> tuple[int, ...]:
    """How many windows there are along each axis, all within the plane."""
    rank = len(plane)
    if (output_size is None) == (output_ratio is None):
        raise InvalidValue("a fractional pool takes either output_size or output_ratio")
    if output_size is not None:
        counts = each(output_size, rank, "output_size", 1)
    else:
        assert output_ratio is not None
        ratios = output_ratio if isinstance(output_ratio, Sequence) else (output_ratio,) * rank
        if len(ratios) != rank:
            raise InvalidValue(f"output_ratio must be one share or {rank}, got {output_ratio}")
        for ratio in ratios:
            check_number(ratio, "output_ratio")
            share(ratio, "output_ratio")
        counts = tuple(int(n * ratio) for n, ratio in zip(plane, ratios, strict=True))
    for size, tap, number in zip(plane, taps, counts, strict=True):
        if number + tap - 1 > size or number < 1:
            raise ShapeError(
                f"{list(counts)} windows of {list(taps)} elements do not fit into {list(plane)}: "
                "there must be at least one, and one step between them"
            )
    return counts


def _starts(samples: Tensor, size: int, number: int, taps: int) -> Tensor:
    """Where windows begin along an axis, of shape (batch, channels, number)."""
    last = samples.full_like(size - taps).unsqueeze(-1)
    if number == 1:
        return last.cast(dtypes.int32)
    step = samples.full_like(size - taps) / (number - 1)
    line = Tensor.arange(number - 1, device=samples.device).cast(samples.dtype)
    moved = ((line + samples.unsqueeze(-1)) * step.unsqueeze(-1)).trunc()
    first = (samples * step).trunc().unsqueeze(-1)
    return (moved - first).cat(last, dim=-1).cast(dtypes.int32)
