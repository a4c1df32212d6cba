"""Other forms of factors, beside torch's: packed LU, reflectors, low ranks, tensors as matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, linalg
from gpu.core.errors import DTypeError, InvalidValue, ShapeError
from tensor.reference import rng_for, torch

KINDS = ("float32", "complex128")


def drawn(name: str, shape: tuple[int, ...], kind: str) -> Any:
    rng = rng_for(f"{name} {shape}")
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if "complex" in kind else x).astype(kind)


def close(found: Tensor, wanted: Any) -> None:
    wanted = wanted.detach().numpy()
    assert found.shape == wanted.shape
    bound = 2e-4 if wanted.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(found.numpy(), wanted, bound, bound)


@pytest.mark.sampled(34)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5), (1, 1)])
def test_packed_lu(kind: str, shape: tuple[int, ...]) -> None:
    a = drawn("lu", shape, kind)
    for found, wanted in zip(
        linalg.lu_unpack(*linalg.lu_factor(Tensor(a))),
        torch.lu_unpack(*torch.linalg.lu_factor(torch.tensor(a))),
        strict=True,
    ):
        close(found, wanted)
    none = linalg.lu_unpack(*linalg.lu_factor(Tensor(a)), False, False)
    assert [x.shape for x in none] == [(0,)] * 3


@pytest.mark.sampled(34)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "steps"), [((6, 4), 4), ((2, 5, 3), 2), ((4, 4), 0)])
def test_reflectors(kind: str, shape: tuple[int, ...], steps: int) -> None:
    a, tau = drawn("a", shape, kind), drawn("tau", (*shape[:-2], steps), kind)
    if steps:
        tau[..., 0] = 0
    found = linalg.householder_product(Tensor(a), Tensor(tau))
    close(found, torch.linalg.householder_product(torch.tensor(a), torch.tensor(tau)))
    # Torch's ormqr wants all reflectors: those with 0 change nothing.
    none = np.zeros((*shape[:-2], shape[-1] - steps), kind)
    whole = torch.tensor(np.concatenate([tau, none], -1))
    for left in (True, False):
        size = (shape[-2], 3) if left else (3, shape[-2])
        b = drawn("b", (*shape[:-2], *size), kind)
        for turned in (True, False):
            close(
                linalg.ormqr(Tensor(a), Tensor(tau), Tensor(b), left, turned),
                torch.ormqr(torch.tensor(a), whole, torch.tensor(b), left, turned),
            )


@pytest.mark.parametrize("kind", KINDS)
def test_inverses_and_determinants(kind: str) -> None:
    a = drawn("inverse", (3, 4, 4), kind)
    low = np.linalg.cholesky(a @ a.conj().swapaxes(-1, -2) + np.eye(4)).astype(kind)
    for upper in (False, True):
        factor = np.ascontiguousarray(low.conj().swapaxes(-1, -2)) if upper else low
        wanted = torch.cholesky_inverse(torch.tensor(factor), upper)
        close(linalg.cholesky_inverse(Tensor(factor), upper), wanted)
    if "complex" not in kind:
        t = Tensor(a, requires_grad=True)
        size = linalg.logdet(t)
        close(size, torch.logdet(torch.tensor(a)))
        positive = Tensor(np.linalg.det(a) > 0).where(size, 0)
        (slope,) = positive.sum().gradient(t)
        there = np.linalg.det(a) > 0
        np.testing.assert_allclose(
            slope.numpy()[there], np.linalg.inv(a[there]).swapaxes(-1, -2), 2e-3, 1e-4
        )


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_as_matrices(kind: str) -> None:
    a = drawn("tensor", (2, 3, 3, 2), kind)
    close(linalg.tensorinv(Tensor(a)), torch.linalg.tensorinv(torch.tensor(a)))
    b = drawn("right", (2, 3), kind)
    close(
        linalg.tensorsolve(Tensor(a), Tensor(b)),
        torch.linalg.tensorsolve(torch.tensor(a), torch.tensor(b)),
    )
    c, d = drawn("moved", (4, 3, 4, 3), kind), drawn("side", (3, 4), kind)
    wanted = torch.linalg.tensorsolve(torch.tensor(c), torch.tensor(d), dims=(0,))
    close(linalg.tensorsolve(Tensor(c), Tensor(d), dims=(0,)), wanted)


@pytest.mark.sampled(34)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(12, 7), (2, 5, 9)])
def test_low_ranks(kind: str, shape: tuple[int, ...]) -> None:
    a = drawn("tall", (*shape[:-1], 3), kind) @ drawn("wide", (*shape[:-2], 3, shape[-1]), kind)
    u, s, v = linalg.svd_lowrank(Tensor(a), 4)
    bound = 1e-4 if kind == "float32" else 1e-9
    made = (u * s.unsqueeze(-2).cast(u.dtype)) @ v.mH
    np.testing.assert_allclose(made.numpy(), a, bound, bound)
    values = np.linalg.svd(a, compute_uv=False)[..., :4]
    np.testing.assert_allclose(s.numpy(), values, bound, 20 * bound)
    centred = a - a.mean(-2, keepdims=True)
    found = linalg.pca_lowrank(Tensor(a), 4).S
    values = np.linalg.svd(centred, compute_uv=False)[..., :4]
    np.testing.assert_allclose(found.numpy(), values, bound, 20 * bound)


@pytest.mark.parametrize("size", [(3, 1), (1,), (4,), (2, 3, 4), ()])
def test_sums_to_a_size(size: tuple[int, ...]) -> None:
    x = rng_for("sums").integers(-9, 9, (2, 3, 4)).astype("float32")
    close(Tensor(x).sum_to_size(size), torch.tensor(x).sum_to_size(size))


def test_places_by_number() -> None:
    numbers = rng_for("places").integers(-24, 24, (3, 5))
    found = Tensor(numbers).unravel_index((2, 3, 4))
    for ours, theirs in zip(
        found, torch.unravel_index(torch.tensor(numbers), (2, 3, 4)), strict=True
    ):
        assert ours.tolist() == theirs.tolist()


def test_what_does_not_fit_is_refused() -> None:
    a = Tensor.ones(3, 4)
    refused: list[Callable[[], Any]] = [
        lambda: linalg.householder_product(a, Tensor.ones(2)),
        lambda: linalg.ormqr(a.T, Tensor.ones(4), a),
        lambda: linalg.tensorinv(a, 1),
        lambda: linalg.tensorsolve(a, Tensor.ones(5)),
        lambda: a.sum_to_size(2, 4),
    ]
    for call in refused:
        with pytest.raises(ShapeError):
            call()
    with pytest.raises(InvalidValue, match="q=9"):
        linalg.svd_lowrank(a, 9)
    with pytest.raises(InvalidValue, match="ind"):
        linalg.tensorinv(a, 0)
    with pytest.raises(DTypeError, match="integers"):
        a.unravel_index((3, 4))
