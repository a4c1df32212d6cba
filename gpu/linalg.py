"""Linear algebra with torch's names: ``torch.linalg`` for tensors.

>>> from gpu import Tensor, linalg
>>> linalg.eigvalsh(Tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
[1.0, 2.0]

Matrices are the last two axes, the axes before them are a batch. What the host's LAPACK computes,
whatever the device, is told in docs/howto/linalg.md.
"""

from gpu.core.linalgerror import LinAlgError
from gpu.tensor.linalg.spectral import eig, eigh, eigvals, eigvalsh, svd, svdvals

__all__ = ["LinAlgError", "eig", "eigh", "eigvals", "eigvalsh", "svd", "svdvals"]
