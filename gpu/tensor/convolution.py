"""Convolutions over any number of spatial axes: windows of the input times weights, summed."""

from __future__ import annotations

from typing import Self

from gpu.compiler.ir.dims import is_symbolic
from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, promote, to_dtype
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import Operand, choice, integer
from gpu.tensor.arithmetic import Arithmetic
from gpu.tensor.matmul import multiply_and_sum
from gpu.tensor.windows import Each, Pairs, Window, each, sides, slide, surround


class Convolution(Arithmetic):
    """`conv2d` and its transpose. Despite the name they take one spatial axis, two, three or more.

    Products and sums of floats narrower than float32 are formed in float32.
    """

    __slots__ = ()

    def conv2d(
        self,
        weight: Operand,
        bias: Operand | None = None,
        groups: int = 1,
        stride: Each = 1,
        dilation: Each = 1,
        padding: Each | str = 0,
        dtype: DType | str | None = None,
    ) -> Self:
        """Slides `weight` over the spatial axes of self, without turning it around.

        Args:
            weight: shape (channels_out, channels_in // groups, *kernel).
            bias: shape (channels_out,), added to the result.
            groups: parts that the channels are cut into; each part sees only itself.
            stride: distance of windows, one number or one for each spatial axis.
            dilation: distance of the elements of a window.
            padding: zeros around self: one number, one for each spatial axis, or two for each from
                the last on, as (left, right, top, bottom). "same" keeps the sizes, for a stride of
                1; "valid" is 0.
            dtype: of the result, in place of the promoted dtype.

        self has the shape (batch, channels_in, *spatial), the result (batch, channels_out, *out).
        Raises ShapeError where shapes do not fit, InvalidValue for the other arguments.
        """
        kernel = self._lift(weight)
        element = promote(self.dtype, kernel.dtype) if dtype is None else to_dtype(dtype)
        rank = _spatial_rank(self._node, kernel._node)
        steps, spacing = each(stride, rank, "stride", 1), each(dilation, rank, "dilation", 1)
        window = Window(kernel.shape[2:], steps, spacing, ())
        window = window._replace(padding=_padding(padding, window))
        counts = window.counts(self.shape[2:])
        reached, window = _within(kernel._node, window, self.shape[2:], counts)
        padded = surround(self._node, window.padding)
        product = _correlate(padded, reached, groups, window, counts, element)
        return self._wrap(product)._with_bias(bias, rank, dtype)

    def conv_transpose2d(
        self,
        weight: Operand,
        bias: Operand | None = None,
        groups: int = 1,
        stride: Each = 1,
        dilation: Each = 1,
        padding: Each = 0,
        output_padding: Each = 0,
    ) -> Self:
        """The transpose of `conv2d` as a linear map, as its gradient is: each element of self adds
        `weight` times itself to a window of the result.

        Args:
            weight: shape (channels_in, channels_out // groups, *kernel).
            bias: shape (channels_out,), added to the result.
            groups: parts that the channels are cut into; each part sees only itself.
            stride: distance of windows in the result.
            dilation: distance of the elements of a window.
            padding: elements taken away around the result, given as for `conv2d`.
            output_padding: elements of the result after those, less than `stride` or `dilation`.

        Along each spatial axis the result has (size - 1) * stride + dilation * (kernel - 1) + 1
        elements, plus output_padding, less the padding of both sides.
        """
        kernel = self._lift(weight)
        rank = _spatial_rank(self._node, kernel._node)
        steps = each(stride, rank, "stride", 1)
        spacing = each(dilation, rank, "dilation", 1)
        further = each(output_padding, rank, "output_padding")
        if any(n >= max(s, d) for n, s, d in zip(further, steps, spacing, strict=True)):
            raise InvalidValue(
                f"output_padding must be less than stride or dilation, got {output_padding} with "
                f"stride {stride} and dilation {dilation}"
            )
        once = (1,) * rank
        spans = Window(kernel.shape[2:], once, spacing, ()).spans
        missing = zip(spans, sides(padding, rank), further, strict=True)
        around = tuple((n - 1 - lo, n - 1 - hi + more) for n, (lo, hi), more in missing)
        window = Window(kernel.shape[2:], once, spacing, around)
        sizes = tuple((n - 1) * s + 1 for n, s in zip(self.shape[2:], steps, strict=True))
        counts = _transposed_sizes(window, sizes)
        spread = surround(self._node, around, tuple(step - 1 for step in steps))
        turned = _turned(kernel._node, groups)
        element = promote(self.dtype, kernel.dtype)
        product = _correlate(spread, turned, groups, window, counts, element)
        return self._wrap(product)._with_bias(bias, rank, None)

    def _with_bias(self, bias: Operand | None, rank: int, dtype: DType | str | None) -> Self:
        if bias is None:
            return self
        offset = self._lift(bias)
        if offset.shape != (self.shape[1],):
            raise ShapeError(
                f"bias has shape {list(offset.shape)}, the result has {self.shape[1]} channels"
            )
        across = self._wrap(G.reshape(offset._node, (self.shape[1], *(1,) * rank)))
        return self.add(across if dtype is None else across.cast(dtype))


