"""Indexing with numbers, slices, arrays and masks: reading and writing, against numpy and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import Tensor
from gpu.core.errors import (
    DeviceMismatch,
    DTypeError,
    GpuError,
    InvalidIndex,
    InvalidType,
    InvalidValue,
    ShapeError,
)
from gpu.runtime.prepared import Counters
from tensor.reference import assert_gradients, fitted, rng_for, torch

SHAPE = (3, 4, 5)
MASK = np.array([True, False, True])
PLANE = rng_for("plane").integers(0, 2, (3, 4)).astype(bool)
FULL = rng_for("full").integers(0, 2, SHAPE).astype(bool)
A = np.array([0, 2, -1])
B = np.array([[1], [-2]])

# Of a (3, 4, 5) tensor: what numpy and torch agree on.
INDICES: dict[str, Any] = {
    "list": [2, 0],
    "nested list": [[0, 1], [2, -3]],
    "array": A,
    "tuple inside": ((0, 1), 1),
    "second axis": (slice(None), A),
    "last axis": (..., B),
    "two arrays": (A, A),
    "three arrays": (A, B, [0, 0, 4]),
    "broadcast": (A, B),
    "adjacent": (slice(1), A, A),
    "apart": (A, slice(None), A),
    "apart with new axis": (A, None, B),
    "with new axis in front": (None, slice(None), A),
    "slices and arrays": (slice(None, None, -1), B, slice(1, 4, 2)),
    "int and array": (1, A),
    "array and int": (A, 1),
    "array, slice, int": (A, slice(None), 1),
    "one element": ([1], [2], [3]),
    "empty list": [],
    "empty array": (slice(None), np.zeros((2, 0), int)),
    "int8": (slice(None), A.astype(np.int8)),
    "uint8": np.array([2, 1], np.uint8),
    "0-d array": np.array(1),
    "numpy int": np.int64(-1),
    "mask": MASK,
    "mask list": [True, False, True],
    "mask of an axis": (slice(None), np.array([1, 0, 0, 1], bool)),
    "mask of two axes": PLANE,
    "mask of last two": (slice(None), rng_for("last").integers(0, 2, (4, 5)).astype(bool)),
    "mask of all": FULL,
    "mask of nothing": np.zeros(3, bool),
    "mask and slice": (MASK, slice(1, 3)),
    "mask and array": (MASK, [0, 3]),
    "mask apart from array": (MASK, slice(None), [0, 4]),
    "mask behind new axis": (None, MASK),
    "true": True,
    "false": False,
    "true inside": (slice(1), True),
    "nothing": (),
}  # fmt: skip


def on_device(index: Any, device: str) -> Any:
    """An index with its arrays as tensors."""
    if isinstance(index, tuple):
        return tuple(on_device(item, device) for item in index)
    return Tensor(index, device=device) if isinstance(index, np.ndarray) else index


@pytest.mark.parametrize("name", INDICES)
def test_reading(name: str, device: str) -> None:
    x = np.arange(60).reshape(SHAPE)
    # The host knows positions and masks in one of the two runs only.
    index = on_device(INDICES[name], device) if device == "PYTHON" else INDICES[name]
    found = Tensor(x, device=device)[index].numpy()
    np.testing.assert_array_equal(found, x[INDICES[name]], strict=True)


@pytest.mark.parametrize("name", INDICES)
def test_writing(name: str, device: str) -> None:
    index = on_device(INDICES[name], device) if device == "PYTHON" else INDICES[name]
    shape = np.zeros(SHAPE)[INDICES[name]].shape
    values = fitted(device, rng_for(name).normal(size=shape))
    for value in (7, values, values[..., :1]):
        x = fitted(device, np.arange(60.0).reshape(SHAPE))
        ours = Tensor(x, device=device)
        ours[index] = value
        x[INDICES[name]] = value
        np.testing.assert_array_equal(ours.numpy(), x)


@pytest.mark.parametrize(
    "index",
    [(0, slice(None), A), (slice(None), 0, slice(None, 2), A), (A, slice(None), slice(1), 1)],
)
def test_an_int_beside_arrays_drops_its_axis_as_in_torch(index: Any) -> None:
    x = np.arange(120).reshape(*SHAPE, 2)[..., [0, 1, 1, 0]]
    of_torch = tuple(torch.tensor(i) if isinstance(i, np.ndarray) else i for i in index)
    ints_as_tensors = tuple(Tensor(i) if isinstance(i, int) else i for i in index)
    wanted = torch.tensor(x)[of_torch].numpy()
    np.testing.assert_array_equal(Tensor(x)[index].numpy(), wanted, strict=True)
    np.testing.assert_array_equal(Tensor(x)[ints_as_tensors].numpy(), wanted, strict=True)


ITEM = st.one_of(
    st.integers(-3, 2),
    st.slices(4),
    st.just(None),
    st.just(Ellipsis),
    st.lists(st.integers(-3, 2), min_size=2, max_size=2),
    st.lists(st.integers(-3, 2), min_size=1, max_size=1),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ITEM, max_size=4), st.integers(0, 99))
def test_random_indices_read_and_write_as_in_numpy(items: list[Any], value: int) -> None:
    x = np.arange(81).reshape(3, 3, 3, 3)
    if any(isinstance(item, list) for item in items):
        # Where numpy and torch differ: numpy takes an int beside arrays for one of them.
        items = [slice(item, item + 1 or None) if isinstance(item, int) else item for item in items]
    index, ours = tuple(items), Tensor(x, device="PYTHON")
    try:
        wanted = x[index]
    except IndexError:
        with pytest.raises(InvalidIndex):
            ours[index]
        return
    np.testing.assert_array_equal(ours[index].numpy(), wanted)
    ours[index] = value
    x[index] = value
    np.testing.assert_array_equal(ours.numpy(), x)


def test_the_last_of_several_writes_stays(device: str) -> None:
    x = Tensor([0, 0, 0], device=device)
    x[[1, 1, 2, 1]] = [1, 2, 3, 4]
    assert x.tolist() == [0, 4, 3]
    x[Tensor([0, -3], device=device)] += Tensor([5, 6], device=device)
    assert x.tolist() == [6, 4, 3]


def test_positions_in_a_tensor_that_do_not_exist(device: str) -> None:
    x = Tensor([[1, 2], [3, 4]], device=device)
    for dtype in ("int8", "int32", "int64", "uint64"):
        far = [2, 100, 1] if dtype == "uint64" else [2, -3, -1]
        index = Tensor(far, device=device).cast(dtype)
        assert x[index].tolist() == [[0, 0], [0, 0], [3, 4]]
        assert x[index, Tensor([0, 0, 1], device=device)].tolist() == [0, 0, 4]
        y = x.clone()
        y[index] = 9
        assert y.tolist() == [[1, 2], [9, 9]]
    huge = Tensor(np.array([1 << 32, -(1 << 32), 0]), device=device)
    assert x[huge, [1, 1, 1]].tolist() == [0, 0, 2]


def test_an_index_dtype_smaller_than_the_axis() -> None:
    x = Tensor.arange(300)
    assert x[Tensor([-1, 100], dtype="int8")].tolist() == [299, 100]
    assert x[Tensor([255], dtype="uint8")].tolist() == [255]


def test_writing_through_a_mask_does_not_compute_it() -> None:
    x = Tensor(np.arange(6.0)).realize()
    mask = x > 2
    launches = Counters.launches
    x[mask] = -1
    x[mask] = Tensor([5.0])
    assert Counters.launches == launches
    assert x.tolist() == [0, 1, 2, 5, 5, 5]


def test_masked_values_in_order() -> None:
    x = Tensor([[1, 2], [3, 4]])
    x[x > 1] = [7, 8, 9]
    x[x > 7] += 1
    assert x.tolist() == [[1, 7], [9, 10]]
    with pytest.raises(ShapeError, match=r"\[2\] does not fit.*\[3\]"):
        x[x > 1] = [1, 2]


@pytest.mark.parametrize("index", [(A[:2], B), (slice(None), A), (A, slice(None), A), PLANE])
def test_gradient_of_reading_and_writing(index: Any, device: str) -> None:
    # No element twice: of several writes to one torch does not say which one stays.
    shape = np.zeros(SHAPE)[index].shape

    def of_torch(i: Any) -> Any:
        return tuple(map(of_torch, i)) if isinstance(i, tuple) else (
            torch.tensor(i) if isinstance(i, np.ndarray) else i
        )  # fmt: skip

    def run(x: Any, y: Any, i: Any) -> Any:
        z = x * 2
        z[i] = y
        return (z * z)[i].sum() + z.sum() + (x[i] * y * y).sum()

    rng = rng_for("gradient", repr(index))
    inputs = [rng.normal(size=SHAPE), rng.normal(size=shape)]
    assert_gradients(
        device,
        lambda x, y: run(x, y, index),
        lambda x, y: run(x, y, of_torch(index)),
        inputs,
    )


def test_elements_of_a_computed_tensor_compile_nothing() -> None:
    x = Tensor(np.arange(24.0).reshape(2, 3, 4)).exp().realize()
    expected = np.exp(np.arange(24.0).reshape(2, 3, 4))
    before = (Counters.compiled, Counters.launches)
    assert x[1, 2].tolist() == pytest.approx(expected[1, 2].tolist())
    assert [row.shape for row in x] == [(3, 4)] * 2
    for found, wanted in (
        (x[1, 2, 3], expected[1, 2, 3]),
        (x[0, ::-2], expected[0, ::-2]),
        (x.T, expected.T),
        (x.T.reshape(6, 4), expected.T.reshape(6, 4)),
        (x[:, None].expand(2, 5, 3, 4), np.broadcast_to(expected[:, None], (2, 5, 3, 4))),
        (x.unfold(2, 2, 1), np.lib.stride_tricks.sliding_window_view(expected, 2, 2)),
        (x.detach().flip(0).contiguous(), expected[::-1]),
        (x[:0], expected[:0]),
        (Tensor.full((2, 2), 3), np.full((2, 2), 3)),
    ):
        np.testing.assert_allclose(found.numpy(), wanted, 1e-14)
    assert x[1, 2, 3].item() == float(x[1, 2, 3]) == pytest.approx(expected[1, 2, 3])
    assert bool(x[0, 0, 0]) and int(x[0, 0, 0]) == 1
    assert (Counters.compiled, Counters.launches) == before


def test_python_protocols() -> None:
    x = Tensor([[1, 2], [3, 4]])
    assert len(x) == 2 and 3 in x and 9 not in x and [5, 6, 7, 8, 9][x[1, 0]] == 8
    assert 1.5 not in Tensor([]) and bool(Tensor([[2]])) and not bool(Tensor(0.0))
    assert [[int(i) for i in row] for row in x] == [[1, 2], [3, 4]]
    assert float(Tensor([2.5])) == 2.5 and int(Tensor(-2.5)) == -2


def test_size_is_a_number_that_can_be_called() -> None:
    x = Tensor.zeros(2, 3)
    assert x.size == 6 and x.size + 1 == 7 and isinstance(x.size, int)
    assert x.size() == (2, 3) and x.size(0) == 2 and x.size(-1) == 3
    with pytest.raises(InvalidIndex, match="dim 2 is out of range"):
        x.size(2)


@pytest.mark.parametrize(
    ("index", "error", "says"),
    [
        ([0, 3], InvalidIndex, "index 3 .*axis 0 of size 3.*-3..2"),
        ((slice(None), [[0], [-5]]), InvalidIndex, "index -5 .*axis 1 of size 4"),
        ((0, 0, 0, [0]), InvalidIndex, "4 indices"),
        (([0, 1], [0, 1, 2]), InvalidIndex, r"\[2\] and \[3\] do not broadcast"),
        (np.ones(4, bool), InvalidIndex, r"mask of shape \[4\].*sizes \[3\].*axis 0"),
        ((0, np.ones((4, 4), bool)), InvalidIndex, r"\[4, 4\].*sizes \[4, 5\].*axis 1"),
        (np.ones((3, 4, 5, 1), bool), InvalidIndex, "4 indices"),
        ([0.5], DTypeError, "list holds float64"),
        (np.array([1.0]), DTypeError, "ndarray holds float64"),
        (Tensor([1.0]), DTypeError, "float32"),
        ([[0], [1, 2]], InvalidType, "no regular shape"),
        (["a"], DTypeError, "<U1"),
        ([None], DTypeError, "object"),
        ("a", InvalidType, "str 'a' is no index"),
        (b"a", InvalidType, "bytes"),
        (1.5, InvalidType, "float 1.5"),
        ({1}, InvalidType, "set"),
        (slice(None, None, 0), InvalidValue, "step"),
        (Tensor([0], device="PYTHON"), DeviceMismatch, "index on PYTHON"),
    ],
)
def test_bad_indices(index: Any, error: type[GpuError], says: str) -> None:
    x = Tensor.zeros(*SHAPE)
    with pytest.raises(error, match=says):
        x[index]
    with pytest.raises(error, match=says):
        x[index] = 1
    assert not x.numpy().any()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: x[0].item(), ShapeError, r"one element.*\[2\]"),
        (bool, ShapeError, "ambiguous"),
        (float, ShapeError, "one element"),
        (lambda x: len(x[0, 0]), InvalidType, "no length"),
        (lambda x: [1, 2][x[0, 0]], InvalidType, "float32"),
        (lambda x: "a" in x, InvalidType, "str 'a'"),
    ],
)
def test_bad_conversions(call: Callable[[Any], Any], error: type[GpuError], says: str) -> None:
    with pytest.raises(error, match=says):
        call(Tensor.zeros(2, 2))
