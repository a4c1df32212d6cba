"""Gather, scatter and selections against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, dtypes
from gpu.core.errors import DTypeError, GpuError, InvalidIndex, InvalidValue, ShapeError
from tensor.reference import (
    Array,
    assert_forward,
    assert_gradients,
    assert_same,
    rng_for,
    torch,
    uniform,
)

F = torch.nn.functional

# Shapes of the tensor, the index and the axis; the index may be smaller along the others.
PLACES = [
    ((5,), (3,), 0), ((4, 5), (7, 5), 0), ((4, 5), (2, 3), 0), ((4, 5), (3, 9), -1),
    ((2, 3, 4), (2, 2, 3), 1), ((3, 4), (0, 4), 0),
]  # fmt: skip
REDUCES = ["sum", "prod", "mean", "amax", "amin"]


def index_for(shape: tuple[int, ...], size: int) -> Array:
    return rng_for(shape, size).integers(0, size, shape)


def on(device: str, call: Callable[..., Any], index: Array) -> Callable[..., Any]:
    """A call with an index as its last argument, for tensors of ours."""
    return lambda *xs: call(*xs, Tensor(index, device=device))


@pytest.mark.parametrize(("shape", "places", "axis"), PLACES)
def test_gather(shape: tuple[int, ...], places: tuple[int, ...], axis: int, device: str) -> None:
    index = index_for(places, shape[axis])
    x = rng_for(shape).normal(size=shape)
    assert_gradients(
        device,
        on(device, lambda t, i: t.gather(axis, i), index),
        lambda t: t.gather(axis, torch.tensor(index)),
        [x],
    )


@pytest.mark.parametrize(("shape", "places", "axis"), PLACES)
@pytest.mark.parametrize("reduce", [None, "add", "multiply"])
def test_scatter(
    shape: tuple[int, ...], places: tuple[int, ...], axis: int, reduce: str | None, device: str
) -> None:
    rng = rng_for(shape, reduce)
    size = shape[axis]
    # torch says nothing of several writes to one place, so that there are none to compare.
    count = min(places[axis], size)
    places = tuple(count if a == axis % len(places) else n for a, n in enumerate(places))
    line = np.argsort(rng.uniform(size=(*places, size)), -1)[..., 0] if not count else None
    order = rng.permutation(size)[:count]
    along = tuple(count if a == axis % len(places) else 1 for a in range(len(places)))
    index = np.broadcast_to(order.reshape(along), places) if line is None else line
    x, src = rng.normal(size=shape), rng.normal(size=tuple(n + 1 for n in places))
    kwargs = {} if reduce is None else {"reduce": reduce}
    assert_forward(
        device,
        on(device, lambda t, s, i: t.scatter(axis, i, s, reduce), index),
        lambda t, s: t.scatter(axis, torch.tensor(index.copy()), s, **kwargs),
        [x, src],
    )
    if reduce is None and index.size:
        assert_gradients(
            device,
            on(device, lambda t, s, i: t.scatter(axis, i, s), index),
            # torch has no gradient where src is larger than the index
            lambda t, s: t.scatter(axis, torch.tensor(index.copy()), s[tuple(map(slice, places))]),
            [x, src],
        )


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize(("shape", "places", "axis"), [((4, 5), (3, 4), 1), ((3,), (8,), 0)])
def test_scatter_reduce(
    shape: tuple[int, ...],
    places: tuple[int, ...],
    axis: int,
    reduce: str,
    include_self: bool,
    device: str,
) -> None:
    rng = rng_for(reduce)
    index = index_for(places, shape[axis])
    # Decimals that come again: ties; and a zero among the factors.
    x, src = (np.round(rng.uniform(-1, 1, s), 1) for s in (shape, places))
    src.flat[0] = 0.0
    if not include_self:
        x += 0.05  # torch lets an element that takes no part share the gradient of its equals
    assert_gradients(
        device,
        on(device, lambda t, s, i: t.scatter_reduce(axis, i, s, reduce, include_self), index),
        lambda t, s: t.scatter_reduce(
            axis, torch.tensor(index), s, reduce, include_self=include_self
        ),
        [x, src],
    )


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16"])
def test_scatter_reduce_dtypes(reduce: str, dtype: str, device: str) -> None:
    rng = rng_for(reduce, dtype)
    x, src = rng.integers(0, 4, 3).astype(dtype), rng.integers(1, 4, 8).astype(dtype)
    index = index_for((8,), 3)
    assert_forward(
        device,
        on(device, lambda t, s, i: t.scatter_reduce(0, i, s, reduce), index),
        lambda t, s: t.scatter_reduce(0, torch.tensor(index), s, reduce),
        [x, src],
    )


def test_scatter_of_a_number_and_the_last_of_several(device: str) -> None:
    x = Tensor.zeros(4, device=device)
    index = Tensor([1, 3, 1], device=device)
    assert x.scatter(0, index, 2).tolist() == [0, 2, 0, 2]
    assert x.scatter(0, index, Tensor([5.0, 6.0, 7.0], device=device)).tolist() == [0, 7, 0, 6]
    rows, count = (64, 1000) if device != "PYTHON" else (8, 100)
    big = rng_for("big").normal(size=(rows, 50)).astype(np.float32)
    places = index_for((rows, count), 50)
    updates = rng_for("updates").normal(size=(rows, count)).astype(np.float32)
    expected = big.copy()
    for row, (at, value) in enumerate(zip(places, updates, strict=True)):
        expected[row, at] = value
    found = Tensor(big, device=device).scatter(1, places, Tensor(updates, device=device))
    np.testing.assert_array_equal(found.numpy(), expected)


def test_indices_out_of_range_are_harmless(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    index = Tensor([0, 3, -1, 2], device=device)
    picked = x.gather(0, index)
    assert picked.tolist() == [1, 0, 0, 3]
    assert picked.sum().gradient(x)[0].tolist() == [1, 0, 1]
    assert x.scatter(0, index, 9).tolist() == [9, 2, 9]
    assert x.scatter_reduce(0, index, Tensor.ones(4, device=device), "mean").tolist() == [1, 2, 2]


def test_rows(device: str) -> None:
    table = rng_for("table").normal(size=(7, 5))
    index = index_for((2, 3), 7)
    assert_gradients(
        device,
        on(device, lambda t, i: t.embedding(i), index),
        lambda t: F.embedding(torch.tensor(index), t),
        [table],
    )
    for dim in (0, 1):
        line = index_for((4,), table.shape[dim])
        assert_gradients(
            device,
            on(device, lambda t, i: t.index_select(dim, i), line),  # noqa: B023
            lambda t: t.index_select(dim, torch.tensor(line)),  # noqa: B023
            [table],
        )


def test_one_hot(device: str) -> None:
    index = np.array([[2, 0], [1, 2]])
    for classes in (3, 5, -1):
        found = Tensor(index, device=device).one_hot(classes)
        assert found.dtype is dtypes.int32
        wanted = F.one_hot(torch.tensor(index), classes)
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    large = Tensor(np.array([2, 2**63 + 2, 2**64 - 1], np.uint64), device=device)
    assert large.one_hot(3).tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("shape", [(), (6,), (3, 4), (2, 3, 4), (0, 3), (40, 30)])
def test_nonzero_and_masked_select(shape: tuple[int, ...], device: str) -> None:
    x = uniform(rng_for(shape), shape, (-1, 1), "float64")
    x = np.where(x > 0.2, x, 0)
    assert_forward(device, lambda t: t.nonzero().long(), lambda t: t.nonzero(), [x])
    compare = assert_gradients if x.size else assert_forward
    compare(
        device,
        lambda t: t.masked_select(t.detach() > 0.5),
        lambda t: t.masked_select(t > 0.5),
        [x],
    )


def test_selections_of_a_given_size(device: str) -> None:
    x = Tensor([[1, 0, 2], [0, 3, 4]], device=device)
    assert x.masked_select(x > 1, size=5, fill_value=-1).tolist() == [2, 3, 4, -1, -1]
    assert x.masked_select(x > 1, size=2).tolist() == [2, 3]
    assert x.nonzero(size=5, fill_value=7).tolist() == [[0, 0], [0, 2], [1, 1], [1, 2], [7, 7]]
    assert x.nonzero(size=0).shape == (0, 2)
    assert x[0].masked_select(Tensor([[True], [False]], device=device)).tolist() == [1, 0, 2]


def test_second_order(device: str) -> None:
    index = index_for((6,), 4)
    x = rng_for("second").normal(size=4)

    def ours(t: Any) -> Any:
        product = t.scatter_reduce(0, Tensor(index, device=device), t.gather(0, index), "prod")
        return product.sum().gradient(t)[0]

    def theirs(t: Any) -> Any:
        i = torch.tensor(index)
        product = t.scatter_reduce(0, i, t.gather(0, i), "prod")
        return torch.autograd.grad(product.sum(), t, create_graph=True)[0]

    assert_gradients(device, ours, theirs, [x])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x, i: x.gather(2, i), InvalidIndex, "dim 2"),
        (lambda x, i: x.gather(0, i[0]), ShapeError, r"\[3\] does not fit \[2, 3\]"),
        (lambda x, i: x.gather(0, i.repeat(1, 2)), ShapeError, "no larger sizes but along axis 0"),
        (lambda x, i: x.gather(0, i.float()), DTypeError, "integers, got float32"),
        (lambda x, i: x.gather(0, [[0, 1, 2]]), InvalidIndex, "index 2 .* 0..1"),
        (lambda x, i: x.gather(0, [[0, -1, 0]]), InvalidIndex, "index -1"),
        (lambda x, i: x.gather(0, Tensor.full((1, 3), 4)), InvalidIndex, "index 4"),
        (lambda x, i: x.scatter(0, i, x.int()), DTypeError, "src is int32"),
        (lambda x, i: x.scatter(0, i, x[:, :2]), ShapeError, "larger than src"),
        (lambda x, i: x.scatter(0, i, x, "sum"), InvalidValue, "'sum'"),
        (lambda x, i: x.scatter_reduce(0, i, x, "add"), InvalidValue, "'add'"),
        (lambda x, i: x.index_select(0, i), ShapeError, "one axis"),
        (lambda x, i: x.one_hot(3), DTypeError, "float32"),
        (lambda x, i: i.one_hot(-2), InvalidValue, "num_classes"),
        (lambda x, i: x.masked_select(i), DTypeError, "mask must be bool"),
        (lambda x, i: x.masked_select(x > 0, size=-1), InvalidValue, "size"),
        (lambda x, i: x[0, 0].embedding(i), ShapeError, "0-d"),
    ],
)
def test_bad_input(call: Callable[[Tensor, Tensor], Any], error: type[GpuError], says: str) -> None:
    with pytest.raises(error, match=says):
        call(Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), Tensor([[0, 1, 0], [1, 1, 0]]))


def test_whole_index_may_be_empty() -> None:
    assert_same(Tensor.ones(3).gather(0, []), torch.ones(0))


@pytest.mark.parametrize("dim", [0, -1])
def test_a_0d_tensor_is_a_line_of_one_element(dim: int, device: str) -> None:
    x, t = np.array(3.0), torch.tensor(3.0)
    for index in (np.array(0), np.array([0]), np.array([0, 0])):
        ours, theirs = Tensor(index, device=device), torch.tensor(index)
        assert_forward(
            device,
            lambda x, i=ours: x.gather(dim, i),
            lambda t, i=theirs: t.gather(dim, i),
            [x],
        )
    at, zero = Tensor(np.array(0), device=device), torch.tensor(0)
    assert_gradients(
        device,
        lambda x, u: x.scatter_reduce(dim, at, u, "sum"),
        lambda t, u: t.scatter_reduce(dim, zero, u, "sum"),
        [x, np.array(2.0)],
    )
    found = Tensor(3.0, device=device).scatter(dim, at, 5)
    assert found.shape == () and found.item() == t.scatter(dim, zero, 5).item() == 5
    with pytest.raises(InvalidIndex, match="out of range"):
        Tensor(3.0, device=device).gather(dim, [1])


def test_selected_elements_keep_their_dtype() -> None:
    mask = Tensor([True, False, True])
    found = mask.masked_select(mask)
    assert found.dtype is dtypes.bool and found.tolist() == [True, True]
    padded = Tensor([1, 2, 3]).masked_select(mask, size=3, fill_value=7)
    assert padded.dtype is dtypes.int32 and padded.tolist() == [1, 3, 7]
