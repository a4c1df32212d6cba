"""ONNX's operators that move elements. Parameters are named as inputs and attributes are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from gpu.core.dtype import dtypes
from gpu.core.errors import InvalidValue
from gpu.tensor.onnx.values import Array, Value, axes_of, dtype_of, ints, one
from gpu.tensor.tensor import Tensor

Ints = Value | Sequence[int]

_PAD_MODES = {
    b"constant": "constant",
    b"reflect": "reflect",
    b"edge": "replicate",
    b"wrap": "circular",
}


def _listed(value: Ints, what: str) -> list[int]:
    return value if isinstance(value, list) else ints(value, what)  # type: ignore[arg-type]


def shape(data: Value, *, start: int = 0, end: int | None = None) -> Array:
    """The sizes of a tensor, or of some of its axes."""
    assert isinstance(data, (Tensor, np.ndarray))
    return np.array(data.shape[start:end], np.int64)


def size(data: Value) -> Array:
    """How many elements there are."""
    assert isinstance(data, (Tensor, np.ndarray))
    return np.array(math.prod(data.shape), np.int64)


def reshape(data: Tensor, shape: Ints = None, *, allowzero: int = 0) -> Tensor:
    """Of another shape: -1 is what is left, 0 what `data` has there, or 0 with `allowzero`."""
    sizes = _listed(shape, "shape")
    if not allowzero:
        sizes = [data.shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    return data.reshape(tuple(sizes))


def flatten(input: Tensor, *, axis: int = 1) -> Tensor:
    """A matrix: the axes before `axis`, and those from it on."""
    axis = axis + input.ndim if axis < 0 else axis
    return input.reshape(math.prod(input.shape[:axis]), math.prod(input.shape[axis:]))


def squeeze(data: Tensor, axes: Ints = None) -> Tensor:
    """Without axes of size 1: all, or those listed."""
    if axes is None:
        return data.squeeze()
    return data.squeeze(tuple(_listed(axes, "axes")))


def unsqueeze(data: Tensor, axes: Ints) -> Tensor:
    """With more axes of size 1, counted in the result."""
    listed = _listed(axes, "axes")
    for axis in axes_of(listed, data.ndim + len(listed)):
        data = data.unsqueeze(axis)
    return data


def transpose(data: Tensor, *, perm: list[int] | None = None) -> Tensor:
    """Axes in another order, or in the reversed one."""
    return data.permute(tuple(range(data.ndim)[::-1] if perm is None else perm))


def concat(*inputs: Tensor, axis: int) -> Tensor:
    """One behind the other."""
    return Tensor.cat(*inputs, dim=axis)


def split(
    input: Tensor,
    split: Ints = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    outputs: int,
) -> tuple[Tensor, ...]:
    """Cut along an axis: in pieces of given sizes, or in equal ones but for the last."""
    if split is not None:
        return input.split(_listed(split, "split"), axis)
    length, count = input.shape[axis], num_outputs or outputs
    piece = -(-length // count)
    sizes = [piece] * (count - 1)
    return input.split([*sizes, length - sum(sizes)], axis)


def slice_(data: Tensor, starts: Ints, ends: Ints, axes: Ints = None, steps: Ints = None) -> Tensor:
    """From `starts` to `ends` of some axes, each cut to what there is."""
    begin, end = _listed(starts, "starts"), _listed(ends, "ends")
    along = list(range(len(begin))) if axes is None else _listed(axes, "axes")
    step = [1] * len(begin) if steps is None else _listed(steps, "steps")
    places: list[slice] = [slice(None)] * data.ndim
    for axis, first, last, stride in zip(along, begin, end, step, strict=True):
        # An end before the first place cannot be written for Python: it counts from the back.
        none = last < -data.shape[axis] and stride < 0
        places[axis] = slice(first, None if none else last, stride)
    return data[tuple(places)]


def expand(input: Tensor, shape: Value) -> Tensor:
    """Broadcast to the shape that both give."""
    return input.broadcast_to(np.broadcast_shapes(input.shape, tuple(ints(shape, "shape"))))


def tile(input: Tensor, repeats: Value) -> Tensor:
    """Repeated along each axis."""
    return input.repeat(tuple(ints(repeats, "repeats")))


def pad(
    data: Tensor,
    pads: Ints = None,
    constant_value: Value | float = None,
    axes: Value = None,
    *,
    mode: bytes = b"constant",
    value: float = 0.0,
    paddings: list[int] | None = None,
) -> Tensor:
    """With more in front and behind; negative numbers cut off."""
    listed = _listed(pads if paddings is None else paddings, "pads")
    along = axes_in_order(axes, data.ndim)
    widths = [(0, 0)] * data.ndim
    for i, axis in enumerate(along):
        widths[axis] = (listed[i], listed[i + len(along)])
    if constant_value is not None:
        value = (
            one(constant_value, "constant_value")
            if not isinstance(constant_value, float)
            else constant_value
        )
    # What is cut off comes first: the other modes repeat what is left.
    cut = [(max(0, -a), n + min(0, b)) for (a, b), n in zip(widths, data.shape, strict=True)]
    kept = data.shrink(cut)
    added = [(max(0, a), max(0, b)) for a, b in widths]
    name = _PAD_MODES[mode]
    if name == "constant":
        return kept.pad(added, value=value)
    return _padded_by_places(kept, added, name)


def _padded_by_places(data: Tensor, widths: list[tuple[int, int]], mode: str) -> Tensor:
    for axis, (before, behind) in enumerate(widths):
        if before or behind:
            n = data.shape[axis]
            kind = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
            places = np.pad(np.arange(n), (before, behind), mode=kind)  # type: ignore[call-overload]
            data = data.index_select(axis, Tensor(places, device=data.device))
    return data


def axes_in_order(axes: Value, rank: int) -> list[int]:
    """The axes that are listed, counted from the front, or all."""
    return list(range(rank)) if axes is None else [axis % rank for axis in ints(axes, "axes")]


def constant_of_shape(input: Value, *, value: Array | Tensor | None = None, device: str) -> Tensor:
    """One value everywhere, float32's 0 where none is said."""
    shape = ints(input, "the shape")
    if value is None:
        return Tensor.zeros(tuple(shape), device=device)
    number = one(value, "value")
    return Tensor.full(tuple(shape), number, dtype=Tensor(value).dtype, device=device)


