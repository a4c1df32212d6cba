"""What functions of linear algebra take: matrices, in the last two axes of tensors."""

from __future__ import annotations

from typing import Any

from gpu.compiler.ir.dims import has_symbols
from gpu.core.dtype import dtypes
from gpu.core.errors import DTypeError, InvalidType, ShapeError, Unsupported
from gpu.tensor.tensor import Tensor

_WIDE = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


def matrices(x: Any, operation: str, square: bool = False) -> Tensor:
    """`x` if it is matrices that LAPACK has routines for.

    Raises InvalidType for no tensor, ShapeError for fewer than two axes and for matrices that are
    not square where they must be, DTypeError for other dtypes than float32, float64, complex64 and
    complex128, Unsupported for tensors on several devices or of symbolic sizes.
    """
    if not isinstance(x, Tensor):
        raise InvalidType(f"{operation} takes a Tensor, got {type(x).__name__} {x!r}")
    if x.ndim < 2:
        raise ShapeError(f"{operation} takes matrices, of 2 axes or more, got {x._described()}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{operation} takes square matrices, got {x._described()}")
    if x.dtype not in _WIDE:
        raise DTypeError(
            f"{operation} takes float32, float64, complex64 or complex128, got {x._described()};"
            " .cast() it"
        )
    if not isinstance(x.device, str) or has_symbols(x.shape):
        why = "of a symbolic size" if has_symbols(x.shape) else "on several devices"
        raise Unsupported(f"{operation} of {x._described()}, {why}: bind or move it before")
    return x
