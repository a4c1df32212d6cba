"""Rows of what moves elements, and of what makes tensors of nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported
from gpu.tensor.tensor import Tensor
from gpu.torch.table import row

Sizes = Sequence[int]
# What slices without an end have for one.
_END = (1 << 63) - 1


@row("view", "_unsafe_view", "reshape", "_reshape_alias")
def view(x: Tensor, size: Sizes, *_: Any) -> Tensor:
    """The same elements, in order, in another shape."""
    return x.reshape(tuple(size))


@row("expand")
def expand(x: Tensor, size: Sizes, implicit: bool = False) -> Tensor:
    """Axes of one element as often as asked for; -1 is as it is."""
    return x.expand(tuple(size))


@row("permute")
def permute(x: Tensor, dims: Sizes) -> Tensor:
    """The axes in another order."""
    return x.permute(tuple(dims))


@row("transpose.int")
def transpose(x: Tensor, first: int, second: int) -> Tensor:
    """Two axes exchanged."""
    return x.transpose(first, second) if x.ndim else x


@row("t")
def transposed(x: Tensor) -> Tensor:
    """The two axes of a matrix exchanged."""
    return x.transpose(0, 1) if x.ndim == 2 else x


row("unsqueeze")(Tensor.unsqueeze)


@row("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(x: Tensor, dim: int | Sizes | None = None) -> Tensor:
    """Without axes of one element, of those named."""
    named = {d % max(x.ndim, 1) for d in ([dim] if isinstance(dim, int) else dim or ())}
    if dim is None:
        named = set(range(x.ndim))
    kept = [n for axis, n in enumerate(x.shape) if axis not in named or not _is_one(n)]
    return x.reshape(tuple(kept))


def _is_one(size: int) -> bool:
    return isinstance(size, int) and size == 1


def _range(x: Tensor, dim: int, start: int | None, end: int | None) -> tuple[int, int, int]:
    """The axis, and where a slice of it begins and ends, within it."""
    dim %= x.ndim
    size = x.shape[dim]
    first, last = 0 if start is None else start, size if end in (None, _END) else end
    assert last is not None
    if all(isinstance(n, int) for n in (size, first, last)):
        first, last, _ = slice(first, last).indices(size)
        last = max(first, last)
    return dim, first, last


def _sliced(x: Tensor, dim: int, part: Any) -> tuple[Any, ...]:
    return (slice(None),) * (dim % x.ndim) + (part,)


@row("slice.Tensor")
def sliced(
    x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A part of an axis."""
    dim, first, last = _range(x, dim, start, end)
    return x[_sliced(x, dim, slice(first, last, step))]


