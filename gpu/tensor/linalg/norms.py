"""Norms of vectors and matrices, and condition numbers."""

from __future__ import annotations

import math
from typing import TypeAlias

from gpu.core.dtype import DType, to_dtype
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, ShapeError
from gpu.tensor.arguments import Axis, axes_of, check_number
from gpu.tensor.linalg.matrices import check_matrices
from gpu.tensor.linalg.spectral import svd, svdvals
from gpu.tensor.tensor import Tensor

Order: TypeAlias = int | float | str

_OF_MATRICES = ("fro", "nuc", math.inf, -math.inf, 1, -1, 2, -2)


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Axis = None,
    keepdim: bool = False,
    *,
    dtype: DType | str | None = None,
) -> Tensor:
    """The norm of vectors along some axes, or of all elements: sum(abs(x) ** ord) ** (1 / ord).

    `ord` may be inf and -inf, the largest and smallest magnitude, and 0, how many are not zero. The
    gradient at a vector of zeros is 0, as in torch. With `dtype` x is converted to it first.

    Raises DTypeError for integers, InvalidValue where `ord` is no number, ShapeError for the
    smallest or largest of nothing.
    """
    x = _numbers(x, dtype, "vector_norm")
    check_number(ord, "ord")
    return x.norm(ord, dim, keepdim)


def matrix_norm(
    A: Tensor,
    ord: Order = "fro",
    dim: tuple[int, int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | str | None = None,
) -> Tensor:
    """The norm of matrices, which lie in two axes.

    Args:
        A: of floats or complex numbers.
        ord: ``fro``, the root of the sum of squares; ``nuc``, the sum of singular values; 2 and
            -2, the largest and the smallest of those; 1 and -1, the largest and the smallest sum
            of magnitudes of a column; inf and -inf, of a row.
        dim: rows, columns.
        keepdim: whether the two axes stay, with size 1.
        dtype: what A is converted to first.

    Raises DTypeError for integers, InvalidValue for another `ord`, ShapeError for other axes, and
    what `svd` raises.
    """
    x = _numbers(A, dtype, "matrix_norm")
    if isinstance(ord, bool) or ord not in _OF_MATRICES:
        known = ", ".join(map(repr, _OF_MATRICES))
        raise InvalidValue(f"matrix_norm takes ord of {known}, got {ord!r}")
    axes = [axes_of(axis, x.ndim, "dim")[0] for axis in dim]
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ShapeError(f"matrix_norm takes dim=(rows, columns), got {dim} for {x._described()}")
    if ord == "fro":
        return vector_norm(x, 2, tuple(dim), keepdim)
    if ord in ("nuc", 2, -2):
        values = svdvals(x.movedim(tuple(axes), (-2, -1)))
        found = values.sum(-1) if ord == "nuc" else values.max(-1) if ord == 2 else values.min(-1)
    else:
        assert not isinstance(ord, str)
        summed, other = axes if abs(ord) == 1 else axes[::-1]
        sums = vector_norm(x, 1, summed, keepdim=True)
        found = (sums.max(other, True) if ord > 0 else sums.min(other, True)).squeeze(tuple(axes))
    if keepdim:
        for axis in sorted(axes):
            found = found.unsqueeze(axis)
    return found


def norm(
    A: Tensor,
    ord: Order | None = None,
    dim: Axis = None,
    keepdim: bool = False,
    *,
    dtype: DType | str | None = None,
) -> Tensor:
    """`vector_norm` or `matrix_norm`, as torch chooses.

    Without `ord` it is the 2-norm of all that lies in `dim`. Else `dim` says by its length which of
    the two, and without `dim` the number of axes, 1 or 2, does.

    Raises as they do, and ShapeError where neither is meant.
    """
    x = _numbers(A, dtype, "norm")
    if ord is None:
        return vector_norm(x, 2, dim, keepdim)
    axes = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if len(axes) == 1 and not isinstance(ord, str):
        return vector_norm(x, ord, axes, keepdim)
    if len(axes) != 2:
        raise ShapeError(
            f"norm with ord={ord!r} is of vectors or matrices, in one axis or two: got"
            f" {x._described()} with dim={dim}"
        )
    return matrix_norm(x, ord, (axes[0], axes[1]), keepdim)


def cond(A: Tensor, p: Order | None = None) -> Tensor:
    """The condition number of matrices: the norm of a matrix times that of its inverse.

    By default, and for `p` 2 and -2, the quotient of the largest and the smallest singular value,
    or the reverse. `p` is any that `matrix_norm` takes. A singular matrix has inf, or what rounding
    leaves of that.

    Raises as `matrix_norm`, and ShapeError where other norms are asked for than 2 and -2 and
    matrices are not square.
    """
    x = check_matrices(A, "cond", square=p not in (None, 2, -2))
    if not min(x.shape[-2:]):
        if p in (None, 2, -2):
            raise ShapeError(f"cond of {x._described()}, which has no singular values")
        return Tensor.zeros(*x.shape[:-2], dtype=x.dtype.real, device=x.device)
    if p in (None, 2, -2):
        values = svdvals(x)
        high, low = values.max(-1), values.min(-1)
        return low.div(high) if p == -2 else high.div(low)
    U, S, Vh = svd(x)
    none = S.min(-1).eq(0)
    scaled = none.unsqueeze(-1).where(1, S).unsqueeze(-2).cast(x.dtype)
    inverse = Vh.adjoint().div(scaled).matmul(U.adjoint())
    assert p is not None
    return none.where(math.inf, matrix_norm(x, p).mul(matrix_norm(inverse, p)))


def _numbers(x: object, dtype: DType | str | None, operation: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise InvalidType(f"{operation} takes a tensor, got {type(x).__name__} {x!r}")
    if dtype is not None:
        x = x.cast(to_dtype(dtype))
    if x.dtype.is_whole:
        raise DTypeError(f"{operation} takes floats or complex numbers, got {x._described()}")
    return x
