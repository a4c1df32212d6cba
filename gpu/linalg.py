"""Linear algebra, with the names of `torch.linalg`; docs/howto/linalg.md tells more.

>>> from gpu import Tensor, linalg
>>> linalg.eigvalsh(Tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
[1.0, 2.0]
"""

from gpu.core.linalgerror import LinAlgError
from gpu.tensor.linalg.factorizations import (
    cholesky,
    cholesky_ex,
    lu,
    lu_factor,
    lu_factor_ex,
    qr,
    solve_triangular,
)
from gpu.tensor.linalg.forms import (
    cholesky_inverse,
    householder_product,
    logdet,
    lu_unpack,
    ormqr,
    pca_lowrank,
    svd_lowrank,
    tensorinv,
    tensorsolve,
)
from gpu.tensor.linalg.indefinite import ldl_factor, ldl_factor_ex, ldl_solve
from gpu.tensor.linalg.norms import cond, matrix_norm, norm, vector_norm
from gpu.tensor.linalg.powers import matrix_exp, matrix_power
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
from gpu.tensor.linalg.systems import (
    cholesky_solve,
    det,
    inv,
    inv_ex,
    lstsq,
    lu_solve,
    slogdet,
    solve,
    solve_ex,
)

__all__ = [
    "LinAlgError",
    "cholesky",
    "cholesky_ex",
    "cholesky_inverse",
    "cholesky_solve",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "householder_product",
    "inv",
    "inv_ex",
    "ldl_factor",
    "ldl_factor_ex",
    "ldl_solve",
    "logdet",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "lu_unpack",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "ormqr",
    "pca_lowrank",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svd_lowrank",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]
