"""Products of vectors and matrices by the names of `torch.linalg`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import integer
from gpu.tensor.tensor import Tensor


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """`Tensor.cross`, along the last axis where no other is given. Raises as that does."""
    if input.ndim != other.ndim:
        raise ShapeError(
            f"cross takes tensors of as many axes, got {input._described()} and"
            f" {other._described()}"
        )
    return input.cross(other, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """`Tensor.diagonal`, of the last two axes where no others are given. Raises as that does."""
    return A.diagonal(offset, dim1, dim2)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """`Tensor.vecdot`: sums of products along an axis, x conjugated. Raises as that does."""
    return x.vecdot(y, dim)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """`Tensor.matmul`. Raises as that does."""
    return input.matmul(other)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of two matrices or more, in the order that takes the fewest multiplications.

    The first and the last may be vectors. Raises InvalidValue for fewer than two tensors and
    ShapeError where sizes or numbers of axes do not fit.

    >>> from gpu import Tensor, linalg
    >>> linalg.multi_dot([Tensor([1.0, 2.0]), Tensor([[1.0, 0.0], [0.0, 2.0]])]).tolist()
    [1.0, 4.0]
    """
    given = list(tensors)
    if len(given) < 2:
        raise InvalidValue(f"multi_dot takes 2 tensors or more, got {len(given)}")
    matrices = list(given)
    if given[0].ndim == 1:
        matrices[0] = given[0].unsqueeze(0)
    if given[-1].ndim == 1:
        matrices[-1] = given[-1].unsqueeze(-1)
    shapes = ", ".join(str(list(t.shape)) for t in given)
    if any(t.ndim != 2 for t in matrices):
        raise ShapeError(f"multi_dot takes matrices, the first and last may be vectors: {shapes}")
    if any(a.shape[1] != b.shape[0] for a, b in pairwise(matrices)):
        raise ShapeError(f"multi_dot of {shapes}: sizes that are summed over must be equal")
    sizes = [matrices[0].shape[0], *(t.shape[1] for t in matrices)]

    @lru_cache(None)
    def cheapest(first: int, last: int) -> tuple[int, int]:
        """Multiplications for the product of a range of matrices, and where it is cut."""
        if first == last:
            return 0, first
        ends = sizes[first] * sizes[last + 1]
        return min(
            (cheapest(first, at)[0] + cheapest(at + 1, last)[0] + ends * sizes[at + 1], at)
            for at in range(first, last)
        )

    def multiplied(first: int, last: int) -> Tensor:
        if first == last:
            return matrices[first]
        at = cheapest(first, last)[1]
        return multiplied(first, at).matmul(multiplied(at + 1, last))

    product = multiplied(0, len(matrices) - 1)
    rows = () if given[0].ndim == 1 else product.shape[:1]
    columns = () if given[-1].ndim == 1 else product.shape[1:]
    return product.reshape((*rows, *columns))


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The powers 0 to N - 1 of each element along a new last axis, of which N defaults to the size.

    Raises ShapeError for a 0-d tensor and InvalidValue for a negative N.

    >>> from gpu import Tensor, linalg
    >>> linalg.vander(Tensor([2, 3]), N=3).tolist()
    [[1, 2, 4], [1, 3, 9]]
    """
    if not x.ndim:
        raise ShapeError("vander takes vectors, got a 0-d tensor")
    count = x.shape[-1] if N is None else integer(N, "N")
    if count < 0:
        raise InvalidValue(f"vander takes N of 0 or more, got {count}")
    if count < 2:
        return x.full_like(1).unsqueeze(-1).expand(*x.shape, count)
    rest = x.unsqueeze(-1).expand(*x.shape, count - 1).cumprod(-1)
    return Tensor.cat(x.full_like(1).unsqueeze(-1), rest, dim=-1)
