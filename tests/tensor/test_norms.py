"""Norms, ranks, pseudoinverses and products of `gpu.linalg`, against torch."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, dtypes, linalg
from gpu.compiler.ir.graph import toposort
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, ShapeError
from tensor.reference import rng_for, torch
from tensor.test_spectral import DTYPES, bound, drawn, hermitian, meant

ORDERS = (2, 1, 0, 3, 2.5, -1, math.inf, -math.inf)
OF_MATRICES = ("fro", "nuc", 2, -2, 1, -1, math.inf, -math.inf)


def same(ours: Tensor, theirs: Any, what: object, limit: float = 0) -> None:
    (found,) = meant([ours])
    wanted = theirs.detach().numpy()
    assert found.shape == wanted.shape and found.dtype == wanted.dtype, what
    limit = limit or 1e4 * np.finfo(found.dtype).eps if found.dtype.kind in "fc" else 0
    np.testing.assert_allclose(found, wanted, limit, limit, err_msg=str(what))


def same_gradient(value: Tensor, x: Tensor, wanted: Any, theirs: Any, what: object) -> None:
    (grad,) = value.sum().gradient(x)
    wanted.sum().backward()
    np.testing.assert_allclose(meant([grad])[0], theirs.grad.numpy(), 1e-7, 1e-9, err_msg=str(what))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_of_vectors(dtype: str) -> None:
    rng = rng_for("vectors", dtype)
    for order in ORDERS:
        shape = tuple(int(n) for n in rng.integers(1, 5, 3))
        dims: Any = [None, 1, -1, (0, 2), (1, 0)][rng.integers(5)]
        keep, a = bool(rng.integers(2)), drawn(rng, shape, dtype)
        a[0] = 0 if order == 2 else a[0]  # of which the gradient is 0
        x, theirs = Tensor(a), torch.from_numpy(a).requires_grad_()
        given = (order, dims, keep)
        value, wanted = (f(t, *given) for f, t in zip(
            (linalg.vector_norm, torch.linalg.vector_norm), (x, theirs), strict=True
        ))  # fmt: skip
        same(value, wanted, (given, shape))
        if dtype.endswith(("64", "128")) and dtype != "complex64" and order not in (0, -math.inf):
            same_gradient(value, x, wanted, theirs, given)
    for shape in ((), (3,), (0,), (2, 0)):
        a = drawn(rng, shape, dtype) if shape else np.asarray(drawn(rng, (1,), dtype)[0])
        found = linalg.vector_norm(Tensor(a))
        same(found, torch.linalg.vector_norm(torch.from_numpy(a)), shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_of_matrices(dtype: str) -> None:
    rng = rng_for("matrices", dtype)
    for order in OF_MATRICES:
        shape = tuple(int(n) for n in rng.integers(1, 5, 3))
        dims: Any = [(-2, -1), (0, 1), (2, 0), (1, -1)][rng.integers(4)]
        keep, a = bool(rng.integers(2)), drawn(rng, shape, dtype)
        x, theirs = Tensor(a), torch.from_numpy(a).requires_grad_()
        value = linalg.matrix_norm(x, order, dims, keep)
        wanted = torch.linalg.matrix_norm(theirs, order, dims, keep)
        same(value, wanted, (order, shape, dims, keep))
        if dtype in ("float64", "complex128"):
            same_gradient(value, x, wanted, theirs, (order, shape, dims))
        general = linalg.norm(Tensor(a), order, dims, keep)
        same(general, wanted, order)


def test_norm_says_by_its_arguments_which_it_is() -> None:
    a = drawn(rng_for("norm"), (2, 3), "float32")
    x, theirs = Tensor(a), torch.from_numpy(a)
    for given in ((), (None, 0), (None, (0, 1)), (1,), ("nuc",), (math.inf, 1), (1, (1, 0))):
        same(linalg.norm(x, *given), torch.linalg.norm(theirs, *given), given)
    same(linalg.norm(x[0], 3), torch.linalg.norm(theirs[0], 3), "vector")
    wide = linalg.norm(x, dtype="float64")
    same(wide, torch.linalg.norm(theirs, dtype=torch.float64), "dtype")
    same(linalg.vector_norm(x.half() * 300), torch.linalg.vector_norm(theirs.half() * 300), "half")


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_condition_numbers(dtype: str) -> None:
    a = drawn(rng_for("cond", dtype), (3, 4, 4), dtype)
    a[1, 0] = a[1, 2] = 0  # singular
    for order in (None, *OF_MATRICES):
        ours, theirs = Tensor(a[[0, 2]]), torch.from_numpy(a[[0, 2]])
        same(linalg.cond(ours, order), torch.linalg.cond(theirs, order), order, 1e-9)
        (value,) = meant([linalg.cond(Tensor(a), order)])
        if order not in (-1, -2, -math.inf):
            assert value[1] > 1e14
    wide = drawn(rng_for("wide", dtype), (2, 5), dtype)
    same(linalg.cond(Tensor(wide)), torch.linalg.cond(torch.from_numpy(wide)), "wide")


@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks_and_pseudoinverses(dtype: str) -> None:
    rng = rng_for("rank", dtype)
    for _ in range(6):
        *batch, rows, columns = (int(n) for n in rng.integers(1, 6, rng.integers(2, 4)))
        rank = int(rng.integers(0, min(rows, columns) + 1))
        left, right = (drawn(rng, (*batch, *s), dtype) for s in ((rows, rank), (rank, columns)))
        a = left @ right
        x = Tensor(a)
        (found,) = meant([linalg.matrix_rank(x)])
        np.testing.assert_array_equal(found, np.linalg.matrix_rank(a))
        assert found.dtype == np.int64
        (inverse,) = meant([linalg.pinv(x)])
        size = np.abs(inverse).max(initial=1) * np.abs(a).max(initial=1) ** 2
        limit = 10 * bound(a) * size
        np.testing.assert_allclose(a @ inverse @ a, a, 0, limit)
        product = a @ inverse
        np.testing.assert_allclose(product, product.swapaxes(-2, -1).conj(), 0, limit)


def test_what_a_tolerance_leaves() -> None:
    a = np.diag([4.0, 1.0, 0.1]).astype(np.float32)
    x = Tensor(np.stack([a, 10 * a]))
    for given, counts in (
        ({"atol": 0.5}, [2, 3]),
        ({"rtol": 0.3}, [1, 1]),
        ({"atol": 2.0, "rtol": 0.1}, [1, 2]),
        ({"atol": Tensor([5.0, 0.01])}, [0, 3]),
        ({"rtol": Tensor([0.2, 0.3]), "hermitian": True}, [2, 1]),
    ):
        assert meant([linalg.matrix_rank(x, **given)])[0].tolist() == counts
        (inverse,) = meant([linalg.pinv(x, **given)])
        assert [np.linalg.matrix_rank(each) for each in inverse] == counts


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradients_of_pseudoinverses(dtype: str) -> None:
    for shape in ((2, 3, 3), (4, 2), (2, 4)):
        a = drawn(rng_for("pinv", shape, dtype), shape, dtype)
        weight = np.random.default_rng(1).uniform(1, 2, (shape[-1], shape[-2]))
        x, theirs = Tensor(a), torch.from_numpy(a).requires_grad_()
        value = (linalg.pinv(x) * Tensor(weight)).abs()
        wanted = (torch.linalg.pinv(theirs) * torch.from_numpy(weight)).abs()
        same_gradient(value, x, wanted, theirs, shape)
    x = Tensor(np.eye(3))  # of equal singular values
    (grad,) = linalg.pinv(x).sum().gradient(x)
    np.testing.assert_allclose(meant([grad])[0], -np.ones((3, 3)), atol=1e-12)
    lower = hermitian(drawn(rng_for("lower", dtype), (3, 3), dtype))
    (found,) = meant([linalg.pinv(Tensor(np.tril(lower)), hermitian=True)])
    np.testing.assert_allclose(found, np.linalg.pinv(lower), 1e-9, 1e-9)


def test_products() -> None:
    rng = rng_for("products")
    for _ in range(6):
        count = int(rng.integers(2, 6))
        sizes = rng.integers(1, 6, count + 1)
        given = [drawn(rng, (m, n), "float64") for m, n in pairwise(sizes)]
        given[0] = given[0][0] if rng.integers(2) else given[0]
        given[-1] = given[-1][..., 0] if rng.integers(2) else given[-1]
        ours = linalg.multi_dot([Tensor(each) for each in given])
        same(ours, torch.linalg.multi_dot([torch.from_numpy(each) for each in given]), sizes)
    a, b = (drawn(rng, (2, 3, 3), "complex64") for _ in range(2))
    (x, y), (p, q) = (Tensor(a), Tensor(b)), (torch.from_numpy(a), torch.from_numpy(b))
    same(linalg.cross(x, y), torch.linalg.cross(p, q), "cross")
    same(linalg.cross(x, y, dim=1), torch.linalg.cross(p, q, dim=1), "cross along 1")
    same(linalg.vecdot(x, y, dim=0), torch.linalg.vecdot(p, q, dim=0), "vecdot")
    same(linalg.diagonal(x, offset=1), torch.linalg.diagonal(p, offset=1), "diagonal")
    same(linalg.matmul(x, y), torch.linalg.matmul(p, q), "matmul")
    for count in (None, 2, 5):
        same(linalg.vander(x.real, N=count), torch.linalg.vander(p.real, N=count), count)
    for count in (0, 1):
        (found,) = meant([linalg.vander(x[0, 0], N=count)])
        np.testing.assert_array_equal(found, np.vander(a[0, 0], count))


def test_multi_dot_takes_the_cheapest_order() -> None:
    tall, wide = Tensor(np.ones((40, 2), np.float32)), Tensor(np.ones((2, 40), np.float32))
    product = linalg.multi_dot([tall, wide, tall, wide])
    shapes = {node.shape for node in toposort([product._node]) if node.kind == "reduce"}
    assert shapes == {(2, 2, 1), (2, 40, 1), (40, 40, 1)}


def test_what_is_refused() -> None:
    x = Tensor(np.ones((2, 3), np.float32))
    for function in (linalg.vector_norm, linalg.matrix_norm, linalg.norm):
        with pytest.raises(DTypeError, match="floats or complex"):
            function(x.int())
        with pytest.raises(InvalidType, match="takes a tensor"):
            function([1.0])  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="'fro', 'nuc'"):
        linalg.matrix_norm(x, "max")
    with pytest.raises(InvalidType, match="ord must be a number"):
        linalg.vector_norm(x, "fro")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="rows, columns"):
        linalg.matrix_norm(x, "fro", (0, 0))
    with pytest.raises(ShapeError, match="one axis or two"):
        linalg.norm(x.unsqueeze(0), 1)
    with pytest.raises(ShapeError, match="square"):
        linalg.cond(x, "fro")
    with pytest.raises(ShapeError, match="no singular values"):
        linalg.cond(x[:0])
    with pytest.raises(InvalidValue, match="2 tensors or more"):
        linalg.multi_dot([x])
    with pytest.raises(ShapeError, match="must be equal"):
        linalg.multi_dot([x, x])
    with pytest.raises(ShapeError, match="takes matrices"):
        linalg.multi_dot([x.unsqueeze(0), x])
    with pytest.raises(ShapeError, match="takes vectors"):
        linalg.vander(Tensor(1.0))
    with pytest.raises(InvalidValue, match="0 or more"):
        linalg.vander(x, N=-1)
    with pytest.raises(ShapeError, match="as many axes"):
        linalg.cross(x, x[0])
    assert linalg.matrix_rank(x[:0]).numpy().dtype == dtypes.int64.np
