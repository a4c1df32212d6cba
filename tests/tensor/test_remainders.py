"""Remainders of floats are numpy's, bit for bit, whatever the quotient; their gradients torch's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ml_dtypes import bfloat16

from gpu import Device, Tensor, dtypes
from tensor.reference import assert_gradients, rng_for, torch, widest

# numpy warns of remainders by zero and of infinities.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TYPES: dict[str, Any] = {
    "float16": np.float16, "bfloat16": bfloat16, "float32": np.float32, "float64": np.float64,
}  # fmt: skip
SPECIAL = [0.0, 1.0, 3.0, 0.1, 0.5, 2.5, 1e-3, 1000.0, 60000.0, np.inf, np.nan]
COUNT = 700


def normal(x: Any) -> Any:
    """Zero in place of subnormal numbers, which a device may take for it."""
    tiny = float(np.finfo(np.float32).tiny)
    return np.where(np.abs(x.astype(np.float64)) < tiny, np.zeros_like(x), x)


def operands(kind: str, name: str, rng: np.random.Generator) -> tuple[Any, Any]:
    """Dividends and divisors."""
    dtype = np.dtype(TYPES[name])
    if kind == "special":
        values = np.array(SPECIAL + [-v for v in SPECIAL]).astype(dtype)
        extremes = [float(dtypes.from_numpy(dtype).max), float(np.finfo(np.float32).tiny)]
        values = np.concatenate([values, np.array([*extremes, -extremes[0]]).astype(dtype)])
        x, y = np.meshgrid(values, values)
        return x.ravel(), y.ravel()
    if kind == "bits":
        x, y = (np.frombuffer(rng.bytes(COUNT * dtype.itemsize), dtype) for _ in range(2))
        return (x, y) if dtype.itemsize == 8 or name == "float16" else (normal(x), normal(y))
    y = rng.normal(0, 3, COUNT).astype(dtype)
    if kind == "small":  # whose halves are subnormal
        y = (y * 10.0 ** rng.uniform(-37, -15, COUNT)).astype(dtype)
        return (y * 10.0 ** rng.uniform(-2, 40, COUNT)).astype(dtype), y
    if kind == "multiples":
        return (rng.integers(-200, 200, COUNT) * y.astype(np.float64)).astype(dtype), y
    return (rng.normal(0, 1, COUNT) * 10.0 ** rng.integers(-3, 5, COUNT)).astype(dtype), y


def flushed(x: Any, device: str) -> Any:
    """`x` with zeros in place of subnormal numbers where the device takes them for it."""
    if not Device[device].renderer.target.native.flushes:
        return x
    tiny = float(ml_dtypes.finfo(x.dtype).tiny)
    return np.where(np.abs(x) < tiny, np.copysign(np.zeros_like(x), x), x).astype(x.dtype)


def held(x: Any, name: str, device: str) -> Tensor:
    """`x` on the device, with all of its bits."""
    bits = f"uint{8 * x.dtype.itemsize}"
    return Tensor(np.ascontiguousarray(x).view(bits), device=device).bitcast(name)


def in_float32(function: Any, x: Any, y: Any) -> Any:
    """numpy's function, of what is narrower in float32, which holds every remainder of it."""
    wide = np.promote_types(x.dtype, np.float32) if x.dtype != bfloat16 else np.float32
    return function(x.astype(wide), y.astype(wide)).astype(x.dtype)


@pytest.mark.parametrize("kind", ["special", "bits", "small", "multiples", "usual"])
@pytest.mark.parametrize("name", TYPES)
def test_bit_equal_with_numpy(name: str, kind: str, device: str) -> None:
    if getattr(dtypes, name) in Device[device].renderer.target.native.lacking:
        return  # a device without a dtype refuses it: test_binary.py
    x, y = (flushed(v, device) for v in operands(kind, name, rng_for(name, kind)))
    ours = held(x, name, device), held(y, name, device)
    bits = f"uint{8 * x.dtype.itemsize}"
    for method, function in (("fmod", np.fmod), ("mod", np.remainder)):
        found = getattr(ours[0], method)(ours[1]).bitcast(bits).numpy().view(x.dtype)
        wanted = flushed(in_float32(function, x, y), device)
        if function is np.remainder:  # a rest that is flushed is none, and gets no divisor more
            rest = flushed(in_float32(np.fmod, x, y), device)
            wanted = np.where(rest == 0, np.copysign(rest, y), wanted)
        same = (found.view(bits) == wanted.view(bits)) | (np.isnan(found) & np.isnan(wanted))
        bad = np.flatnonzero(~same)
        shown = [(x[i], y[i], found[i], wanted[i]) for i in bad[:4]]
        assert bad.size == 0, f"{method}: {bad.size} differ: {shown}"


def test_large_quotients(device: str) -> None:
    assert (Tensor([1e9], device=device) % 0.1).tolist() == [
        float(np.float32(1e9) % np.float32(0.1))
    ]
    assert (Tensor([1e20], device=device) % 3.0).tolist() == [2.0]


def test_rows_of_another_width(device: str) -> None:
    """Lanes of one vector take different numbers of steps; some rows fill no vector."""
    rng = rng_for("rows")
    for shape in [(3, 5), (2, 33), (1,), (7, 16)]:
        x = (rng.normal(size=shape) * 10.0 ** rng.integers(-30, 30, shape)).astype(np.float32)
        y = (rng.normal(size=shape[-1:]) * 1e-3).astype(np.float32)
        found = Tensor(x, device=device).fmod(Tensor(y, device=device)).numpy()
        assert found.tolist() == np.fmod(x, y).tolist()
        total = Tensor(x, device=device).fmod(Tensor(y, device=device)).square().sum(-1).numpy()
        np.testing.assert_allclose(total, np.square(np.fmod(x, y)).sum(-1), 1e-5)


@pytest.mark.parametrize("name", ["fmod", "mod"])
def test_gradients(name: str, device: str) -> None:
    rng = rng_for(name)
    x = np.round(rng.uniform(-9, 9, 60), 1).astype(widest(device))
    y = np.round(rng.uniform(0.3, 4, 60), 1).astype(x.dtype) * rng.choice([-1, 1], 60)
    x[:20] = (y * rng.integers(-4, 4, 60))[:20]  # remainders of zero
    theirs = torch.fmod if name == "fmod" else torch.remainder
    assert_gradients(device, lambda a, b: getattr(a, name)(b), theirs, [x, y.astype(x.dtype)])
