"""Gradients of gradients of linear algebra against torch's in float64, by the graph's meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, linalg
from gpu.compiler.ir.graph import Node, interpret
from gpu.runtime.execute import storage
from tensor.reference import rng_for, torch

SQUARE, TALL, WIDE = (2, 4, 4), (2, 6, 4), (2, 3, 5)


def transposed(x: Any) -> Any:
    return x.transpose(-1, -2)


def positive(x: Any) -> Any:
    """A positive-definite matrix that moves with `x`."""
    return x @ transposed(x) + 1.0


def right_hand(x: Any) -> Any:
    """One that is the same for both libraries."""
    return (x * 0 + 1.0).cumsum(-1)[..., :2].sin() + x.detach()[..., :2]


def from_svd(made: Any) -> Any:
    u, s, _ = made
    return (u * (s * s)[..., None, :]) @ transposed(u)


def from_eigen(made: Any) -> Any:
    values, vectors = made
    return (vectors * values[..., None, :].cos()) @ transposed(vectors)


CASES: dict[str, tuple[tuple[int, ...], Callable[[Any, Any], Any]]] = {
    "cholesky": (SQUARE, lambda to, x: to.cholesky(positive(x))),
    "solve": (SQUARE, lambda to, x: to.solve(x, right_hand(x))),
    "triangular": (SQUARE, lambda to, x: to.solve_triangular(x, right_hand(x), upper=True)),
    "inv": (SQUARE, lambda to, x: to.inv(x)),
    "det": (SQUARE, lambda to, x: to.det(x)),
    "slogdet": (SQUARE, lambda to, x: to.slogdet(x)[1]),
    "lu": (SQUARE, lambda to, x: to.lu_factor(x)[0]),
    "q": (TALL, lambda to, x: to.qr(x)[0]),
    "r": (TALL, lambda to, x: to.qr(x)[1]),
    "wide r": (WIDE, lambda to, x: to.qr(x)[1]),
    "lstsq": (TALL, lambda to, x: to.lstsq(x, right_hand(x))[0]),
    "eigvalsh": (SQUARE, lambda to, x: to.eigvalsh(positive(x))),
    "eigh": (SQUARE, lambda to, x: from_eigen(to.eigh(positive(x)))),
    "svdvals": (TALL, lambda to, x: to.svdvals(x)),
    "svd": (TALL, lambda to, x: from_svd(to.svd(x, full_matrices=False))),
    "pinv": (TALL, lambda to, x: to.pinv(x)),
    "matrix_power": (SQUARE, lambda to, x: to.matrix_power(x, 3)),
    "matrix_exp": (SQUARE, lambda to, x: to.matrix_exp(0.3 * x)),
}


def stored(node: Node) -> Any:
    return storage(node).copy_out().reshape(node.shape)


@pytest.mark.parametrize("name", CASES)
def test_second_order_is_torchs(name: str) -> None:
    rng = rng_for("second", name)
    shape, function = CASES[name]
    drawn = rng.normal(size=shape)
    x = Tensor(drawn, requires_grad=True)
    made = function(linalg, x)
    weights, direction = rng.normal(size=made.shape), rng.normal(size=shape)
    (first,) = made.mul(Tensor(weights)).sum().gradient(x)
    (second,) = first.mul(Tensor(direction)).sum().gradient(x)

    y = torch.from_numpy(drawn).requires_grad_()
    weighted = (function(torch.linalg, y) * torch.from_numpy(weights)).sum()
    (their_first,) = torch.autograd.grad(weighted, y, create_graph=True)
    moved = (their_first * torch.from_numpy(direction)).sum()
    (their_second,) = torch.autograd.grad(moved, y)
    wanted = [each.detach().numpy() for each in (their_first, their_second)]
    for own, theirs in zip(interpret([first._node, second._node], stored), wanted, strict=True):
        assert np.abs(own - theirs).max() <= 1e-9 * np.abs(theirs).max()
