"""Rows of products of matrices, distances and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported
from gpu.tensor.fft import transforms
from gpu.tensor.fft.transforms import Norm
from gpu.tensor.tensor import Tensor
from gpu.torch.table import row

row("mm", "bmm", "mv", "dot", "vdot")(lambda x, other: x.matmul(other))


@row("addmm", "baddbmm", "addmv")
def added_product(
    x: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta * x + alpha * first @ second; an x that counts 0 is not looked at."""
    product = first.matmul(second)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return product + (x if beta == 1 else x * beta)


@row("_cdist_forward")
def distances(x: Tensor, other: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """The p-norms of the differences of all pairs of rows."""
    return x.cdist(other, p)


@row("_pdist_forward")
def pair_distances(x: Tensor, p: float = 2) -> Tensor:
    """The p-norms of the differences of each two rows."""
    count = x.shape[0]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    if not pairs:
        return Tensor.full((0,), 0, dtype=x.dtype, device=x.device)
    first, second = (
        x[Tensor([pair[side] for pair in pairs], dtype=dtypes.int64, device=x.device)]
        for side in (0, 1)
    )
    return (first - second).norm(p, 1)


# Torch's at::native::fft_norm_mode: of n values what the result is divided by.
_NONE, _BY_ROOT_N, _BY_N = 0, 1, 2
_FORWARD: Final[dict[int, Norm]] = {_NONE: "backward", _BY_ROOT_N: "ortho", _BY_N: "forward"}
_BACKWARD: Final[dict[int, Norm]] = {_NONE: "forward", _BY_ROOT_N: "ortho", _BY_N: "backward"}


@row("_fft_r2c")
def real_to_complex(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    """The transform of real numbers, of the last axis named half or all of it."""
    function = transforms.rfftn if onesided else transforms.fftn
    return function(x, None, tuple(dim), _FORWARD[normalization])


@row("_fft_c2r")
def complex_to_real(
    x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Tensor:
    """The real numbers that the half of a transform is of."""
    sizes = [x.shape[axis] for axis in dim[:-1]] + [last_dim_size]
    return transforms.irfftn(x, sizes, tuple(dim), _BACKWARD[normalization])


@row("_fft_c2c")
def complex_to_complex(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    """The transform of complex numbers, or its inverse."""
    if not dim:
        raise Unsupported("a transform along no axis")
    if forward:
        return transforms.fftn(x, None, tuple(dim), _FORWARD[normalization])
    return transforms.ifftn(x, None, tuple(dim), _BACKWARD[normalization])
