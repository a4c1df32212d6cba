"""Tensors as the batches of matrices that kernels take, and what comes of them as tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes, promote
from gpu.core.errors import DTypeError, InvalidType, ShapeError, Unsupported
from gpu.runtime.status import checked
from gpu.tensor.base import broadcast_shape
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


def check_same_kind(a: Tensor, b: Tensor, operation: str) -> None:
    """Raises DTypeError where two operands have different dtypes."""
    if a.dtype is not b.dtype:
        raise DTypeError(
            f"{operation} takes operands of one dtype, got {a.dtype.name} and {b.dtype.name}:"
            f" cast one, as in .cast('{promote(a.dtype, b.dtype).name}')"
        )


def broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the same batch. Raises ShapeError where they have none in common."""
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def stacked(a: Tensor) -> Tensor:
    """Matrices in one batch axis."""
    return a.reshape(math.prod(a.shape[:-2]), *a.shape[-2:])


def flat(a: Tensor) -> Tensor:
    """What kernels take of matrices in one batch axis: pairs for complex numbers."""
    return a.view_as_real() if a.dtype.is_complex else a


def unflat(x: Tensor, like: Tensor) -> Tensor:
    """The reverse of `flat`, for numbers of the kind of `like`."""
    return x.view_as_complex() if like.dtype.is_complex else x


def with_status(x: Tensor, word: Tensor, operation: str, batch: Sequence[int]) -> Tensor:
    """`x`, which tells when it is read what `word`, of one axis, says of a matrix."""
    return Tensor._wrap(checked(x._node, word._node, operation, batch))


def with_rule(rule: str, x: Tensor, operands: Sequence[Tensor], *numbers: int) -> Tensor:
    """`x`, whose gradient goes to `operands` by a rule of `gpu/tensor/linalg/gradients.py`.

    The nodes of rules have floats, pairs for complex numbers.
    """
    is_complex = x.dtype.is_complex
    value, *nodes = (G.as_real(t._node) if t.dtype.is_complex else t._node for t in (x, *operands))
    node = G.custom_grad(rule, value, nodes, int(is_complex), *numbers)
    return Tensor._wrap(G.as_complex(node) if is_complex else node)


def eye_like(a: Tensor, size: int) -> Tensor:
    """The identity for each matrix of `a`, of its dtype and on its device."""
    one = Tensor.eye(size, dtype=a.dtype, device=a.device)
    return one.expand(*a.shape[:-2], size, size)


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """Rows of matrices in an order, each from 0."""
    places = order.unsqueeze(-1).expand(*order.shape, x.shape[-1])
    if not x.dtype.is_complex:
        return x.gather(-2, places)
    pairs = x.view_as_real().gather(-3, places.unsqueeze(-1).expand(*places.shape, 2))
    return pairs.view_as_complex()


def with_rows(x: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """Matrices with rows replaced, each at a place from 0; of several at one place the last."""
    axes = places.unsqueeze(-1).expand(*places.shape, x.shape[-1])
    if not x.dtype.is_complex:
        return x.scatter(-2, axes, rows)
    pairs, values = x.view_as_real(), rows.view_as_real()
    return pairs.scatter(-3, axes.unsqueeze(-1).expand(values.shape), values).view_as_complex()
