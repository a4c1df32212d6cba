"""Torch's pools by torch's names and in its argument order.

An input has the shape (batch, channels, *spatial) or (channels, *spatial), with as many spatial
axes as the name says. An argument for each of them may be one number for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpu.core.dtype import accumulator, dtypes
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import check_number
from gpu.tensor.tensor import Tensor
from gpu.tensor.windows import Each, each

# A size for all spatial axes, or one for each; None keeps that of the input.
Sizes: TypeAlias = int | Sequence[int | None] | None
Places: TypeAlias = npt.NDArray[np.int64]


def avg_pool1d(
    input: Tensor,
    kernel_size: Each,
    stride: Each | None = None,
    padding: Each = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """`Tensor.avg_pool2d` over one axis."""
    return _averaged(input, 1, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor,
    kernel_size: Each,
    stride: Each | None = None,
    padding: Each = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """`Tensor.avg_pool2d`."""
    own = divisor_override
    return _averaged(input, 2, kernel_size, stride, padding, ceil_mode, count_include_pad, own)


def avg_pool3d(
    input: Tensor,
    kernel_size: Each,
    stride: Each | None = None,
    padding: Each = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """`Tensor.avg_pool2d` over three axes."""
    own = divisor_override
    return _averaged(input, 3, kernel_size, stride, padding, ceil_mode, count_include_pad, own)


def max_pool1d(
    input: Tensor,
    kernel_size: Each,
    stride: Each | None = None,
    padding: Each = 0,
    dilation: Each = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`Tensor.max_pool2d` over one axis."""
    window = (kernel_size, stride, padding, dilation)
    return _largest(input, 1, window, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor,
    kernel_size: Each,
    stride: Each | None = None,
    padding: Each = 0,
    dilation: Each = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`Tensor.max_pool2d`."""
    window = (kernel_size, stride, padding, dilation)
    return _largest(input, 2, window, ceil_mode, return_indices)


def max_pool3d(
    input: Tensor,
    kernel_size: Each,
    stride: Each | None = None,
    padding: Each = 0,
    dilation: Each = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`Tensor.max_pool2d` over three axes."""
    window = (kernel_size, stride, padding, dilation)
    return _largest(input, 3, window, ceil_mode, return_indices)


def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Each,
    stride: Each | None = None,
    padding: Each = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """`Tensor.max_unpool2d` over one axis."""
    return _unpooled(input, 1, indices, (kernel_size, stride, padding), output_size)


def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Each,
    stride: Each | None = None,
    padding: Each = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """`Tensor.max_unpool2d`, to sizes that differ by less than a stride from those without one."""
    return _unpooled(input, 2, indices, (kernel_size, stride, padding), output_size)


def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Each,
    stride: Each | None = None,
    padding: Each = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """`Tensor.max_unpool2d` over three axes."""
    return _unpooled(input, 3, indices, (kernel_size, stride, padding), output_size)


def lp_pool1d(
    input: Tensor,
    norm_type: float,
    kernel_size: Each,
    stride: Each | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """`lp_pool2d` over one axis."""
    return _normed(input, 1, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Tensor,
    norm_type: float,
    kernel_size: Each,
    stride: Each | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The sum of each window's elements to the power `norm_type`, to 1 / norm_type.

    A window that hangs over the end counts, as in torch, as if it were full of its mean.
    """
    return _normed(input, 2, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Tensor,
    norm_type: float,
    kernel_size: Each,
    stride: Each | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """`lp_pool2d` over three axes."""
    return _normed(input, 3, norm_type, kernel_size, stride, ceil_mode)


def adaptive_avg_pool1d(input: Tensor, output_size: Sizes) -> Tensor:
    """`adaptive_avg_pool2d` over one axis."""
    return _evenly_averaged(input, 1, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Sizes) -> Tensor:
    """The mean of each of `output_size` windows, which lie evenly and cover the whole input.

    Window i of n over size elements is floor(i * size / n) up to ceil((i + 1) * size / n). A size
    that is None stays that of the input.
    """
    return _evenly_averaged(input, 2, output_size)


def adaptive_avg_pool3d(input: Tensor, output_size: Sizes) -> Tensor:
    """`adaptive_avg_pool2d` over three axes."""
    return _evenly_averaged(input, 3, output_size)


def adaptive_max_pool1d(
    input: Tensor, output_size: Sizes, return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """`adaptive_max_pool2d` over one axis."""
    return _evenly_largest(input, 1, output_size, return_indices)


def adaptive_max_pool2d(
    input: Tensor, output_size: Sizes, return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest element of each window of `adaptive_avg_pool2d`.

    With `return_indices` also where it lies, as `Tensor.max_pool2d` has it.
    """
    return _evenly_largest(input, 2, output_size, return_indices)


def adaptive_max_pool3d(
    input: Tensor, output_size: Sizes, return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """`adaptive_max_pool2d` over three axes."""
    return _evenly_largest(input, 3, output_size, return_indices)


def with_indices(pool: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """A pool that gives places whatever its `return_indices`."""
    parameters = signature(pool)

    @wraps(pool)
    def call(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        given = parameters.bind(*args, **kwargs)
        given.arguments["return_indices"] = True
        values, places = pool(*given.args, **given.kwargs)
        return values, places

    return call


max_pool1d_with_indices = with_indices(max_pool1d)
max_pool2d_with_indices = with_indices(max_pool2d)
max_pool3d_with_indices = with_indices(max_pool3d)
adaptive_max_pool1d_with_indices = with_indices(adaptive_max_pool1d)
adaptive_max_pool2d_with_indices = with_indices(adaptive_max_pool2d)
adaptive_max_pool3d_with_indices = with_indices(adaptive_max_pool3d)


def _averaged(
    input: Tensor,
    rank: int,
    kernel_size: Each,
    stride: Each | None,
    padding: Each,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    _check_rank(input, rank)
    taps, around = _window(rank, kernel_size, padding)
    return input.avg_pool2d(taps, stride, 1, around, ceil_mode, count_include_pad, divisor_override)


def _largest(
    input: Tensor,
    rank: int,
    window: tuple[Each, Each | None, Each, Each],
    ceil_mode: bool,
    return_indices: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    _check_rank(input, rank)
    kernel_size, stride, padding, dilation = window
    taps, around = _window(rank, kernel_size, padding, dilation)
    return input.max_pool2d(
        taps, stride, dilation, around, ceil_mode, return_indices=return_indices
    )


def _unpooled(
    input: Tensor,
    rank: int,
    indices: Tensor,
    window: tuple[Each, Each | None, Each],
    output_size: Sequence[int] | None,
) -> Tensor:
    _check_rank(input, rank)
    kernel_size, stride, padding = window
    taps = each(kernel_size, rank, "kernel_size", 1)
    steps = taps if stride is None else each(stride, rank, "stride", 1)
    around = each(padding, rank, "padding")
    result = input.max_unpool2d(indices, taps, steps, 1, around, output_size)
    sizes = zip(result.shape[-rank:], input.shape[-rank:], taps, steps, around, strict=True)
    for axis, (size, count, tap, step, pad) in enumerate(sizes, -rank):
        middle = (count - 1) * step + tap - 2 * pad
        if not middle - step < size < middle + step:
            raise InvalidValue(
                f"axis {axis} of output_size {output_size} is {size}: it must be within "
                f"{middle - step + 1}..{middle + step - 1} for {count} windows"
            )
    return result


def _normed(
    input: Tensor,
    rank: int,
    norm_type: float,
    kernel_size: Each,
    stride: Each | None,
    ceil_mode: bool,
) -> Tensor:
    check_number(norm_type, "norm_type")
    if not norm_type:
        raise InvalidValue("norm_type of an LP pool must not be 0")
    _check_rank(input, rank)
    taps = each(kernel_size, rank, "kernel_size", 1)
    mean = input.pow(norm_type).avg_pool2d(taps, stride, ceil_mode=ceil_mode)
    return mean.mul(math.prod(taps)).pow(1 / norm_type)


def _evenly_averaged(input: Tensor, rank: int, output_size: Sizes) -> Tensor:
    x = input._as_float()
    result = x.cast(accumulator(x.dtype))
    for axis, size in enumerate(_sizes(input, rank, output_size), input.ndim - rank):
        places, counts = _even_windows(input.shape[axis], size)
        windows = _lines(result, axis, places.ravel()).unflatten(axis, places.shape)
        behind = (1,) * (input.ndim - 1 - axis)
        inside = np.arange(places.shape[1]) < counts[:, None]
        if not inside.all():
            kept = Tensor(inside.reshape(*inside.shape, *behind), device=input.device)
            windows = kept.where(windows, 0)
        number = Tensor(counts.reshape(-1, *behind), dtype=result.dtype, device=input.device)
        result = windows.sum(axis + 1).div(number)
    return result.cast(x.dtype)


def _evenly_largest(
    input: Tensor, rank: int, output_size: Sizes, return_indices: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Windows are laid side by side, the narrow ones with their last element more than once."""
    sizes, lead = _sizes(input, rank, output_size), input.ndim - rank
    if 0 in sizes:
        empty = Tensor.zeros(*input.shape[:lead], *sizes, dtype=input.dtype, device=input.device)
        return (empty, empty.cast(dtypes.int64)) if return_indices else empty
    axes = zip(input.shape[lead:], sizes, strict=True)
    windows = [_even_windows(old, new)[0] for old, new in axes]
    laid = input
    for axis, places in enumerate(windows, lead):
        laid = _lines(laid, axis, places.ravel())
    taps = tuple(places.shape[1] for places in windows)
    if not return_indices:
        return laid.max_pool2d(taps)
    largest, found = laid.max_pool2d(taps, return_indices=True)
    if laid is input:
        return largest, found
    # What was found is a place among what is laid: axis by axis it is one of the input.
    origin, stride = found.zeros_like(), 1
    for size, places in zip(reversed(input.shape[lead:]), reversed(windows), strict=True):
        line = Tensor(places.ravel(), device=input.device)
        origin = origin.add(line[found % places.size].mul(stride))
        found, stride = found // places.size, stride * size
    return largest, origin


def _even_windows(size: int, number: int) -> tuple[Places, Places]:
    """The places of `number` windows over an axis, a row each, and how many of a row count.

    What stands behind them in a row is the last of them again.
    """
    window = np.arange(number)
    first, end = window * size // max(number, 1), -(-(window + 1) * size // max(number, 1))
    taps = np.arange(max(end - first, default=1))
    return np.minimum(first[:, None] + taps, end[:, None] - 1), end - first


def _lines(x: Tensor, axis: int, places: Places) -> Tensor:
    """`places` along an axis, which is x where they are all of it in order."""
    if np.array_equal(places, np.arange(x.shape[axis])):
        return x
    return x.index_select(axis, Tensor(places, device=x.device))


def _sizes(input: Tensor, rank: int, output_size: Sizes) -> tuple[int, ...]:
    """What `output_size` means for the spatial axes, which must not be empty."""
    _check_rank(input, rank)
    plane = input.shape[-rank:]
    if 0 in plane:
        raise ShapeError(f"an adaptive pool needs elements to pool, got {list(input.shape)}")
    given = output_size if isinstance(output_size, Sequence) else (output_size,) * rank
    if len(given) != rank:
        raise InvalidValue(
            f"output_size must be one size or one for each of {rank} axes, got {output_size}"
        )
    return each([n if m is None else m for m, n in zip(given, plane, strict=True)], rank, "a size")


def _window(
    rank: int, kernel_size: Each, padding: Each, dilation: Each = 1
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Elements of a window and padding of each axis, which leaves none without an element."""
    taps = each(kernel_size, rank, "kernel_size", 1)
    around = each(padding, rank, "padding")
    apart = each(dilation, rank, "dilation", 1)
    for tap, pad, step in zip(taps, around, apart, strict=True):
        if pad > ((tap - 1) * step + 1) // 2:
            raise InvalidValue(
                f"padding of a pool must be at most half of what its windows cover, got padding "
                f"{padding} for kernel_size {kernel_size}"
            )
    return taps, around


def _check_rank(input: Tensor, rank: int) -> None:
    if input.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            f"a pool over {rank} axes takes (batch, channels, *spatial) or (channels, *spatial), "
            f"got shape {list(input.shape)}"
        )
