"""Torch's functions of class numbers, by torch's names and in its argument order."""

from __future__ import annotations

import math

from gpu.core.dtype import accumulator, dtypes
from gpu.core.errors import DTypeError, InvalidValue, ShapeError, Unsupported
from gpu.tensor.arguments import choice
from gpu.tensor.tensor import Tensor


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """`Tensor.one_hot`, as int64. Raises InvalidValue for -1 where there is no element."""
    if num_classes == -1 and not tensor.numel():
        raise InvalidValue(f"num_classes of shape {list(tensor.shape)} cannot be found; pass it")
    return tensor.one_hot(num_classes).cast(dtypes.int64)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Rows of a table summed, averaged, or their largest elements taken, bag by bag.

    Args:
        input: numbers of rows, of shape (bags, size), or of one axis with `offsets`.
        weight: the table, of shape (rows, columns).
        offsets: where each bag begins in an input of one axis, rising.
        max_norm, norm_type: refused, as Unsupported; call `renorm` on the table.
        scale_grad_by_freq: refused, as Unsupported.
        mode: "sum", "mean" or "max"; an empty bag gives zeros.
        sparse: refused, as Unsupported.
        per_sample_weights: a factor for each element of input, with "sum" only.
        include_last_offset: whether the last of the offsets is where the last bag ends.
        padding_idx: the row that does not count.

    Returns:
        (bags, columns).
    """
    choice(mode, "mode", ("sum", "mean", "max"))
    refused = {"max_norm": max_norm, "scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}
    for name, value in refused.items():
        if value:
            raise Unsupported(f"embedding_bag with {name} is not there")
    if not input.dtype.is_int or weight.ndim != 2:
        raise DTypeError(
            f"embedding_bag takes integers and a table of two axes, got {input.dtype.name} and "
            f"shape {list(weight.shape)}"
        )
    if per_sample_weights is not None and (
        mode != "sum" or per_sample_weights.shape != input.shape
    ):
        raise InvalidValue(
            "per_sample_weights go with mode 'sum' and have the shape of input, "
            f"{list(input.shape)}; got {mode!r} and {list(per_sample_weights.shape)}"
        )
    counted = None if padding_idx is None else input.ne(padding_idx % weight.shape[0])
    bag, bags = _bags(input, offsets, include_last_offset)
    rows = weight.embedding(input).cast(accumulator(weight.dtype))
    if per_sample_weights is not None:
        rows = rows.mul(per_sample_weights.cast(rows.dtype).unsqueeze(-1))
    if bag is None:
        return _of_one_size(rows, counted, mode).cast(weight.dtype)
    # What does not count goes to no bag.
    bag = bag if counted is None else counted.where(bag, -1)
    return _gathered(rows, bag, bags, mode).cast(weight.dtype)


def _of_one_size(rows: Tensor, counted: Tensor | None, mode: str) -> Tensor:
    """The rows of each bag together, of shape (bags, size, columns)."""
    blank = -math.inf if mode == "max" else 0
    if counted is not None:
        rows = counted.unsqueeze(-1).where(rows, blank)
    if mode == "max":
        if not rows.shape[1]:
            return rows.sum(1)
        largest = rows.amax(1)
        return largest if counted is None else counted.any(1).unsqueeze(1).where(largest, 0)
    total = rows.sum(1)
    if mode == "sum":
        return total
    if counted is None:
        return total.div(max(rows.shape[1], 1))
    return total.div(counted.sum(1).maximum(1).unsqueeze(1))


def _gathered(rows: Tensor, bag: Tensor, bags: int, mode: str) -> Tensor:
    """The rows of each bag together; -1 is no bag."""
    shape = (bags, rows.shape[1])
    places = bag.unsqueeze(1).expand(rows.shape)
    blank = Tensor.zeros(*shape, dtype=rows.dtype, device=rows.device)
    if mode == "sum":
        return blank._scattered(0, places, rows, "add")
    ones = Tensor.ones(bag.shape[0], dtype=rows.dtype, device=rows.device)
    none = Tensor.zeros(bags, dtype=rows.dtype, device=rows.device)
    sizes = none._scattered(0, bag, ones, "add").unsqueeze(1)
    if mode == "max":
        least = Tensor.full(shape, -math.inf, dtype=rows.dtype, device=rows.device)
        return sizes.gt(0).where(least._scattered(0, places, rows, "max"), 0)
    return blank._scattered(0, places, rows, "add").div(sizes.maximum(1))


def _bags(input: Tensor, offsets: Tensor | None, include_last: bool) -> tuple[Tensor | None, int]:
    """The bag of each element, -1 for none, and how many bags there are; None for one a row."""
    if input.ndim == 2:
        if offsets is not None:
            raise InvalidValue("offsets go with an input of one axis, this one has two")
        return None, input.shape[0]
    if input.ndim != 1 or offsets is None or offsets.ndim != 1 or not offsets.dtype.is_int:
        raise ShapeError(
            "embedding_bag takes input of two axes, or of one with integer offsets of one axis; "
            f"got shape {list(input.shape)} and offsets "
            f"{'None' if offsets is None else list(offsets.shape)}"
        )
    if include_last and not offsets.shape[0]:
        raise ShapeError("include_last_offset needs an offset, there is none")
    place = Tensor.arange(input.numel(), dtype=dtypes.int64, device=input.device)
    starts = offsets[:-1] if include_last else offsets
    bag = starts.cast(dtypes.int64).searchsorted(place, right=True).cast(dtypes.int64).sub(1)
    if include_last:
        bag = place.lt(offsets[-1]).where(bag, -1)
    return bag, starts.shape[0]
