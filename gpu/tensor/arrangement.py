"""Torch's further ways to cut, join, turn and take: the same elements in another arrangement.

Views are made by all that torch makes views of; `take`, `tile` and what joins make new tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from gpu.compiler.ir.graph import Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, dtypes, to_dtype
from gpu.core.errors import DTypeError, InvalidIndex, InvalidValue, ShapeError
from gpu.tensor.arguments import (
    Operand,
    axes_of,
    axis_of,
    check_number,
    integer,
    items_of,
    shape_of,
)
from gpu.tensor.base import TensorBase, broadcast_shape
from gpu.tensor.gathering import Gathering
from gpu.tensor.gradients import check_tensor
from gpu.tensor.joining import Joining
from gpu.tensor.movement import Sizes


class Arrangement(Joining, Gathering):
    """Cutting, turning and joining by the names of torch, and taking by flat places."""

    __slots__ = ()

    # Cutting.

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """`length` elements of axis `dim` from `start` on, which may count from the end.

        Raises InvalidIndex where they are not all there.
        """
        axis = axis_of(dim, self.ndim, "dim")
        size, first, count = self.shape[axis], integer(start, "start"), integer(length, "length")
        first += size if first < 0 else 0
        if count < 0 or not 0 <= first <= size - count:
            raise InvalidIndex(
                f"narrow: {length} elements from {start} on are not all there in axis {axis} of "
                f"size {size}"
            )
        return self._along(axis, first, count)

    def select(self, dim: int, index: int) -> Self:
        """The elements at `index` of axis `dim`, without that axis."""
        axis = axis_of(dim, self.ndim, "dim")
        place = axis_of(index, self.shape[axis], "index")
        return self._along(axis, place, 1).squeeze(axis)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Each element of axis `dim`, without that axis."""
        axis = axis_of(dim, self.ndim, "dim")
        return tuple(self.select(axis, place) for place in range(self.shape[axis]))

    def tensor_split(
        self, indices_or_sections: int | Sequence[int] | Self, dim: int = 0
    ) -> tuple[Self, ...]:
        """So many pieces, of which the first are one larger if need be; or cut at indices.

        Those may be a tensor, whose values are read.
        """
        if isinstance(indices_or_sections, TensorBase):
            indices_or_sections = indices_or_sections.numpy().tolist()
        axis = axis_of(dim, self.ndim, "dim")
        size = self.shape[axis]
        if not isinstance(indices_or_sections, Sequence):
            count = integer(indices_or_sections, "indices_or_sections")
            if count < 1:
                raise InvalidValue(f"tensor_split needs 1 section or more, got {count}")
            cuts = [i * (size // count) + min(i, size % count) for i in range(1, count)]
        else:
            cuts = [integer(i, "an index") for i in indices_or_sections]
        ends = [slice(*pair).indices(size)[:2] for pair in itertools.pairwise([0, *cuts, size])]
        return tuple(self._along(axis, lo, max(0, hi - lo)) for lo, hi in ends)

    # Turning.

    def hsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """`tensor_split` of columns: along axis 1, of vectors along axis 0."""
        return self._evenly_split(indices_or_sections, min(1, self.ndim - 1), "hsplit", 1)

    def vsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """`tensor_split` of rows, along axis 0."""
        return self._evenly_split(indices_or_sections, 0, "vsplit", 2)

    def dsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """`tensor_split` along axis 2."""
        return self._evenly_split(indices_or_sections, 2, "dsplit", 3)

    def _evenly_split(
        self, parts: int | Sequence[int], axis: int, name: str, least: int
    ) -> tuple[Self, ...]:
        """Raises ShapeError for fewer than `least` axes, or sections of different sizes."""
        if self.ndim < least:
            raise ShapeError(f"{name} needs {least} axes, the shape is {list(self.shape)}")
        uneven = not isinstance(parts, Sequence) and self.shape[axis] % max(
            integer(parts, "indices_or_sections"), 1
        )
        if uneven:
            raise ShapeError(
                f"{name} into {parts} sections: axis {axis} has {self.shape[axis]} elements, which "
                "they do not divide; tensor_split makes uneven ones"
            )
        return self.tensor_split(parts, axis)

    def movedim(self, source: Sizes, destination: Sizes) -> Self:
        """With the axes `source` at `destination`, the others in their order."""
        start = [axis_of(a, self.ndim, "source") for a in items_of(source, ())]
        end = [axis_of(a, self.ndim, "destination") for a in items_of(destination, ())]
        if len(start) != len(end) or len({*start}) < len(start) or len({*end}) < len(end):
            raise InvalidValue(f"movedim needs distinct axes, as many: {source} to {destination}")
        rest = (a for a in range(self.ndim) if a not in start)
        back = dict(zip(end, start, strict=True))
        return self._permuted([back[a] if a in back else next(rest) for a in range(self.ndim)])

    def moveaxis(self, source: Sizes, destination: Sizes) -> Self:
        """The same as `movedim`."""
        return self.movedim(source, destination)

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        """The same as `transpose`."""
        return self.transpose(axis0, axis1)

    def swapdims(self, dim0: int, dim1: int) -> Self:
        """The same as `transpose`."""
        return self.transpose(dim0, dim1)

    def t(self) -> Self:
        """A matrix with its axes swapped; what has one axis or none as it is."""
        if self.ndim > 2:
            raise ShapeError(f"t() takes 2 axes at most, the shape is {list(self.shape)}")
        return self.T

    @property
    def mT(self) -> Self:
        """With the last two axes swapped. Raises ShapeError where there are fewer."""
        if self.ndim < 2:
            raise ShapeError(f"mT needs two axes, the shape is {list(self.shape)}")
        return self.transpose(-2, -1)

    def adjoint(self) -> Self:
        """`mT`, of complex numbers conjugated. Raises as that does."""
        turned = self.mT
        return turned._wrap(G.conj(turned._node)) if self.dtype.is_complex else turned

    @property
    def H(self) -> Self:
        """A matrix with its axes swapped, of complex numbers the conjugates."""
        if self.ndim not in (0, 2):
            raise ShapeError(f"H takes a matrix, the shape is {list(self.shape)}; mH takes batches")
        return self.adjoint() if self.ndim else self._same()

    @property
    def mH(self) -> Self:
        """The same as `adjoint`."""
        return self.adjoint()

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Self:
        """Turned `k` times by a right angle, from axis dims[0] towards dims[1]."""
        axes = axes_of([integer(a, "dims") for a in items_of(dims, ())], self.ndim, "dims")
        if len(axes) != 2:
            raise InvalidValue(f"rot90 needs two axes, got {dims!r}")
        a, b = axes
        match integer(k, "k") % 4:
            case 1:
                return self.flip(b).transpose(a, b)
            case 2:
                return self.flip(a, b)
            case 3:
                return self.flip(a).transpose(a, b)
        return self._same()

    def fliplr(self) -> Self:
        """With axis 1 reversed."""
        return self.flip(axis_of(1, self.ndim, "the axis of fliplr"))

    def flipud(self) -> Self:
        """With axis 0 reversed."""
        return self.flip(axis_of(0, self.ndim, "the axis of flipud"))

    def ravel(self) -> Self:
        """As one axis."""
        return self._reshaped((self.numel(),))

    # Shapes.

    def tile(self, dims: Sizes, *args: int) -> Self:
        """The whole tensor dims[i] times along each axis; missing counts in front are 1."""
        counts = shape_of(dims, args)
        return self.repeat((1,) * (self.ndim - len(counts)) + counts)

    def broadcast_to(self, size: Sizes, *args: int) -> Self:
        """The same as `expand`."""
        return self.expand(size, *args)

    def expand_as(self, other: TensorBase) -> Self:
        """Expanded to the shape of `other`."""
        check_tensor(other, "other")
        return self.expand(other.shape)

    def reshape_as(self, other: TensorBase) -> Self:
        """In the shape of `other`."""
        check_tensor(other, "other")
        return self.reshape(other.shape)

    def view_as(self, other: TensorBase) -> Self:
        """The same as `reshape_as`."""
        return self.reshape_as(other)

    def broadcast_tensors(self, *args: Operand) -> tuple[Self, ...]:
        """self and others in the shape they broadcast to, each of its own dtype."""
        every = [self, *(self._lift(arg) for arg in args)]
        shape = broadcast_shape(*(each.shape for each in every))
        return tuple(each.expand(shape) for each in every)

    def unravel_index(self, shape: Any) -> tuple[Self, ...]:
        """The places in a tensor of `shape` that have these numbers, one result for each axis.

        Negative numbers count from its end. Raises DTypeError for what are no integers.
        """
        if not self.dtype.is_int:
            raise DTypeError(f"unravel_index takes integers, got {self._described()}")
        rest, found = self, []
        for size in reversed(shape_of(shape, ())):
            found.append(rest.mod(size))
            rest = rest.floor_divide(size)
        return tuple(reversed(found))

    def atleast_1d(self) -> Self:
        """With an axis, if there is none."""
        return self if self.ndim else self._reshaped((1,))

    def atleast_2d(self) -> Self:
        """With two axes at least; they come first."""
        return self if self.ndim > 1 else self.atleast_1d().unsqueeze(0)

    def atleast_3d(self) -> Self:
        """With three axes at least; to a matrix the last is added."""
        return self if self.ndim > 2 else self.atleast_2d().unsqueeze(-1)

    # Joining.

    def hstack(self, *args: Operand) -> Self:
        """self and others side by side: along axis 1, of vectors along axis 0."""
        every = [each.atleast_1d() for each in (self, *map(self._lift, args))]
        return every[0].cat(*every[1:], dim=min(1, every[0].ndim - 1))

    def vstack(self, *args: Operand) -> Self:
        """self and others below each other, vectors as rows."""
        first, *rest = (each.atleast_2d() for each in (self, *map(self._lift, args)))
        return first.cat(*rest, dim=0)

    def dstack(self, *args: Operand) -> Self:
        """self and others along axis 2."""
        first, *rest = (each.atleast_3d() for each in (self, *map(self._lift, args)))
        return first.cat(*rest, dim=2)

    def column_stack(self, *args: Operand) -> Self:
        """self and others side by side, vectors as columns."""
        every = (self, *map(self._lift, args))
        first, *rest = (each if each.ndim > 1 else each.reshape(each.numel(), 1) for each in every)
        return first.cat(*rest, dim=1)

    # Diagonals.

    def diag_embed(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Self:
        """Zeros with the last axis as the diagonal of the planes of axes `dim1` and `dim2`."""
        if not self.ndim:
            raise ShapeError("diag_embed needs an axis, this tensor is 0-d")
        a, b = (axis_of(d, self.ndim + 1, f"dim{i}") for i, d in ((1, dim1), (2, dim2)))
        if a == b:
            raise InvalidValue(f"diag_embed needs two axes, got dim1={dim1} and dim2={dim2}")
        shift = integer(offset, "offset")
        size = self.shape[-1] + abs(shift)
        behind = [(0, 0)] * (self.ndim - 1) + [(0, abs(shift))]
        line = self.pad(behind).unsqueeze(-1 if shift >= 0 else -2)
        plane = line.expand(*self.shape[:-1], size, size)
        row, column = plane._index_along(0, (size, size)), plane._index_along(1, (size, size))
        return column.sub(row).eq(shift).where(plane, plane._filled(0)).movedim((-2, -1), (a, b))

    def diagflat(self, offset: int = 0) -> Self:
        """A matrix with all elements of self along a diagonal, zeros elsewhere."""
        return self.ravel().diag_embed(offset)

    @classmethod
    def logspace(
        cls,
        start: float,
        stop: float,
        steps: int,
        base: float = 10.0,
        dtype: DType | str | None = None,
        device: str | None = None,
    ) -> Self:
        """`base` to `steps` powers at equal distances from `start` to `stop`, both included.

        They are computed in float64 here, once; float32 if no dtype is given.
        """
        for value, name in ((start, "start"), (stop, "stop"), (base, "base")):
            check_number(value, name)
        if integer(steps, "steps") < 0:
            raise InvalidValue(f"steps must not be negative, got {steps}")
        element = dtypes.default_float if dtype is None else to_dtype(dtype)
        powers = np.logspace(start, stop, steps, base=base)
        whole = powers.astype(np.int64) if element.is_int else powers
        return cls(whole, device=device).cast(element)

    def cartesian_prod(self, *args: Operand) -> Self:
        """All ways to take an element of self and one of each other vector, a row for each."""
        first, *others = self.meshgrid(*args)
        return (
            first.stack(*others, dim=-1)._reshaped((first.numel(), 1 + len(others)))
            if others
            else self._same()
        )

    def combinations(self, r: int = 2, with_replacement: bool = False) -> Self:
        """All ways to take `r` elements of a vector in their order, a row for each."""
        if self.ndim != 1:
            raise ShapeError(f"combinations needs a vector, got shape {list(self.shape)}")
        if integer(r, "r") < 0:
            raise InvalidValue(f"r must not be negative, got {r}")
        ways = (
            itertools.combinations_with_replacement if with_replacement else itertools.combinations
        )
        rows = list(ways(range(self.shape[0]), r))
        places = np.array(rows, np.int64).reshape(len(rows), r)
        return self._lines(0, self._lift(places.reshape(-1)))._reshaped(places.shape)

    @classmethod
    def triu_indices(
        cls,
        row: int,
        col: int,
        offset: int = 0,
        dtype: DType | str = dtypes.int64,
        device: str | None = None,
    ) -> Self:
        """The rows and columns of the elements that `triu` keeps, of shape (2, count)."""
        return cls(np.stack(np.triu_indices(*_plane(row, offset, col))), device, dtype)

    @classmethod
    def tril_indices(
        cls,
        row: int,
        col: int,
        offset: int = 0,
        dtype: DType | str = dtypes.int64,
        device: str | None = None,
    ) -> Self:
        """The rows and columns of the elements that `tril` keeps, of shape (2, count)."""
        return cls(np.stack(np.tril_indices(*_plane(row, offset, col))), device, dtype)

    # Taking.

    def take(self, index: Operand) -> Self:
        """The elements at places of the flattened tensor, in the shape of `index`.

        Negative places count from the end. Raises ShapeError where there is none to take.
        """
        places = self._lift(index)
        line = self.ravel()
        return line[places.ravel()]._reshaped(places.shape)

    def take_along_dim(self, indices: Operand, dim: int | None = None) -> Self:
        """The elements along `dim` that `indices` names; the other axes broadcast.

        Without `dim` those of the flattened tensor.
        """
        places = self._lift(indices)
        if dim is None:
            return self.ravel().gather(0, places.ravel())
        axis = axis_of(dim, self.ndim, "dim")
        if places.ndim != self.ndim:
            raise ShapeError(
                f"take_along_dim: indices of shape {list(places.shape)} need as many axes as "
                f"{list(self.shape)}"
            )
        front, back = self.shape[:axis], self.shape[axis + 1 :]
        own, wanted = (*front, 1, *back), places.shape
        shape = broadcast_shape(own, (*wanted[:axis], 1, *wanted[axis + 1 :]))
        lines = self.expand(*shape[:axis], self.shape[axis], *shape[axis + 1 :])
        places = places.expand(*shape[:axis], wanted[axis], *shape[axis + 1 :])
        size = self.shape[axis]
        return lines.gather(axis, places.lt(0).where(places.add(size), places))

    def as_strided(
        self, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
    ) -> Self:
        """A tensor of `size` whose element i, j, ... is that at offset + i * stride[0] + ....

        Places count elements of self in row-major order, whatever it is a view of, and the result
        is no view: what is written to it does not show in self.

        Raises ShapeError where a place lies outside.
        """
        sizes = shape_of(size)
        return self.ravel()[self._strided(sizes, stride, storage_offset).ravel()].reshape(sizes)

    def as_strided_scatter(
        self,
        src: Operand,
        size: Sequence[int],
        stride: Sequence[int],
        storage_offset: int | None = None,
    ) -> Self:
        """self with `src` in place of what `as_strided` shows."""
        new, sizes = self._lift(src), shape_of(size)
        if new.shape != sizes:
            raise ShapeError(f"src has shape {list(new.shape)}, what it replaces {list(sizes)}")
        places = self._strided(sizes, stride, storage_offset).ravel()
        line = self.ravel().scatter(0, places, new.cast(self.dtype).ravel())
        return line.reshape(self.shape)

    def _strided(self, sizes: Shape, stride: Sequence[int], storage_offset: int | None) -> Self:
        """The places that `as_strided` reads, of shape `sizes`."""
        steps = [integer(step, "stride") for step in items_of(stride, ())]
        offset = integer(storage_offset or 0, "storage_offset")
        if len(steps) != len(sizes) or min(steps, default=0) < 0 or offset < 0:
            raise InvalidValue(
                f"as_strided takes a stride of 0 or more for each of {len(sizes)} axes and an "
                f"offset of 0 or more, got {steps} and {offset}"
            )
        last = offset + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
        if math.prod(sizes) and last >= self.numel():
            raise ShapeError(
                f"as_strided reads element {last} of {self.numel()}: size {list(sizes)}, stride "
                f"{steps}, offset {offset}"
            )
        place = self._lift(np.full((1,) * len(sizes), offset))
        for axis, (n, step) in enumerate(zip(sizes, steps, strict=True)):
            line = np.arange(n).reshape(-1, *(1,) * (len(sizes) - 1 - axis)) * step
            place = place.add(self._lift(line))
        return place

    # New tensors with a part replaced.

    def select_scatter(self, src: Operand, dim: int, index: int) -> Self:
        """self with `src` in place of what `select` shows."""
        return self._with(src, lambda whole: whole.select(dim, index))

    def slice_scatter(
        self,
        src: Operand,
        dim: int = 0,
        start: int | None = None,
        end: int | None = None,
        step: int = 1,
    ) -> Self:
        """self with `src` in place of elements start, start + step, ... of axis `dim`."""
        axis = axis_of(dim, self.ndim, "dim")
        index = (*(slice(None),) * axis, slice(start, end, step))
        return self._with(src, lambda whole: whole[index])

    def diagonal_scatter(self, src: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """self with `src` in place of what `diagonal` shows."""
        return self._with(src, lambda whole: whole.diagonal(offset, dim1, dim2))

    def _with(self, src: Operand, part: Callable[[Self], Self]) -> Self:
        """self with `src`, of its shape, in place of a part, as a new tensor."""
        whole, new = self._same(), self._lift(src)
        shown = part(whole)
        if shown.shape != new.shape:
            raise ShapeError(
                f"src has shape {list(new.shape)}, what it replaces {list(shown.shape)}"
            )
        shown.assign(new)
        return whole


def _plane(row: object, offset: object, col: object) -> tuple[int, int, int]:
    """The size of a plane and the offset of its diagonal, in numpy's order."""
    rows, columns = (int(n) for n in shape_of((row, col)))
    return rows, integer(offset, "offset"), columns
