"""Rows of what reads or writes at places that tensors name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported
from gpu.tensor.tensor import Tensor
from gpu.torch.table import row

_REDUCTIONS: Final = {name: name for name in ("sum", "prod", "mean", "amax", "amin")}


@row("index.Tensor", "_unsafe_index.Tensor")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """x at the places that tensors name, whole axes for None."""
    return x[_places(indices)]


def _places(indices: Sequence[Tensor | None]) -> tuple[Any, ...]:
    if any(each is not None and each.dtype in (dtypes.bool, dtypes.uint8) for each in indices):
        raise Unsupported("how many places a mask has depends on its values")
    return tuple(slice(None) if each is None else each for each in indices)


@row("index_put", "_unsafe_index_put")
def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """x with values written, or added, at the places that tensors name."""
    given = [each for each in indices if each is not None]
    if all(each.dtype is dtypes.bool for each in given):
        return _masked(x, indices, values, accumulate)
    places = _places(indices)
    if any(not isinstance(place, Tensor) for place in places):
        lead = [n for n, place in enumerate(places) if isinstance(place, Tensor)]
        rest = [n for n in range(x.ndim) if n not in lead]
        if lead != list(range(lead[0], lead[0] + len(lead))) and len(lead) > 1:
            raise Unsupported("places for axes that are not next to each other")
        order = [*lead, *rest]
        back = [order.index(n) for n in range(x.ndim)]
        shape = _broadcast(given)
        # What the values are for: places stand where the first axis that they are for was.
        target = [*x.shape[: lead[0]], *shape, *(x.shape[n] for n in rest if n >= lead[0])]
        before, inner = lead[0], len(shape)
        spread = values.expand(tuple(target))
        axes = [*range(before, before + inner), *range(before)]
        axes += range(before + inner, len(target))
        moved = x.permute(order).index_put(tuple(given), spread.permute(axes), accumulate)
        return moved.permute(back)
    return x.index_put(places, values, accumulate)


def _broadcast(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    total = tensors[0]
    for each in tensors[1:]:
        total = total + each
    return tuple(total.shape)


def _masked(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    """The same by a mask for the first axes, where one value is written everywhere."""
    if len(indices) != 1 or indices[0] is None or values.numel() != 1:
        raise Unsupported("a mask and more than one value: which goes where depends on the mask")
    mask = indices[0]
    mask = mask.reshape(tuple(mask.shape) + (1,) * (x.ndim - mask.ndim))
    value = values.reshape((1,) * x.ndim)
    return mask.where(x + value if accumulate else value, x)


@row("index_select")
def index_select(x: Tensor, dim: int, places: Tensor) -> Tensor:
    """What is at places of an axis."""
    if not x.ndim:
        return x
    return x.index_select(dim, places.reshape(-1))


@row("gather")
def gather(x: Tensor, dim: int, places: Tensor, sparse_grad: bool = False) -> Tensor:
    """For each element of `places` the one there along an axis."""
    if not x.ndim or not places.ndim:
        return x.reshape(-1)[places.reshape(-1)].reshape(places.shape)
    return x.gather(dim, places)


def _with_axis(x: Tensor, *others: Any) -> tuple[Any, ...]:
    """All with one axis at least, as single numbers count in torch."""
    tensors = (v.reshape(1) if isinstance(v, Tensor) and not v.ndim else v for v in (x, *others))
    return tuple(tensors)


@row("scatter.src", "scatter.value")
def scatter(x: Tensor, dim: int, places: Tensor, src: Any) -> Tensor:
    """x with elements of `src` at places along an axis."""
    whole, at, source = _with_axis(x, places, src)
    found: Tensor = whole.scatter(dim, at, source)
    return found.reshape(x.shape)


@row("scatter_add")
def scatter_add(x: Tensor, dim: int, places: Tensor, src: Tensor) -> Tensor:
    """x with elements of `src` added at places along an axis."""
    whole, at, source = _with_axis(x, places, src)
    found: Tensor = whole.scatter_add(dim, at, source)
    return found.reshape(x.shape)


@row("scatter_reduce.two")
def scatter_reduce(
    x: Tensor, dim: int, places: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """x combined with elements of `src` at places along an axis."""
    whole, at, source = _with_axis(x, places, src)
    found: Tensor = whole.scatter_reduce(dim, at, source, _REDUCTIONS[reduce], include_self)
    return found.reshape(x.shape)


@row("masked_scatter")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """x with the elements of `source`, in order, where a mask holds."""
    return x.masked_scatter(mask, source)


@row("embedding")
def embedding(
    weight: Tensor, places: Tensor, padding: int = -1, scale: bool = False, sparse: bool = False
) -> Tensor:
    """Rows of `weight`."""
    return weight[places]


@row("embedding_dense_backward")
def embedding_backward(
    grad: Tensor, places: Tensor, count: int, padding: int, scale: bool
) -> Tensor:
    """What each row of an embedding's weight gets of a gradient."""
    width = grad.shape[-1]
    flat, rows = places.reshape(-1), grad.reshape(-1, width)
    if padding >= 0:
        rows = flat.ne(padding).unsqueeze(-1).where(rows, 0)
    zeros = Tensor.full((count, width), 0, dtype=grad.dtype, device=grad.device, buffer=False)
    if scale:
        ones = Tensor.full(flat.shape, 1.0, dtype=grad.dtype, device=grad.device, buffer=False)
        often = zeros[:, 0].index_put((flat,), ones, True)
        rows = rows / often[flat].unsqueeze(-1)
    return zeros.index_put((flat,), rows, True)


@row("_embedding_bag", takes_result=True)
def embedding_bag(
    weight: Tensor,
    places: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding: int = -1,
    *,
    result: Any,
) -> tuple[Tensor, ...]:
    """Sums, means or maxima of rows of `weight`, bag by bag; and what torch's gradient needs."""
    if mode == 2 or padding >= 0:
        raise Unsupported("bags with maxima, or with a padding row, and what their gradients need")
    bags = offsets.shape[0] - int(include_last_offset)
    order = Tensor.arange(places.shape[0], dtype=dtypes.int64, device=weight.device)
    starts = offsets[:bags].cast(dtypes.int64)
    bag = order.unsqueeze(1).ge(starts.unsqueeze(0)).cast(dtypes.int64).sum(1) - 1
    rows = weight[places]
    rows = rows if weights is None else rows * weights.unsqueeze(-1)
    zeros = Tensor.full((bags, weight.shape[1]), 0, dtype=weight.dtype, device=weight.device)
    total = zeros.index_put((bag,), rows, True)
    counts = Tensor.full((bags,), 0, dtype=dtypes.int64, device=weight.device)
    counts = counts.index_put((bag,), bag.full_like(1), True)
    if mode == 1:
        total = total / counts.maximum(1).unsqueeze(-1).cast(weight.dtype)
    return total, bag, counts, counts
