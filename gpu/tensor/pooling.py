"""Pools: the largest element or the mean of sliding windows over the last axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self, overload

from gpu.compiler.ir.graph import Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import accumulator, dtypes
from gpu.core.errors import InvalidType, InvalidValue, ShapeError
from gpu.tensor import customgrad
from gpu.tensor.arguments import integer, shape_of
from gpu.tensor.base import TensorBase
from gpu.tensor.checks import Allowed, check_positions
from gpu.tensor.joining import Joining
from gpu.tensor.reduction import Reduction
from gpu.tensor.windows import Each, Pairs, Window, each, sides, slide


class Pooling(Joining, Reduction):
    """Pools over as many of the last axes as `kernel_size` has numbers; a plain int means two.

    `stride` is the distance of windows, if not given their size; `dilation` the distance of a
    window's elements. `padding` is one number, one for each axis, or two for each from the last
    axis on: (left, right, top, bottom). With `ceil_mode` a last window may hang over the end, if it
    starts within the axis or the padding before it.
    """

    __slots__ = ()

    def avg_pool2d(
        self,
        kernel_size: Each = (2, 2),
        stride: Each | None = None,
        dilation: Each = 1,
        padding: Each = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Self:
        """The mean of each window, of integers in float32.

        With `count_include_pad` padding counts as elements that are 0, but never what a window
        hangs over the end of it. `divisor_override` is divided by whatever counts.
        """
        if divisor_override is not None and integer(divisor_override, "divisor_override") == 0:
            raise InvalidValue("divisor_override must not be 0")
        x = self._as_float()
        window = x._window(kernel_size, stride, dilation, padding)
        counts, padded = x._layout(window, ceil_mode)
        total = x.cast(accumulator(x.dtype))._windows(padded, counts, 0)._over_taps("add", counts)
        if divisor_override is not None:
            return total.div(divisor_override).cast(x.dtype)
        if padded is window and (count_include_pad or not any(map(any, window.padding))):
            return total.div(math.prod(window.taps)).cast(x.dtype)
        # How many elements count, once for all planes.
        real = window.padding if count_include_pad else ((0, 0),) * window.rank
        sizes = [n + lo + hi for n, (lo, hi) in zip(x._plane(window), real, strict=True)]
        missing = tuple(
            (p[0] - r[0], p[1] - r[1]) for p, r in zip(padded.padding, real, strict=True)
        )
        ones = total._wrap(G.const(1, tuple(sizes), total.dtype, total.device))
        around = padded._replace(padding=missing)
        number = ones._windows(around, counts, 0)._over_taps("add", counts)
        return total.div(number).cast(x.dtype)

    @overload
    def max_pool2d(
        self,
        kernel_size: Each = (2, 2),
        stride: Each | None = None,
        dilation: Each = 1,
        padding: Each = 0,
        ceil_mode: bool = False,
        return_indices: Literal[False] = False,
    ) -> Self: ...

    @overload
    def max_pool2d(
        self,
        kernel_size: Each = (2, 2),
        stride: Each | None = None,
        dilation: Each = 1,
        padding: Each = 0,
        ceil_mode: bool = False,
        *,
        return_indices: Literal[True],
    ) -> tuple[Self, Self]: ...

    @overload
    def max_pool2d(
        self,
        kernel_size: Each = (2, 2),
        stride: Each | None = None,
        dilation: Each = 1,
        padding: Each = 0,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Self | tuple[Self, Self]: ...

    def max_pool2d(
        self,
        kernel_size: Each = (2, 2),
        stride: Each | None = None,
        dilation: Each = 1,
        padding: Each = 0,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Self | tuple[Self, Self]:
        """The largest element of each window, NaN if there is one; padding never counts.

        With `return_indices` also where it lies, as a position in the flattened plane of pooled
        axes, int64. Of equal elements the first one is taken and has the gradient; of NaNs the
        last, as in torch.
        """
        window = self._window(kernel_size, stride, dilation, padding)
        counts, padded = self._layout(window, ceil_mode)
        least = -math.inf if self.dtype.is_float else self.dtype.min
        windows = self._windows(padded, counts, least)
        plane = self._plane(window)
        nowhere = math.prod(plane)
        line = self._wrap(G.iota(nowhere, dtypes.of(nowhere), self.device))
        position = line._reshaped(plane)._windows(padded, counts, nowhere)
        lead = windows.ndim - position.ndim
        order = G.expand(G.reshape(position._node, (1,) * lead + position.shape), windows.shape)
        taps = tuple(range(lead + 1, windows.ndim, 2))
        largest = customgrad.first_max(windows._node, order, taps)
        shape = (*self.shape[: -window.rank], *counts)
        pooled = self._wrap(G.reshape(largest, shape))
        if not return_indices:
            return pooled
        place = self._wrap(customgrad.place_of_max(windows._node, order, largest, taps))
        place = place.lt(0).where(place.neg().sub(1), place)
        return pooled, place._reshaped(shape).cast(dtypes.int64)

    def max_unpool2d(
        self,
        indices: Self,
        kernel_size: Each = (2, 2),
        stride: Each | None = None,
        dilation: Each = 1,
        padding: Each = 0,
        output_size: Sequence[int] | None = None,
    ) -> Self:
        """Each element where `indices`, as `max_pool2d` returns them, say it was; 0 elsewhere.

        The pooled axes get the smallest size from which `max_pool2d` with these arguments would
        make those of self, or `output_size`: theirs, or the whole shape. Of several elements for
        one place the last stays.
        """
        window = self._window(kernel_size, stride, dilation, padding)
        if not isinstance(indices, TensorBase):
            raise InvalidType(f"indices must be a tensor, got {type(indices).__name__} {indices!r}")
        if indices.shape != self.shape or not indices.dtype.is_int:
            raise ShapeError(
                f"indices must be integers of shape {list(self.shape)}, got "
                f"{indices.dtype.name} of {list(indices.shape)}"
            )
        plane = self._unpooled_plane(window, output_size)
        front = self.shape[: -window.rank]
        lines = math.prod(front)
        values = self._reshaped((lines, math.prod(self._plane(window))))
        size = math.prod(plane)
        check_positions(indices, Allowed("max_unpool2d", size, "a plane of {} elements", "indices"))
        places = indices._reshaped(values.shape)
        blank = G.const(0, (lines, size), self.dtype, self.device)
        filled = G.scatter(blank, places._node, values._node, 1, "set")
        return self._wrap(G.reshape(filled, (*front, *plane)))

    def _window(
        self, kernel_size: Each, stride: Each | None, dilation: Each, padding: Each
    ) -> Window:
        rank = len(kernel_size) if isinstance(kernel_size, Sequence) else 2
        if not 1 <= rank <= self.ndim:
            raise ShapeError(
                f"kernel_size {kernel_size} pools {rank} axes, the shape is {list(self.shape)}"
            )
        taps = each(kernel_size, rank, "kernel_size", 1)
        steps = taps if stride is None else each(stride, rank, "stride", 1)
        return Window(taps, steps, each(dilation, rank, "dilation", 1), sides(padding, rank))

    def _plane(self, window: Window) -> Shape:
        """Sizes of the axes that windows slide over."""
        return self.shape[-window.rank :]

    def _layout(self, window: Window, ceil_mode: bool) -> tuple[Shape, Window]:
        """How many windows there are, and the window padded for those that hang over the end."""
        if not ceil_mode:
            return window.counts(self._plane(window)), window
        counts: list[int] = []
        padding: list[tuple[int, int]] = []
        axes = zip(self._plane(window), window.spans, window.stride, window.padding, strict=True)
        for size, span, step, (lo, hi) in axes:
            count = -(-(lo + size + hi - span) // step) + 1
            if (count - 1) * step >= lo + size:
                count -= 1
            counts.append(count)
            padding.append((lo, max(hi, (count - 1) * step + span - lo - size)))
        padded = window._replace(padding=tuple(padding))
        padded.counts(self._plane(window))
        return tuple(counts), window if padded == window else padded

    def _windows(self, window: Window, counts: Shape, value: float) -> Self:
        """self, padded with `value`, as windows: (..., windows, taps, windows, taps, ...)."""
        lead = self.shape[: -window.rank]
        around: Pairs = ((0, 0),) * len(lead) + window.padding
        padded = self._surrounded(around, value) if any(map(any, around)) else self
        return self._wrap(slide(padded._node, lead, window, counts))

    def _over_taps(self, monoid: str, counts: Shape) -> Self:
        """Windows, with the taps of each combined."""
        lead = self.ndim - 2 * len(counts)
        taps = range(lead + 1, self.ndim, 2)
        combined = G.reduce(monoid, self._node, taps)
        return self._wrap(G.reshape(combined, (*self.shape[:lead], *counts)))

    def _unpooled_plane(self, window: Window, output_size: Sequence[int] | None) -> Shape:
        if output_size is None:
            axes = zip(self._plane(window), window.stride, window.spans, strict=True)
            around = [lo + hi for lo, hi in window.padding]
            return tuple((n - 1) * s + k - p for (n, s, k), p in zip(axes, around, strict=True))
        if not isinstance(output_size, Sequence):
            raise InvalidType(f"output_size must be a sequence of sizes, got {output_size!r}")
        sizes = shape_of(tuple(output_size))
        if len(sizes) not in (window.rank, self.ndim):
            raise InvalidValue(
                f"output_size must have {window.rank} sizes or {self.ndim}, got {output_size}"
            )
        return sizes[-window.rank :]