def eye_like(input: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """1 on a diagonal."""
    rows, columns = input.shape
    kind = input.dtype if dtype is None else dtype_of(dtype)
    at = Tensor.arange(columns, device=input.device) - Tensor.arange(
        rows, device=input.device
    ).unsqueeze(1)
    return (at == k).cast(kind)


def range_(start: Tensor, limit: Tensor, delta: Tensor, *, device: str) -> Tensor:
    """From `start` on in steps of `delta`, before `limit`."""
    first, last, step = (one(value, "a bound of Range") for value in (start, limit, delta))
    count = max(0, math.ceil((last - first) / step))
    kind = start.dtype if isinstance(start, Tensor) else Tensor(start).dtype
    steps: Tensor = Tensor.arange(count, device=device).cast(kind) * step
    shifted: Tensor = steps + first
    return shifted.cast(kind)


def trilu(input: Tensor, k: Value = None, *, upper: int = 1) -> Tensor:
    """One triangle of each matrix, 0 in the other."""
    diagonal = 0 if k is None else one(k, "k")
    return input.triu(diagonal) if upper else input.tril(diagonal)


def depth_to_space(input: Tensor, *, blocksize: int, mode: bytes = b"DCR") -> Tensor:
    """Channels as blocks of pixels."""
    n, c, h, w = input.shape
    b, rest = blocksize, c // blocksize**2
    if mode == b"DCR":
        x = input.reshape(n, b, b, rest, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        x = input.reshape(n, rest, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(n, rest, h * b, w * b)


def space_to_depth(input: Tensor, *, blocksize: int, mode: bytes = b"DCR") -> Tensor:
    """Blocks of pixels as channels."""
    n, c, h, w = input.shape
    b = blocksize
    x = input.reshape(n, c, h // b, b, w // b, b)
    x = x.permute(0, 3, 5, 1, 2, 4) if mode == b"DCR" else x.permute(0, 1, 3, 5, 2, 4)
    return x.reshape(n, c * b * b, h // b, w // b)


def center_crop_pad(input_data: Tensor, shape: Value, *, axes: list[int] | None = None) -> Tensor:
    """Cut or padded on both ends to a shape; the end takes the odd one."""
    along = range(input_data.ndim) if axes is None else [a % input_data.ndim for a in axes]
    for axis, wanted in zip(along, ints(shape, "shape"), strict=True):
        n = input_data.shape[axis]
        before = abs(wanted - n) // 2
        whole = [(0, size) for size in input_data.shape]
        if wanted < n:
            whole[axis] = (before, before + wanted)
            input_data = input_data.shrink(whole)
        elif wanted > n:
            widths = [(0, 0)] * input_data.ndim
            widths[axis] = (before, wanted - n - before)
            input_data = input_data.pad(widths)
    return input_data


def reverse_sequence(
    input: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    """The first elements of each sequence, as many as are said, the other way round."""
    x = input.moveaxis((time_axis, batch_axis), (0, 1))
    at = Tensor.arange(x.shape[0], device=x.device).unsqueeze(1)
    lengths = sequence_lens.cast(dtypes.int32).unsqueeze(0)
    places = (at < lengths).where(lengths - 1 - at, at)
    places = places.reshape((*places.shape, *(1,) * (x.ndim - 2))).broadcast_to(x.shape)
    return x.gather(0, places).moveaxis((0, 1), (time_axis, batch_axis))


def split_to_sequence(
    input: Tensor, split: Value = None, *, axis: int = 0, keepdims: int = 1
) -> list[Tensor]:
    """Pieces along an axis as a sequence: of one each, of a size, or of given sizes."""
    n = input.shape[axis]
    if split is None:
        pieces = list(input.split(1, axis))
        return pieces if keepdims else [piece.squeeze(axis) for piece in pieces]
    sizes = ints(split, "split")
    if isinstance(split, (Tensor, np.ndarray)) and not split.shape:
        if sizes[0] < 1:
            raise InvalidValue(f"SplitToSequence in pieces of {sizes[0]}; they have one or more")
        sizes = [min(sizes[0], n - at) for at in range(0, n, sizes[0])]
    bounds = [0, *accumulate(sizes)]
    whole = [(0, size) for size in input.shape]
    pieces = []
    for start, stop in pairwise(bounds):
        whole[axis] = (start, stop)
        pieces.append(input.shrink(whole))
    return pieces
