"""ONNX's pools, resizing and sampling of images. Parameters are named as inputs and attributes."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.core.dtype import accumulator, dtypes
from gpu.core.errors import InvalidValue, Unsupported
from gpu.tensor.nn import grids as G
from gpu.tensor.onnx.movement import axes_in_order
from gpu.tensor.onnx.products import along, spatial, window_pads
from gpu.tensor.onnx.values import Array, Value, ints
from gpu.tensor.tensor import Tensor

_SAMPLING: Final = {
    b"bilinear": "bilinear", b"linear": "bilinear", b"nearest": "nearest", b"bicubic": "bicubic",
    b"cubic": "bicubic",
}  # fmt: skip


class _Window(NamedTuple):
    """How a pool's windows lie, as `Tensor.max_pool2d` and `avg_pool2d` take it.

    Attributes:
        stride, dilation: of each axis.
        padding: in front and behind, from the last axis on.
    """

    stride: list[int]
    dilation: list[int]
    padding: list[int]


def _window(
    x: Tensor, kernel: list[int], auto_pad: bytes, pads: list[int] | None,
    strides: list[int] | None, dilations: list[int] | None,
) -> _Window:  # fmt: skip
    count = spatial(x.ndim, "a pool")
    strides, dilations = strides or [1] * count, dilations or [1] * count
    widths = window_pads(auto_pad, pads, x.shape[2:], kernel, strides, dilations)
    return _Window(strides, dilations, [n for pair in reversed(widths) for n in pair])


def max_pool(
    x: Tensor, *, kernel_shape: list[int], auto_pad: bytes = b"NOTSET", ceil_mode: int = 0,
    dilations: list[int] | None = None, pads: list[int] | None = None, storage_order: int = 0,
    strides: list[int] | None = None, outputs: int = 1,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The largest of each window, and where in the whole tensor it is."""
    window = _window(x, kernel_shape, auto_pad, pads, strides, dilations)
    if outputs == 1:
        return x.max_pool2d(kernel_shape, *window, bool(ceil_mode))
    values, places = x.max_pool2d(kernel_shape, *window, bool(ceil_mode), return_indices=True)
    sizes = x.shape[2:]
    if storage_order:  # counted down columns, so that the first axis is the innermost
        turned = np.arange(math.prod(sizes)).reshape(sizes[::-1]).T.reshape(-1)
        places = Tensor(turned, device=x.device)[places]
    planes = Tensor.arange(math.prod(x.shape[:2]), device=x.device).cast(dtypes.int64)
    planes = planes.reshape(*x.shape[:2], *[1] * len(sizes))
    return values, places + planes * math.prod(sizes)


