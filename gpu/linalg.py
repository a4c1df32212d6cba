"""Linear algebra, with the names of `torch.linalg`; docs/howto/linalg.md tells more.

>>> from gpu import Tensor, linalg
>>> linalg.eigvalsh(Tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
[1.0, 2.0]
"""

from gpu.core.linalgerror import LinAlgError
from gpu.tensor.linalg.norms import cond, matrix_norm, norm, vector_norm
from gpu.tensor.linalg.products import cross, diagonal, matmul, multi_dot, vander, vecdot
from gpu.tensor.linalg.spectral import (
    eig,
    eigh,
    eigvals,
    eigvalsh,
    matrix_rank,
    pinv,
    svd,
    svdvals,
)

__all__ = [
    "LinAlgError",
    "cond",
    "cross",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "matmul",
    "matrix_norm",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "svd",
    "svdvals",
    "vander",
    "vecdot",
    "vector_norm",
]
