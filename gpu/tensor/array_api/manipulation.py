"""Manipulation functions."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import axes_of
from gpu.tensor.array_api.arguments import Axis, tensor_of, tensors_of
from gpu.tensor.base import broadcast_shape
from gpu.tensor.tensor import Tensor


def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """`Tensor.broadcast_tensors`."""
    first, *rest = tensors_of(arrays)
    return first.broadcast_tensors(*rest)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that shapes broadcast to. Raises ShapeError."""
    return broadcast_shape(*map(tuple, shapes)) if shapes else ()


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """`Tensor.expand`."""
    return tensor_of(x).expand(shape)


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """`Tensor.cat`; of flattened tensors where `axis` is None."""
    every = tensors_of(arrays)
    first, *rest = every if axis is not None else (x.ravel() for x in every)
    return first.cat(*rest, dim=axis or 0)


def expand_dims(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """With new axes of size 1 at `axis` of the result."""
    count = len(axis) if isinstance(axis, tuple) else 1
    for place in sorted(axes_of(axis, tensor_of(x).ndim + count)):
        x = x.unsqueeze(place)
    return x


def flip(x: Tensor, /, *, axis: Axis = None) -> Tensor:
    """`Tensor.flip`, of all axes where `axis` is None."""
    return tensor_of(x).flip(axes_of(axis, x.ndim))


def moveaxis(
    x: Tensor, source: int | tuple[int, ...], destination: int | tuple[int, ...], /
) -> Tensor:
    """`Tensor.movedim`."""
    return tensor_of(x).movedim(source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """`Tensor.permute`."""
    return tensor_of(x).permute(axes)


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """`Tensor.repeat_interleave`."""
    return tensor_of(x).repeat_interleave(repeats, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """`Tensor.reshape`, which is a view unless `copy` is True."""
    shaped = tensor_of(x).reshape(shape)
    return shaped.clone() if copy else shaped


def roll(x: Tensor, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> Tensor:
    """`Tensor.roll`; one shift may be for several axes."""
    if isinstance(axis, tuple) and isinstance(shift, int):
        shift = (shift,) * len(axis)
    return tensor_of(x).roll(shift, axis)


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """Without axes of size 1. Raises ShapeError where one has another size."""
    for place in axes_of(axis, tensor_of(x).ndim):
        if x.shape[place] != 1:
            raise ShapeError(f"axis {place} of shape {list(x.shape)} has not the size 1")
    return x.squeeze(axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """`Tensor.stack`, of tensors that are promoted to one dtype."""
    first, *rest = tensors_of(arrays)
    return first.stack(*rest, dim=axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """`Tensor.tile`."""
    return tensor_of(x).tile(repetitions)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """`Tensor.unbind`. Raises InvalidValue for a tensor of no axes."""
    if not tensor_of(x).ndim:
        raise InvalidValue("unstack needs an axis, this tensor is 0-d")
    return x.unbind(axis)
