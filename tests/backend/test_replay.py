"""Captured graphs on a device: new inputs, symbolic sizes, written state."""

from __future__ import annotations

import numpy as np
import pytest

import gpu
from gpu import Tensor

pytestmark = pytest.mark.seeds


def test_a_replay_takes_new_inputs(device: str) -> None:
    rng = np.random.default_rng(4)
    weights = Tensor(rng.normal(size=(17, 9)).astype(np.float32), device=device)

    @gpu.jit
    def layer(x: Tensor) -> Tensor:
        return (x @ weights).relu().softmax(1)

    for _ in range(5):
        a = rng.normal(size=(6, 17)).astype(np.float32)
        z = np.maximum(a.astype(np.float64) @ weights.numpy(), 0)
        exp = np.exp(z - z.max(axis=1, keepdims=True))
        got = layer(Tensor(a, device=device)).numpy()
        np.testing.assert_allclose(got, exp / exp.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_a_replay_writes_state(device: str) -> None:
    total = Tensor.zeros(5, device=device).contiguous().realize()

    @gpu.jit
    def step(x: Tensor) -> Tensor:
        total.assign(total + x)
        return total.max()

    for number in range(1, 6):
        largest = step(Tensor(np.arange(5, dtype=np.float32), device=device)).item()
        assert largest == 4 * number
    assert total.tolist() == [0, 5, 10, 15, 20]


def test_one_program_serves_all_sizes(device: str) -> None:
    rows = gpu.Var("rows", 1, 12)
    data = np.random.default_rng(5).normal(size=(12, 7)).astype(np.float32)
    x = Tensor(data, device=device)

    @gpu.jit
    def column_sums(x: Tensor, size: gpu.Var) -> Tensor:
        return x[:size].sum(0)

    for count in (3, 12, 1, 7, 12):
        got = column_sums(x, rows.bind(count)).numpy()
        np.testing.assert_allclose(got, data[:count].sum(axis=0), rtol=1e-4, atol=1e-5)
