"""Single ranks, distinct elements and places in sorted lines against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, dtypes, jit
from gpu.core.errors import DTypeError, GpuError, InvalidValue, ShapeError
from tensor.reference import Array, assert_gradients, rng_for, torch

DTYPES = ["uint8", "int32", "int64", "float32"]


def numbers(shape: tuple[int, ...], dtype: str, what: str = "") -> Array:
    x = rng_for(what, shape, dtype).integers(0, 40, shape).astype(dtype)
    return x / np.float32(4) - 5 if dtype == "float32" else x


SHAPES = [((7,), 0), ((4, 5, 3), 1), ((2, 300), -1), ((), 0)]


@pytest.mark.parametrize(("shape", "dim"), SHAPES[1:3])
def test_kthvalue_and_median(shape: tuple[int, ...], dim: int, device: str) -> None:
    check_ranks(shape, dim, "float32", device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_ranks_of_dtypes(shape: tuple[int, ...], dim: int, dtype: str) -> None:
    check_ranks(shape, dim, dtype, "CPU")


def check_ranks(shape: tuple[int, ...], dim: int, dtype: str, device: str) -> None:
    x = numbers(shape, dtype)
    ours, theirs = Tensor(x, device=device), torch.tensor(x)
    order = np.argsort(x, dim, kind="stable") if shape else x.astype(np.int64) * 0
    for k in {1, 2, shape[dim]} if shape else {1}:
        for keepdim in (False, True):
            values, places = ours.kthvalue(k, dim, keepdim)
            wanted = torch.kthvalue(theirs, k, dim, keepdim).values.numpy()
            np.testing.assert_array_equal(values.numpy(), wanted)
            first = np.take(order, [k - 1], dim) if shape else order
            np.testing.assert_array_equal(places.numpy(), first.reshape(wanted.shape))
    values, places = ours.median(dim)
    wanted = torch.median(theirs, dim).values.numpy()
    np.testing.assert_array_equal(values.numpy(), wanted)
    assert places.dtype is dtypes.int64
    at = np.expand_dims(places.numpy(), dim) if shape else places.numpy()
    picked = np.take_along_axis(x, at, dim) if shape else x
    np.testing.assert_array_equal(picked.reshape(wanted.shape), wanted)
    np.testing.assert_array_equal(ours.median().numpy(), torch.median(theirs).numpy())


def test_a_median_of_nan_is_nan(device: str) -> None:
    x = np.array([[1, np.nan, 3, np.nan], [4, 2, 3, 1], [np.inf, 0, -np.inf, np.nan]], np.float32)
    values, places = Tensor(x, device=device).median(1)
    wanted = torch.median(torch.tensor(x), 1)
    np.testing.assert_array_equal(values.numpy(), wanted.values.numpy())
    np.testing.assert_array_equal(places.numpy(), wanted.indices.numpy())
    assert np.isnan(Tensor(x, device=device).median().numpy())


def test_gradients(device: str) -> None:
    x = rng_for("gradient").permutation(30).reshape(5, 6) / 4
    assert_gradients(
        device, lambda t: t.kthvalue(2, 1)[0], lambda t: torch.kthvalue(t, 2, 1)[0], [x]
    )
    assert_gradients(device, lambda t: t.median(0)[0], lambda t: torch.median(t, 0)[0], [x])


def test_unique(device: str) -> None:
    check_unique((5, 60), "float32", device)


@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
@pytest.mark.parametrize("shape", [(0,), (1,), (5, 60), (500,), ()])
def test_unique_of_dtypes(shape: tuple[int, ...], dtype: str) -> None:
    check_unique(shape, dtype, "CPU")


def check_unique(shape: tuple[int, ...], dtype: str, device: str) -> None:
    x = numbers(shape, dtype) if dtype != "bool" else rng_for(shape).random(shape) < 0.5
    found = Tensor(x, device=device).unique(return_inverse=True, return_counts=True)
    wanted = torch.unique(torch.tensor(x), return_inverse=True, return_counts=True)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    alone = Tensor(x, device=device).unique()
    assert isinstance(alone, Tensor) and alone.shape == found[0].shape


@pytest.mark.sampled(35)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
@pytest.mark.parametrize("shape", [(6, 3, 2), (60, 5), (3, 300), (400, 3)])
def test_unique_slices_of_more_elements(shape: tuple[int, ...], dtype: str) -> None:
    check_slices(shape, (dtype,), "CPU")


@pytest.mark.parametrize("shape", [(7,), (9, 2), (0, 3)])
def test_unique_slices(shape: tuple[int, ...], device: str) -> None:
    check_slices(shape, ("float32", "int8"), device)


def check_slices(shape: tuple[int, ...], dtypes: tuple[str, ...], device: str) -> None:
    """Along each axis, as numpy's and torch's."""
    for dim in range(-1, len(shape) - 1):
        for dtype in dtypes:
            x = rng_for(shape, dim).integers(0, 2, shape).astype(dtype)
            if dtype == "float32" and x.size:
                x[0] = -x[0]
            told = {"return_inverse": True, "return_counts": True, "dim": dim}
            if 0 in shape and dim != 0:
                with pytest.raises(ShapeError, match="empty"):
                    Tensor(x, device=device).unique(**told)
                continue
            wanted = torch.unique(torch.tensor(x), **told)
            for ours, theirs in zip(Tensor(x, device=device).unique(**told), wanted, strict=True):
                np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_each_nan_is_different() -> None:
    x = np.array([np.nan, 0.0, -0.0, np.nan, 1.0], np.float32)
    values, counts = Tensor(x).unique(sorted=True, return_counts=True)
    wanted = torch.unique(torch.tensor(x), return_counts=True)
    np.testing.assert_array_equal(values.numpy(), wanted[0].numpy())
    assert counts.tolist() == wanted[1].tolist() == [2, 1, 1, 1]


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_searchsorted(size: int, dtype: str, right: bool) -> None:
    line = np.sort(numbers((size,), dtype, "line"))
    wanted = numbers((3, 20), dtype, "wanted")
    ours, theirs = Tensor(line), torch.tensor(line)
    found = ours.searchsorted(Tensor(wanted), right)
    expected = torch.searchsorted(theirs, torch.tensor(wanted), right=right)
    assert found.dtype is dtypes.int64
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    side = "right" if right else "left"
    assert ours.searchsorted(3, side=side).item() == np.searchsorted(line, 3, side)


def test_searchsorted_of_many_lines_inside_jit(device: str) -> None:
    lines = np.sort(rng_for("lines").normal(size=(2, 3, 50)).astype(np.float32))
    wanted = rng_for("wanted").normal(size=(2, 3, 9)).astype(np.float32)
    expected = torch.searchsorted(torch.tensor(lines), torch.tensor(wanted))
    place = jit(lambda x, v: x.searchsorted(v))
    for _ in range(3):
        found = place(Tensor(lines, device=device), Tensor(wanted, device=device))
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_searchsorted_compares_numbers_and_puts_nan_last() -> None:
    line = Tensor([-np.inf, 0.5, 2.0, np.inf, np.nan])
    assert line.searchsorted(Tensor([1, 2])).tolist() == [2, 2]
    assert line.searchsorted(Tensor([np.inf, np.nan, -0.0])).tolist() == [3, 4, 1]
    assert line.searchsorted(Tensor([np.inf, np.nan]), right=True).tolist() == [4, 5]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: x.kthvalue(0), ShapeError, "number 0: there are 3"),
        (lambda x: x.kthvalue(4), ShapeError, "number 4: there are 3"),
        (lambda x: x[:, :0].median(1), ShapeError, "no element"),
        (lambda x: x.searchsorted(x[0]), ShapeError, "must be the same"),
        (lambda x: x[0, 0].searchsorted(x), ShapeError, "must be the same"),
        (lambda x: x[0].searchsorted(x, side="middle"), InvalidValue, "'middle'"),
        (lambda x: x[0].searchsorted(x, True, "left"), InvalidValue, "agree"),
    ],
)
def test_bad_input(call: Callable[[Tensor], Any], error: type[GpuError], says: str) -> None:
    with pytest.raises(error, match=says):
        call(Tensor.ones(2, 3))


def test_unique_takes_numpys_keyword_and_complex_numbers_have_no_order() -> None:
    x = Tensor([[3, 4], [1, 2], [3, 4]])
    assert x.unique(axis=0).tolist() == np.unique(x.numpy(), axis=0).tolist()
    z = Tensor([1j, 2.0])
    for call in (z.sort, z.argsort, z.unique, lambda: z.topk(1), lambda: z.kthvalue(1)):
        with pytest.raises(DTypeError, match="complex numbers have no order: "):
            call()
