"""Whole numbers that no integer of 64 bits holds are refused; as floats they are rounded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import Tensor, dtypes
from gpu.core.dtype import DType
from gpu.core.errors import InvalidType, NumberOverflow

LARGE = 1 << 70

REFUSED: dict[str, Callable[[], Tensor]] = {
    "number": lambda: Tensor(LARGE),
    "negative": lambda: Tensor(-(1 << 63) - 1),
    "list": lambda: Tensor([1, LARGE]),
    "nested list": lambda: Tensor([[1], [LARGE]]),
    "int64": lambda: Tensor(1 << 63, dtype=dtypes.int64),
    "uint64": lambda: Tensor(1 << 64, dtype=dtypes.uint64),
    "uint8": lambda: Tensor(LARGE, dtype=dtypes.uint8),
    "list of uint8": lambda: Tensor([LARGE], dtype=dtypes.uint8),
    "full": lambda: Tensor.full((2,), LARGE),
    "full_like": lambda: Tensor([1, 2]).full_like(LARGE),
    "add": lambda: Tensor([1, 2]) + LARGE,
    "radd": lambda: LARGE + Tensor([1, 2]),
    "bool": lambda: Tensor([True]) * LARGE,
    "masked_fill": lambda: Tensor([1, 2]).masked_fill(Tensor([True, False]), LARGE),
    "where": lambda: Tensor([True]).where(LARGE, 1),
    "float": lambda: Tensor(10**400, dtype=dtypes.float32),
    "float list": lambda: Tensor([10**400], dtype=dtypes.float64),
    "float operand": lambda: Tensor([1.0]) * 10**400,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(NumberOverflow) as caught:
        REFUSED[name]()
    assert isinstance(caught.value, OverflowError | ValueError), "as numpy's and torch's"


def test_the_message_names_the_number_and_the_way_out() -> None:
    with pytest.raises(NumberOverflow, match=f"^{LARGE} does not fit 64 bits, so no int64.*float"):
        Tensor(LARGE)
    with pytest.raises(NumberOverflow, match="an int of 1329 bits is larger than any float"):
        Tensor([1.0]) + 10**400


@given(st.integers(-(1 << 72), 1 << 72))
def test_numbers_are_as_numpys(value: int) -> None:
    array = np.array(value)
    if array.dtype == object:
        with pytest.raises(NumberOverflow):
            Tensor(value)
        return
    for data in (value, [value]):
        tensor = Tensor(data)
        assert np.array(tensor.tolist()).reshape(-1).tolist() == [value]
        assert tensor.dtype in (dtypes.int32, dtypes.from_numpy(array.dtype))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16])
def test_floats_and_bools_take_them(dtype: DType) -> None:
    for data in (LARGE, [LARGE], Tensor([1.0]).cast(dtype) * LARGE):
        made = data if isinstance(data, Tensor) else Tensor(data, dtype=dtype)
        assert np.array(made.tolist()).reshape(-1).tolist() == [float(LARGE)]
    assert Tensor([1.5, LARGE]).tolist() == [1.5, float(LARGE)]
    assert Tensor(LARGE, dtype=dtypes.bool).item() is True
    assert Tensor([0, 10**400], dtype=dtypes.bool).tolist() == [False, True]


def test_what_is_no_number_is_told_as_before() -> None:
    with pytest.raises(InvalidType, match="not a number"):
        Tensor([LARGE, None])  # type: ignore[list-item]
