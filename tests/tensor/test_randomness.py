"""Random numbers: the same on every device, of the right distribution, and what uses them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, dtypes
from gpu.compiler.ir.threefry import tensor_bits
from gpu.core.errors import DTypeError, GpuError, InvalidValue, ShapeError
from gpu.runtime.prepared import Counters
from tensor.reference import Array

COUNT = 40_000


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    Tensor.manual_seed(1234)
    yield
    Tensor.manual_seed(1234)


# Each makes a tensor on a device; those that are equal bit for bit on all devices come first.
EXACT: dict[str, Callable[[str], Tensor]] = {
    "rand": lambda d: Tensor.rand(5, 3, device=d),
    "float64": lambda d: Tensor.rand(7, dtype="float64", device=d),
    "float16": lambda d: Tensor.rand(7, dtype="float16", device=d),
    "bfloat16": lambda d: Tensor.rand(7, dtype="bfloat16", device=d),
    "scalar": lambda d: Tensor.rand(device=d),
    "nothing": lambda d: Tensor.rand(0, 3, device=d),
    "uniform": lambda d: Tensor.uniform(9, low=-2.0, high=2.0, device=d),
    "randint": lambda d: Tensor.randint(11, low=-5, high=100, device=d),
    "randint wide": lambda d: Tensor.randint(4, low=-(2**62), high=2**62, dtype="int64", device=d),
    "randperm": lambda d: Tensor.randperm(300, device=d),
    "randperm 0": lambda d: Tensor.randperm(0, device=d),
    "randperm 1": lambda d: Tensor.randperm(1, device=d),
    "glorot": lambda d: Tensor.glorot_uniform(3, 4, device=d),
    "kaiming": lambda d: Tensor.kaiming_uniform(3, 4, device=d),
    "scaled": lambda d: Tensor.scaled_uniform(3, 4, device=d),
}
ROUNDED: dict[str, Callable[[str], Tensor]] = {
    "randn": lambda d: Tensor.randn(5, 3, device=d),
    "randn float64": lambda d: Tensor.randn(3, dtype="float64", device=d),
    "randn float16": lambda d: Tensor.randn(4, dtype="float16", device=d),
    "normal": lambda d: Tensor.normal(3, mean=10.0, std=0.1, device=d),
    "kaiming_normal": lambda d: Tensor.kaiming_normal(3, 4, device=d),
    "like": lambda d: Tensor.zeros(3, device=d).randn_like(),
}


@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_one_seed_gives_the_same_on_every_device(name: str) -> None:
    made = {}
    for device in ("CPU", "PYTHON"):
        Tensor.manual_seed(99)
        tensor = (EXACT | ROUNDED)[name](device)
        assert tensor.device == device
        made[device] = tensor.numpy()
    if name in EXACT:
        np.testing.assert_array_equal(made["CPU"], made["PYTHON"])
    else:
        tolerance = 2e-3 if made["CPU"].dtype == np.float16 else 1e-5
        np.testing.assert_allclose(made["CPU"], made["PYTHON"], tolerance, tolerance)


def test_bits_are_threefrys(device: str) -> None:
    Tensor.manual_seed((5 << 32) + 7)
    Tensor.rand(10, device=device).realize()
    found = Tensor.rand(4, device=device).numpy()
    bits = tensor_bits(np.array([7, 5, 10, 0], np.uint32), (4,))
    np.testing.assert_array_equal(found, (bits >> 8).astype(np.float32) * np.float32(2**-24))


def test_seeds() -> None:
    first, second = Tensor.rand(8).tolist(), Tensor.rand(8).tolist()
    assert first != second
    Tensor.manual_seed(1234)
    # In one go, or in two: numbers are counted when they are asked for, not when computed.
    a, b = Tensor.rand(8), Tensor.rand(8)
    assert b.tolist() == second and a.tolist() == first and a.tolist() == first
    Tensor.manual_seed(1234 + (1 << 32))
    assert Tensor.rand(8).tolist() != first
    Tensor.manual_seed(1234 + (1 << 64))
    assert Tensor.rand(8).tolist() == first


def test_more_numbers_compile_nothing() -> None:
    Tensor.randn(100).realize()
    before = Counters.compiled
    assert len({Tensor.randn(100).sum().item() for _ in range(3)}) == 3
    first = Counters.compiled
    Tensor.randn(100).sum().item()
    assert Counters.compiled == first <= before + 1


def assert_distribution(x: Array, mean: float, variance: float) -> None:
    """Mean and variance to within five standard errors."""
    assert abs(x.mean() - mean) < 5 * math.sqrt(variance / x.size)
    fourth = ((x - x.mean()) ** 4).mean()
    assert abs(x.var() - variance) < 5 * math.sqrt(fourth / x.size)


def assert_even(counts: Array, shares: Any = None) -> None:
    """Pearson's chi-square statistic within five deviations of its mean."""
    expected = counts.sum() / counts.size if shares is None else counts.sum() * np.asarray(shares)
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - 1
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_uniform_distribution(dtype: str) -> None:
    x = Tensor.rand(COUNT, dtype=dtype).numpy().astype(np.float64)
    assert x.min() >= 0 and x.max() < 1
    assert_distribution(x, 0.5, 1 / 12)
    assert_even(np.histogram(x, 64, (0, 1))[0])
    # Neighbours are independent of each other.
    assert_even(np.histogram2d(x[::2], x[1::2], 8, [(0, 1), (0, 1)])[0].reshape(-1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_distribution(dtype: str) -> None:
    x = Tensor.randn(COUNT, dtype=dtype).numpy().astype(np.float64)
    assert_distribution(x, 0, 1)
    edges = np.array([-3, -2, -1, 0, 1, 2, 3]) / 2
    below = [0, *(math.erf(e / math.sqrt(2)) / 2 + 0.5 for e in edges), 1]
    counts = np.histogram(x, [-np.inf, *edges, np.inf])[0]
    assert_even(counts, np.diff(below))
    half = COUNT // 2  # both outputs of the transformation are used
    assert abs(np.corrcoef(x[:half], x[half:])[0, 1]) < 5 / math.sqrt(half)


def test_integer_distribution() -> None:
    x = Tensor.randint(COUNT, low=-3, high=10).numpy()
    assert x.dtype == np.int32 and x.min() == -3 and x.max() == 9
    assert_even(np.bincount(x + 3))
    whole = Tensor.randint(2000, low=-128, high=128, dtype="int8").numpy()
    assert whole.min() < -120 and whole.max() > 120
    assert Tensor.randint(2, low=0, high=2**64, dtype="uint64").dtype is dtypes.uint64


def test_shifted_and_scaled_distributions() -> None:
    assert_distribution(Tensor.uniform(COUNT, low=2, high=5).numpy(), 3.5, 9 / 12)
    assert_distribution(Tensor.normal(COUNT, mean=2, std=5).numpy(), 2, 25)
    assert_distribution(Tensor.scaled_uniform(200, 200).numpy(), 0, 1 / COUNT / 3)
    assert_distribution(Tensor.glorot_uniform(200, 10, 20).numpy(), 0, 2 / 400)
    gain = 2 / (1 + 0.01**2)
    assert_distribution(Tensor.kaiming_uniform(200, 10, 20).numpy(), 0, gain / 200)
    assert_distribution(Tensor.kaiming_normal(200, 200, a=0.01).numpy(), 0, gain / 200)
    integers = Tensor.uniform(1000, low=0, high=4, dtype="int32").numpy()
    assert sorted(set(integers.tolist())) == [0, 1, 2, 3]


def test_permutations() -> None:
    for size in (2, 5, 1000):
        assert sorted(Tensor.randperm(size).tolist()) == list(range(size))
    orders = [tuple(Tensor.randperm(3).tolist()) for _ in range(300)]
    counts = np.unique(np.array([o[0] * 9 + o[1] * 3 + o[2] for o in orders]), return_counts=True)
    assert len(counts[0]) == 6
    assert_even(counts[1])
    assert Tensor.randperm(4, dtype="int64").dtype is dtypes.int64


def test_placement() -> None:
    x = Tensor.rand(2, 3, requires_grad=True)
    x.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[1] * 3] * 2
    like = Tensor.zeros(2, device="PYTHON", dtype="float16").rand_like()
    assert (like.device, like.dtype, like.shape) == ("PYTHON", dtypes.float16, (2,))
    assert like.randn_like(dtype="float64", device="CPU").dtype is dtypes.float64
    assert Tensor.randn((2, 2)).shape == Tensor.rand([2, 2], contiguous=False).shape == (2, 2)


def test_draws_with_replacement(device: str) -> None:
    weights = Tensor([[0.0, 1.0, 3.0, 0.0, 4.0, 0.0]] * 2, device=device)
    count = COUNT if device != "PYTHON" else 400
    found = weights.multinomial(count, replacement=True)
    assert found.dtype is dtypes.int64 and found.shape == (2, count)
    for row in found.numpy():
        counts = np.bincount(row, minlength=6)
        assert counts[[0, 3, 5]].sum() == 0
        assert_even(counts[[1, 2, 4]], [1 / 8, 3 / 8, 4 / 8])


def test_draws_without_replacement() -> None:
    weights = Tensor([0.0, 1.0, 3.0, 0.0, 4.0])
    for _ in range(5):
        assert sorted(weights.multinomial(3).tolist()) == [1, 2, 4]
    rows = weights.reshape(1, 5).expand(COUNT, 5).multinomial(1)
    assert_even(np.bincount(rows.numpy()[:, 0], minlength=5)[[1, 2, 4]], [1 / 8, 3 / 8, 4 / 8])


def test_dropout(device: str) -> None:
    count = COUNT if device != "PYTHON" else 1000
    x = Tensor.ones(count, device=device, requires_grad=True)
    assert x.dropout(0.3) is x
    with Tensor.train():
        dropped = x.dropout(0.3)
        (grad,) = dropped.sum().gradient(x)
        kept = dropped.numpy()
        np.testing.assert_array_equal(grad.numpy(), kept)
        assert set(np.unique(kept)) == {0, np.float32(1 / 0.7)}
        assert abs((kept > 0).mean() - 0.7) < 5 * math.sqrt(0.21 / count)
        assert (x.dropout(0.3).numpy() != kept).any()
        assert x.dropout(0) is x
        assert not x.dropout(1).numpy().any()
        assert x.dropout(1e-12).sum().item() == count


def test_training_mode() -> None:
    assert Tensor.training is False
    with Tensor.train():
        assert Tensor.training is True
        with Tensor.train(False):
            assert Tensor.training is False
        assert Tensor.training is True

    @Tensor.train()
    def step() -> bool:
        return Tensor.training

    assert step() is True
    with pytest.raises(KeyError), Tensor.train():
        raise KeyError
    assert Tensor.training is False


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: Tensor.rand(-1), ShapeError, "negative"),
        (lambda: Tensor.rand(2, dtype="int32"), DTypeError, "int32: only floats"),
        (lambda: Tensor.randn(2, dtype="bool"), DTypeError, "bool"),
        (lambda: Tensor.randint(2, low=3, high=3), InvalidValue, "low < high"),
        (lambda: Tensor.randint(2, low=0, high=300, dtype="int8"), InvalidValue, "0..299"),
        (lambda: Tensor.randint(2, dtype="float32"), DTypeError, "float32"),
        (Tensor.kaiming_uniform, ShapeError, "one axis"),
        (lambda: Tensor.randperm(-1), ShapeError, "negative"),
        (lambda: Tensor.ones(2).dropout(1.5), InvalidValue, "1.5"),
        (lambda: Tensor.ones(2).multinomial(3), InvalidValue, "3 of 2 without"),
        (lambda: Tensor.ones(2).multinomial(0, True), InvalidValue, "0 of 2"),
        (lambda: Tensor.ones(2, 2, 2).multinomial(), ShapeError, "one axis or two"),
        (lambda: Tensor([1, 2]).multinomial(), DTypeError, "int32"),
        (lambda: Tensor.manual_seed(1.5), TypeError, "1.5"),
    ],
)  # fmt: skip
def test_bad_input(call: Callable[[], Any], error: type[GpuError], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_random_rows_are_not_equal() -> None:
    x = Tensor.rand(300, 4).numpy()
    assert len(np.unique(x, axis=0)) == 300
