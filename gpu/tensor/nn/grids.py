"""Images read at other places: on a grid of another size, or where a tensor says.

Torch's functions by torch's names and in its argument order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import accumulator, dtypes
from gpu.core.errors import DTypeError, InvalidValue, ShapeError, Unsupported
from gpu.tensor.arguments import check_number, choice, integer
from gpu.tensor.interpolation import cubic_weights
from gpu.tensor.nn.pools import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from gpu.tensor.tensor import Tensor

# Spatial axes of each mode, where not any will do.
_AXES: Final = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
_AREA: Final = (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)
# Ratios of sizes at which the scale factor itself does not matter, as in torch.
_EXACT: Final = {"nearest": (1, 2), "linear": (1,), "bilinear": (1,), "trilinear": (1,)}
# Largest denominator of a step between places: what a scale factor is rounded to.
_FINEST: Final = 1 << 20


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """input, (batch, channels, *spatial), with spatial axes of `size`, or `scale_factor` times.

    Args:
        input: with one to three spatial axes.
        size: of each spatial axis, or one for all.
        scale_factor: for each, or one for all; sizes are rounded down, and places are apart by
            1 / scale_factor, or with `recompute_scale_factor` by the ratio of the sizes.
        mode: "nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", or "area",
            which takes the mean of what an element of the result covers.
        align_corners: as `Tensor.interpolate`; None is False.
        recompute_scale_factor: see `scale_factor`.
        antialias: refused, as Unsupported.
    """
    spatial = input.ndim - 2
    choice(mode, "mode", (*_AXES, "nearest", "nearest-exact", "area"))
    if not 1 <= spatial <= 3 or _AXES.get(mode, spatial) != spatial:
        raise ShapeError(
            f"interpolate by {mode!r} takes (batch, channels, *spatial) with "
            f"{_AXES.get(mode, '1 to 3')} spatial axes, got shape {list(input.shape)}"
        )
    if antialias:
        raise Unsupported("interpolate with antialias is not there; take mode 'area' to shrink")
    if align_corners is not None and mode not in _AXES:
        raise InvalidValue(f"align_corners goes with {', '.join(_AXES)}, not {mode!r}")
    sizes, steps = _sizes(input.shape[2:], size, scale_factor, bool(recompute_scale_factor))
    if mode == "area":
        return _AREA[spatial - 1](input, sizes)
    ratios = [Fraction(n, new) for n, new in zip(input.shape[2:], sizes, strict=True)]
    exact = [Fraction(1, n) for n in _EXACT.get(mode, ())]
    steps = [r if r in exact else step for r, step in zip(ratios, steps, strict=True)]
    return input._resized(sizes, steps, mode, bool(align_corners))


def upsample(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """`interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """`interpolate` by "nearest"."""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """`interpolate` by "bilinear" with `align_corners`, of three spatial axes by "trilinear"."""
    mode = "trilinear" if input.ndim == 5 else "bilinear"
    return interpolate(input, size, scale_factor, mode, align_corners=True)


def _sizes(
    old: Sequence[int],
    size: int | Sequence[int] | None,
    scale_factor: float | Sequence[float] | None,
    recompute: bool,
) -> tuple[list[int], list[Fraction]]:
    """The sizes of the result, and how far apart its elements are in the source."""
    if (size is None) == (scale_factor is None):
        raise InvalidValue("interpolate takes either size or scale_factor")
    factors: list[float] = []
    if scale_factor is None:
        if recompute:
            raise InvalidValue("recompute_scale_factor goes with scale_factor, not with size")
        sizes = [integer(n, "size") for n in _each(size, len(old), "size")]
    else:
        for factor in _each(scale_factor, len(old), "scale_factor"):
            check_number(factor, "scale_factor")
            factors.append(float(factor))
        sizes = [math.floor(n * f) for n, f in zip(old, factors, strict=True)]
    if min(sizes) < 1:
        raise ShapeError(f"sizes {sizes} leave nothing of spatial axes of {list(old)}")
    if factors and not recompute:
        return sizes, [1 / Fraction(f).limit_denominator(_FINEST) for f in factors]
    return sizes, [Fraction(n, new) for n, new in zip(old, sizes, strict=True)]


def _each(given: Any, count: int, name: str) -> list[Any]:
    """An argument for each spatial axis, or one for all."""
    each = list(given) if isinstance(given, Sequence) else [given] * count
    if len(each) != count:
        raise ShapeError(f"{name} {given!r} has not a number for each of {count} spatial axes")
    return each


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Where a grid of `size` lies under the affine maps `theta`, for `grid_sample`.

    Args:
        theta: (batch, 2, 3) or (batch, 3, 4).
        size: (batch, channels, *spatial) of the result of `grid_sample`.
        align_corners: whether -1 and 1 are the centers of the outer elements, or their edges.

    Returns:
        (batch, *spatial, 2 or 3), the last axis in the order x, y, z.
    """
    sizes = [integer(n, "size") for n in size]
    axes = len(sizes) - 2
    if axes not in (2, 3) or theta.shape != (sizes[0], axes, axes + 1) or min(sizes) < 1:
        raise ShapeError(
            f"affine_grid to {sizes} takes theta of shape (batch, n, n + 1) with n = 2 or 3 "
            f"spatial axes, got {list(theta.shape)}"
        )
    if not theta.dtype.is_float:
        raise DTypeError(f"theta of affine_grid must be of floats, got {theta.dtype.name}")
    spatial = tuple(sizes[2:])
    grid = theta[:, :, axes].reshape(sizes[0], *(1,) * axes, axes)
    for axis, count in enumerate(spatial):
        line = _line(count, bool(align_corners), theta)
        across = line.reshape(*(count if a == axis else 1 for a in range(axes)), 1)
        # x, the last spatial axis, comes first.
        factors = theta[:, :, axes - 1 - axis].reshape(sizes[0], *(1,) * axes, axes)
        grid = grid + across * factors
    return grid.expand(sizes[0], *spatial, axes)


def _line(count: int, align_corners: bool, like: Tensor) -> Tensor:
    """`count` places in -1..1."""
    last = count - 1 if align_corners else count
    places = Tensor.arange(count, device=like.device).mul(2).sub(count - 1)
    return places.cast(like.dtype).div(max(last, 1))


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """input read where `grid` says.

    Args:
        input: (batch, channels, *spatial), with two or three spatial axes.
        grid: (batch, *out, 2 or 3): places in -1..1 in the order x, y, z.
        mode: "bilinear" mixes the neighbours along each axis, "nearest" takes the nearest one,
            "bicubic", of two axes, mixes four along each.
        padding_mode: what lies outside: "zeros", "border" for the nearest inside, "reflection".
        align_corners: whether -1 and 1 are the centers of the outer elements, or their edges.

    Returns:
        (batch, channels, *out).
    """
    axes = input.ndim - 2
    choice(mode, "mode", ("bilinear", "nearest", "bicubic"))
    choice(padding_mode, "padding_mode", ("zeros", "border", "reflection"))
    if axes not in (2, 3) or (mode == "bicubic" and axes != 2):
        raise ShapeError(
            f"grid_sample by {mode!r} takes (batch, channels, *spatial) with 2 "
            f"{'' if mode == 'bicubic' else 'or 3 '}spatial axes, got shape {list(input.shape)}"
        )
    if grid.ndim != input.ndim or grid.shape[0] != input.shape[0] or grid.shape[-1] != axes:
        raise ShapeError(
            f"grid must have the shape ({input.shape[0]}, *out, {axes}) for input of shape "
            f"{list(input.shape)}, got {list(grid.shape)}"
        )
    if 0 in input.shape[2:]:
        raise ShapeError(f"input of shape {list(input.shape)} has nothing to read")
    if grid.dtype is not input.dtype or not input.dtype.is_float:
        raise DTypeError(
            f"input and grid must be of one float dtype, got {input.dtype.name} and "
            f"{grid.dtype.name}"
        )
    batch, channels, *sizes = input.shape
    flat = input.cast(accumulator(input.dtype)).reshape(batch, channels, math.prod(sizes))
    taps = []
    for axis, size in enumerate(sizes):
        place = grid[..., axes - 1 - axis].reshape(batch, -1).cast(flat.dtype)
        along = _Axis(size, padding_mode, bool(align_corners))
        taps.append(along.taps(along.position(place), mode))
    total = flat[:, :, :1].mul(0).expand(batch, channels, math.prod(grid.shape[1:-1]))
    for combination in itertools.product(*taps):
        total = total.add(_read(flat, sizes, combination))
    return total.reshape(batch, channels, *grid.shape[1:-1]).cast(input.dtype)


# Of a neighbour along an axis: where it is, and its weight.
_Tap: TypeAlias = "tuple[Tensor, Tensor]"


def _read(flat: Tensor, sizes: Sequence[int], taps: Sequence[_Tap]) -> Tensor:
    """One neighbour of each place times its weight; 0 where it lies outside."""
    inside: Tensor | None = None
    index: Tensor | None = None
    weight: Tensor | None = None
    for size, (at, share) in zip(sizes, taps, strict=True):
        within = at.ge(0).bitwise_and(at.lt(size))
        inside = within if inside is None else inside.bitwise_and(within)
        index = at if index is None else index.mul(size).add(at)
        weight = share if weight is None else weight.mul(share)
    assert inside is not None and index is not None and weight is not None
    batch, channels, _ = flat.shape
    shape = (batch, channels, index.shape[1])
    # What lies outside the axis reads 0, and its gradient goes nowhere.
    places = inside.where(index, -1).unsqueeze(1).expand(shape)
    values = flat._taken(places, 2).mul(weight.unsqueeze(1))
    return inside.unsqueeze(1).expand(shape).where(values, 0)


class _Axis(NamedTuple):
    """An axis of the input of `grid_sample`.

    Attributes:
        size: its elements.
        padding: what lies outside, as `padding_mode`.
        aligned: whether -1 and 1 are the centers of the outer elements.
    """

    size: int
    padding: str
    aligned: bool

    def position(self, place: Tensor) -> Tensor:
        """A place in -1..1 in elements."""
        if self.aligned:
            return place.add(1).mul((self.size - 1) / 2)
        return place.add(1).mul(self.size).sub(1).div(2)

    def inside(self, position: Tensor) -> Tensor:
        """The place inside that one outside stands for; with "zeros" itself."""
        if self.padding == "reflection":
            position = self._reflected(position)
        return position if self.padding == "zeros" else position.hardtanh(0, self.size - 1)

    def _reflected(self, position: Tensor) -> Tensor:
        low, span = (0.0, self.size - 1) if self.aligned else (-0.5, self.size)
        if span == 0:
            return position.mul(0)
        distance = position.sub(low).abs()
        turns = distance.detach().div(span).floor()
        rest = distance.sub(turns.mul(span))
        even = turns.mul(0.5).floor().mul(2).eq(turns)
        return even.where(rest, rest.sub(span, reverse=True)).add(low)

    def taps(self, position: Tensor, mode: str) -> list[_Tap]:
        """The neighbours of a position."""
        if mode == "bicubic":
            below, share = _split(position)
            weights = enumerate(cubic_weights(share), start=-1)
            return [(self._whole(self.inside(below.add(n))), weight) for n, weight in weights]
        position = self.inside(position)
        if mode == "nearest":
            # As in torch the gradient of the grid is 0, and not missing.
            one = Tensor._wrap(G.flat(position._filled(1)._node, position._node))
            return [(self._whole(position.detach().round()), one)]
        below, share = _split(position)
        first, second = self._whole(below), self._whole(below.add(1))
        return [(first, share.sub(1, reverse=True)), (second, share)]

    def _whole(self, position: Tensor) -> Tensor:
        """A whole float as int32, of which one far outside or NaN is just outside."""
        near = position.detach().clamp(-1, self.size)
        return near.isnan().where(-1, near).cast(dtypes.int32)


def _split(position: Tensor) -> tuple[Tensor, Tensor]:
    """The whole number below, and how far from it the position is."""
    below = position.detach().floor()
    return below, position.sub(below)
