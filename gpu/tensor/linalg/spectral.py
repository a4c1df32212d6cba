"""Singular values and eigenvalues, computed by the host's LAPACK, and what rests on them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpu.compiler.ir.graph.body import Value
from gpu.core.dtype import dtypes
from gpu.core.errors import InvalidValue
from gpu.tensor.arguments import Operand
from gpu.tensor.linalg.hosted import call, eig_results, eigh_results, svd_results
from gpu.tensor.linalg.matrices import check_matrices
from gpu.tensor.tensor import Tensor


class SVD(NamedTuple):
    """A singular value decomposition: ``A = U @ diag(S) @ Vh``."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class Eigen(NamedTuple):
    """Eigenvalues, and eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def svd(A: Tensor, full_matrices: bool = True) -> SVD:
    """The singular value decomposition of matrices, singular values in descending order.

    U and Vh have orthonormal columns and rows, of which only the sign, or phase, and that of equal
    singular values is not determined. A gradient of them is finite where singular values differ.
    With `full_matrices` they are square; the gradient of what that adds is ignored, as in torch.

    Raises what `check_matrices` does, and LinAlgError where LAPACK does not converge.

    >>> from gpu import Tensor, linalg
    >>> U, S, Vh = linalg.svd(Tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> S.tolist(), (U * S @ Vh).round().tolist()
    ([4.0, 3.0], [[3.0, 0.0], [0.0, 4.0]])
    """
    x = check_matrices(A, "svd")
    name = "svd_full" if full_matrices and x.shape[-1] != x.shape[-2] else "svd"
    return SVD(*call(name, x, svd_results(x, full_matrices)))


def svdvals(A: Tensor) -> Tensor:
    """The singular values of matrices, in descending order. Raises as `svd`."""
    x = check_matrices(A, "svdvals")
    return call("svdvals", x, svd_results(x, False)[1:2])[0]


def eigh(A: Tensor, UPLO: str = "L") -> Eigen:
    """The eigenvalues, ascending, and eigenvectors of Hermitian or symmetric matrices.

    Only the triangle that `UPLO` names, lower or upper, is read. Raises as `svd`, ShapeError for
    matrices that are not square and InvalidValue for another triangle.
    """
    x = _triangle(A, UPLO, "eigh")
    return Eigen(*call("eigh", x, eigh_results(x)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of Hermitian or symmetric matrices, ascending. Raises as `eigh`."""
    x = _triangle(A, UPLO, "eigvalsh")
    return call("eigvalsh", x, eigh_results(x)[:1])[0]


def _triangle(A: Tensor, UPLO: str, operation: str) -> Tensor:
    """Matrices of which the lower triangle is what `UPLO` names."""
    x = check_matrices(A, operation, square=True)
    if not isinstance(UPLO, str) or UPLO.upper() not in ("L", "U"):
        raise InvalidValue(f"{operation} takes UPLO='L' or 'U', the triangle, got {UPLO!r}")
    return x if UPLO.upper() == "L" else x.adjoint()


def eig(A: Tensor) -> Eigen:
    """The eigenvalues and eigenvectors of square matrices, complex, in no order.

    A gradient is defined where the matrix has as many eigenvectors as rows. Raises as `eigh`.
    """
    x = check_matrices(A, "eig", square=True)
    return Eigen(*call("eig", x, eig_results(x)))


def eigvals(A: Tensor) -> Tensor:
    """The eigenvalues of square matrices, complex, in no order. Raises as `eigh`."""
    x = check_matrices(A, "eigvals", square=True)
    return call("eigvals", x, eig_results(x)[:1])[0]


def matrix_rank(
    A: Tensor,
    *,
    atol: Operand | None = None,
    rtol: Operand | None = None,
    hermitian: bool = False,
) -> Tensor:
    """How many singular values of matrices are above max(atol, rtol * the largest one), as int64.

    The tolerances, numbers or one for each matrix, are 0 and the larger size times the dtype's
    epsilon; where `atol` is given and `rtol` is not, that is 0. Of Hermitian matrices only the
    lower triangle is read. Raises as `svd`.
    """
    x = check_matrices(A, "matrix_rank", square=hermitian)
    sizes = eigvalsh(x).abs() if hermitian else svdvals(x)
    limits = _limits(x, atol, rtol)
    if not sizes.shape[-1]:
        return Tensor.zeros(*x.shape[:-2], dtype=dtypes.int64, device=x.device)
    relative = limits[..., 1].mul(sizes.max(-1))
    least = limits[..., 0].maximum(relative).unsqueeze(-1)
    return sizes.gt(least).sum(-1, dtype=dtypes.int64)


def pinv(
    A: Tensor,
    *,
    atol: Operand | None = None,
    rtol: Operand | None = None,
    hermitian: bool = False,
) -> Tensor:
    """The pseudoinverse of matrices, of which singular values as small as `matrix_rank` says are 0.

    Its gradient is that at matrices of the same rank. Raises as `matrix_rank`.

    >>> from gpu import Tensor, linalg
    >>> linalg.pinv(Tensor([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    x = check_matrices(A, "pinv", square=hermitian)
    if hermitian:
        x = x.tril().add(x.tril(-1).adjoint())
    *batch, rows, columns = x.shape
    result = Value((*batch, columns, rows), x.dtype)
    return call("pinv", x, (result,), _limits(x, atol, rtol))[0]


def _limits(x: Tensor, atol: Operand | None, rtol: Operand | None) -> Tensor:
    """For each matrix the absolute and the relative tolerance."""
    if rtol is None:
        rtol = 0.0 if atol is not None else max(x.shape[-2:]) * float(np.finfo(x.dtype.real.np).eps)
    batch, part = x.shape[:-2], x.dtype.real
    both = (0.0 if atol is None else atol, rtol)
    each = (t if isinstance(t, Tensor) else Tensor(t, device=x.device) for t in both)
    return Tensor.stack(*(t.cast(part).expand(batch) for t in each), dim=-1)
