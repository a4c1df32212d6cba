"""Torch's further products of vectors and matrices.

Sums of products are formed as by `matmul`: of narrow floats in float32, of integers in their dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from gpu.compiler.ir.graph import build as G
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import Operand, axes_of, axis_of, integer
from gpu.tensor.arrangement import Arrangement
from gpu.tensor.base import broadcast_shape
from gpu.tensor.matmul import Matmul
from gpu.tensor.totals import Totals

Axes = int | tuple[Sequence[int], Sequence[int]] | Sequence[Sequence[int]]


class Contraction(Matmul, Arrangement, Totals):
    """Products with torch's names, and what is made of them."""

    __slots__ = ()

    def mm(self, mat2: Operand) -> Self:
        """The product of two matrices. Raises ShapeError for anything else."""
        return self._ranked_product(mat2, 2, 2, "mm")

    def bmm(self, mat2: Operand) -> Self:
        """The products of two batches of matrices, of three axes each."""
        other = self._lift(mat2)
        if self.shape[:1] != other.shape[:1]:
            raise ShapeError(f"bmm of {list(self.shape)} and {list(other.shape)}: batches differ")
        return self._ranked_product(other, 3, 3, "bmm")

    def mv(self, vec: Operand) -> Self:
        """The product of a matrix and a vector."""
        return self._ranked_product(vec, 2, 1, "mv")

    def _ranked_product(self, other: Operand, rank: int, others: int, name: str) -> Self:
        right = self._lift(other)
        if (self.ndim, right.ndim) != (rank, others):
            raise ShapeError(
                f"{name} needs {rank} and {others} axes, got shapes {list(self.shape)} and "
                f"{list(right.shape)}"
            )
        return self.matmul(right)

    def addmm(self, mat1: Operand, mat2: Operand, *, beta: float = 1, alpha: float = 1) -> Self:
        """beta * self + alpha * (mat1 @ mat2); with beta 0 self is not looked at."""
        return self._plus(self._lift(mat1).mm(mat2), beta, alpha)

    def addmv(self, mat: Operand, vec: Operand, *, beta: float = 1, alpha: float = 1) -> Self:
        """beta * self + alpha * (mat @ vec)."""
        return self._plus(self._lift(mat).mv(vec), beta, alpha)

    def baddbmm(
        self, batch1: Operand, batch2: Operand, *, beta: float = 1, alpha: float = 1
    ) -> Self:
        """beta * self + alpha * (batch1 @ batch2), of batches of matrices."""
        return self._plus(self._lift(batch1).bmm(batch2), beta, alpha)

    def addbmm(
        self, batch1: Operand, batch2: Operand, *, beta: float = 1, alpha: float = 1
    ) -> Self:
        """beta * self + alpha * (the sum of the products of a batch)."""
        product = self._lift(batch1).bmm(batch2)
        return self._plus(product.sum(0, dtype=product.dtype), beta, alpha)

    def addr(self, vec1: Operand, vec2: Operand, *, beta: float = 1, alpha: float = 1) -> Self:
        """beta * self + alpha * (the outer product of two vectors)."""
        return self._plus(self._lift(vec1).outer(vec2), beta, alpha)

    def _plus(self, product: Self, beta: float, alpha: float) -> Self:
        """beta * self + alpha * product, in the shape of the product."""
        scaled = product if alpha == 1 else product.mul(alpha)
        if beta == 0:
            return scaled
        share = self if beta == 1 else self.mul(beta)
        return share.expand(product.shape).add(scaled)

    def outer(self, vec2: Operand) -> Self:
        """The products of each element with each of `vec2`, of vectors."""
        other = self._lift(vec2)
        if (self.ndim, other.ndim) != (1, 1):
            raise ShapeError(
                f"outer needs two vectors, got shapes {list(self.shape)} and {list(other.shape)}"
            )
        return self.unsqueeze(1).mul(other)

    def ger(self, vec2: Operand) -> Self:
        """The same as `outer`."""
        return self.outer(vec2)

    def inner(self, other: Operand) -> Self:
        """The sums of products along both last axes; with a 0-d tensor, the product."""
        right = self._lift(other)
        if not self.ndim or not right.ndim:
            return self.mul(right)
        return self.tensordot(right, ((-1,), (-1,)))

    def vdot(self, other: Operand) -> Self:
        """The sum of products of two vectors."""
        return self._ranked_product(other, 1, 1, "vdot")

    def vecdot(self, other: Operand, dim: int = -1) -> Self:
        """The sums of products along `dim`, of which sizes are equal; the other axes broadcast.

        Complex numbers of self are conjugated, as in torch.
        """
        right = self._lift(other)
        if not self.ndim or not right.ndim:
            raise ShapeError("vecdot needs an axis, one of the tensors is 0-d")
        a, b = self.movedim(dim, -1), right.movedim(dim, -1)
        if a.shape[-1] != b.shape[-1]:
            raise ShapeError(
                f"vecdot of {list(self.shape)} and {list(right.shape)}: sizes along axis {dim} "
                "differ"
            )
        a = a._wrap(G.conj(a._node)) if a.dtype.is_complex else a
        return a.unsqueeze(-2).matmul(b.unsqueeze(-1)).squeeze((-2, -1))

    def tensordot(self, other: Operand, dims: Axes = 2) -> Self:
        """The sums of products over pairs of axes: those named, or the last and the first `dims`.

        Raises ShapeError where sizes of a pair differ.
        """
        right = self._lift(other)
        mine, theirs = _paired(dims, self.ndim, right.ndim)
        if [self.shape[a] for a in mine] != [right.shape[b] for b in theirs]:
            raise ShapeError(
                f"tensordot of {list(self.shape)} over {mine} and {list(right.shape)} over "
                f"{theirs}: sizes differ"
            )
        rows = [a for a in range(self.ndim) if a not in mine]
        columns = [b for b in range(right.ndim) if b not in theirs]
        inner = math.prod(self.shape[a] for a in mine)
        shape = [self.shape[a] for a in rows], [right.shape[b] for b in columns]
        left = self.permute([*rows, *mine]).reshape(math.prod(shape[0]), inner)
        product = left.matmul(
            right.permute([*theirs, *columns]).reshape(inner, math.prod(shape[1]))
        )
        return product.reshape([*shape[0], *shape[1]])

    def kron(self, other: Operand) -> Self:
        """Kronecker's product: each element times all of `other`, in its place."""
        right = self._lift(other)
        rank = max(self.ndim, right.ndim)
        a, b = ((1,) * (rank - x.ndim) + x.shape for x in (self, right))
        left = self.reshape([n for size in a for n in (size, 1)])
        product = left.mul(right.reshape([n for size in b for n in (1, size)]))
        return product.reshape([m * n for m, n in zip(a, b, strict=True)])

    def cross(self, other: Operand, dim: int | None = None) -> Self:
        """The vector products along `dim`, of size 3, or the first such axis; others broadcast."""
        right = self._lift(other)
        shape = broadcast_shape(self.shape, right.shape)
        a, b = self.expand(shape), right.expand(shape)
        if dim is None:
            dim = next((i for i, n in enumerate(shape) if n == 3), 0)
        axis = axis_of(dim, len(shape), "dim")
        if shape[axis] != 3:
            raise ShapeError(f"cross along axis {axis} of {list(shape)}: the size must be 3")
        return a.roll(-1, axis).mul(b.roll(-2, axis)).sub(a.roll(-2, axis).mul(b.roll(-1, axis)))

    def trace(self) -> Self:
        """The sum of the diagonal of a matrix."""
        if self.ndim != 2:
            raise ShapeError(f"trace needs a matrix, the shape is {list(self.shape)}")
        return self.diagonal().sum()

    def block_diag(self, *args: Operand) -> Self:
        """self and others, of two axes at most, as the blocks of a diagonal."""
        blocks = [self, *map(self._lift, args)]
        if any(block.ndim > 2 for block in blocks):
            raise ShapeError("block_diag takes tensors of two axes at most")
        blocks = [block.reshape((1,) * (2 - block.ndim) + block.shape) for block in blocks]
        width, rows, start = sum(block.shape[1] for block in blocks), [], 0
        for block in blocks:
            rows.append(block.pad([(0, 0), (start, width - start - block.shape[1])]))
            start += block.shape[1]
        return rows[0].cat(*rows[1:], dim=0)

    def cdist(self, x2: Operand, p: float = 2.0) -> Self:
        """The p-norms of the differences of each row of self and each of `x2`."""
        right = self._lift(x2)
        if min(self.ndim, right.ndim) < 2 or self.shape[-1] != right.shape[-1]:
            raise ShapeError(f"cdist of {list(self.shape)} and {list(right.shape)}")
        apart = self.unsqueeze(-2).sub(right.unsqueeze(-3))
        return apart.norm(p, -1) if self.shape[-1] else apart.sum(-1)

    def cov(
        self,
        *,
        correction: int = 1,
        fweights: Operand | None = None,
        aweights: Operand | None = None,
    ) -> Self:
        """The covariances of variables, of which each row holds the observations.

        Args:
            correction: what is taken from the number of observations.
            fweights: how often each was made, integers.
            aweights: how much each counts.
        """
        if self.ndim > 2:
            raise ShapeError(f"cov takes two axes at most, the shape is {list(self.shape)}")
        x = self._as_float().atleast_2d()
        count = x.shape[1]
        weights = [self._lift(w) for w in (fweights, aweights) if w is not None]
        if not weights:
            centred = x.sub(x.mean(1, keepdim=True))
            return centred.matmul(centred.T).div(float(max(0, count - correction))).squeeze()
        share = weights[0] if len(weights) == 1 else weights[0].mul(weights[1])
        total = share.sum().cast(x.dtype)
        centred = x.sub(x.mul(share).sum(1, keepdim=True).div(total))
        free = total.sub(correction)
        if aweights is not None:
            free = total.sub(share.mul(weights[-1]).sum().cast(x.dtype).mul(correction).div(total))
        return centred.mul(share).matmul(centred.T).div(free.clamp(min_=0)).squeeze()

    def corrcoef(self) -> Self:
        """Pearson's correlation coefficients of variables, of which each row holds observations."""
        both = self.cov()
        if not both.ndim:
            return both.div(both)
        deviation = both.diagonal().sqrt()
        return both.div(deviation.unsqueeze(1)).div(deviation).clamp(-1, 1)


def _paired(dims: Axes, rank: int, others: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of both that are summed over."""
    if isinstance(dims, Sequence):
        mine, theirs = (
            axes_of(tuple(d) if isinstance(d, Sequence) else d, r)
            for d, r in zip(dims, (rank, others), strict=True)
        )
        if len(mine) != len(theirs):
            raise InvalidValue(f"dims {dims} name different numbers of axes")
        return mine, theirs
    count = integer(dims, "dims")
    if not 0 <= count <= min(rank, others):
        raise InvalidValue(f"dims {dims}: there are {rank} and {others} axes")
    return tuple(range(rank - count, rank)), tuple(range(count))
