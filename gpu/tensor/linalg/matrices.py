"""Tensors as the batches of matrices that kernels take, and what comes of them as tensors."""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.dims import has_symbols
from gpu.core.dtype import dtypes
from gpu.core.errors import DTypeError, InvalidType, ShapeError, Unsupported
from gpu.tensor.tensor import Tensor

_KINDS: Final = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


def check_matrices(a: object, operation: str, square: bool = False) -> Tensor:
    """`a`, a tensor of matrices.

    Raises InvalidType, ShapeError, DTypeError and Unsupported for what is none, or not square.
    """
    if not isinstance(a, Tensor):
        raise InvalidType(f"{operation} takes a tensor, got {type(a).__name__} {a!r}")
    if a.dtype not in _KINDS:
        names = ", ".join(dtype.name for dtype in _KINDS)
        raise DTypeError(f"{operation} takes {names}; this is {a._described()}: cast it")
    if a.ndim < 2:
        raise ShapeError(f"{operation} takes matrices, in the last two axes of {a._described()}")
    if has_symbols(a.shape) or not isinstance(a.device, str):
        which = "of a symbolic size" if has_symbols(a.shape) else "on several devices"
        raise Unsupported(f"{operation} of {a._described()}, {which}")
    if square and a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"{operation} takes square matrices, this is {a._described()}")
    return a
