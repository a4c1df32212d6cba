"""Factors of symmetric and Hermitian matrices that need not be definite, by the host."""

from __future__ import annotations

from typing import NamedTuple

from gpu.compiler.ir.graph.body import Value
from gpu.core.dtype import dtypes
from gpu.core.errors import DTypeError, InvalidType, ShapeError
from gpu.tensor.base import broadcast_shape
from gpu.tensor.linalg.hosted import call
from gpu.tensor.linalg.matrices import check_matrices, check_same_kind, with_status
from gpu.tensor.tensor import Tensor


class LDLFactor(NamedTuple):
    """What `ldl_factor` gives."""

    LD: Tensor
    pivots: Tensor


class LDLFactorEx(NamedTuple):
    """What `ldl_factor_ex` gives: `info` is 0, or the place, from 1, of the first zero of D."""

    LD: Tensor
    pivots: Tensor
    info: Tensor


def ldl_factor(A: Tensor, *, hermitian: bool = False) -> LDLFactor:
    """L and D of A = L @ D @ L.mT (L.mH with `hermitian`), of matrices (..., n, n).

    Both are in one matrix as LAPACK's ``?sytrf`` packs them, whose `pivots` (..., n) tell which
    rows were exchanged and which are blocks of two; `ldl_solve` takes them. The lower half of A is
    read. Raises as `ldl_factor_ex`; LinAlgError, when a value that depends on it is read, if D has
    a zero. There is no gradient, as in torch.

    >>> from gpu import Tensor, linalg
    >>> linalg.ldl_factor(Tensor([[2.0, 4.0], [4.0, 9.0]])).pivots.tolist()
    [2, 2]
    """
    return LDLFactor(*_factored(A, hermitian, True)[:2])


def ldl_factor_ex(A: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> LDLFactorEx:
    """The same, and for each matrix where the first zero of D is; no error with the value.

    With `check_errors` there is one, as in `ldl_factor`. Raises InvalidType, ShapeError and
    DTypeError for what are no square matrices of floats.
    """
    return _factored(A, hermitian, check_errors)


def _factored(A: Tensor, hermitian: bool, checks: bool) -> LDLFactorEx:
    a = check_matrices(A, "ldl_factor", square=True)
    batch = a.shape[:-2]
    if not a.numel():
        pivots = Tensor.zeros(a.shape[:-1], dtype=dtypes.int32, device=a.device)
        info = Tensor.zeros(batch, dtype=dtypes.int32, device=a.device)
        return LDLFactorEx(a._same(), pivots, info)
    results = (
        Value(a.shape, a.dtype),
        Value(a.shape[:-1], dtypes.int32),
        Value(batch, dtypes.int32),
    )
    packed, pivots, info = call(_name("ldl", a, hermitian), a, results)
    if checks:
        packed = with_status(packed, info.reshape(-1), "ldl_factor", batch)
    return LDLFactorEx(packed, pivots, info)


def _name(name: str, a: Tensor, hermitian: bool) -> str:
    return f"{name}_hermitian" if hermitian and a.dtype.is_complex else name


def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """X of A @ X = B, for A (..., n, n) as `ldl_factor` gives its factors, and B (..., n, k).

    Raises InvalidType, ShapeError and DTypeError for operands that do not fit; LinAlgError, when
    the value is read, for pivots that are no rows.
    """
    a, b = check_matrices(LD, "ldl_solve", square=True), check_matrices(B, "ldl_solve")
    check_same_kind(a, b, "ldl_solve")
    if not isinstance(pivots, Tensor):
        raise InvalidType(f"pivots must be a tensor, got {type(pivots).__name__} {pivots!r}")
    if pivots.dtype is not dtypes.int32:
        raise DTypeError(f"pivots of ldl_solve must be int32, got {pivots.dtype.name}")
    if pivots.shape != a.shape[:-1] or a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"ldl_solve of {a._described()}, pivots {list(pivots.shape)} and {b._described()}:"
            " sizes differ"
        )
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    pivots = pivots.expand(*batch, pivots.shape[-1])
    if not b.numel():
        return b._same()
    return call(_name("ldlsolve", a, hermitian), a, (Value(b.shape, b.dtype),), pivots, b)[0]
