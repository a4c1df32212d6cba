"""What other forms of factors give: reflectors, packed LU, low ranks, tensors as matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import axis_of, integer
from gpu.tensor.linalg.factorizations import LU, qr, solve_triangular, unpacked
from gpu.tensor.linalg.matrices import check_matrices, check_same_kind, eye_like
from gpu.tensor.linalg.spectral import svd
from gpu.tensor.linalg.systems import cholesky_solve, inv, slogdet, solve
from gpu.tensor.tensor import Tensor


class LowRank(NamedTuple):
    """A is about U @ diag(S) @ V.mH."""

    U: Tensor
    S: Tensor
    V: Tensor


def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> LU:
    """P, L and U of what `lu_factor` gives; without elements where they are not asked for."""
    found = unpacked(check_matrices(LU_data, "lu_unpack"), LU_pivots)
    none = Tensor.zeros(0, dtype=LU_data.dtype, device=LU_data.device)
    lower, upper = (found.L, found.U) if unpack_data else (none, none)
    return LU(found.P if unpack_pivots else none, lower, upper)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of L @ L.mH (with `upper`, of L.mH @ L). Raises as `solve_triangular`."""
    a = check_matrices(L, "cholesky_inverse", square=True)
    return cholesky_solve(eye_like(a, a.shape[-1]), a, upper)


def logdet(A: Tensor) -> Tensor:
    """The logarithm of determinants: NaN of negative ones, minus infinity of singular matrices."""
    sign, size = slogdet(A)
    if A.dtype.is_complex:
        return sign.log() + size.cast(A.dtype)
    return sign.lt(0).where(math.nan, size)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of A as a matrix whose rows are its first `ind` axes.

    Raises ShapeError unless these have as many elements as the others.
    """
    count = integer(ind, "ind")
    if count < 1:
        raise InvalidValue(f"ind of tensorinv must be at least 1, got {ind}")
    rows, columns = A.shape[:count], A.shape[count:]
    if math.prod(rows) != math.prod(columns):
        raise ShapeError(
            f"tensorinv takes a square matrix, {A._described()} with ind={ind} is "
            f"{math.prod(rows)} x {math.prod(columns)}"
        )
    size = math.prod(rows)
    return inv(A.reshape(size, size)).reshape(*columns, *rows)


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X of tensordot(A, X, X.ndim) = B, after the axes `dims` of A are moved to its end.

    Raises ShapeError unless A is square as a matrix with a row for each element of B.
    """
    moved = [axis_of(dim, A.ndim, "dims") for dim in dims or ()]
    a = A.permute(*(axis for axis in range(A.ndim) if axis not in moved), *moved)
    shape = a.shape[B.ndim :]
    size = B.numel()
    if math.prod(shape) != size or a.numel() != size * size:
        raise ShapeError(f"tensorsolve of {A._described()} and {B._described()}: sizes differ")
    return solve(a.reshape(size, size), B.reshape(size)).reshape(shape)


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first n columns of H1 @ H2 @ ..., for A (..., m, n) and tau (..., k), as LAPACK's orgqr.

    Hi is I - tau[i] v v.mH, where v is column i of A with 1 on the diagonal and 0 above. Raises
    ShapeError unless m >= n >= k.
    """
    a = check_matrices(A, "householder_product")
    if a.shape[-2] < a.shape[-1]:
        raise ShapeError(f"householder_product takes no wide matrices, this is {a._described()}")
    vectors, inner = _compact(a, tau, "householder_product")
    one = eye_like(a, a.shape[-2])[..., : a.shape[-1]]
    return one - vectors @ (inner @ (vectors.mH @ one))


def ormqr(
    input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """Q @ other, where Q are the whole reflectors of `householder_product`.

    With `left` False other @ Q; with `transpose` Q.mH stands for Q. Raises as that does.
    """
    a, b = check_matrices(input, "ormqr"), check_matrices(other, "ormqr")
    check_same_kind(a, b, "ormqr")
    if not left:
        return ormqr(a, tau, b.mH, transpose=not transpose).mH
    if a.shape[-2] != b.shape[-2]:
        raise ShapeError(f"ormqr of {a._described()} and {b._described()}: rows differ")
    vectors, inner = _compact(a, tau, "ormqr")
    return b - vectors @ ((inner.mH if transpose else inner) @ (vectors.mH @ b))


def _compact(a: Tensor, tau: Tensor, operation: str) -> tuple[Tensor, Tensor]:
    """V and T of H1 @ H2 @ ... = I - V @ T @ V.mH.

    The inverse of T is diag(1 / tau) and what of V.mH @ V is above the diagonal (C. Puglisi, 1992);
    here with tau on the other side, since it may be 0.
    """
    check_same_kind(a, tau, operation)
    steps = tau.shape[-1] if tau.ndim else 0
    if tau.ndim != a.ndim - 1 or steps > min(a.shape[-2:]):
        raise ShapeError(f"{operation} of {a._described()} with tau {tau._described()}")
    vectors = a[..., :steps].tril(-1) + eye_like(a, a.shape[-2])[..., :steps]
    above = (vectors.mH @ vectors).triu(1)
    scale = tau.diag_embed()
    return vectors, solve_triangular(scale @ above, scale, upper=True, unitriangular=True)


def svd_lowrank(A: Tensor, q: int | None = 6, niter: int = 2, M: Tensor | None = None) -> LowRank:
    """The largest `q` singular values of A - M, about, by a drawn basis of their range.

    Args:
        A: matrices (..., m, n).
        q: how many; a few more than the rank that is sought.
        niter: how often the basis is multiplied by A and its adjoint.
        M: what is taken from A.

    N. Halko, P. Martinsson and J. Tropp, "Finding structure with randomness", 2009, algorithm 4.4.
    """
    a = check_matrices(A if M is None else A - M, "svd_lowrank")
    count = integer(6 if q is None else q, "q")
    if not 0 <= count <= min(a.shape[-2:]):
        raise InvalidValue(f"q={q} of svd_lowrank: 0..{min(a.shape[-2:])} of {a._described()}")
    if a.shape[-2] < a.shape[-1]:
        found = svd_lowrank(a.mH, count, niter)
        return LowRank(found.V, found.S, found.U)
    drawn = Tensor.randn(*a.shape[:-2], a.shape[-1], count, dtype=a.dtype.real, device=a.device)
    basis = qr(a @ drawn.cast(a.dtype)).Q
    for _ in range(integer(niter, "niter")):
        basis = qr(a @ qr(a.mH @ basis).Q).Q
    u, s, vh = svd(basis.mH @ a, full_matrices=False)
    return LowRank(basis @ u, s, vh.mH)


def pca_lowrank(A: Tensor, q: int | None = None, center: bool = True, niter: int = 2) -> LowRank:
    """`svd_lowrank` of A (..., m, n) less the mean of each column; `q` is 6 or the smaller size."""
    a = check_matrices(A, "pca_lowrank")
    count = min(6, *a.shape[-2:]) if q is None else q
    return svd_lowrank(a - a.mean(-2, keepdim=True) if center else a, count, niter)
