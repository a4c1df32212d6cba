"""Tensors on a mesh of several axes, here of this process's devices, give what they give on one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu import Mesh, Tensor
from gpu.compiler.ir.graph.hostcall import Across
from gpu.core.errors import InvalidValue, Unsupported
from gpu.runtime.collectives import members
from tensor.test_sharding import OPERATIONS

SPECS = [(), ("x",), (None, "y"), ("x", "y"), ("y", "x"), (("x", "y"), None), ("y",)]


def values(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_operations(seed: int) -> None:
    rng, refused = np.random.default_rng(seed), 0
    mesh, a = Mesh((2, 2), ("x", "y")), values(rng, 4, 6)
    for name in rng.choice([*OPERATIONS], 4, replace=False):
        spec = SPECS[rng.integers(len(SPECS))]
        run = OPERATIONS[name]
        try:
            got = run(Tensor(a).shard(mesh, spec)).numpy()
        except Unsupported:
            refused += 1
            continue
        np.testing.assert_allclose(got, run(Tensor(a)).numpy(), rtol=1e-4, atol=1e-5)
    assert refused <= 3


@pytest.mark.parametrize("seed", range(4))
def test_products_and_moves(seed: int) -> None:
    """Whatever way two matrices lie, and the gradient is asked for."""
    rng = np.random.default_rng(seed)
    mesh = Mesh((2, 2), ("x", "y")) if seed % 2 else Mesh((3, 2), ("x", "y"))
    first, second, third = (SPECS[i] for i in rng.integers(len(SPECS), size=3))
    a, b = values(rng, 12, 6), values(rng, 6, 12)
    if seed % 2:
        a, b = a[:, :4], b[:4]
    else:
        third = third if third != (("x", "y"), None) else ()
    x, y = (Tensor(each, requires_grad=True) for each in (a, b))
    product = x.shard(mesh, first) @ y.shard(mesh, second)
    moved = product.shard(mesh, third)
    assert moved.spec == (*third, *(None,) * (2 - len(third)))
    np.testing.assert_allclose(moved.numpy(), a @ b, rtol=1e-4, atol=1e-5)
    moved.square().sum().backward()
    assert x.grad is not None and y.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 2 * a @ b @ b.T, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(y.grad.numpy(), 2 * a.T @ (a @ b), rtol=1e-3, atol=1e-4)


def test_a_mesh_of_one_is_a_device() -> None:
    x = Tensor([[1.0, 2.0]]).shard(Mesh((1, 1), ("x", "y")), ("x", "y"))
    assert x.device == "CPU" and x.spec == (None, None) and len(x.local()) == 1


def test_who_takes_part() -> None:
    assert members(Across((2, 3), 1), 4) == [3, 4, 5]
    assert members(Across((2, 3), 0), 4) == [1, 4]
    assert members(Across((2, 2, 2), 1), 5) == [5, 7]


def test_bad_meshes() -> None:
    x = Tensor(np.zeros((4, 4), np.float32))
    with pytest.raises(Unsupported, match="in the order of the mesh"):
        x.shard(Mesh((2, 2), ("x", "y")), (("y", "x"),))
    with pytest.raises(InvalidValue, match="several devices, or another mesh"):
        x.shard(Mesh((2,), ("x",)), ("x",)).shard(Mesh((2, 2), ("x", "y")), ())
    with pytest.raises(InvalidValue, match="takes 2 devices of each"):
        Mesh((2,), ("x",), devices=("CPU",))
