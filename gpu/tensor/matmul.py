"""Products of matrices: a broadcast multiplication and a sum."""

from __future__ import annotations

from typing import Self

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, accumulator, promote, to_dtype
from gpu.core.errors import ShapeError
from gpu.tensor.arguments import Operand
from gpu.tensor.arithmetic import Arithmetic
from gpu.tensor.base import broadcast_shape, repeated


def multiply_and_sum(a: Node, b: Node, axes: tuple[int, ...], dtype: DType) -> Node:
    """a * b, of one shape, summed over `axes`, which stay with size 1.

    Products and sums of floats narrower than float32 are formed in float32; the result is `dtype`.
    """
    wide = accumulator(dtype)
    product = G.alu("mul", G.cast(a, wide), G.cast(b, wide))
    return G.cast(G.reduce("add", product, axes), dtype)


class Matmul(Arithmetic):
    """`matmul`, its other names, and `linear`."""

    __slots__ = ()

    def matmul(self, x: Operand, reverse: bool = False, dtype: DType | str | None = None) -> Self:
        """The matrix product of the last two axes, as `@`; the axes before them broadcast.

        A 1-d operand stands for a row on the left and a column on the right; its axis is not in the
        result. Integers are summed, and wrap, in the result's dtype.

        Args:
            x: the right operand.
            reverse: makes `x` the left operand.
            dtype: of the result, in place of the promoted dtype.

        Raises:
            ShapeError: an operand is 0-d, or the sizes that are summed over differ.
        """
        a, b = self._node, self._as_node(x)
        if reverse:
            a, b = b, a
        result = promote(a.dtype, b.dtype) if dtype is None else to_dtype(dtype)
        return self._wrap(_matmul(a, b, result))

    def dot(self, w: Operand, dtype: DType | str | None = None) -> Self:
        """The same as `matmul`."""
        return self.matmul(w, dtype=dtype)

    def linear(
        self, weight: Operand, bias: Operand | None = None, dtype: DType | str | None = None
    ) -> Self:
        """self @ weight + bias; a 1-d weight multiplies element by element.

        With `dtype` all three are converted to it first.
        """
        x, scale = self, self._lift(weight)
        if dtype is not None:
            x, scale = x.cast(dtype), scale.cast(dtype)
        product = x.mul(scale) if scale.ndim == 1 else x.matmul(scale)
        if bias is None:
            return product
        offset = self._lift(bias)
        return product.add(offset if dtype is None else offset.cast(dtype))


def _matmul(a: Node, b: Node, dtype: DType) -> Node:
    if not a.shape or not b.shape:
        raise ShapeError(
            f"matmul of shapes {list(a.shape)} and {list(b.shape)}: "
            "a 0-d tensor has no rows or columns; use *"
        )
    left = G.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
    right = G.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    *before, rows, inner = left.shape
    *others, depth, columns = right.shape
    if inner != depth:
        raise ShapeError(
            f"matmul of shapes {list(a.shape)} and {list(b.shape)}: the last size of the first, "
            f"{inner}, must equal the {'last but one' if len(b.shape) > 1 else 'only'} size of "
            f"the second, {depth}"
        )
    batch = broadcast_shape(tuple(before), tuple(others))
    whole = (*batch, rows, columns, inner)
    order = [*range(len(others)), len(others) + 1, len(others)]
    columns_first = G.permute(right, order)
    left = repeated(G.reshape(left, (*before, rows, 1, inner)), whole)
    right = repeated(G.reshape(columns_first, (*others, 1, columns, inner)), whole)
    product = multiply_and_sum(left, right, (len(whole) - 1,), dtype)
    kept_rows = (rows,) if len(a.shape) > 1 else ()
    kept_columns = (columns,) if len(b.shape) > 1 else ()
    return G.reshape(product, (*batch, *kept_rows, *kept_columns))
