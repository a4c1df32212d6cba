"""What notebooks show of tensors, what values cost, and tensors of what other libraries have."""

from __future__ import annotations

import array
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor, dtypes
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, Unsupported
from gpu.runtime.prepared import Counters
from gpu.tensor.costs import Costs


class Cells(HTMLParser):
    """The texts of cells, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] == "td":
            self.rows[-1].append(data)


def test_a_table_of_all(device: str) -> None:
    text = Tensor([[1, -2], [3, 4]], device=device)._repr_html_()
    assert Cells(text).rows == [["1", "-2"], ["3", "4"]]
    assert f"Tensor [2, 2] int32 on {device}, 16 bytes" in text
    shares = re.findall(r"rgba\((\d+),\d+,\d+,([\d.]+)\)", text)
    assert [share for _, share in shares] == ["0.12", "0.25", "0.38", "0.50"]
    assert shares[1][0] != shares[0][0] == shares[2][0]


@pytest.mark.parametrize(
    "shape", [(), (5,), (40,), (13, 12), (100, 200), (3, 2, 50), (2,) * 6, (0, 3)]
)
@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "uint64"])
def test_tables_are_bounded(shape: tuple[int, ...], dtype: str) -> None:
    text = Tensor.ones(shape, dtype=dtype)._repr_html_()
    rows = Cells(text).rows
    assert len(rows) <= 13 and all(len(row) <= 13 for row in rows) and len(text) < 25_000
    assert bool(rows) == (0 not in shape) and f"{list(shape)}" in text


def test_values_that_are_no_numbers() -> None:
    rows = Cells(Tensor([[np.nan, np.inf, -np.inf, 0.0]])._repr_html_()).rows
    assert rows == [["nan", "inf", "-inf", "0."]]


def test_complex_numbers_are_shaded_by_size() -> None:
    text = Tensor([3 + 4j, -10j, complex(0, np.inf)])._repr_html_()
    assert Cells(text).rows == [["3.+4.j", "-0.-10.j", "0.+infj"]]
    assert re.findall(r"rgba\([\d,]+,([\d.]+)\)", text) == ["0.25", "0.50", "0.50"]


def test_costs_are_those_of_the_run(device: str) -> None:
    x = Tensor(np.ones((64, 32), "float32"), device=device).realize()
    for make in (lambda: x + 1, (x @ x.T).softmax, lambda: x.sum(0) + x.sort(0)[0][0]):
        value, launches = make(), Counters.launches
        costs = value.explain()
        assert Counters.launches == launches, "nothing is run"
        value.realize()
        assert costs.launches == Counters.launches - launches
        assert costs.memory >= value.nbytes() and costs.nbytes > 0 and costs.operations > 0
        assert str(costs).count("\n") == costs.launches
        assert f"{costs.launches} launches" in str(costs)
        assert value.explain().launches == 0


def test_a_sum_moves_what_it_reads_and_writes() -> None:
    x = Tensor(np.ones((128, 16), "float32")).realize()
    costs = (x + 1).explain()
    assert costs.nbytes == 2 * x.nbytes() and costs.memory == x.nbytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: Tensor.full((3,), 2.5, device=x.device),
        lambda x: Tensor.zeros(0, 3, device=x.device),
        lambda x: x.reshape(-1),
        lambda x: x[1:],
        lambda x: (x + 1).T,
        lambda x: gpu.scan(lambda a, b: (a + b, a * b), x[0], x)[1],
    ],
)
def test_nothing_is_told_that_is_not_run(device: str, make: Callable[[Tensor], Tensor]) -> None:
    value = make(Tensor(np.ones((4, 3), "float32"), device=device).realize())
    told, launches = value.explain().launches, Counters.launches
    value.realize()
    assert told == Counters.launches - launches


def test_a_loop_costs_what_its_steps_cost(device: str) -> None:
    """Each step reads and writes its own part of what is stacked, and both carries."""

    def costs(length: int) -> tuple[Costs, Tensor]:
        x = Tensor(np.ones((length, 16), "float32"), device=device).realize()
        start = Tensor(np.ones(16, "float32"), device=device).realize()
        value = gpu.scan(lambda carry, x: (carry * 2 + x, carry * x), start, x)[1]
        return value.explain(), value

    found, value = costs(10)
    launches = Counters.launches
    value.realize()
    assert found.launches == Counters.launches - launches > 10
    assert 10 * 16 * 3 <= found.operations <= 10 * 16 * 6
    assert 3 * value.nbytes() <= found.nbytes <= 9 * value.nbytes()
    assert costs(1000)[0].nbytes <= 110 * found.nbytes, "it grows as the length does"


class Arrays:
    """Something with `__array__`, as data frames have."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values


