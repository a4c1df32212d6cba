"""Factors of symmetric matrices that are not definite, and gradients of half matrices: torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu import Tensor, linalg
from gpu.core.errors import DTypeError, InvalidType, ShapeError, Unsupported
from tensor.reference import rng_for, torch


def symmetric(kind: str, hermitian: bool, shape: tuple[int, ...]) -> Any:
    """Matrices of which some have small diagonals, which take blocks of two rows."""
    rng = rng_for(f"{kind} {hermitian} {shape}")
    a = rng.normal(size=shape)
    a = (a + 1j * rng.normal(size=shape) if "complex" in kind else a).astype(kind)
    rows = np.arange(shape[-1])
    a[..., rows, rows] *= rng.choice([1e-3, 1.0], size=shape[:-1])
    return a + (a.conj() if hermitian else a).swapaxes(-1, -2)


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("kind", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (2, 3, 5, 5), (0, 0), (0, 3, 3)])
def test_ldl(kind: str, hermitian: bool, shape: tuple[int, ...]) -> None:
    a = symmetric(kind, hermitian, shape)
    found = linalg.ldl_factor(Tensor(a), hermitian=hermitian)
    wanted = torch.linalg.ldl_factor(torch.tensor(a), hermitian=hermitian)
    bound = 2e-3 if a.real.dtype == np.float32 else 1e-10
    assert found.pivots.tolist() == wanted.pivots.tolist()
    np.testing.assert_allclose(found.LD.numpy(), wanted.LD.numpy(), bound, bound)
    b = rng_for("b").normal(size=(*shape[:-1], 2)).astype(kind)
    x = linalg.ldl_solve(*found, Tensor(b), hermitian=hermitian)
    np.testing.assert_allclose(a @ x.numpy(), b, bound, bound)


def test_ldl_of_singular_and_bad_matrices() -> None:
    zero = Tensor(np.diag([2.0, 0.0, 0.0]))
    packed, pivots, info = linalg.ldl_factor_ex(zero)
    assert (packed.tolist(), pivots.tolist(), info.item()) == (zero.tolist(), [1, 2, 3], 2)
    with pytest.raises(linalg.LinAlgError, match="D has a zero in row 2"):
        linalg.ldl_factor(zero).LD.tolist()
    with pytest.raises(linalg.LinAlgError, match="D has a zero in row 2"):
        linalg.ldl_factor_ex(zero, check_errors=True).LD.tolist()
    both = np.stack([np.eye(2), np.full((2, 2), np.nan)])
    missing = np.isnan(linalg.ldl_factor_ex(Tensor(both)).LD.numpy())
    assert missing.all((-2, -1)).tolist() == missing.any((-2, -1)).tolist() == [False, True]
    with pytest.raises(linalg.LinAlgError, match="pivots must be rows"):
        linalg.ldl_solve(zero, pivots * 0, zero).tolist()
    with pytest.raises(DTypeError, match="int32"):
        linalg.ldl_solve(zero, pivots.float(), zero)
    with pytest.raises(InvalidType, match="pivots must be a tensor"):
        linalg.ldl_solve(zero, [1, 2, 3], zero)
    with pytest.raises(ShapeError, match="sizes differ"):
        linalg.ldl_solve(zero, pivots, zero[:2])
    with pytest.raises(ShapeError, match="square"):
        linalg.ldl_factor(zero[:2])
    a = Tensor([[2.0]], requires_grad=True)
    with pytest.raises(Unsupported, match="no gradient"):
        linalg.ldl_factor(a).LD.sum().backward()


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("name", ["cholesky_solve", "cholesky_inverse"])
def test_gradients_of_a_cholesky_factor(name: str, upper: bool) -> None:
    """Also of the half that is not read, as torch has them."""
    rng = rng_for(f"{name} {upper}")
    factor = rng.normal(size=(2, 4, 4)) + 3 * np.eye(4)
    others = [rng.normal(size=(2, 4, 3))] if name == "cholesky_solve" else []
    ours = [Tensor(x, requires_grad=True) for x in (*others, factor)]
    theirs = [torch.tensor(x, requires_grad=True) for x in (*others, factor)]
    found, wanted = getattr(linalg, name)(*ours, upper), getattr(torch, name)(*theirs, upper=upper)
    weights = rng.normal(size=found.shape)
    (wanted * torch.tensor(weights)).sum().backward()
    grads = (found * Tensor(weights)).sum().gradient(*ours)
    for mine, other in zip(grads, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.grad.numpy(), 1e-9, 1e-9)