def _spatial_rank(x: Node, weight: Node) -> int:
    rank = len(weight.shape) - 2
    if rank < 1 or len(x.shape) != rank + 2:
        raise ShapeError(
            f"a convolution takes a weight of shape [out, in, *kernel] and an input of shape "
            f"[batch, in, *spatial] with as many axes, got weight {list(weight.shape)} and input "
            f"{list(x.shape)}"
        )
    return rank


def _padding(padding: Each | str, window: Window) -> Pairs:
    """What `conv2d` pads each spatial axis with; "same" has the odd element behind the axis."""
    if not isinstance(padding, str):
        return sides(padding, window.rank)
    choice(padding, "padding", ("same", "valid"))
    if padding == "valid":
        return ((0, 0),) * window.rank
    if any(step != 1 for step in window.stride):
        raise InvalidValue(f"padding 'same' needs a stride of 1, got {window.stride}")
    return tuple(((n - 1) // 2, n - 1 - (n - 1) // 2) for n in window.spans)


def _within(weight: Node, window: Window, sizes: Shape, counts: Shape) -> tuple[Node, Window]:
    """A weight without the elements that only ever meet padding, and its window.

    There are some where an axis is shorter than the padding around it, as in the last layers of a
    network for large images that is given small ones.
    """
    if any(is_symbolic(n) for n in (*sizes, *counts)) or 0 in counts:
        return weight, window
    kept, padding = [], []
    axes = zip(sizes, counts, *window, strict=True)
    for size, count, taps, stride, dilation, (low, high) in axes:
        # Those that the last window has before the axis, and the first one behind it.
        first = max(0, -((low - (count - 1) * stride) // -dilation))
        end = min(taps, -((size + low) // -dilation))
        if first >= end:  # none meets the axis
            first, end = 0, taps
        kept.append((first, end - first, 1))
        padding.append((low - first * dilation, high - (taps - end) * dilation))
    taken = tuple(count for _, count, _ in kept)
    if taken == window.taps:
        return weight, window
    whole = [(0, n, 1) for n in weight.shape[:2]]
    return G.slice_(weight, [*whole, *kept]), window._replace(taps=taken, padding=tuple(padding))


def _transposed_sizes(window: Window, sizes: Shape) -> Shape:
    """Sizes of a transposed convolution's result. Raises ShapeError where one would be empty."""
    wide = [n + lo + hi for n, (lo, hi) in zip(sizes, window.padding, strict=True)]
    counts = tuple(n - span + 1 for n, span in zip(wide, window.spans, strict=True))
    if min(counts) < 1:
        raise ShapeError(f"padding has left nothing of the result: sizes {counts}; pad less")
    return counts


def _turned(weight: Node, groups: int) -> Node:
    """A transposed convolution's weight as that of the convolution which computes it."""
    channels, out, *kernel = weight.shape
    parts = _parts(groups, channels)
    grouped = G.reshape(weight, (groups, parts, out, *kernel))
    swapped = G.permute(grouped, (0, 2, 1, *range(3, 3 + len(kernel))))
    flat = G.reshape(swapped, (groups * out, parts, *kernel))
    whole = [(0, groups * out, 1), (0, parts, 1)]
    return G.slice_(flat, [*whole, *((n - 1, n, -1) for n in kernel)])


def _parts(groups: int, channels: int) -> int:
    """Channels of each group. Raises InvalidValue where they are not equal."""
    if integer(groups, "groups") < 1 or channels % groups:
        raise InvalidValue(f"groups must divide {channels} channels, got {groups}")
    return channels // groups


def _correlate(
    x: Node, weight: Node, groups: int, window: Window, counts: Shape, dtype: DType
) -> Node:
    """Windows of `x`, already padded, times `weight`, summed over input channels and taps."""
    batch, channels, *sizes = x.shape
    outputs, depth, *taps = weight.shape
    out, parts = _parts(groups, outputs), _parts(groups, channels)
    if depth != parts:
        raise ShapeError(
            f"weight {list(weight.shape)} takes {depth} channels in each of {groups} groups, "
            f"the input has {channels} channels, {parts} in each"
        )
    # Axes: batch, group, output channel, input channel, then windows and taps by turns.
    lead = (batch, groups, out, parts)
    windows = slide(G.reshape(x, (batch, groups, 1, parts, *sizes)), lead, window, counts)
    apart = tuple(n for tap in taps for n in (1, tap))
    scale = G.expand(G.reshape(weight, (1, groups, out, parts, *apart)), windows.shape)
    summed = (3, *range(5, len(windows.shape), 2))
    product = multiply_and_sum(windows, scale, summed, dtype)
    return G.reshape(product, (batch, outputs, *counts))
