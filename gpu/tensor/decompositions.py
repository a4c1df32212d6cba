"""Decompositions of matrices as methods, with torch's conventions of methods."""

from __future__ import annotations

from typing import Any, Self

from gpu.tensor.contraction import Contraction


class Decompositions(Contraction):
    """What `gpu.linalg` has, for those who write it after the tensor."""

    __slots__ = ()

    def svd(self, some: bool = True) -> tuple[Self, Self, Self]:
        """U, S and V of ``self = U @ diag(S) @ V.mH``, as `torch.Tensor.svd` gives them.

        U and V are square unless `some`. `gpu.linalg.svd` gives ``V.mH``, and tells what is raised.

        >>> from gpu import Tensor
        >>> U, S, V = Tensor([[0.0, 2.0], [1.0, 0.0]]).svd()
        >>> (U * S @ V.mH).tolist()
        [[0.0, 2.0], [1.0, 0.0]]
        """
        from gpu.tensor.linalg.spectral import svd  # only now: few programs need it

        this: Any = self
        U, S, Vh = svd(this, full_matrices=not some)
        found: Any = (U, S, Vh.adjoint())
        return found  # type: ignore[no-any-return]

    def qr(self, some: bool = True) -> tuple[Self, Self]:
        """Q and R of ``self = Q @ R``, as `torch.Tensor.qr` gives them; Q is square unless `some`.

        Raises as `gpu.linalg.qr`.
        """
        from gpu.tensor.linalg.factorizations import qr  # only now: few programs need it

        this: Any = self
        found: Any = tuple(qr(this, "reduced" if some else "complete"))
        return found  # type: ignore[no-any-return]
