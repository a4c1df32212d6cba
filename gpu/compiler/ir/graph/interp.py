"""What each kind of graph node computes, in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from gpu.compiler.ir import evaluate, optable
from gpu.compiler.ir.evaluate import Array
from gpu.compiler.ir.graph.node import Node
from gpu.compiler.ir.threefry import tensor_bits
from gpu.core.dtype import DType, dtypes


def accumulate_as(dtype: DType) -> DType:
    """The dtype a reduction of `dtype` is formed in: float32 for narrower floats, else its own."""
    return dtypes.float32 if dtype.is_float and dtype.bits < 32 else dtype


def _run_const(node: Node, args: tuple[Array, ...]) -> Array:
    return np.full(node.shape, optable.scalar(node.dtype)(node.attr[0]), node.dtype.np)


def _run_iota(node: Node, args: tuple[Array, ...]) -> Array:
    return np.arange(node.shape[0]).astype(node.dtype.np)


def _run_index(node: Node, args: tuple[Array, ...]) -> Array:
    return np.asarray(node.attr[0]).astype(node.dtype.np)


def _run_alu(node: Node, args: tuple[Array, ...]) -> Array:
    return optable.apply(node.attr[0], node.dtype, args)


def _run_cast(node: Node, args: tuple[Array, ...]) -> Array:
    with np.errstate(all="ignore"):
        return evaluate.cast(args[0], node.src[0].dtype, node.dtype)


def _run_bitcast(node: Node, args: tuple[Array, ...]) -> Array:
    return evaluate.bitcast(args[0], node.dtype)


def _run_reduce(node: Node, args: tuple[Array, ...]) -> Array:
    name, axes = node.attr
    monoid = optable.MONOIDS[name]
    wide = accumulate_as(node.dtype)
    start = optable.scalar(wide)(monoid.identity(wide))
    with np.errstate(all="ignore"):
        value = args[0].astype(wide.np)
        result = monoid.ufunc.reduce(value, axis=axes, keepdims=True, initial=start)
        return np.asarray(result).astype(node.dtype.np)


def _run_reshape(node: Node, args: tuple[Array, ...]) -> Array:
    return args[0].reshape(node.shape)


def _run_expand(node: Node, args: tuple[Array, ...]) -> Array:
    return np.broadcast_to(args[0], node.shape)


def _run_permute(node: Node, args: tuple[Array, ...]) -> Array:
    return args[0].transpose(node.attr[0])


def _run_slice(node: Node, args: tuple[Array, ...]) -> Array:
    picks = [
        start + step * np.arange(size)
        for (start, step), size in zip(node.attr, node.shape, strict=True)
    ]
    return np.asarray(args[0][np.ix_(*picks)]) if picks else args[0]


def _run_pad(node: Node, args: tuple[Array, ...]) -> Array:
    result = np.zeros(node.shape, node.dtype.np)
    where = tuple(
        slice(before, before + (size - 1) * (interior + 1) + 1 if size else before, interior + 1)
        for (before, _, interior), size in zip(node.attr, args[0].shape, strict=True)
    )
    result[where] = args[0]
    return result


def _skew_places(node: Node, size: int, taps: int) -> tuple[Array, Array]:
    _, _, stride, dilation = node.attr
    return np.arange(size)[:, None] * stride + np.arange(taps) * dilation, np.arange(taps)


def _run_skew(node: Node, args: tuple[Array, ...]) -> Array:
    axis, tap, _, _ = node.attr
    source = np.moveaxis(args[0], (axis, tap), (0, 1))
    places, taps = _skew_places(node, node.shape[axis], node.shape[tap])
    return np.moveaxis(source[places, taps], (0, 1), (axis, tap))


def _run_unskew(node: Node, args: tuple[Array, ...]) -> Array:
    axis, tap, _, _ = node.attr
    result = np.zeros(node.shape, node.dtype.np)
    moved = np.moveaxis(result, (axis, tap), (0, 1))
    places, taps = _skew_places(node, args[0].shape[axis], args[0].shape[tap])
    moved[places, taps] = np.moveaxis(args[0], (axis, tap), (0, 1))
    return result


def _valid_index(index: Array, size: int) -> tuple[Array, Array]:
    valid = (index >= 0) & (index < size)
    return valid, np.where(valid, index, 0).astype(np.int64)


def _run_gather(node: Node, args: tuple[Array, ...]) -> Array:
    source, index = args
    (axis,) = node.attr
    if not source.shape[axis]:
        return np.zeros(node.shape, node.dtype.np)
    valid, places = _valid_index(index, source.shape[axis])
    picked = np.take_along_axis(source, places, axis)
    return np.where(valid, picked, np.zeros((), node.dtype.np))


def _run_scatter(node: Node, args: tuple[Array, ...]) -> Array:
    source, index, updates = args
    axis, monoid = node.attr
    result = np.array(source)
    valid, places = _valid_index(index, source.shape[axis])
    where: list[Array] = list(np.indices(index.shape))
    where[axis] = places
    target, values = tuple(w[valid] for w in where), updates[valid]
    if monoid == "set":
        for position, value in zip(zip(*target, strict=True), values, strict=True):
            result[position] = value
    else:
        with np.errstate(all="ignore"):
            optable.MONOIDS[monoid].ufunc.at(result, target, values)
    return result


def _run_scan(node: Node, args: tuple[Array, ...]) -> Array:
    name, axis = node.attr
    wide = accumulate_as(node.dtype)
    with np.errstate(all="ignore"):
        running = optable.MONOIDS[name].ufunc.accumulate(args[0].astype(wide.np), axis=axis)
        return np.asarray(running).astype(node.dtype.np)


def _run_cumcount(node: Node, args: tuple[Array, ...]) -> Array:
    bins, axis = node.attr
    index = np.moveaxis(args[0], axis, -1)
    order = np.argsort(index, -1, kind="stable")
    ordered = np.take_along_axis(index, order, -1)
    place = np.broadcast_to(np.arange(index.shape[-1]), index.shape)
    is_first = np.ones(index.shape, np.bool_)
    is_first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    first = np.maximum.accumulate(np.where(is_first, place, 0), axis=-1)
    result = np.zeros(index.shape, node.dtype.np)
    np.put_along_axis(result, order, (place - first).astype(node.dtype.np), -1)
    result[(index < 0) | (index >= bins)] = 0
    return np.moveaxis(result, -1, axis)


def _run_reorder(node: Node, args: tuple[Array, ...]) -> Array:
    source, index = args
    (axis,) = node.attr
    result = np.zeros_like(source)
    np.put_along_axis(result, index.astype(np.int64), source, axis)
    return result


def _run_write(node: Node, args: tuple[Array, ...]) -> Array:
    result = np.array(args[0])
    ranges = zip(node.attr, args[1].shape, strict=True)
    where = tuple(slice(start, start + size * step, step) for (start, step), size in ranges)
    result[where] = args[1]
    return result


def _run_random(node: Node, args: tuple[Array, ...]) -> Array:
    return tensor_bits(args[0], node.shape)


def _run_parts(node: Node, args: tuple[Array, ...]) -> Array:
    pairs = np.ascontiguousarray(args[0]).view(node.dtype.np)
    return pairs.reshape(node.shape)


def _run_interleave(node: Node, args: tuple[Array, ...]) -> Array:
    _, axes = node.attr
    grid = [node.shape[axis] for axis in axes]
    return np.moveaxis(np.stack(args).reshape(*grid, *args[0].shape), range(len(grid)), axes)


def _run_fft(node: Node, args: tuple[Array, ...]) -> Array:
    axis, _, inverse, scale = node.attr
    numbers = args[0][..., 0] + 1j * args[0][..., 1].astype(np.float64)
    size = node.shape[axis]
    result = np.fft.ifft(numbers, axis=axis) * size if inverse else np.fft.fft(numbers, axis=axis)
    pairs: Array = np.stack([result.real, result.imag], -1) * scale
    return pairs.astype(node.dtype.np)


def _run_same(node: Node, args: tuple[Array, ...]) -> Array:
    return args[0]


def _run_multi(node: Node, args: tuple[Array, ...]) -> Array:
    (axis,) = node.attr
    return args[0] if axis is None else np.concatenate(args, axis)


def _run_part(node: Node, args: tuple[Array, ...]) -> Array:
    number, axis = node.attr
    if axis is None:
        return args[0]
    part: Array = np.split(args[0], len(node.src[0].device), axis)[number]
    return part


# For each kind but buffers, whose value comes from outside. Nodes have no symbolic sizes here.
RUN: Final[dict[str, Callable[[Node, tuple[Array, ...]], Array]]] = {
    "const": _run_const,
    "iota": _run_iota,
    "index": _run_index,
    "alu": _run_alu,
    "cast": _run_cast,
    "bitcast": _run_bitcast,
    "reduce": _run_reduce,
    "reshape": _run_reshape,
    "expand": _run_expand,
    "permute": _run_permute,
    "slice": _run_slice,
    "pad": _run_pad,
    "skew": _run_skew,
    "unskew": _run_unskew,
    "gather": _run_gather,
    "scatter": _run_scatter,
    "scan": _run_scan,
    "cumcount": _run_cumcount,
    "reorder": _run_reorder,
    "write": _run_write,
    "random": _run_random,
    "as_real": _run_parts,
    "as_complex": _run_parts,
    "interleave": _run_interleave,
    "fft": _run_fft,
    "multi": _run_multi,
    "part": _run_part,
    **dict.fromkeys(("contiguous", "detach", "barrier", "custom_grad", "copy"), _run_same),
}