def average_pool(
    x: Tensor, *, kernel_shape: list[int], auto_pad: bytes = b"NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, dilations: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each window, of the padding too with `count_include_pad`."""
    window = _window(x, kernel_shape, auto_pad, pads, strides, dilations)
    return x.avg_pool2d(kernel_shape, *window, bool(ceil_mode), bool(count_include_pad))


def lp_pool(
    x: Tensor, *, kernel_shape: list[int], auto_pad: bytes = b"NOTSET", ceil_mode: int = 0,
    dilations: list[int] | None = None, p: int = 2, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """The p-norm of each window."""
    window = _window(x, kernel_shape, auto_pad, pads, strides, dilations)
    powers = x.abs().pow(p)
    total = powers.avg_pool2d(kernel_shape, *window, bool(ceil_mode), divisor_override=1)
    return total.pow(1 / p)


def max_unpool(
    x: Tensor, i: Tensor, output_shape: Value = None, *, kernel_shape: list[int],
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """What `max_pool` took, at its places in the image before; 0 elsewhere."""
    count = spatial(x.ndim, "a pool")
    strides, listed = strides or [1] * count, pads or [0] * 2 * count
    sizes = [
        (n - 1) * s + k - listed[a] - listed[count + a]
        for a, (n, k, s) in enumerate(zip(x.shape[2:], kernel_shape, strides, strict=True))
    ]
    own = [*x.shape[:2], *sizes]
    flat = Tensor.zeros(math.prod(own), dtype=x.dtype, device=x.device)
    flat = flat.scatter(0, i.flatten(), x.flatten())
    if output_shape is None:
        return flat.reshape(*own)
    wanted = ints(output_shape, "output_shape")
    image = flat.reshape(*own)
    return image.pad([(0, b - a) for a, b in zip(own, wanted, strict=True)])


def global_pool(average: bool) -> Any:
    """The mean, or the largest, over all of an image."""

    def operator(x: Tensor) -> Tensor:
        axes = tuple(range(2, x.ndim))
        return x.mean(axes, True) if average else x.amax(axes, True)

    return operator


def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: bytes = b"bilinear",
    padding_mode: bytes = b"zeros",
) -> Tensor:  # fmt: skip
    """The image at places from -1 to 1."""
    return G.grid_sample(x, grid, _SAMPLING[mode], padding_mode.decode(), bool(align_corners))


def affine_grid(theta: Tensor, size: Value, *, align_corners: int = 0) -> Tensor:
    """Places of an image after an affine map, for `grid_sample`."""
    return G.affine_grid(theta, ints(size, "size"), bool(align_corners))


def resize(
    x: Tensor, roi: Value = None, scales: Value = None, sizes: Value = None, *,
    antialias: int = 0, axes: list[int] | None = None,
    coordinate_transformation_mode: bytes = b"half_pixel", cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: bytes = b"stretch", mode: bytes = b"nearest",
    nearest_mode: bytes = b"round_prefer_floor", opset: int,
) -> Tensor:  # fmt: skip
    """An image of another size, axis by axis, by reading between the elements."""
    if opset < 11:  # the first version had scales as its second input, and simpler rules
        scales, roi = roi, None
        coordinate_transformation_mode, nearest_mode = b"asymmetric", b"floor"
    listed = axes_in_order(None if axes is None else np.array(axes), x.ndim)
    factors, lengths = _scales(x, listed, scales, sizes, keep_aspect_ratio_policy)
    corners = _floats(roi) if coordinate_transformation_mode == b"tf_crop_and_resize" else None
    outside = None
    for i, axis in enumerate(listed):
        length = x.shape[axis]
        if lengths[i] == length and factors[i] == 1 and corners is None:
            continue
        span = (corners[i], corners[len(listed) + i]) if corners else None
        places = _places(
            coordinate_transformation_mode, x.shape[axis], lengths[i], factors[i], span
        )
        if mode == b"nearest":
            x = x.index_select(
                axis, Tensor(_nearest(places, x.shape[axis], nearest_mode), device=x.device)
            )
        else:
            reach = factors[i] if antialias and factors[i] < 1 else 1.0
            taps, weights = _weights(mode, places, length, reach, cubic_coeff_a, exclude_outside)
            # In memory: the work of the axes adds up, nested it would multiply.
            x = _mixed(x, axis, taps, weights).contiguous()
        if span:
            beyond = _along_axis((places < 0) | (places > length - 1), axis, x)
            outside = beyond if outside is None else outside | beyond
    return x if outside is None else outside.where(extrapolation_value, x)


def _along_axis(values: Array, axis: int, x: Tensor) -> Tensor:
    """Values of one axis of x, to broadcast along it."""
    return along(Tensor(values, device=x.device), x.ndim, axis)


def _floats(value: Value) -> list[float]:
    if isinstance(value, Tensor):
        value = value.numpy()
    assert isinstance(value, np.ndarray), value
    return [float(item) for item in value.reshape(-1)]


def _scales(
    x: Tensor, along: list[int], scales: Value, sizes: Value, policy: bytes
) -> tuple[list[float], list[int]]:
    """For each axis the factor and the new size."""
    own = [x.shape[axis] for axis in along]
    listed = [] if scales is None else _floats(scales)
    if listed:
        return listed, [math.floor(n * factor) for n, factor in zip(own, listed, strict=True)]
    if sizes is None:
        raise InvalidValue("Resize has neither scales nor sizes; it has to have one")
    wanted = ints(sizes, "sizes")
    factors = [size / n for size, n in zip(wanted, own, strict=True)]
    if policy != b"stretch":
        one = (min if policy == b"not_larger" else max)(factors)
        factors = [one] * len(own)
        wanted = [math.floor(one * n + 0.5) for n in own]
    return factors, wanted


def _places(
    how: bytes, old: int, new: int, factor: float, span: tuple[float, float] | None
) -> Array:
    """Where each new pixel is among the old ones."""
    at = np.arange(new, dtype=np.float64)
    wide = factor * old  # the size that was asked for, before it was rounded
    match how:
        case b"half_pixel":
            return (at + 0.5) / factor - 0.5
        case b"half_pixel_symmetric":
            adjusted = new / wide
            return old / 2 * (1 - adjusted) + (at + 0.5) / factor - 0.5
        case b"pytorch_half_pixel":
            return (at + 0.5) / factor - 0.5 if new > 1 else np.zeros(new)
        case b"align_corners":
            return at * (old - 1) / (wide - 1) if new > 1 else np.zeros(new)
        case b"asymmetric":
            return at / factor
        case b"tf_half_pixel_for_nn":
            return (at + 0.5) / factor
        case b"tf_crop_and_resize":
            assert span is not None
            start, end = span
            if new > 1:
                return start * (old - 1) + at * (end - start) * (old - 1) / (wide - 1)
            return np.full(new, 0.5 * (start + end) * (old - 1))
    raise Unsupported(f"Resize with coordinates by {how.decode()!r}, which ONNX does not name")


def _nearest(places: Array, size: int, how: bytes) -> Array:
    match how:
        case b"round_prefer_floor":
            chosen = np.ceil(places - 0.5)
        case b"round_prefer_ceil":
            chosen = np.floor(places + 0.5)
        case b"floor":
            chosen = np.floor(places)
        case b"ceil":
            chosen = np.ceil(places)
        case _:
            raise Unsupported(
                f"Resize to the nearest by {how.decode()!r}, which ONNX does not name"
            )
    return np.clip(chosen, 0, size - 1).astype(np.int64)


def _weights(
    mode: bytes, places: Array, size: int, reach: float, a: float, exclude_outside: int
) -> tuple[Array, Array]:
    """The old pixels around each new one, and their weights: (taps, places) each."""
    if mode == b"linear":
        radius = 1
    elif mode == b"cubic":
        radius = 2
    else:
        raise Unsupported(f"Resize by {mode.decode()!r}; nearest, linear and cubic are computed")
    wide = math.ceil(radius / reach)
    taps = np.arange(1 - wide, 1 + wide)[:, None] + np.floor(places).astype(np.int64)
    distance = np.abs(taps - places) * reach
    if mode == b"linear":
        weights = np.clip(1 - distance, 0, None)
    else:
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    if exclude_outside:
        weights = weights * ((taps >= 0) & (taps < size))
    total = weights.sum(0)
    return np.clip(taps, 0, size - 1), weights / np.where(total == 0, 1, total)


def _mixed(x: Tensor, axis: int, taps: Array, weights: Array) -> Tensor:
    """Each place of an axis as a sum of others, in the dtype of x."""
    kind = accumulator(x.dtype) if x.dtype.is_float else dtypes.float32
    parts = [
        x.index_select(axis, Tensor(at, device=x.device)).cast(kind)
        * along(Tensor(weight, dtype=kind, device=x.device), x.ndim, axis)
        for at, weight in zip(taps, weights, strict=True)
    ]
    return reduce(Tensor.add, parts).cast(x.dtype)


def roi_align(
    x: Tensor, rois: Tensor, batch_indices: Tensor, *,
    coordinate_transformation_mode: bytes | None = None, mode: bytes = b"avg",
    output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0, opset: int,
) -> Tensor:  # fmt: skip
    """Regions of images, each as a grid of means or largest of samples between pixels.

    With `sampling_ratio` 0 the number of samples is by each region's size, which is read.
    """
    how = coordinate_transformation_mode or (b"half_pixel" if opset >= 16 else b"output_half_pixel")
    shift = 0.5 if how == b"half_pixel" else 0.0
    boxes = rois.numpy() * spatial_scale - shift
    images = ints(batch_indices, "batch_indices")
    result = []
    for box, image in zip(boxes, images, strict=True):
        left, top, right, bottom = (float(v) for v in box)
        width, height = right - left, bottom - top
        if how != b"half_pixel":
            width, height = max(width, 1.0), max(height, 1.0)
        rows, matrix_y = _samples(top, height, output_height, sampling_ratio, x.shape[2])
        columns, matrix_x = _samples(left, width, output_width, sampling_ratio, x.shape[3])
        y = Tensor(matrix_y.astype(np.float32), device=x.device).cast(x.dtype)
        z = Tensor(matrix_x.astype(np.float32), device=x.device).cast(x.dtype)
        if mode == b"avg":
            samples = y @ x[image] @ z.T
            shape = (-1, output_height, rows, output_width, columns)
            result.append(samples.reshape(*shape).mean((2, 4)))
        else:
            result.append(_largest(x[image], matrix_y, matrix_x, rows, columns))
    return Tensor.stack(*result)


def _samples(start: float, length: float, count: int, ratio: int, size: int) -> tuple[int, Array]:
    """How many samples each cell has, and what weights pixels have in each sample."""
    each = ratio or math.ceil(length / count)
    cell = length / count
    at = (
        start
        + np.arange(count * each) // each * cell
        + (np.arange(count * each) % each + 0.5) * cell / each
    )
    matrix = np.zeros((count * each, size))
    for row, place in enumerate(at):
        if -1.0 <= place <= size:
            inside = min(max(place, 0.0), size - 1.0)
            low = int(inside)
            matrix[row, low] += 1 - (inside - low)
            matrix[row, min(low + 1, size - 1)] += inside - low
    return each, matrix


def _largest(x: Tensor, matrix_y: Array, matrix_x: Array, rows: int, columns: int) -> Tensor:
    """With mode "max": the largest of the weighted pixels around all samples of a cell."""
    h, w = matrix_y.shape[0], matrix_x.shape[0]
    best = None
    for ny in range(2):
        for nx in range(2):
            y, wy = _tap(matrix_y, ny)
            z, wx = _tap(matrix_x, nx)
            taken = x.index_select(1, Tensor(y, device=x.device))
            taken = taken.index_select(2, Tensor(z, device=x.device))
            weight = Tensor((wy[:, None] * wx[None, :]).astype(np.float32), device=x.device)
            value = taken * weight.cast(x.dtype)
            best = value if best is None else best.maximum(value)
    assert best is not None
    return best.reshape(-1, h // rows, rows, w // columns, columns).amax((2, 4))


def _tap(matrix: Array, number: int) -> tuple[Array, Array]:
    """The first or the second pixel of each row of weights, and its weight."""
    first = (matrix != 0).argmax(1)
    place = np.minimum(first + number, matrix.shape[1] - 1)
    weight = matrix[np.arange(len(matrix)), place] * ((place != first) | (number == 0))
    return place.astype(np.int64), weight


def upsample(
    x: Tensor, scales: Value = None, *, mode: bytes = b"nearest", opset: int, **attribute: Any
) -> Tensor:
    """`resize` as it was before version 10."""
    if scales is None:
        scales = np.array(attribute["scales"], np.float32)
    return resize(x, scales, mode=mode, opset=10)
