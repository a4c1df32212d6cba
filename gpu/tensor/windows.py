"""Sliding windows over the last axes of a tensor: what convolutions and pools have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import integer

# One number for all spatial axes, or one for each.
Each: TypeAlias = int | Sequence[int]
Pairs: TypeAlias = tuple[tuple[int, int], ...]


class Window(NamedTuple):
    """How windows lie along each spatial axis, from the first on.

    Attributes:
        taps: elements of a window.
        stride: distance of windows.
        dilation: distance of a window's elements.
        padding: elements added before and after the axis.
    """

    taps: Shape
    stride: Shape
    dilation: Shape
    padding: Pairs

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.taps)

    @property
    def spans(self) -> Shape:
        """What a window covers along each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.taps, self.dilation, strict=True))

    def counts(self, sizes: Shape) -> Shape:
        """Windows along each axis of `sizes` elements that fit into them and the padding.

        Raises ShapeError where there is not one.
        """
        room = [lo + n + hi for n, (lo, hi) in zip(sizes, self.padding, strict=True)]
        rest = [n - span for n, span in zip(room, self.spans, strict=True)]
        if min(rest) < 0:
            raise ShapeError(
                f"windows of {list(self.taps)} elements cover {list(self.spans)}, more than the "
                f"{room} elements of the padded axes: pad more, or take a smaller kernel"
            )
        return tuple(n // step + 1 for n, step in zip(rest, self.stride, strict=True))


def each(value: Each, rank: int, name: str, least: int = 0) -> Shape:
    """An argument for each of `rank` spatial axes. Raises InvalidValue for one below `least`."""
    given = tuple(value) if isinstance(value, Sequence) else (value,)
    given *= rank if len(given) == 1 else 1
    numbers = tuple(integer(n, name) for n in given)
    if len(numbers) != rank:
        raise InvalidValue(f"{name} must be one number or one for each of {rank} axes, got {value}")
    if any(n < least for n in numbers):
        raise InvalidValue(f"{name} must be at least {least}, got {value}")
    return numbers


def sides(padding: Each, rank: int) -> Pairs:
    """Padding before and after each spatial axis.

    `padding` is one number, one for each axis, or two for each in the order of `Tensor.pad`:
    (left, right, top, bottom, ...), from the last axis on.
    """
    if not isinstance(padding, Sequence) or len(padding) != 2 * rank:
        try:
            return tuple((n, n) for n in each(padding, rank, "padding"))
        except InvalidValue as error:
            raise InvalidValue(f"{error.message}; or two for each axis, from the last on") from None
    flat = each(padding, 2 * rank, "padding")
    return tuple(zip(flat[-2::-2], flat[::-2], strict=True))


def surround(x: Node, padding: Pairs, gap: Shape | None = None) -> Node:
    """`x` with zeros around its last axes, and `gap` of them between elements.

    Negative padding takes elements away.
    """
    lead = len(x.shape) - len(padding)
    gaps = gap or (0,) * len(padding)
    grown = [(max(0, lo), max(0, hi), g) for (lo, hi), g in zip(padding, gaps, strict=True)]
    padded = G.pad(x, [(0, 0, 0)] * lead + grown)
    cut = [(0, 0)] * lead + [(max(0, -lo), max(0, -hi)) for lo, hi in padding]
    ranges = [(lo, n - lo - hi, 1) for (lo, hi), n in zip(cut, padded.shape, strict=True)]
    return G.slice_(padded, ranges)


def slide(x: Node, lead: Shape, window: Window, counts: Shape) -> Node:
    """`x`, already padded, as windows of its last axes; the others are repeated to `lead`.

    The result has the shape (*lead, windows, taps, windows, taps, ...). Everything is repeated
    before the windows are cut, so that the gradient of all of it is one sum. Windows that lie side
    by side are a reshape, and so is their gradient.
    """
    kept = len(x.shape) - window.rank
    ways = zip(window.taps, window.stride, window.dilation, strict=True)
    beside = [(stride, dilation) == (taps, 1) for taps, stride, dilation in ways]
    used, apart, wide = list(x.shape), list(x.shape[:kept]), list(lead)
    axes = zip(range(kept, len(used)), beside, window.taps, counts, strict=True)
    for axis, side_by_side, taps, count in axes:
        if side_by_side:
            used[axis] = count * taps
        apart += (count, taps) if side_by_side else (used[axis], 1)
        wide += (count if side_by_side else used[axis], taps)
    cut = G.slice_(x, [(0, size, 1) for size in used])
    result = G.expand(G.reshape(cut, tuple(apart)), tuple(wide))
    for number, side_by_side in enumerate(beside):
        if not side_by_side:
            axis, stride = len(lead) + 2 * number, window.stride[number]
            dilation, count = window.dilation[number], counts[number]
            result = G.skew(result, axis, axis + 1, stride, dilation, count)
    return result
