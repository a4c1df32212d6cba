"""Systems of linear equations and determinants, over the factorisations."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from gpu.core.dtype import dtypes
from gpu.core.errors import ShapeError
from gpu.tensor.arguments import choice
from gpu.tensor.linalg.factorizations import factored, qr, row_order, solve_triangular
from gpu.tensor.linalg.matrices import (
    broadcast,
    check_matrices,
    check_same_kind,
    eye_like,
    in_order,
    with_rule,
    with_status,
)
from gpu.tensor.linalg.spectral import matrix_rank, pinv, svdvals
from gpu.tensor.tensor import Tensor

# LAPACK's drivers for matrices of any rank.
_OF_ANY_RANK: Final = ("gelsy", "gelsd", "gelss")


class SolveEx(NamedTuple):
    """What `solve_ex` gives: `info` is 0, or the first column, from 1, without a pivot but 0."""

    result: Tensor
    info: Tensor


class InvEx(NamedTuple):
    """What `inv_ex` gives; see `SolveEx`."""

    inverse: Tensor
    info: Tensor


class SLogDet(NamedTuple):
    """A determinant is `sign * exp(logabsdet)`."""

    sign: Tensor
    logabsdet: Tensor


class LeastSquares(NamedTuple):
    """What `lstsq` gives.

    Attributes:
        solution: (..., n, k).
        residuals: the sums of squares (..., k) of what is left over, of more rows than columns;
            else empty.
        rank: of each matrix.
        singular_values: of each matrix; empty by QR and "gelsy", as LAPACK has it.
    """

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """X of A @ X = B, for A (..., n, n) as `lu_factor` gives its factors, and B (..., n, k).

    With `left` False X of X @ A = B, with B (..., k, n); with `adjoint` A.mH stands for A. Raises
    as `solve_triangular`; a zero on the diagonal of U gives infinities and NaN.
    """
    a, b = check_matrices(LU, "lu_solve", square=True), check_matrices(B, "lu_solve")
    check_same_kind(a, b, "lu_solve")
    if not left:
        return lu_solve(a, pivots, b.mH, adjoint=not adjoint).mH
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"lu_solve of {a._described()} and {b._described()}: sizes differ")
    a, b = broadcast(a, b)
    order = row_order(pivots, a.shape[-1]).expand(*a.shape[:-1])
    if not adjoint:
        lower = solve_triangular(a, in_order(b, order), upper=False, unitriangular=True)
        return solve_triangular(a, lower, upper=True)
    upper = solve_triangular(a.mH, b, upper=False)
    lower = solve_triangular(a.mH, upper, upper=True, unitriangular=True)
    return in_order(lower, order.argsort(-1))


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X of A @ X = B, for A = L @ L.mH as `cholesky` gives L (with `upper`, A = L.mH @ L).

    Raises as `solve_triangular`.
    """
    check_matrices(L, "cholesky_solve", square=True)
    factor = L.mH if upper else L
    x = solve_triangular(factor.mH, solve_triangular(factor, B, upper=False), upper=True)
    if not x.numel():
        return x
    a, b = broadcast(factor, check_matrices(B, "cholesky_solve"))
    return with_rule("cholesky_solve", x, (b, a))


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X of A @ X = B, for matrices A (..., n, n) and B (..., n, k), or vectors (..., n).

    B is a vector if it has one axis, or the shape of A less its last axis. With `left` False it is
    X of X @ A = B, with B (..., k, n). Raises as `solve_ex`; LinAlgError, when a value that depends
    on it is read, if a matrix is singular.

    >>> from gpu import Tensor, linalg
    >>> linalg.solve(Tensor([[2.0, 0.0], [0.0, 4.0]]), Tensor([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    return _solved(A, B, left, "solve")[0]


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> SolveEx:
    """The same, and for each matrix the first column without a pivot; no error with the value.

    With `check_errors` there is one, as in `solve`. Raises InvalidType, ShapeError, DTypeError for
    what are no square matrices of floats, or of different dtypes or sizes.
    """
    return SolveEx(*_solved(A, B, left, "solve" if check_errors else None))


def _solved(A: Tensor, B: Tensor, left: bool, operation: str | None) -> tuple[Tensor, Tensor]:
    a = check_matrices(A, "solve", square=True)
    if _is_vector(a, B):
        axis = -1 if left else -2
        x, info = _solved(a, B.unsqueeze(axis), left, operation)
        return x.squeeze(axis), info
    b = check_matrices(B, "solve")
    check_same_kind(a, b, "solve")
    if not left:
        x, info = _solved(a.mT, b.mT, True, operation)
        return x.mT, info
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"solve of {a._described()} and {b._described()}: sizes differ")
    both, pivots, info = factored(a, True, None)
    x = lu_solve(both, pivots, b)
    if not x.numel():
        return x, info
    if operation is not None:
        x = with_status(x, info.reshape(-1), operation, info.shape)
    a, b = broadcast(a, b)
    shared = (both.expand(a.shape), pivots.expand(*a.shape[:-1]))
    return with_rule("solve", x, (a, b, *shared)), info


def _is_vector(a: Tensor, b: object) -> bool:
    """Whether a right-hand side is a vector for each matrix, or one for all, as torch has it."""
    return isinstance(b, Tensor) and (b.ndim == 1 or b.shape == a.shape[:-1])


def inv(A: Tensor) -> Tensor:
    """The inverses of matrices (..., n, n). Raises as `solve`."""
    return _inverse(A, "inv")[0]


def inv_ex(A: Tensor, *, check_errors: bool = False) -> InvEx:
    """The same, and for each matrix the first column without a pivot; see `solve_ex`."""
    return InvEx(*_inverse(A, "inv" if check_errors else None))


def _inverse(A: Tensor, operation: str | None) -> tuple[Tensor, Tensor]:
    a = check_matrices(A, "inv", square=True)
    return _solved(a, eye_like(a, a.shape[-1]), True, operation)


def det(A: Tensor) -> Tensor:
    """The determinants of matrices (..., n, n). Raises as `lu_factor_ex`."""
    diagonal, odd = _diagonal(A, "det")
    return diagonal.prod(-1) * odd.where(-1, 1).cast(A.dtype)


def slogdet(A: Tensor) -> SLogDet:
    """The sign (of complex numbers the direction) and the logarithm of the size of determinants.

    Of a singular matrix they are 0 and minus infinity. Raises as `lu_factor_ex`.
    """
    diagonal, odd = _diagonal(A, "slogdet")
    size = diagonal.abs()
    zero = size.eq(0)
    signs = zero.where(diagonal * 0, diagonal / zero.where(1, size).cast(A.dtype))
    sign = signs.prod(-1) * odd.where(-1, 1).cast(A.dtype)
    return SLogDet(sign, size.log().sum(-1))


def _diagonal(A: Tensor, operation: str) -> tuple[Tensor, Tensor]:
    """The diagonal of U, and whether the number of rows that are exchanged is odd."""
    a = check_matrices(A, operation, square=True)
    both, pivots, _ = factored(a, True, None)
    own = Tensor.arange(1, a.shape[-1] + 1, dtype=dtypes.int32, device=a.device)
    odd = pivots.ne(own).cast(dtypes.int32).sum(-1) % 2
    return both.diagonal(dim1=-2, dim2=-1), odd.eq(1)


def lstsq(
    A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> LeastSquares:
    """X of the smallest |A @ X - B|, and of those the smallest X, for A (..., m, n).

    B is (..., m, k), or (..., m) as in `solve`. By QR, of matrices of full rank; with the `driver`
    "gelsy", "gelsd" or "gelss", which are one here, by singular values, of any rank.

    Args:
        A: the matrices.
        B: the right-hand sides.
        rcond: what is smaller, as a share of the largest number on the diagonal of R, or of the
            largest singular value, counts as 0; max(m, n) times the dtype's epsilon by default.
        driver: None and "gels" are QR.

    Raises InvalidValue for another driver; as `qr`; ShapeError where rows differ; by QR
    LinAlgError, when a value that depends on the solution is read, if a matrix is not of full rank.
    """
    choice(driver, "driver", (None, "gels", *_OF_ANY_RANK))
    a = check_matrices(A, "lstsq")
    if _is_vector(a, B):
        solution, residuals, *rest = lstsq(a, B.unsqueeze(-1), rcond, driver=driver)
        return LeastSquares(solution.squeeze(-1), residuals.squeeze(-1), *rest)
    b = check_matrices(B, "lstsq")
    check_same_kind(a, b, "lstsq")
    rows, columns = a.shape[-2:]
    if rows != b.shape[-2]:
        raise ShapeError(f"lstsq of {a._described()} and {b._described()}: rows differ")
    share = max(rows, columns) * float(np.finfo(a.dtype.np).eps) if rcond is None else rcond
    if driver in _OF_ANY_RANK:
        # Of the three gelsy alone has none, which goes by QR with exchanged columns.
        none = Tensor.zeros(0, dtype=a.dtype.real, device=a.device)
        sizes = none if driver == "gelsy" else svdvals(a.detach())
        solution, rank = pinv(a, rtol=share) @ b, matrix_rank(a.detach(), rtol=share)
    else:
        solution = _by_qr(a, b, share)
        sizes = Tensor.zeros(0, dtype=a.dtype.real, device=a.device)
        rank = Tensor.full(a.shape[:-2], min(rows, columns), dtype=dtypes.int64, device=a.device)
    left = a @ solution - b
    residuals = (left * left.conj()).real.sum(-2) if a.dtype.is_complex else left.square().sum(-2)
    if rows <= columns:
        residuals = Tensor.zeros(0, dtype=residuals.dtype, device=a.device)
    return LeastSquares(solution, residuals, rank, sizes)


def _by_qr(a: Tensor, b: Tensor, share: float) -> Tensor:
    """The solution, with a status that tells of a matrix that is not of full rank."""
    rows, columns = a.shape[-2:]
    wide = columns > rows
    q, r = qr(a.mH if wide else a)
    if wide:
        solution = q @ solve_triangular(r.mH, b, upper=False)
    else:
        solution = solve_triangular(r, q.mH @ b, upper=True)
    if not a.numel():
        return solution
    steps = min(rows, columns)
    sizes = r.detach().diagonal(dim1=-2, dim2=-1).abs()
    least = sizes.max(-1, keepdim=True) * share
    place = Tensor.arange(steps, 0, -1, dtype=dtypes.int32, device=a.device)
    first = (sizes.le(least).cast(dtypes.int32) * place).max(-1)
    word = first.eq(0).where(0, steps + 1 - first).reshape(-1)
    return with_status(solution, word.contiguous(), "lstsq", a.shape[:-2])