class Capsules:
    """Something with DLPack alone."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64", "bool", "int64"])
def test_tensors_of_other_libraries(dtype: str, device: str) -> None:
    x = np.random.default_rng(7).integers(0, 2, (3, 4)).astype(dtype)
    lists = {"array": Arrays(x), "capsule": Capsules(x), "view": memoryview(x), "back": x[::-1].T}
    for name, other in lists.items():
        kept = x.copy()
        tensor = Tensor(other, device=device)
        x[:] = 0  # it is a copy
        assert tensor.dtype is dtypes.from_numpy(dtype) and tensor.device == device
        np.testing.assert_array_equal(tensor.numpy(), kept if name != "back" else kept[::-1].T)
        x[:] = kept


def test_tensors_of_torch_and_bytes() -> None:
    torch = pytest.importorskip("torch", reason="needs torch: module torch is not installed")
    x = torch.arange(6.0).reshape(2, 3)
    for other in (x, x.T, x[:, 1], x.bfloat16(), torch.tensor(2.0), torch.ones(0, 3)):
        tensor = Tensor(other)
        assert tensor.dtype.name == str(other.dtype).removeprefix("torch.")
        assert tensor.tolist() == other.tolist()
    assert Tensor(x, dtype="int32").tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(InvalidValue, match="detach"):
        Tensor(torch.ones(2, requires_grad=True))
    with pytest.raises(InvalidValue, match="meta"):
        Tensor(torch.ones(2, device="meta"))
    with pytest.raises(Unsupported, match="no dtype here"):
        Tensor(torch.ones(2, dtype=torch.complex32))
    assert Tensor(b"ab").tolist() == Tensor(bytearray(b"ab")).tolist() == [97, 98]
    assert Tensor(array.array("d", [1.5])).dtype is dtypes.float64


@pytest.mark.parametrize(
    "data", ["text", object(), {"a": 1}, {1}, np.sum, np.ndarray, Arrays, Capsules, Tensor]
)
def test_what_is_no_array(data: object) -> None:
    with pytest.raises(InvalidType, match="cannot be made of"):
        Tensor(data)


class Described:
    """Something with `__array_interface__`."""

    def __init__(self, described: Any) -> None:
        self.__array_interface__ = described


@pytest.mark.parametrize(
    "data",
    [
        Arrays([1, 2]),
        Arrays(None),
        Described({}),
        Described({"shape": (2,), "typestr": "<f4", "version": 3}),
        Described({"shape": (2,), "typestr": "<f4", "data": None, "version": 3}),
    ],
)
def test_what_gives_no_array(data: object) -> None:
    with pytest.raises(InvalidType, match=f"{type(data).__name__} gives no array"):
        Tensor(data)


def test_arrays_that_are_not_of_numbers() -> None:
    for values in (np.array(["a"]), np.array([{}], object), np.zeros(2, "datetime64[s]")):
        with pytest.raises((InvalidType, DTypeError)):
            Tensor(Arrays(values))
    with pytest.raises(DTypeError, match="byte order"):
        Tensor(Arrays(np.zeros(2, ">f4")))
