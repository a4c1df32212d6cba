"""Edges of every dtype on every device, as the interpreter has them: zeros, -1, both limits, NaN,
infinities, subnormals, counts of any size, and the bits of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Device, Tensor, dtypes
from gpu.core.dtype import INTS, DType
from tensor.reference import rng_for, without_subnormals

Array = np.ndarray[Any, Any]
COUNT = 300
FLOATS = (dtypes.float16, dtypes.float32, dtypes.float64)
OF_INTEGERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "floor division": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "quotient": lambda a, b: a.div(b, rounding_mode="trunc"),
    "by -1": lambda a, b: (a // -1) + (b % -1),
    "both": lambda a, b: (a // b) * b + a % b,
    "shifted far": lambda a, b: (a >> 40) + (b << 70),
    "sum of products": lambda a, b: a * b + a - b,
    "maximum": lambda a, b: a.maximum(b),
    "less": lambda a, b: a < b,
}
OF_FLOATS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "maximum": lambda a, b: a.maximum(b),
    "minimum": lambda a, b: a.minimum(b),
    "largest of a row": lambda a, b: a.reshape(-1, 12).max(1).cat(b.reshape(-1, 25).min(1)),
    "largest of a column": lambda a, b: a.reshape(25, -1).max(0) + b.reshape(12, -1).min(0).max(),
    "clip": lambda a, b: a.clip(-1, 1) + b.clip(0),
    "relu": lambda a, b: a.relu() + b,
    "scaled maximum": lambda a, b: a.maximum(b) * b,
}


def integers(dtype: DType, *names: object) -> Array:
    """Numbers near zero, the limits and the width, and any others."""
    rng = rng_for(dtype.name, *names)
    low, high, bits = int(dtype.min), int(dtype.max), dtype.bits
    near = [low, low + 1, -2, -1, 0, 1, 2, bits - 1, bits, bits + 1, 2 * bits, high - 1, high]
    edges = np.array([n for n in near if low <= n <= high], dtype.np)
    drawn = rng.integers(low, high, COUNT, dtype.np, endpoint=True)
    return np.where(rng.random(COUNT) < 0.7, rng.choice(edges, COUNT), drawn)


def floats(dtype: DType, device: str, *names: object) -> Array:
    """Numbers at the limits of integers and of the format, and any bits."""
    rng = rng_for(dtype.name, *names)
    limits = [float(end) for d in INTS for end in (int(d.min), int(d.max), int(d.max) + 1)]
    near = [0.0, 0.5, 1.5, 65504.0, 1e-40, 3e38, np.inf, np.nan, *limits]
    with np.errstate(over="ignore"):
        edges = np.array([*near, *(-n for n in near)]).astype(dtype.np)
    beside = np.nextafter(edges, rng.choice(np.array([-np.inf, np.inf], dtype.np), len(edges)))
    edges = np.concatenate([edges, beside])
    drawn = np.frombuffer(rng.bytes(COUNT * dtype.itemsize), dtype.np)
    made = np.where(rng.random(COUNT) < 0.7, rng.choice(edges, COUNT), drawn)
    return without_subnormals(made, device)


def here(x: Array, device: str) -> Tensor:
    """The array on a device, with all of its bits."""
    if x.dtype.kind != "f":
        return Tensor(x, device=device)
    return Tensor(x.view(f"u{x.itemsize}"), device=device).bitcast(f"float{8 * x.itemsize}")


def compare(
    operations: dict[str, Callable[[Tensor, Tensor], Tensor]], a: Array, b: Array, device: str
) -> None:
    """Every operation gives what the interpreter gives; zeros of extremes have any sign."""
    for name, operation in operations.items():
        found = operation(here(a, device), here(b, device)).numpy()
        wanted = operation(here(a, "PYTHON"), here(b, "PYTHON")).numpy()
        assert found.dtype == wanted.dtype
        if found.dtype.kind == "f":
            found, wanted = (without_subnormals(x, device) for x in (found, wanted))
        np.testing.assert_array_equal(found, wanted, err_msg=name)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers(dtype: DType, device: str) -> None:
    operations = {k: v for k, v in OF_INTEGERS.items() if dtype.is_signed or k != "by -1"}
    compare(operations, integers(dtype, "a"), integers(dtype, "b"), device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(dtype: DType, device: str) -> None:
    if dtype in Device[device].renderer.target.native.lacking:
        pytest.skip(f"{device} has no {dtype.name}")
    compare(OF_FLOATS, floats(dtype, device, "a"), floats(dtype, device, "b"), device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_to_integers(dtype: DType, device: str) -> None:
    if dtype in Device[device].renderer.target.native.lacking:
        pytest.skip(f"{device} has no {dtype.name}")
    x = floats(dtype, device, "x")
    casts = {d.name: lambda a, _, d=d: a.cast(d) for d in INTS}
    compare(casts, x, x, device)


def test_constants_alone(device: str) -> None:
    """A compiler of shaders may take it that there are no infinities, NaN and zeros with signs."""
    y, x, low = (Tensor(v, dtype="float32", device=device) for v in (-0.0, 1.0, -np.inf))
    assert [np.signbit(v.item()) for v in (y.atan2(x), y**x, low**-1)] == [True] * 3
    z = Tensor(complex(-1e19, np.inf), dtype="complex64", device=device)
    assert np.isnan(z.exp().numpy()) and np.isnan(z.expm1().numpy())
    one = Tensor(1 + 0j, dtype="complex64", device=device)
    assert one.atanh().item() == complex(np.inf, 0)


ZEROING: dict[str, Callable[[Any], Any]] = {
    "x * 0": lambda x: x * 0.0,
    "x * -0": lambda x: x * -0.0,
    "0 / x": lambda x: 0.0 / x,
    "x - x": lambda x: x - x,
    "x / x": lambda x: x / x,
    "x * 0 + 1": lambda x: x * 0.0 + 1.0,
    "-(0 - x)": lambda x: -(0.0 - x),
    "x * (x - x)": lambda x: x * (x - x),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns of all of it
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_nothing_is_left_out_for_a_zero(name: str, device: str) -> None:
    """Infinities, NaN and zeros with signs are values to a compiler, also where a zero is known."""
    if getattr(dtypes, name) in Device[device].renderer.target.native.lacking:
        return
    if device.startswith("WEBGPU") and name == "float16":
        return  # WGSL lets compilers take it that there are none, and halves have no way around
    x = np.array([np.inf, -np.inf, np.nan, -2.0, 3.0, -0.0, 0.0, 1.0], name)
    for text, function in ZEROING.items():
        found, wanted = function(Tensor(x, device=device)).numpy(), function(x)
        numbers = ~np.isnan(wanted)
        np.testing.assert_array_equal(found, wanted, text)
        signs = np.signbit(found)[numbers], np.signbit(wanted)[numbers]
        np.testing.assert_array_equal(*signs, err_msg=f"{text}: signs of zeros")


def test_zero_that_is_added(device: str) -> None:
    x = Tensor([complex(-0.0, 0)], dtype="complex64", device=device)
    assert not np.signbit(x.expm1().real.item())
    assert not np.signbit((Tensor([-0.0, -1.0], device=device).realize() + 0.0).numpy()[0])
