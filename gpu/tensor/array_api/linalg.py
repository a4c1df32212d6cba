"""The standard's extension for linear algebra: ``array_api.linalg``.

Its functions are those of `gpu.linalg` with the standard's names and arguments.
"""

from __future__ import annotations

from typing import Literal

from gpu.core.dtype import DType
from gpu.tensor.array_api import linear_algebra, statistical
from gpu.tensor.array_api.arguments import Axis, tensor_of
from gpu.tensor.linalg import factorizations, norms, powers, products, spectral, systems
from gpu.tensor.tensor import Tensor

matmul = linear_algebra.matmul
matrix_transpose = linear_algebra.matrix_transpose
tensordot = linear_algebra.tensordot
vecdot = linear_algebra.vecdot

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The vector products along an axis of size 3. Raises ShapeError for another size."""
    first, second = tensor_of(x1, "x1"), tensor_of(x2, "x2")
    return first.cross(second, axis)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """`gpu.linalg.diagonal`."""
    return products.diagonal(tensor_of(x), offset=offset)


def eig(x: Tensor, /) -> spectral.Eigen:
    """`gpu.linalg.eig`."""
    return spectral.eig(x)


def eigh(x: Tensor, /) -> spectral.Eigen:
    """`gpu.linalg.eigh`."""
    return spectral.eigh(x)


def eigvals(x: Tensor, /) -> Tensor:
    """`gpu.linalg.eigvals`."""
    return spectral.eigvals(x)


def eigvalsh(x: Tensor, /) -> Tensor:
    """`gpu.linalg.eigvalsh`."""
    return spectral.eigvalsh(x)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: norms.Order | None = "fro") -> Tensor:
    """`gpu.linalg.matrix_norm`, for which None is the Frobenius norm too."""
    return norms.matrix_norm(x, "fro" if ord is None else ord, keepdim=keepdims)


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """`gpu.linalg.matrix_rank`."""
    return spectral.matrix_rank(x, rtol=rtol)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """`Tensor.outer`."""
    return tensor_of(x1, "x1").outer(tensor_of(x2, "x2"))


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """`gpu.linalg.pinv`."""
    return spectral.pinv(x, rtol=rtol)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> spectral.SVD:
    """`gpu.linalg.svd`."""
    return spectral.svd(x, full_matrices)


def svdvals(x: Tensor, /) -> Tensor:
    """`gpu.linalg.svdvals`."""
    return spectral.svdvals(x)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DType | str | None = None) -> Tensor:
    """The sums of diagonals of matrices; of narrow integers in 32 bits."""
    return statistical.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(
    x: Tensor, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """`gpu.linalg.vector_norm`."""
    return norms.vector_norm(tensor_of(x), ord, axis, keepdims)


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """`gpu.linalg.cholesky`."""
    return factorizations.cholesky(x, upper=upper)


def det(x: Tensor, /) -> Tensor:
    """`gpu.linalg.det`."""
    return systems.det(x)


def inv(x: Tensor, /) -> Tensor:
    """`gpu.linalg.inv`."""
    return systems.inv(x)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """`gpu.linalg.matrix_power`."""
    return powers.matrix_power(x, n)


def qr(x: Tensor, /, *, mode: Literal["reduced", "complete"] = "reduced") -> factorizations.QR:
    """`gpu.linalg.qr`."""
    return factorizations.qr(x, mode)


def slogdet(x: Tensor, /) -> systems.SLogDet:
    """`gpu.linalg.slogdet`."""
    return systems.slogdet(x)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """`gpu.linalg.solve`, for which x2 is a vector where it has one axis, else matrices."""
    second = tensor_of(x2, "x2")
    return systems.solve(x1, second.unsqueeze(0) if 1 < second.ndim < x1.ndim else second)
