"""`gpu.linalg` on ill-conditioned matrices: what is left over, with 50 digits.

Hilbert's, ones with repeated and with tiny singular values, deficient and graded ones. Results are
judged by residual and orthogonality, never by sign, and singular values beside mpmath's; bounds
are 20 n eps of the largest number of the matrix or, of a solution, of all that is added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from gpu import Tensor, linalg

mpmath = pytest.importorskip("mpmath", reason="needs torch: module mpmath comes with it")

Array = np.ndarray[Any, Any]
N: Final = 12
DTYPES: Final = ("float32", "float64")


def _rotated(rng: np.random.Generator, values: Array) -> Array:
    n = len(values)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    return left * values @ right


def _hilbert(rng: np.random.Generator, n: int) -> Array:
    return 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)


MATRICES: Final[dict[str, Callable[[np.random.Generator, int], Array]]] = {
    "hilbert": _hilbert,
    "repeated": lambda rng, n: _rotated(rng, np.repeat([3.0, 1.0], [n - n // 2, n // 2])),
    "tiny": lambda rng, n: _rotated(rng, 10.0 ** -np.linspace(0, 30, n)),
    "deficient": lambda rng, n: rng.standard_normal((n, n // 2)) @ rng.standard_normal((n // 2, n)),
    "graded": lambda rng, n: rng.standard_normal((n, n)) * 10.0 ** -np.arange(n),
}


def _norm(x: Any) -> float:
    return float(max(abs(value) for value in x))


def _exact(x: Tensor) -> Any:
    return mpmath.matrix(x.numpy().astype(float).tolist())


def _judge(left_over: Any, of: float, n: int, dtype: str) -> None:
    with mpmath.workdps(50):
        assert _norm(left_over()) <= 20 * n * np.finfo(dtype).eps * of


def _orthonormal(q: Tensor, n: int, dtype: str) -> None:
    _judge(lambda: _exact(q).T * _exact(q) - mpmath.eye(q.shape[1]), 1.0, n, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MATRICES)
def test_factors(name: str, dtype: str) -> None:
    rng = np.random.default_rng(len(name))
    a = Tensor(MATRICES[name](rng, N).astype(dtype))
    given, size = _exact(a), float(a.abs().max().item())
    p, lower, upper = linalg.lu(a)
    growth = size + float(upper.abs().max().item())
    _judge(lambda: given - _exact(p) * _exact(lower) * _exact(upper), growth, N, dtype)
    q, r = linalg.qr(a)
    _judge(lambda: given - _exact(q) * _exact(r), size, N, dtype)
    _orthonormal(q, N, dtype)
    left, values, right = linalg.svd(a)
    scaled = left * values
    _judge(lambda: given - _exact(scaled) * _exact(right), size, N, dtype)
    _orthonormal(left, N, dtype)
    _orthonormal(right.mT, N, dtype)
    with mpmath.workdps(50):
        wanted = mpmath.svd_r(given, compute_uv=False)
    found = _exact(values.unsqueeze(1))
    _judge(lambda: found - wanted, N * size, N, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MATRICES)
def test_of_symmetric_matrices(name: str, dtype: str) -> None:
    rng = np.random.default_rng(len(name))
    one = MATRICES[name](rng, N)
    a = Tensor((one + one.T).astype(dtype))
    given, size = _exact(a), float(a.abs().max().item())
    values, vectors = linalg.eigh(a)
    scaled = vectors * values
    _judge(lambda: given * _exact(vectors) - _exact(scaled), N * size, N, dtype)
    _orthonormal(vectors, N, dtype)
    shifted = (one @ one.T + np.eye(N) * 1e-3).astype(dtype)
    factor = linalg.cholesky(Tensor(shifted))
    exact = mpmath.matrix(shifted.astype(float).tolist())
    _judge(lambda: exact - _exact(factor) * _exact(factor).T, float(shifted.max()), N, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["hilbert", "repeated", "tiny", "graded"])
def test_what_a_solution_leaves_over(name: str, dtype: str) -> None:
    """Beside |A| |x| + |b|, which is the most that rounding may hide."""
    rng = np.random.default_rng(len(name))
    a = Tensor(MATRICES[name](rng, N).astype(dtype))
    b = Tensor(rng.standard_normal((N, 2)).astype(dtype))
    x = linalg.solve(a, b)
    hidden = N * float(a.abs().max().item()) * float(x.abs().max().item())
    hidden += float(b.abs().max().item())
    _judge(lambda: _exact(a) * _exact(x) - _exact(b), hidden, N, dtype)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("n", [100, 333, 1024])
@pytest.mark.parametrize("name", MATRICES)
def test_large_ones_in_float64(name: str, n: int) -> None:
    """Factors of float32 as float64 sees them, in norms of two."""
    rng = np.random.default_rng(n)
    made = MATRICES[name](rng, n).astype("float32")
    bound, size = 20 * n * np.finfo("float32").eps, np.linalg.norm(made, 2)
    q, r = (x.numpy().astype(float) for x in linalg.qr(Tensor(made)))
    assert np.linalg.norm(q.T @ q - np.eye(n), 2) <= bound
    assert np.linalg.norm(made - q @ r, 2) <= bound * size
    x = linalg.solve(Tensor(made + np.eye(n, dtype="float32")), Tensor(made)).numpy().astype(float)
    left = (made + np.eye(n, dtype="float32")).astype(float) @ x - made
    assert np.linalg.norm(left, 2) <= bound * (size + 1) * (np.linalg.norm(x, 2) + 1)
