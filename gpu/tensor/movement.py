"""Movement: the same elements in another shape or order, some of them, or repeated.

Results are views where the method says so or all it does is to name elements: they follow writes to
the tensor they were made from, and writing to them writes there (`gpu/tensor/views.py`). That holds
for `reshape` and `flip` always, which torch copies where strides do not express the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from gpu.compiler.ir.dims import Dim, dimension, has_symbols, product, reshape_groups
from gpu.compiler.ir.graph import Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import InvalidIndex, InvalidValue, ShapeError
from gpu.tensor.arguments import Axis, axes_of, axis_of, integer, items_of, shape_of, size_of
from gpu.tensor.comparison import Comparison
from gpu.tensor.views import Expand, Permute, Reshape, Slice, Windows, whole

Sizes = int | Sequence[int]


class Movement(Comparison):
    """Reshaping, reordering, repeating, cutting.

    Views of self are made by all but `repeat`, `repeat_interleave`, `diag` of one axis, `tril` and
    `triu`.
    """

    __slots__ = ()

    def reshape(self, shape: Sizes, *args: int) -> Self:
        """The same elements, in row-major order, under another shape; one size may be -1.

        Raises ShapeError where the number of elements differs.
        """
        wanted = tuple([size_of(size, "a size") for size in items_of(shape, args)])
        return self._reshaped(_solved(wanted, self.shape))

    def view(self, shape: Sizes, *args: int) -> Self:
        """The same as `reshape`."""
        return self.reshape(shape, *args)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Axes from `start_dim` to `end_dim` as one; a 0-d tensor gets one axis."""
        if not self.shape:
            axes_of((start_dim,), 0, "start_dim")
            axes_of((end_dim,), 0, "end_dim")
            return self._reshaped((1,))
        first = axis_of(start_dim, self.ndim, "start_dim")
        last = axis_of(end_dim, self.ndim, "end_dim")
        if first > last:
            raise InvalidIndex(f"start_dim {start_dim} lies behind end_dim {end_dim}")
        merged = product(self.shape[first : last + 1])
        return self._reshaped((*self.shape[:first], merged, *self.shape[last + 1 :]))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Axis `dim` split into axes of `sizes`, of which one may be -1."""
        axis = axis_of(dim, self.ndim, "dim")
        wanted = tuple(size_of(size, "a size") for size in sizes)
        split = _solved(wanted, (self.shape[axis],))
        return self._reshaped((*self.shape[:axis], *split, *self.shape[axis + 1 :]))

    def squeeze(self, dim: Axis = None) -> Self:
        """Without the axes of size 1, or without those of them that `dim` names."""
        named = axes_of(dim, self.ndim, "dim")
        left = [n for axis, n in enumerate(self.shape) if axis not in named or n != 1]
        return self._reshaped(tuple(left))

    def unsqueeze(self, dim: int) -> Self:
        """With a new axis of size 1 at `dim` of the result."""
        axis = axis_of(dim, self.ndim + 1, "dim")
        return self._reshaped((*self.shape[:axis], 1, *self.shape[axis:]))

    def permute(self, order: Sizes, *args: int) -> Self:
        """Axis i of the result is axis order[i] of self.

        Raises InvalidIndex for an axis that does not exist, ShapeError unless each is named once.
        """
        named = items_of(order, args)
        axes = [axis_of(axis, self.ndim, "an axis of the order") for axis in named]
        return self._permuted(axes)

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """With two axes swapped; 0 and -1 name the whole of a 0-d tensor, as in torch."""
        lines = max(self.ndim, 1)
        a, b = axis_of(dim0, lines, "dim0"), axis_of(dim1, lines, "dim1")
        if not self.shape:
            return self._permuted(())
        order = list(range(self.ndim))
        order[a], order[b] = b, a
        return self._permuted(order)

    @property
    def T(self) -> Self:
        """The axes in reverse order."""
        return self._permuted(range(self.ndim)[::-1])

    def expand(self, shape: Sizes, *args: int) -> Self:
        """Axes of size 1 repeated to `shape`, which may have more axes in front; -1 keeps a size.

        Raises ShapeError where an axis of another size would change.
        """
        wanted = [size_of(size, "a size") for size in items_of(shape, args)]
        lead = len(wanted) - self.ndim
        if lead < 0 or -1 in wanted[: max(lead, 0)]:
            raise ShapeError(f"shape {list(self.shape)} does not expand to {wanted}")
        old = (1,) * lead + self.shape
        sizes = tuple(n if size == -1 else size for size, n in zip(wanted, old, strict=True))
        if any(size < 0 or n not in (1, size) for size, n in zip(sizes, old, strict=True)):
            raise ShapeError(
                f"shape {list(self.shape)} does not expand to {wanted}: only axes of size 1 repeat"
            )
        return self._reshaped(old)._viewed(Expand(sizes))

    def repeat(self, repeats: Sizes, *args: int) -> Self:
        """The whole tensor `repeats[i]` times along axis i; further axes may come in front."""
        counts = shape_of(repeats, args)
        if len(counts) < self.ndim:
            raise ShapeError(f"repeat needs a count for each of {self.ndim} axes, got {counts}")
        sizes = (1,) * (len(counts) - self.ndim) + self.shape
        apart = tuple(n for size in sizes for n in (1, size))
        wide = tuple(n for pair in zip(counts, sizes, strict=True) for n in pair)
        repeated = self._wrap(G.expand(G.reshape(self._node, apart), wide))
        return repeated._reshaped(tuple(c * n for c, n in zip(counts, sizes, strict=True)))

    def repeat_interleave(self, repeats: int, dim: int | None = None) -> Self:
        """Each element along `dim`, or of the flattened tensor, `repeats` times in a row."""
        x = self.flatten() if dim is None else self
        axis = 0 if dim is None else axis_of(dim, self.ndim, "dim")
        (count,) = shape_of([repeats])
        front, size, back = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        apart = G.reshape(x._node, (*front, size, 1, *back))
        wide = G.expand(apart, (*front, size, count, *back))
        return self._wrap(G.reshape(wide, (*front, size * count, *back)))

    def flip(self, axis: Sizes, *args: int) -> Self:
        """With the axes that are named reversed."""
        named = axes_of([integer(a, "axis") for a in items_of(axis, args)], self.ndim)
        return self._sliced(
            [(n - 1, n, -1) if a in named else (0, n, 1) for a, n in enumerate(self.shape)]
        )

    def shrink(self, arg: Sequence[tuple[int, int] | None]) -> Self:
        """Elements start..end-1 of each axis; `arg` has (start, end) or None for each.

        Raises InvalidIndex where they are not all there.
        """
        if not isinstance(arg, Sequence) or len(arg) != self.ndim:
            raise ShapeError(f"shrink needs a range for each of {self.ndim} axes, got {arg!r}")
        ranges = []
        for axis, (bounds, size) in enumerate(zip(arg, self.shape, strict=True)):
            start, end = (0, size) if bounds is None else bounds
            if not 0 <= size_of(start, "a start") <= size_of(end, "an end") <= size:
                raise InvalidIndex(f"range {start}..{end} of axis {axis} is not within 0..{size}")
            ranges.append((start, dimension(end - start), 1))
        return self._sliced(ranges)

    def shrink_to(self, shape: Sequence[int | None] | int | None, *args: int | None) -> Self:
        """The first elements of each axis, as many as `shape` says; None keeps an axis."""
        sizes = items_of(shape, args)
        return self.shrink([None if n is None else (0, size_of(n, "a size")) for n in sizes])

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """Elements i, i + offset of axes `dim1` and `dim2`, as the last axis of the result."""
        a, b = axis_of(dim1, self.ndim, "dim1"), axis_of(dim2, self.ndim, "dim2")
        if a == b:
            raise InvalidValue(f"diagonal needs two axes, got dim1={dim1} and dim2={dim2}")
        rest = [axis for axis in range(self.ndim) if axis not in (a, b)]
        plane = self.permute([*rest, a, b])
        *front, rows, columns = plane.shape
        shift = integer(offset, "offset")
        row, column = max(0, -shift), max(0, shift)
        count = max(0, min(rows - row, columns - column))
        flat = plane._reshaped((*front, rows * columns))
        start = row * columns + column if count else 0
        return flat._sliced([*whole(front), (start, count, columns + 1)])

    def diag(self, diagonal: int = 0) -> Self:
        """A square matrix with self, of one axis, as its diagonal; of a matrix, the diagonal.

        The one that lies `diagonal` columns to the right of the main one.
        """
        if self.ndim == 2:
            return self.diagonal(diagonal)
        if self.ndim != 1:
            raise ShapeError(f"diag needs one axis or two, the shape is {list(self.shape)}")
        (size,) = self.shape
        if shift := integer(diagonal, "diagonal"):
            inner = self.diag()._node
            sides = [(max(0, -shift), max(0, shift)), (max(0, shift), max(0, -shift))]
            return self._wrap(G.pad(inner, [(before, after, 0) for before, after in sides]))
        spread = self._wrap(G.pad(self._node, [(0, 0, size)]))
        return spread._reshaped((size, size))

    def tril(self, diagonal: int = 0) -> Self:
        """Zeros above the diagonal that lies `diagonal` columns to the right of the main one."""
        return self._beside_diagonal(diagonal).where(self, self._filled(0))

    def triu(self, diagonal: int = 0) -> Self:
        """Zeros below the diagonal that lies `diagonal` columns to the right of the main one."""
        return self._beside_diagonal(integer(diagonal, "diagonal") - 1).where(self._filled(0), self)

    def unfold(self, dim: int, size: int, step: int) -> Self:
        """Windows of `size` elements along `dim`, `step` apart; they are the last axis.

        A 0-d tensor counts as one of a single element, whose only window is the result. Raises
        InvalidValue for a window that does not fit or a step under 1.
        """
        axis = axis_of(dim, max(self.ndim, 1), "dim")
        length = self.shape[axis] if self.ndim else 1
        if not 0 <= integer(size, "size") <= length or integer(step, "step") < 1:
            raise InvalidValue(
                f"unfold of {length} elements: size must be in 0..{length} and step at least 1, "
                f"got size {size} and step {step}"
            )
        if not self.ndim:
            return self._reshaped((1,))._sliced([(0, size, 1)])
        return self._viewed(Windows(axis, size, step))

    def _beside_diagonal(self, offset: int) -> Self:
        """Where the column is at most the row plus `offset`."""
        if self.ndim < 2:
            raise ShapeError(f"a triangle needs two axes, the shape is {list(self.shape)}")
        plane = self.shape[-2:]
        row, column = self._index_along(0, plane), self._index_along(1, plane)
        return column._binary("sub", row).le(integer(offset, "diagonal"))

    def _reshaped(self, shape: Shape) -> Self:
        return self._viewed(Reshape(shape))

    def _permuted(self, order: Sequence[int]) -> Self:
        if sorted(order) != list(range(self.ndim)):
            raise ShapeError(f"the order {tuple(order)} must name each of {self.ndim} axes once")
        return self._viewed(Permute(tuple(order)))

    def _sliced(self, ranges: Sequence[tuple[int, int, int]]) -> Self:
        """Elements of each axis, by (start, size, step)."""
        return self._viewed(Slice(tuple(ranges)))


def _solved(wanted: Shape, old: Shape) -> Shape:
    """`wanted` with its one -1, if any, replaced so that it holds as many elements as `old`."""
    if wanted.count(-1) > 1 or any(size < -1 for size in wanted):
        raise ShapeError(f"shape {list(wanted)}: only one size may be -1, others not negative")
    if has_symbols((wanted, old)):
        return _solved_symbolic(wanted, old)
    total = math.prod(old)
    known = abs(math.prod(wanted))  # of at most one -1
    if -1 not in wanted:
        if known != total:
            raise ShapeError(f"shape {list(old)} has {total} elements, {list(wanted)} has {known}")
        return wanted
    if known == 0 or total % known:
        raise ShapeError(f"no size in place of -1 makes {list(wanted)} hold {total} elements")
    return tuple(total // known if size == -1 else size for size in wanted)


def _solved_symbolic(wanted: Shape, old: Shape) -> Shape:
    """`_solved` where sizes are symbolic."""
    result = wanted
    if -1 in wanted:
        left, given = list(old), []
        for size in (size for size in wanted if size != -1):
            if has_symbols(size) and size in left:
                left.remove(size)
            else:
                given.append(size)
        missing = _quotient(product(left), product(given))
        if missing is None:
            raise ShapeError(f"no size in place of -1 makes {list(wanted)} a shape of {list(old)}")
        result = tuple(missing if size == -1 else size for size in wanted)
    if reshape_groups(old, result) is None:
        raise ShapeError(
            f"shape {list(old)} has no elements in the order of {list(wanted)}: the number of "
            "elements must stay the same, and a symbolic size can join sizes behind it only"
        )
    return result


def _quotient(total: Dim, known: Dim) -> Dim | None:
    """`total / known` where it is whole for all values, else None."""
    if has_symbols(known) or known == 0 or dimension(total % known) != 0:
        return None
    return dimension(total // known)