@row("slice_scatter")
def slice_scatter(
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """x with `src` in place of a part of an axis."""
    dim, first, last = _range(x, dim, start, end)
    return x.slice_scatter(src.cast(x.dtype), dim, first, last, step)


@row("select.int")
def select(x: Tensor, dim: int, index: int) -> Tensor:
    """What is at one place of an axis."""
    return x[_sliced(x, dim, index)]


@row("select_scatter")
def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """x with `src` at one place of an axis."""
    return x.select_scatter(src.cast(x.dtype), dim, index)


@row("diagonal")
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two axes, as the last one."""
    return x.diagonal(offset, dim1, dim2)


@row("diagonal_scatter")
def diagonal_scatter(
    x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """x with `src` on the diagonal of two axes."""
    return x.diagonal_scatter(src, offset, dim1, dim2)


@row("split_with_sizes")
def split(x: Tensor, sizes: Sizes, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of an axis, of these sizes."""
    starts = itertools.accumulate(sizes, initial=0)
    parts = zip(starts, sizes, strict=False)
    return tuple(x[_sliced(x, dim, slice(start, start + size))] for start, size in parts)


@row("split.Tensor")
def split_evenly(x: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of an axis of one size, the last one perhaps smaller."""
    return x.split(size, dim)


@row("unbind.int")
def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """What is at each place of an axis."""
    return tuple(x.unbind(dim))


@row("cat", takes_result=True)
def cat(tensors: Sequence[Tensor], dim: int = 0, *, result: Any) -> Tensor:
    """Tensors one after the other; an empty one without axes to speak of counts for nothing."""
    parts = [t.cast(result.dtype) for t in tensors if tuple(t.shape) != (0,)]
    if not parts:
        return tensors[0].cast(result.dtype)
    return parts[0].cat(*parts[1:], dim=dim) if len(parts) > 1 else parts[0]


@row("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors along a new axis."""
    return tensors[0].stack(*tensors[1:], dim=dim)


@row("repeat")
def repeat(x: Tensor, repeats: Sizes) -> Tensor:
    """Each axis as often as asked for."""
    return x.repeat(tuple(repeats)) if repeats else x


@row("flip")
def flip(x: Tensor, dims: Sizes) -> Tensor:
    """Axes backwards."""
    return x.flip(tuple(dims)) if dims and x.ndim else x


@row("roll")
def roll(x: Tensor, shifts: Sizes, dims: Sizes = ()) -> Tensor:
    """Axes, or all elements in order, moved round."""
    return x.roll(tuple(shifts), tuple(dims) or None)


@row("tril")
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """What is on a diagonal of the last two axes and below, else 0."""
    return x.tril(diagonal)


@row("triu")
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """What is on a diagonal of the last two axes and above, else 0."""
    return x.triu(diagonal)


@row("clone", "alias", "detach", "lift_fresh_copy", "contiguous")
def same(x: Tensor) -> Tensor:
    """x; results of a graph get memory of their own where torch's have."""
    return x


@row("_to_copy")
def converted(x: Tensor, dtype: DType | None = None) -> Tensor:
    """x in another dtype."""
    return x if dtype is None else x.cast(dtype)


@row("copy")
def copied(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """`src` in the shape and dtype of x."""
    return src.cast(x.dtype).expand(x.shape)


@row("view.dtype")
def reinterpreted(x: Tensor, dtype: DType) -> Tensor:
    """The bits of x as another dtype."""
    if x.dtype is dtypes.bool or dtype is dtypes.bool:
        raise Unsupported("the bits of bools as another dtype, or of another dtype as bools")
    return x.bitcast(dtype)


@row("as_strided")
def as_strided(x: Tensor, size: Sizes, stride: Sizes, offset: int | None = None) -> Tensor:
    """Elements of x in row-major order by what lies between them."""
    if 0 in size:
        return Tensor.full((*size,), 0, dtype=x.dtype, device=x.device)
    place = Tensor.full((1,) * len(size), offset or 0, dtype=dtypes.int64, device=x.device)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        steps = Tensor.arange(count, dtype=dtypes.int64, device=x.device) * step
        place = place + steps.reshape([count if a == axis else 1 for a in range(len(size))])
    return x.reshape(-1)[place.reshape(-1)].reshape(tuple(size))


@row("constant_pad_nd")
def padded(x: Tensor, pad: Sizes, value: Any = 0) -> Tensor:
    """Axes with a value around them, the last one first; less than 0 takes elements away."""
    return x.pad(list(pad), value=value)


@row("full", "full_like", "fill.Scalar", "scalar_tensor", takes_result=True)
def full(like: Any, value: Any = None, dtype: DType | None = None, *, result: Any) -> Tensor:
    """One value everywhere."""
    if value is None:
        like, value = (), like
    shape = like.shape if isinstance(like, Tensor) else tuple(like)
    return Tensor.full(shape, value, dtype=result.dtype, device=result.device, buffer=False)


@row("empty.memory_format", "empty_strided", "zeros", takes_result=True)
def empty(size: Sizes, *_: Any, dtype: DType | None = None, result: Any) -> Tensor:
    """Zeros, for what may be anything."""
    return Tensor.full(tuple(size), 0, dtype=result.dtype, device=result.device, buffer=False)


@row("empty_like", "zeros_like", takes_result=True)
def empty_like(x: Tensor, dtype: DType | None = None, *, result: Any) -> Tensor:
    """Zeros in the shape of x."""
    return full(x, 0, result=result)


@row("fill.Tensor", takes_result=True)
def filled(x: Tensor, value: Tensor, *, result: Any) -> Tensor:
    """One element everywhere."""
    return value.cast(result.dtype).reshape((1,) * x.ndim).expand(x.shape)


@row("arange.start_step", "arange.start", takes_result=True)
def arange(
    start: float, end: float, step: float = 1, dtype: DType | None = None, *, result: Any
) -> Tensor:
    """Numbers from `start` up to `end`, which is not among them."""
    return Tensor.arange(start, end, step, dtype=result.dtype, device=result.device)


@row("arange", takes_result=True)
def arange_to(end: float, dtype: DType | None = None, *, result: Any) -> Tensor:
    """Numbers from 0."""
    return arange(0, end, result=result)


@row("unfold")
def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of an axis, as the last one."""
    return x.unfold(dim, size, step)
