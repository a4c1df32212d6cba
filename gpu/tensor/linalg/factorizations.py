"""Factorisations: Cholesky, LU with pivots, QR; and solving with triangular matrices.

All take matrices in the last two axes, of float32, float64, complex64 or complex128.
"""

from __future__ import annotations

from typing import NamedTuple

from gpu.core.dtype import dtypes
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.linalg import blocked, kernels
from gpu.tensor.linalg.matrices import (
    broadcast,
    check_matrices,
    check_same_kind,
    eye_like,
    stacked,
    with_rule,
    with_status,
)
from gpu.tensor.tensor import Tensor


class CholeskyEx(NamedTuple):
    """What `cholesky_ex` gives: `info` is 0, or the order of a minor that is not positive."""

    L: Tensor
    info: Tensor


class LUFactor(NamedTuple):
    """Both factors in one matrix, and what row each one was exchanged with, from 1."""

    LU: Tensor
    pivots: Tensor


class LUFactorEx(NamedTuple):
    """The same, and `info`: 0, or the first column, from 1, without a pivot but 0."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


class LU(NamedTuple):
    """A = P @ L @ U."""

    P: Tensor
    L: Tensor
    U: Tensor


class QR(NamedTuple):
    """A = Q @ R."""

    Q: Tensor
    R: Tensor


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """L, lower triangular, of A = L @ L.mH, for Hermitian positive-definite matrices (..., n, n).

    With `upper` its adjoint U, of A = U.mH @ U. The lower half of A is read, with `upper` the upper
    one. Raises as `cholesky_ex`; LinAlgError, when a value that depends on it is read, if a matrix
    is not positive-definite.

    >>> from gpu import Tensor, linalg
    >>> linalg.cholesky(Tensor([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    return _cholesky(A, upper, "cholesky")[0]


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyEx:
    """The same, and for each matrix whether it is positive-definite; no error with the value.

    With `check_errors` there is one, as in `cholesky`. Raises InvalidType, ShapeError and
    DTypeError for what are no square matrices of floats.
    """
    return CholeskyEx(*_cholesky(A, upper, "cholesky" if check_errors else None))


def _cholesky(A: Tensor, upper: bool, operation: str | None) -> tuple[Tensor, Tensor]:
    a, batch = check_matrices(A, "cholesky", square=True), A.shape[:-2]
    if not a.numel():
        return a._same(), Tensor.zeros(batch, dtype=dtypes.int32, device=a.device)
    given = a.mH if upper else a
    out, info = blocked.cholesky(stacked(given))
    factor = out.reshape(a.shape)
    if operation is not None:
        factor = with_status(factor, info, operation, batch)
    factor = with_rule("cholesky", factor, (given,))
    return factor.mH if upper else factor, info.reshape(batch)


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:
    """L (with ones on its diagonal, which are not stored) and U in one matrix, with exchanged rows.

    Of matrices (..., m, n); `pivots` (..., min(m, n)) has for each row that with which it was
    exchanged, from 1, as LAPACK has it. Raises as `lu_factor_ex`; LinAlgError, when a value that
    depends on it is read, if a column has no pivot but 0.
    """
    return LUFactor(*factored(A, pivot, "lu_factor")[:2])


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorEx:
    """The same, and for each matrix the first column without a pivot; no error with the value.

    Raises InvalidType, ShapeError, DTypeError for what are no matrices of floats, InvalidValue for
    `pivot` False.
    """
    return LUFactorEx(*factored(A, pivot, "lu_factor" if check_errors else None))


def factored(A: Tensor, pivot: bool, operation: str | None) -> tuple[Tensor, Tensor, Tensor]:
    """LU, pivots and status; `operation` is what a status raises an error for, if any."""
    a, batch = check_matrices(A, "lu_factor"), A.shape[:-2]
    if not pivot:
        raise InvalidValue("lu_factor(pivot=False): rows are exchanged always, which is stable")
    steps = min(a.shape[-2:])
    if not a.numel():
        none = Tensor.zeros(batch, dtype=dtypes.int32, device=a.device)
        return a._same(), Tensor.zeros(*batch, steps, dtype=dtypes.int32, device=a.device), none
    out, pivots, info = blocked.lu(stacked(a))
    lu = out.reshape(a.shape)
    if operation is not None:
        lu = with_status(lu, info, operation, batch)
    pivots = pivots.reshape(*batch, steps)
    return with_rule("lu", lu, (a, pivots)), pivots, info.reshape(batch)


def lu(A: Tensor, *, pivot: bool = True) -> LU:
    """P, a permutation, L with ones on its diagonal and U, of A = P @ L @ U, for (..., m, n).

    L is (..., m, k) and U (..., k, n), where k = min(m, n). Raises as `lu_factor_ex`.
    """
    return unpacked(*factored(A, pivot, None)[:2])


def unpacked(both: Tensor, pivots: Tensor) -> LU:
    """P, L and U of both factors in one matrix."""
    rows, columns = both.shape[-2:]
    steps = min(rows, columns)
    lower = both[..., :, :steps].tril(-1) + Tensor.eye(
        rows, steps, dtype=both.dtype, device=both.device
    )
    order = row_order(pivots, rows)
    chosen = order.unsqueeze(-2).eq(Tensor.arange(rows, device=both.device).unsqueeze(-1))
    return LU(chosen.cast(both.dtype), lower, both[..., :steps, :].triu())


def row_order(pivots: Tensor, rows: int) -> Tensor:
    """Which row of a matrix comes to each place when `pivots` exchange them."""
    batch = pivots.shape[:-1]
    if not pivots.numel():
        return Tensor.arange(rows, dtype=dtypes.int32, device=pivots.device).expand(*batch, rows)
    flat_pivots = pivots.cast(dtypes.int32).reshape(-1, pivots.shape[-1])
    order: Tensor = kernels.permutation(rows)(flat_pivots)
    return order.reshape(*batch, rows)


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """X of A @ X = B, for triangular matrices A (..., n, n), of which the other half is not read.

    Args:
        A: the matrices.
        B: right-hand sides (..., n, k).
        upper: whether A is upper triangular.
        left: False for X @ A = B, with B (..., k, n).
        unitriangular: whether the diagonal of A is taken to be ones, and not read.

    A zero on the diagonal gives infinities and NaN. Raises InvalidType, ShapeError and DTypeError
    for what are no such matrices, of one dtype.
    """
    a, b = check_matrices(A, "solve_triangular", True), check_matrices(B, "solve_triangular")
    check_same_kind(a, b, "solve_triangular")
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"solve_triangular of {a._described()} and {b._described()}: both have as many rows"
        )
    a, b = broadcast(a, b)
    if not b.numel():
        return b._same()
    out = blocked.triangular(stacked(a), stacked(b), upper, unitriangular).reshape(b.shape)
    return with_rule("triangular", out, (a, b), int(upper), int(unitriangular))


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """Q with orthonormal columns and R, upper triangular, of A = Q @ R, for (..., m, n).

    Args:
        A: the matrices.
        mode: "reduced" for Q (..., m, k) and R (..., k, n), where k = min(m, n); "complete" for Q
            (..., m, m) and R (..., m, n); "r" for R alone, with an empty Q.

    The signs of R's diagonal are those of LAPACK. Raises InvalidType, ShapeError, DTypeError for
    what are no matrices of floats, InvalidValue for another mode.
    """
    a, batch = check_matrices(A, "qr"), A.shape[:-2]
    if mode not in ("reduced", "complete", "r"):
        raise InvalidValue(f"mode={mode!r} of qr: expected 'reduced', 'complete' or 'r'")
    rows, columns = a.shape[-2:]
    steps = rows if mode == "complete" else min(rows, columns)
    if not a.numel():
        empty = Tensor.zeros(*batch, steps, columns, dtype=a.dtype, device=a.device)
        q = eye_like(a, rows)[..., :steps]
        return QR(q[..., :0].reshape(0) if mode == "r" else q, empty)
    out, made = blocked.qr(stacked(a))
    kind = int(mode == "complete" and rows > columns)
    upper = out.reshape(a.shape)[..., :steps, :].triu()
    r = with_rule("qr_r", upper, (a,), kind)
    if mode == "r":
        return QR(Tensor.zeros(0, dtype=a.dtype, device=a.device), r)
    q = blocked.orthogonal(made, stacked(a), steps).reshape(*batch, rows, steps)
    return QR(with_rule("qr_q", q, (a,), kind), r)
