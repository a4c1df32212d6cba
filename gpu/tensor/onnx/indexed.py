"""ONNX's operators that take elements by index. Parameters are named as inputs and attributes."""

from __future__ import annotations

import math
from typing import Any, Final

from gpu.core.dtype import dtypes
from gpu.tensor.onnx.values import Value, one
from gpu.tensor.tensor import Tensor

_REDUCTIONS: Final = {b"add": "sum", b"mul": "prod", b"max": "amax", b"min": "amin"}


def _from_front(indices: Tensor, size: int) -> Tensor:
    """Places that may be counted from the back."""
    indices = indices.cast(dtypes.int64)
    return (indices < 0).where(indices + size, indices)


def gather(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Slices of an axis by index."""
    axis %= data.ndim
    places = _from_front(indices, data.shape[axis])
    taken = data.index_select(axis, places.flatten() if places.ndim != 1 else places)
    return taken.reshape((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))


def gather_elements(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Along an axis the element that each index names."""
    return data.gather(axis, _from_front(indices, data.shape[axis]))


def gather_nd(data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """What tuples of indices name, in each of the batches."""
    places = indices.cast(dtypes.int64)
    count = places.shape[-1]
    named = [_from_front(places[..., i], data.shape[batch_dims + i]) for i in range(count)]
    for axis in range(batch_dims):
        own = Tensor.arange(data.shape[axis], device=data.device)
        shape = [1] * (places.ndim - 1)
        shape[axis] = -1
        named.insert(axis, own.reshape(*shape))
    return data[tuple(named)]


def scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: bytes = b"none"
) -> Tensor:
    """Elements put along an axis where each index names, or combined with what is there."""
    places = _from_front(indices, data.shape[axis])
    if reduction == b"none":
        return data.scatter(axis, places, updates)
    return data.scatter_reduce(axis, places, updates, _REDUCTIONS[reduction])


def scatter_nd(
    data: Tensor, indices: Tensor, updates: Tensor, *, reduction: bytes = b"none"
) -> Tensor:
    """Slices put where tuples of indices name, or combined with what is there."""
    depth = indices.shape[-1]
    strides = [math.prod(data.shape[i + 1 : depth]) for i in range(depth)]
    places: Any = sum(
        _from_front(indices[..., i], data.shape[i]) * strides[i] for i in range(depth)
    )
    inner = data.shape[depth:]
    rows = data.reshape(math.prod(data.shape[:depth]), math.prod(inner))
    given = updates.reshape(-1, math.prod(inner))
    at = places.reshape(-1, 1).broadcast_to(given.shape)
    if reduction == b"none":
        return rows.scatter(0, at, given).reshape(data.shape)
    return rows.scatter_reduce(0, at, given, _REDUCTIONS[reduction]).reshape(data.shape)


def one_hot(indices: Tensor, depth: Value, values: Tensor, *, axis: int = -1) -> Tensor:
    """values[1] where an index along a new axis names it, else values[0]."""
    count = int(one(depth, "depth"))
    axis = axis % (indices.ndim + 1)
    places = _from_front(indices, count).unsqueeze(axis)
    shape = [1] * places.ndim
    shape[axis] = count
    at = Tensor.arange(count, device=indices.device).reshape(*shape)
    return (places == at).where(values[1], values[0])


def non_zero(x: Tensor) -> Tensor:
    """The places that are not 0, a row for each axis; they are counted on the device first."""
    return x.nonzero().T.cast(dtypes.int64)


def compress(input: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """The slices of an axis, or elements, where a condition holds."""
    rows = input.flatten() if axis is None else input
    place = axis or 0
    chosen = condition.nonzero().flatten()
    return rows.index_select(place, chosen)


def unique(x: Tensor, *, axis: int | None = None, sorted: int = 1) -> tuple[Tensor, ...]:
    """Each value once: in order, or as they come; where first, which each is, how often."""
    values, first, inverse, counts = x.unique(
        True, return_inverse=True, return_counts=True, return_index=True, dim=axis
    )
    if not sorted:
        order = first.argsort()
        back = order.argsort()
        values = values.index_select(axis or 0, order)
        inverse, counts, first = back[inverse], counts[order], first[order]
    return (
        values,
        first.cast(dtypes.int64),
        inverse.flatten().cast(dtypes.int64),
        counts.cast(dtypes.int64),
    )


def tensor_scatter(
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: bytes = b"linear",
) -> Tensor:
    """A cache with new rows of each batch from a place on, around the end with mode "circular"."""
    axis %= past_cache.ndim
    count, size = update.shape[axis], past_cache.shape[axis]
    shape = [1] * past_cache.ndim
    shape[axis] = count
    places = Tensor.arange(count, device=update.device).reshape(*shape)
    if write_indices is not None:
        places = places + write_indices.reshape(-1, *[1] * (past_cache.ndim - 1))
    if mode == b"circular":
        places = places % size
    return past_cache.scatter(axis, places.cast(dtypes.int64).broadcast_to(update.shape), update)


def array_feature_extractor(x: Tensor, y: Tensor) -> Tensor:
    """Columns of the last axis by index."""
    return x.reshape(-1, x.shape[-1]).index_select(1, y.flatten())


def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Value = None,
    iou_threshold: Value = None,
    score_threshold: Value = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """Boxes, the best first, none of which overlaps a better one of its class by more than a share.

    How many there are is known once their values are, so they are read: not in a `jit`.
    """
    most = 0 if max_output_boxes_per_class is None else int(one(max_output_boxes_per_class, "max"))
    share = 0.0 if iou_threshold is None else float(one(iou_threshold, "iou_threshold"))
    least = None if score_threshold is None else float(one(score_threshold, "score_threshold"))
    overlaps = _overlaps(boxes, center_point_box).numpy()
    points = scores.numpy()
    found = []
    for batch in range(points.shape[0]):
        for kind in range(points.shape[1]):
            kept: list[int] = []
            for place in (-points[batch, kind]).argsort(kind="stable"):
                if len(kept) == most:
                    break
                if least is not None and points[batch, kind, place] <= least:
                    break
                if all(overlaps[batch, place, other] <= share for other in kept):
                    kept.append(int(place))
            found += [[batch, kind, place] for place in kept]
    return Tensor(found, dtype=dtypes.int64, device=boxes.device).reshape(-1, 3)


def _overlaps(boxes: Tensor, centered: int) -> Tensor:
    """The shares of areas that each two boxes have in common: (batch, boxes, boxes)."""
    a, b = boxes[..., :2], boxes[..., 2:]
    low, high = (a - b / 2, a + b / 2) if centered else (a.minimum(b), a.maximum(b))
    inner = high.unsqueeze(2).minimum(high.unsqueeze(1)) - low.unsqueeze(2).maximum(
        low.unsqueeze(1)
    )
    common = inner.clamp(0, None).prod(-1)
    area = (high - low).prod(-1)
    return common / (area.unsqueeze(2) + area.unsqueeze(1) - common)
