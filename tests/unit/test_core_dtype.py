from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from gpu.core.dtype import (
    ALL,
    DType,
    accumulator,
    dtype_named,
    dtypes,
    from_torch_dtype,
    promote,
    to_dtype,
)
from gpu.core.errors import DTypeError
from gpu.core.scalars import promote_scalar

PAIRS = list(itertools.product(ALL, ALL))
FP8 = {dtypes.fp8e4m3, dtypes.fp8e5m2}


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_promote_is_symmetric_closed_and_idempotent(a: DType, b: DType) -> None:
    result = promote(a, b)
    assert result is promote(b, a)
    assert result in ALL
    assert promote(a, a) is a
    assert promote(result, a) is result


def test_promote_agrees_with_numpy_within_a_kind() -> None:
    own = [d for d in ALL if d not in FP8]
    for a, b in itertools.product(own, own):
        if a.is_float == b.is_float and not a.is_float:
            assert promote(a, b).np == np.promote_types(a.np, b.np), (a, b)


def test_promote_agrees_with_numpy_and_ml_dtypes_on_floats() -> None:
    floats = [d for d in ALL if d.is_float and d not in FP8]
    for a, b in itertools.product(floats, floats):
        if {a, b} != {dtypes.float16, dtypes.bfloat16}:  # numpy has no answer
            assert promote(a, b).np == np.promote_types(a.np, b.np), (a, b)
    assert promote(dtypes.float16, dtypes.bfloat16) is dtypes.float32


def test_promote_is_associative_but_for_the_documented_cases() -> None:
    """uint64 with a signed integer leaves the integers; two fp8 formats meet in float16."""
    for a, b, c in itertools.product(ALL, ALL, ALL):
        left, right = promote(promote(a, b), c), promote(a, promote(b, c))
        trio = {a, b, c}
        leaves_integers = dtypes.uint64 in trio and any(d.kind == "int" for d in trio)
        two_fp8 = trio >= FP8 and dtypes.bfloat16 in trio
        if not ((leaves_integers and any(d.is_float for d in trio)) or two_fp8):
            assert left is right, (a, b, c)


def test_promoted_integers_hold_both_operands() -> None:
    for a, b in PAIRS:
        result = promote(a, b)
        if a.is_int and b.is_int and result.is_int:
            assert result.min <= min(a.min, b.min) and result.max >= max(a.max, b.max)


@pytest.mark.parametrize(
    ("array", "value", "want"),
    [
        (dtypes.bool, True, dtypes.bool),
        (dtypes.bool, 1, dtypes.int32),
        (dtypes.bool, 1 << 40, dtypes.int64),
        (dtypes.uint8, 255, dtypes.uint8),
        (dtypes.int64, 1.5, dtypes.float32),
        (dtypes.float16, 3, dtypes.float16),
        (dtypes.fp8e4m3, 1.0, dtypes.fp8e4m3),
    ],
)
def test_promote_scalar(array: DType, value: bool | int | float, want: DType) -> None:
    assert promote_scalar(array, value) is want


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype_round_trips(dtype: DType) -> None:
    assert to_dtype(dtype.np) is dtype
    assert to_dtype(dtype.name) is dtype
    assert dtype_named(dtype.name) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert np.dtype(dtype.np).itemsize == dtype.itemsize == dtype.bits // 8


def test_python_and_numpy_types_are_read_by_identity() -> None:
    assert to_dtype(int) is dtypes.int32
    assert to_dtype(np.dtype("int64")) is dtypes.int64  # equal to `int` in numpy's eyes
    assert to_dtype(np.dtype("float64")) is dtypes.float64
    assert to_dtype(np.float16) is dtypes.float16
    assert to_dtype(bool) is dtypes.bool


@pytest.mark.parametrize("bad", ["flot32", np.dtype(">f4"), np.dtype("M8[s]"), object(), None])
def test_what_is_no_dtype_is_an_error(bad: object) -> None:
    with pytest.raises(DTypeError):
        to_dtype(bad)  # type: ignore[arg-type]


def test_from_numpy_of_rubbish_is_a_dtype_error() -> None:
    with pytest.raises(DTypeError, match="no_such"):
        dtypes.from_numpy("no_such")


def test_suggestion() -> None:
    with pytest.raises(DTypeError, match="did you mean 'float32'"):
        dtype_named("flot32")


def test_torch_dtypes(need: Callable[[str], None]) -> None:
    need("torch")
    import torch

    assert from_torch_dtype(torch.bfloat16) is dtypes.bfloat16
    assert from_torch_dtype(torch.float8_e4m3fn) is dtypes.fp8e4m3
    with pytest.raises(DTypeError, match="complex32"):
        from_torch_dtype(torch.complex32)


def test_scalars_and_accumulators() -> None:
    assert dtypes.of(True) is dtypes.bool
    assert dtypes.of(2**31 - 1) is dtypes.int32
    assert dtypes.of(2**31) is dtypes.int64
    assert dtypes.of(1.0) is dtypes.float32
    assert accumulator(dtypes.bfloat16) is dtypes.float32
    assert accumulator(dtypes.float64) is dtypes.float64
    assert accumulator(dtypes.int8) is dtypes.int8
