"""Singular values and eigenvalues, computed by the host's LAPACK, and what rests on them."""

from __future__ import annotations

from typing import NamedTuple

from gpu.core.errors import InvalidValue
from gpu.tensor.linalg.hosted import call, eig_results, eigh_results, svd_results
from gpu.tensor.linalg.operands import matrices
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

    Raises what `matrices` does, and LinAlgError where LAPACK does not converge.

    >>> from gpu import Tensor, linalg
    >>> U, S, Vh = linalg.svd(Tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> S.tolist(), (U * S @ Vh).round().tolist()
    ([4.0, 3.0], [[3.0, 0.0], [0.0, 4.0]])
    """
    x = matrices(A, "svd")
    name = "svd_full" if full_matrices and x.shape[-1] != x.shape[-2] else "svd"
    return SVD(*call(name, x, svd_results(x, full_matrices)))


def svdvals(A: Tensor) -> Tensor:
    """The singular values of matrices, in descending order. Raises as `svd`."""
    x = matrices(A, "svdvals")
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
    x = matrices(A, operation, square=True)
    if not isinstance(UPLO, str) or UPLO.upper() not in ("L", "U"):
        raise InvalidValue(f"{operation} takes UPLO='L' or 'U', the triangle, got {UPLO!r}")
    return x if UPLO.upper() == "L" else x.adjoint()


def eig(A: Tensor) -> Eigen:
    """The eigenvalues and eigenvectors of square matrices, complex, in no order.

    A gradient is defined where the matrix has as many eigenvectors as rows. Raises as `eigh`.
    """
    x = matrices(A, "eig", square=True)
    return Eigen(*call("eig", x, eig_results(x)))


def eigvals(A: Tensor) -> Tensor:
    """The eigenvalues of square matrices, complex, in no order. Raises as `eigh`."""
    x = matrices(A, "eigvals", square=True)
    return call("eigvals", x, eig_results(x)[:1])[0]
