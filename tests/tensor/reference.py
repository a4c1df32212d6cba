"""One computation by this package and by torch, forward and backward, and their comparison."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from gpu import Device, Tensor, dtypes

torch = pytest.importorskip("torch", reason="needs torch: module torch is not installed")

Array = npt.NDArray[Any]
Function = Callable[..., Any]


class Tolerance(NamedTuple):
    """Allowed differences, relative and absolute."""

    relative: float
    absolute: float


TOLERANCES = {
    "float64": Tolerance(1e-11, 1e-12),
    "float32": Tolerance(1e-5, 2e-6),
    "float16": Tolerance(2e-3, 1e-3),
}


def rng_for(*names: object) -> np.random.Generator:
    """Random numbers of their own for each test, the same in every run."""
    return np.random.default_rng(zlib.crc32(repr(names).encode()))


def without_subnormals(values: Array, device: str) -> Array:
    """Floats, with zero for those below the normal ones where the device may take them for it."""
    if values.dtype.kind != "f":
        return values
    flushes = Device[device].renderer.target.native.flushes
    may_flush = device.startswith("WEBGPU") and values.dtype == np.float32  # WGSL leaves it open
    small = np.abs(values) < np.finfo(values.dtype).tiny
    return np.where(small, np.zeros_like(values), values) if flushes or may_flush else values


def uniform(
    rng: np.random.Generator, shape: Sequence[int], domain: tuple[float, float], dtype: str
) -> Array:
    """Numbers of a domain, in two decimals so that ties and kinks come up too."""
    return np.asarray(np.round(rng.uniform(*domain, shape), 2), dtype)


def assert_same(ours: Any, theirs: Any, tolerance: Tolerance | None = None) -> None:
    """Equal shapes, and equal values to within the tolerance of the dtype."""
    if isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other, tolerance)
        return
    found, wanted = ours.numpy(), theirs.detach().numpy()
    assert found.shape == wanted.shape
    if found.dtype.kind == "f":
        relative, absolute = tolerance or TOLERANCES[found.dtype.name]
    else:
        relative, absolute = 0.0, 0.0
    np.testing.assert_allclose(found, wanted, relative, absolute, equal_nan=True)


def widest(device: str) -> str:
    """The name of the most accurate float dtype of a device."""
    lacking = Device[device].renderer.target.native.lacking
    return "float32" if dtypes.float64 in lacking else "float64"


def fitted(device: str, x: Array) -> Array:
    """The array, as float32 if it is of float64 and the device has none."""
    return x.astype(widest(device)) if x.dtype == np.float64 else x


def assert_forward(
    device: str,
    ours: Function,
    theirs: Function,
    inputs: Sequence[Array],
    tolerance: Tolerance | None = None,
) -> None:
    """Both give the same value of the same inputs."""
    inputs = [fitted(device, x) for x in inputs]
    value = ours(*(Tensor(x, device=device) for x in inputs))
    # A copy: torch takes no arrays with negative strides.
    assert_same(value, theirs(*(torch.tensor(x.copy()) for x in inputs)), tolerance)


def assert_gradients(
    device: str,
    ours: Function,
    theirs: Function,
    inputs: Sequence[Array],
    tolerance: Tolerance | None = None,
) -> None:
    """Both give the same value, and the same gradients under one random cotangent."""
    inputs = [fitted(device, x) for x in inputs]
    xs = [Tensor(x, device=device, requires_grad=True) for x in inputs]
    ts = [torch.tensor(x.copy(), requires_grad=True) for x in inputs]
    value, expected = ours(*xs), theirs(*ts)
    cotangent = rng_for(expected.shape).uniform(-1, 1, tuple(expected.shape))
    seed = cotangent.astype(inputs[0].dtype)
    expected.backward(torch.tensor(seed))
    grads = value.gradient(*xs, gradient=Tensor(seed, device=device))
    value.realize(*grads)
    assert_same(value, expected, tolerance)
    for x, grad, t in zip(xs, grads, ts, strict=True):
        assert grad.shape == x.shape and grad.dtype is x.dtype
        assert_same(grad, torch.zeros_like(t) if t.grad is None else t.grad, tolerance)
