"""Tensors joined to one, cut into several, and padded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Self, TypeVar

from gpu.compiler.ir.dims import is_symbolic
from gpu.compiler.ir.graph import Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import Number, dtypes, promote
from gpu.core.errors import InvalidType, InvalidValue, ShapeError
from gpu.core.scalars import check_fits
from gpu.tensor.arguments import Axis, Operand, axis_of, choice, integer, items_of, size_of
from gpu.tensor.base import broadcast_shape, broadcast_to
from gpu.tensor.indexing import Indexing

Padding = Sequence[int] | Sequence[Sequence[int] | None]

T = TypeVar("T", bound="Joining")


class Joining(Indexing):
    """Concatenation and its relatives."""

    __slots__ = ()

    def cat(self, *args: Operand, dim: int = 0) -> Self:
        """self and others one after the other along `dim`, promoted to one dtype.

        Raises ShapeError unless all have one rank and the same sizes along every other axis.
        """
        _check_called_on_tensor(self, "cat")
        parts = [self._lift(arg) for arg in args]
        axis = axis_of(dim, self.ndim, "dim")
        dtype = self.dtype
        for part in parts:
            _check_joinable(self.shape, part.shape, axis)
            dtype = promote(dtype, part.dtype)
        every = [part.cast(dtype) for part in (self, *parts)]
        present = [part for part in every if part.shape[axis]]
        joined = _joined(present, axis) if present else every[0]
        empty = [part._node for part in every if not part.shape[axis]]
        return self._wrap(G.flat(joined._node, *empty))

    def stack(self, *args: Operand, dim: int = 0) -> Self:
        """self and others, all of one shape, along a new axis at `dim`."""
        _check_called_on_tensor(self, "stack")
        parts = [self._lift(arg) for arg in args]
        for part in parts:
            if part.shape != self.shape:
                raise ShapeError(
                    f"stack needs one shape, got {list(self.shape)} and {list(part.shape)}"
                )
        first, *rest = (part.unsqueeze(dim) for part in (self, *parts))
        return first.cat(*rest, dim=dim)

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Pieces along `dim`: of a size each, the last may be smaller, or of the sizes given.

        Raises InvalidValue for a size under 1, ShapeError where the sizes do not add up.
        """
        axis = axis_of(dim, self.ndim, "dim")
        length = self.shape[axis]
        if isinstance(sizes, Sequence):
            widths = [integer(size, "a size") for size in sizes]
            if sum(widths) != length or min(widths, default=0) < 0:
                raise ShapeError(f"sizes {widths} must add up to {length}, the size of axis {axis}")
        else:
            if integer(sizes, "sizes") < 1:
                raise InvalidValue(f"sizes must be at least 1, got {sizes}")
            widths = [min(sizes, length - at) for at in range(0, length, sizes)] or [0]
        ends = list(accumulate(widths))
        return tuple(
            self._along(axis, end - width, width) for end, width in zip(ends, widths, strict=True)
        )

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """At most `chunks` pieces along `dim`, of one size but for the last."""
        if integer(chunks, "chunks") < 1:
            raise InvalidValue(f"chunks must be at least 1, got {chunks}")
        axis = axis_of(dim, self.ndim, "dim")
        if self.shape[axis] == 0:
            return (self,) * chunks
        return self.split(-(-self.shape[axis] // chunks), axis)

    def roll(self, shifts: int | Sequence[int], dims: Axis = None) -> Self:
        """Elements moved by `shifts` along `dims`; those pushed out come in at the other end.

        Without `dims` the flattened tensor is rolled.
        """
        if dims is None:
            return self.flatten().roll(shifts, 0)._reshaped(self.shape)
        named = dims if isinstance(dims, Sequence) else (dims,)
        steps = shifts if isinstance(shifts, Sequence) else (shifts,)
        if len(named) != len(steps):
            raise InvalidValue(f"roll needs one shift for each axis, got {shifts!r} for {dims!r}")
        result = self
        for step, dim in zip(steps, named, strict=True):
            axis = axis_of(dim, self.ndim, "dims")
            size = self.shape[axis]
            cut = -integer(step, "shifts") % size if size else 0
            if cut:
                # Sizes that the shift has no part in: one kernel serves every shift.
                result = result.cat(result, dim=axis)._along(axis, cut, size)
        return result._same()

    def pad(self, padding: Padding, mode: str = "constant", value: Number = 0.0) -> Self:
        """Elements added before and after those of each axis; negative counts take some away.

        Args:
            padding: (before, after), or None, for each axis from the first; or, as in torch, a flat
                sequence (before, after, before, after, ...) from the last axis on.
            mode: "constant" adds `value`, "reflect" mirrors at the first and last element,
                "replicate" repeats them, "circular" continues at the other end.
            value: what is added by "constant".
        """
        choice(mode, "mode", ("constant", "reflect", "replicate", "circular"))
        pairs = _pairs(padding, self.ndim)
        cut = [(max(0, -lo), max(0, -hi)) for lo, hi in pairs]
        # In this order symbolic counts are compared in a way that their bounds decide.
        grown = [(max(lo, 0), max(hi, 0)) for lo, hi in pairs]
        kept = self.shrink(
            [(lo, max(lo, n - hi)) for (lo, hi), n in zip(cut, self.shape, strict=True)]
        )
        if mode == "constant":
            return kept._surrounded(grown, value)
        for axis, (before, after) in enumerate(grown):
            if before or after:
                kept = kept._continued(axis, before, after, mode)
        return kept._same()

    def pad_to(
        self, shape: Sequence[int | None] | int | None, *args: int | None, value: Number = 0
    ) -> Self:
        """With `value` added behind the end of each axis up to `shape`; None keeps an axis."""
        sizes = items_of(shape, args)
        if len(sizes) != self.ndim:
            raise ShapeError(f"pad_to needs a size for each of {self.ndim} axes, got {sizes}")
        pairs = [
            None if size is None else (0, integer(size, "a size") - n)
            for size, n in zip(sizes, self.shape, strict=True)
        ]
        if any(pair is not None and pair[1] < 0 for pair in pairs):
            raise ShapeError(f"shape {list(self.shape)} does not pad to the smaller {list(sizes)}")
        return self.pad(pairs, value=value)

    def meshgrid(self, *args: Operand, indexing: str = "ij") -> tuple[Self, ...]:
        """Coordinates of the grid that self and others span, each of the grid's shape.

        With indexing "ij" axis i of the grid belongs to tensor i, with "xy" the first two are
        swapped. Each tensor has one axis or none.
        """
        choice(indexing, "indexing", ("ij", "xy"))
        lines = [self, *(self._lift(arg) for arg in args)]
        for line in lines:
            if line.ndim > 1:
                raise ShapeError(f"meshgrid takes 1-d tensors, got shape {list(line.shape)}")
        axes = list(range(len(lines)))
        if indexing == "xy" and len(lines) > 1:
            axes[0], axes[1] = 1, 0
        across = [
            line._reshaped(tuple(line.numel() if a == axis else 1 for a in range(len(lines))))
            for line, axis in zip(lines, axes, strict=True)
        ]
        shape = broadcast_shape(*(line.shape for line in across))
        return tuple(line._wrap(broadcast_to(line._node, shape)) for line in across)

    def _along(self, axis: int, start: int, count: int, step: int = 1) -> Self:
        """`count` elements of one axis, from `start` on."""
        ranges = [(0, size, 1) for size in self.shape]
        ranges[axis] = (start if count else 0, count, step)
        return self._sliced(ranges)

    def _surrounded(self, pairs: Sequence[tuple[int, int]], value: Number) -> Self:
        if isinstance(value, complex):
            check_fits(value, self.dtype)
        elif self.dtype.is_whole and (not math.isfinite(value) or value != int(value)):
            raise InvalidValue(f"value {value!r} is not one of {self.dtype.name}")
        padding = [(before, after, 0) for before, after in pairs]
        padded = self._wrap(G.pad(self._node, padding))
        if not value:
            return padded
        inside = self._wrap(G.const(True, self.shape, dtypes.bool, self.device))
        return inside._wrap(G.pad(inside._node, padding)).where(padded, padded._filled(value))

    def _continued(self, axis: int, before: int, after: int, mode: str) -> Self:
        size = self.shape[axis]
        longest = {"reflect": size - 1, "circular": size, "replicate": max(before, after)}[mode]
        if max(before, after) > longest or (size == 0 and before + after):
            raise ShapeError(
                f"{mode} padding of ({before}, {after}) does not fit axis {axis} of size {size}"
            )
        if mode == "reflect":
            head = self._along(axis, before, before, -1)
            tail = self._along(axis, size - 2, after, -1)
        elif mode == "circular":
            head, tail = self._along(axis, size - before, before), self._along(axis, 0, after)
        else:
            head = self._along(axis, 0, min(1, before)).repeat_interleave(before, axis)
            tail = self._along(axis, size - 1, min(1, after)).repeat_interleave(after, axis)
        return head.cat(self, tail, dim=axis)


# Parts of which one kernel chooses; of more, groups of as many are joined in memory first. Those of
# one form have one kernel, and each touches its own parts alone.
_GROUP: Final = 24


def _joined(parts: Sequence[T], axis: int) -> T:
    """Parts of one dtype along `axis`: each is padded to the whole and chosen where it lies."""
    if len(parts) > _GROUP:
        groups = [_joined(parts[i : i + _GROUP], axis) for i in range(0, len(parts), _GROUP)]
        return _joined([group._wrap(G.contiguous(group._node)) for group in groups], axis)
    ends = list(accumulate(part.shape[axis] for part in parts))
    padded = []
    for part, end in zip(parts, ends, strict=True):
        around = [(0, 0, 0)] * part.ndim
        around[axis] = (end - part.shape[axis], ends[-1] - end, 0)
        padded.append(part._wrap(G.pad(part._node, around)))
    result = padded[-1]
    position = result._index_along(axis, result.shape)
    for part, end in zip(padded[-2::-1], ends[-2::-1], strict=True):
        result = position.lt(end).where(part, result)
    return result


def _check_joinable(first: Shape, other: Shape, axis: int) -> None:
    same = len(first) == len(other) and all(
        a == axis or m == n for a, (m, n) in enumerate(zip(first, other, strict=True))
    )
    if not same:
        raise ShapeError(
            f"cat along axis {axis} of shapes {list(first)} and {list(other)}: "
            "all other sizes must be equal"
        )


def _pairs(padding: Padding, rank: int) -> list[tuple[int, int]]:
    """What goes before and after each axis, from the first on."""
    if not isinstance(padding, Sequence):
        raise InvalidType(f"padding must be a sequence, got {type(padding).__name__} {padding!r}")
    if all(isinstance(item, int) or is_symbolic(item) for item in padding):
        flat = [size_of(item, "padding") for item in padding]
        if len(flat) % 2 or len(flat) > 2 * rank:
            raise ShapeError(
                f"flat padding has (before, after) for at most {rank} axes, got {flat}"
            )
        named = list(zip(flat[::2], flat[1::2], strict=True))[::-1]
        return [(0, 0)] * (rank - len(named)) + named
    if len(padding) != rank:
        raise ShapeError(f"padding needs a pair or None for each of {rank} axes, got {padding!r}")
    return [_pair(item) for item in padding]


def _pair(item: Sequence[int] | int | None) -> tuple[int, int]:
    if item is None:
        return 0, 0
    if not isinstance(item, Sequence) or len(item) != 2:
        raise InvalidType(f"padding of an axis is (before, after) or None, got {item!r}")
    return size_of(item[0], "padding"), size_of(item[1], "padding")


def _check_called_on_tensor(first: object, name: str) -> None:
    """Raises InvalidType where torch's way of calling a method is used, with one list."""
    if not isinstance(first, Joining):
        raise InvalidType(
            f"{name}() takes tensors, got {type(first).__name__}: write a.{name}(b, c), or "
            f"Tensor.{name}(*tensors) for a list of them"
        )
