"""`gpu.array_api` beside array-api-strict, the standard's reference: a sample of its own tests.

`python -m tools.array_api` runs the official suite on a clone of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu import Device, JitError, Tensor, array_api, dtypes, jit
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, ShapeError
from tensor.reference import Tolerance, rng_for, widest

XFAILS = Path(__file__).parents[1] / "array_api/xfails.txt"
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "int16", "bool")
TOLERANCE = {"float32": Tolerance(2e-5, 2e-6), "float64": Tolerance(1e-11, 1e-12)}
# Of x and y, of shapes (3, 4) and (4,); v of (5,), s sorted of (4,), p places 0..2 of (3, 4).
CALLS = """
xp.abs(x)  xp.acos(x / 8)  xp.acosh(x + 5)  xp.add(x, y)  xp.add(x, 1)  xp.asin(x / 8)  xp.asinh(x)
xp.atan(x)  xp.atan2(x, y)  xp.atanh(x / 8)  xp.bitwise_and(x, y)  xp.bitwise_invert(x)
xp.bitwise_left_shift(x, 2)  xp.bitwise_or(x, 3)  xp.bitwise_right_shift(x, 1)
xp.bitwise_xor(x, y)  xp.ceil(x)  xp.clip(x, 1, 3)  xp.clip(x, y)  xp.copysign(x, y)  xp.cos(x)
xp.cosh(x)  xp.divide(x, y + 9)  xp.equal(x, y)  xp.exp(x)  xp.expm1(x)  xp.floor(x)
xp.floor_divide(x, y + 9)  xp.greater(x, y)  xp.greater_equal(x, 2)  xp.hypot(x, y)  xp.isfinite(x)
xp.isinf(x)  xp.isnan(x)  xp.less(x, y)  xp.less_equal(x, y)  xp.log(x + 9)  xp.log10(x + 9)
xp.log1p(x + 9)  xp.log2(x + 9)  xp.logaddexp(x, y)  xp.logical_and(x, ~x)  xp.logical_not(x)
xp.logical_or(x, y)  xp.logical_xor(x, y)  xp.maximum(x, y)  xp.minimum(x, 2)  xp.multiply(x, y)
xp.negative(x)  xp.nextafter(x, y)  xp.not_equal(x, y)  xp.positive(x)  xp.pow(x, 2)
xp.reciprocal(x + 9)  xp.remainder(x, y + 9)  xp.round(x)  xp.sign(x)  xp.signbit(x)  xp.sin(x)
xp.sinh(x)  xp.sqrt(x + 9)  xp.square(x)  xp.subtract(x, y)  xp.tan(x)  xp.tanh(x)  xp.trunc(x)
xp.all(x)  xp.any(x, axis=0)  xp.all(x, axis=(0, 1), keepdims=True)  xp.diff(x)
xp.diff(x, n=2, axis=0)
xp.diff(v, prepend=v[:1], append=v)  xp.sum(x)  xp.sum(x, axis=1)  xp.prod(x, axis=0)  xp.mean(x)
xp.max(x, axis=-1)  xp.min(x, keepdims=True)  xp.std(x)  xp.std(x, axis=0, correction=1)  xp.var(x)
xp.cumulative_sum(v)  xp.cumulative_sum(x, axis=1, include_initial=True)
xp.cumulative_prod(x, axis=0, include_initial=True)  xp.argmax(x)  xp.argmin(x, axis=1)
xp.argmax(x, axis=0, keepdims=True)  xp.count_nonzero(x)  xp.count_nonzero(x, axis=1)  xp.nonzero(x)
xp.searchsorted(s, x)  xp.searchsorted(s, x, side="right")  xp.where(x > 1, x, y)  xp.sort(x)
xp.sort(x, axis=0, descending=True)  xp.argsort(v)  xp.unique_values(x)  xp.unique_counts(x)
xp.unique_inverse(x)  xp.unique_all(x)  xp.isin(x, y)  xp.take(v, p[0, ...])
xp.take(x, p[0, ...], axis=1)  xp.take_along_axis(x, p, axis=0)  xp.concat((x, x), axis=1)
xp.concat([x, y], axis=None)  xp.stack([x, x], axis=-1)  xp.expand_dims(x, axis=(0, -1))
xp.squeeze(x[None, ...], axis=0)  xp.flip(x)  xp.flip(x, axis=1)  xp.moveaxis(x, 0, 1)
xp.permute_dims(x, (1, 0))  xp.repeat(x, 2)  xp.repeat(x, 2, axis=1)  xp.repeat(v, q)
xp.reshape(x, (4, 3))  xp.roll(x, 2)  xp.roll(x, (1, 2), axis=(0, 1))  xp.tile(y, (2, 2))
xp.unstack(x)  xp.unstack(x, axis=1)  xp.broadcast_to(y, (2, 4))  xp.broadcast_arrays(x, y)
xp.matmul(x, x.T)  xp.matrix_transpose(x)  xp.tensordot(x, y, axes=1)  xp.vecdot(x, y)
xp.tensordot(x, x, axes=((0,), (0,)))  xp.tril(x)  xp.triu(x, k=1)  xp.meshgrid(v, y)
xp.zeros_like(x)  xp.ones_like(x)  xp.full_like(x, 1)  xp.astype(x, xp.float32)  xp.eye(3, 4, k=1)
xp.arange(3)  xp.arange(1, 4, 0.5)  xp.linspace(0, 1, 4, endpoint=False)  xp.full((2,), 3)
xp.asarray([1, 2])  xp.asarray(2.5)  xp.zeros((2, 3), dtype=xp.int16)
"""


def calls() -> list[str]:
    found = (call.strip() for line in CALLS.split("\n") for call in re.split("  +", line))
    return [call for call in found if call]


def operands(call: str, dtype: str) -> dict[str, Any]:
    rng = rng_for(call, dtype)
    small = lambda shape: rng.integers(0, 5, shape).astype(dtype)  # noqa: E731
    return {
        "x": small((3, 4)), "y": small((4,)), "v": small((5,)), "s": np.sort(small((4,))),
        "p": rng.integers(0, 3, (3, 4)), "q": rng.integers(0, 3, (5,)),
    }  # fmt: skip


def flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def check(call: str, dtype: str, device: str | None) -> None:
    strict = import_module("array_api_strict")
    arrays = operands(call, dtype)
    try:
        theirs = {name: strict.asarray(x) for name, x in arrays.items()}
        wanted = eval(call, {"xp": strict, **theirs})
    except TypeError:
        return  # the standard has nothing for this dtype
    ours = {name: Tensor(x, device=device) for name, x in arrays.items()}
    found = flat(eval(call, {"xp": array_api, **ours}))
    assert len(found) == len(flat(wanted))
    for one, other in zip(found, map(np.asarray, flat(wanted)), strict=True):
        assert tuple(one.shape) == other.shape
        # Its defaults are 64 bits wide, ours 32; places are int64 in both.
        same = one.dtype.np == other.dtype
        assert same or (one.dtype.bits, other.dtype.itemsize) == (32, 8), (one.dtype, other.dtype)
        loose = TOLERANCE.get(one.dtype.name, Tolerance(0, 0))
        np.testing.assert_allclose(one.numpy(), other, *loose)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", calls())
def test_as_strict(call: str, dtype: str, need: Callable[[str], None]) -> None:
    need("array-api-strict")
    check(call, dtype, None)


@pytest.mark.parametrize("call", calls()[::3])
def test_as_strict_on_devices(call: str, device: str, need: Callable[[str], None]) -> None:
    need("array-api-strict")
    check(call, "float32", device)
    check(call, "int32", device)


def test_every_function_of_the_standard_is_called() -> None:
    known = {name for name in array_api.__all__ if callable(getattr(array_api, name))}
    apart = {
        *("__array_namespace_info__", "broadcast_shapes", "can_cast", "empty", "empty_like"),
        *(
            "finfo",
            "from_dlpack",
            "iinfo",
            "isdtype",
            "ones",
            "result_type",
            "conj",
            "real",
            "imag",
        ),
    }
    called = set(re.findall(r"xp\.(\w+)\(", CALLS))
    assert known - apart == called


def test_namespace() -> None:
    x = Tensor([1.0, 2.0])
    assert x.__array_namespace__() is array_api is x.__array_namespace__(api_version="2024.12")
    assert array_api.__array_api_version__ == "2025.12"
    with pytest.raises(InvalidValue, match="api_version must be one of"):
        x.__array_namespace__(api_version="1999.12")
    assert complex(Tensor(2.0)) == 2 + 0j and x.to_device("PYTHON").device == "PYTHON"
    with pytest.raises(InvalidValue, match="to_device takes no stream"):
        x.to_device("CPU", stream=1)


def test_differences_to_torch() -> None:
    x = array_api.asarray([1, 2, 4], dtype="int8")
    assert array_api.sum(x).dtype is dtypes.int32 and x.sum().dtype is dtypes.int64
    assert array_api.sum(x.cast("uint8")).dtype is dtypes.uint32
    floats = x.float()
    np.testing.assert_allclose(array_api.std(floats).item(), np.std([1, 2, 4]), 1e-6)
    np.testing.assert_allclose(floats.std().item(), np.std([1, 2, 4], ddof=1), 1e-6)
    zero = Tensor([-0.0])
    for name in ("asinh", "atanh", "expm1", "log1p", "sinh", "tanh"):
        assert array_api.signbit(getattr(array_api, name)(zero)).item()
    assert np.isnan(array_api.sign(Tensor([np.nan])).item())
    assert not array_api.signbit(array_api.sign(zero)).item()
    quotient = array_api.floor_divide(Tensor([np.inf, 1.0, 7.5]), Tensor([2.0, -np.inf, 2.0]))
    np.testing.assert_array_equal(quotient.numpy(), [np.inf, -0.0, 3])


def test_dtypes_are_those_of_the_device(device: str) -> None:
    info = array_api.__array_namespace_info__()
    known = info.dtypes(device=device)
    assert ("float64" in known) == (widest(device) == "float64")
    for dtype in known.values():
        assert array_api.ones(3, dtype=dtype, device=device).numpy().dtype == dtype.np
    assert set(info.dtypes(device=device, kind="bool")) == {"bool"}
    wanted = {"bool", "int8", "int16", "int32", "int64"}
    assert set(info.dtypes(kind=("signed integer", "bool"))) == wanted
    complexes = {"complex64", "complex128"} if "float64" in known else {"complex64"}
    assert set(info.dtypes(device=device, kind="complex floating")) == complexes
    assert Device.canonicalize(device) in info.devices()


def test_info() -> None:
    info = array_api.__array_namespace_info__()
    assert info.default_device() == Device.DEFAULT == Tensor([1]).device
    wanted = {
        "real floating": dtypes.float32, "complex floating": dtypes.complex64,
        "integral": dtypes.int32, "indexing": dtypes.int64,
    }  # fmt: skip
    assert info.default_dtypes() == wanted
    assert info.capabilities()["boolean indexing"] is True
    with pytest.raises(InvalidValue, match="kind must be"):
        info.dtypes(kind="floats")


def test_dtype_functions() -> None:
    for name in ("float32", "float64"):
        ours, theirs = array_api.finfo(getattr(dtypes, name)), np.finfo(name)
        assert (ours.bits, ours.eps, ours.max) == (theirs.bits, theirs.eps, theirs.max)
        assert ours.smallest_normal == theirs.smallest_normal and ours.dtype.name == name
    assert array_api.iinfo(dtypes.uint8)[:3] == (8, 255, 0)
    assert array_api.result_type(dtypes.int8, dtypes.uint8, 3) is dtypes.int16
    assert array_api.result_type(Tensor([1.0]), dtypes.float64) is dtypes.float64
    assert array_api.can_cast(dtypes.int8, dtypes.int16)
    assert not array_api.can_cast(dtypes.float64, dtypes.float32)
    assert array_api.isdtype(dtypes.int8, ("bool", "signed integer"))
    for wrong in (lambda: array_api.finfo(dtypes.int32), lambda: array_api.iinfo(dtypes.bool)):
        with pytest.raises(DTypeError):
            wrong()
    with pytest.raises(InvalidType):
        array_api.result_type(1, 2.0)


def test_what_is_refused() -> None:
    x = array_api.ones((2, 3))
    with pytest.raises(InvalidType, match="must be a Tensor"):
        array_api.sum([1, 2])  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="one operand must be a Tensor"):
        array_api.add(1, 2)
    with pytest.raises(InvalidValue, match="needs axis="):
        array_api.cumulative_sum(x)
    with pytest.raises(ShapeError, match="has not the size 1"):
        array_api.squeeze(x, axis=0)
    with pytest.raises(ShapeError, match="0-d"):
        array_api.nonzero(array_api.asarray(1))
    with pytest.raises(DTypeError, match="of complex numbers"):
        array_api.imag(x)
    with pytest.raises(InvalidValue, match="copy=False"):
        array_api.asarray([1, 2], copy=False)
    assert array_api.asarray(x) is x and array_api.asarray(x, copy=True) is not x


@pytest.mark.parametrize(
    "call",
    [
        *("xp.unique_values(x)", "xp.unique_all(x)", "xp.nonzero(x)", "x[x > 1]"),
        *("xp.unique_counts(x)", "x.unique_consecutive()", "x.cast('int32').bincount()"),
        "xp.repeat(x, x.cast('int32'))",
    ],
)
def test_shapes_that_depend_on_values_name_size_in_jit(call: str) -> None:
    with pytest.raises(JitError, match="size="):
        jit(lambda x: eval(call, {"xp": array_api, "x": x}))(Tensor([1.0, 2.0]).realize())


def test_unique_with_a_size_in_jit() -> None:
    f = jit(lambda x: x.unique(return_counts=True, size=4, fill_value=-1))
    for row in ([3.0, 1.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0], [4.0, 3.0, 2.0, 1.0]) * 2:
        values, counts = f(Tensor(row).realize())
        wanted, number = np.unique(row, return_counts=True)
        missing = 4 - len(wanted)
        assert values.tolist() == [*wanted, *[-1] * missing]
        assert counts.tolist() == [*number, *[0] * missing]


def test_each_failure_of_the_suite_has_a_reason() -> None:
    reason, ids = "", []
    for line in XFAILS.read_text().splitlines():
        if line.startswith("#"):
            reason = line
        elif line:
            assert len(reason) > 20 and line.startswith("array_api_tests/"), line
            ids.append(line)
        else:
            reason = ""
    assert len(ids) == len(set(ids)) > 0
