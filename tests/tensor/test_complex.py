"""Complex tensors against numpy and torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu import Device, Tensor, dtypes, jit
from gpu import array_api as xp
from gpu.compiler.ir.graph import interpret
from gpu.core.errors import DTypeError, GpuError, Unsupported
from gpu.runtime.execute import storage
from gpu.runtime.prepared import Counters
from gpu.tensor.formats.numpy import npy_load, npy_save
from gpu.tensor.formats.safetensors import safe_load, safe_save
from gpu.tensor.formats.torch import torch_load
from tensor.reference import rng_for, torch

EDGES = (0.0, -0.0, 1.0, -1.0, 2.5, -3.0, np.inf, -np.inf, np.nan)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "expm1": np.expm1, "exp2": np.exp2,
    "abs": np.abs, "angle": np.angle, "sign": np.sign, "conj": np.conj, "square": np.square,
    "reciprocal": np.reciprocal, "neg": np.negative, "isnan": np.isnan, "isinf": np.isinf,
    "isfinite": np.isfinite,
}  # fmt: skip
# Where C leaves no sign open and numpy has all of C's special values.
EXACT = (
    "exp", "log", "log1p", "sqrt", "abs", "angle", "asin", "acos", "atan", "asinh", "acosh",
    "atanh",
)  # fmt: skip


def numbers(rng: np.random.Generator, *shape: int, dtype: Any = np.complex64) -> Any:
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def widest(device: str) -> Any:
    lacking = Device[device].renderer.target.native.lacking
    return np.complex64 if dtypes.float64 in lacking else np.complex128


def close(got: Tensor, want: Any, ulps: float = 200) -> None:
    """Within a few units in the last place of the largest element, or equal where not finite."""
    value, want = got.numpy(), np.asarray(want)
    assert value.dtype == want.dtype
    assert value.shape == want.shape
    size = np.abs(want[np.isfinite(want)]).max(initial=0)
    eps = np.finfo(want.dtype).eps if want.dtype.kind in "fc" else 0
    np.testing.assert_allclose(value, want, rtol=ulps * eps, atol=ulps * eps * size)


def meant(x: Tensor) -> Any:
    """The value by the interpreter of graphs: nothing is compiled."""
    (value,) = interpret([x._node], lambda leaf: storage(leaf).copy_out().reshape(leaf.shape))
    return value


def test_arithmetic_and_movement(device: str) -> None:
    rng = rng_for("complex", device)
    a, b = numbers(rng, 3, 5), numbers(rng, 5)
    x, y = Tensor(a, device=device), Tensor(b, device=device)
    results = [
        (x * y, a * b), (x / y, a / b), (2.5 - x.T, np.complex64(2.5) - a.T), (x == y, a == b),
        (x[1:, ::-2] * 1j, a[1:, ::-2] * 1j), (x.cat(x * y, dim=0), np.concatenate([a, a * b])),
        (x.conj(), a.conj()), (x.abs(), np.abs(a)), (x.sum(1), a.sum(1)), (x.prod(1), a.prod(1)),
        (x @ x.T.conj(), a @ a.T.conj()), (x.cast("bool").where(x, y), np.where(a != 0, a, b)),
        (x[Tensor([2, 0], device=device)], a[[2, 0]]), (x.exp(), np.exp(a)),
    ]  # fmt: skip
    for got, want in results:
        close(got, want)


def test_views_are_written_through(device: str) -> None:
    a = numbers(rng_for("views", device), 3, 4)
    x = Tensor(a, device=device)
    x.real[1] = 7
    x.imag[:, 2] = x.real[:, 1]
    x.view_as_real()[0, 0, 1] = 5
    x[2] = 1j
    x[:, 3] *= 2j
    a.real[1] = 7
    a.imag[:, 2] = a.real[:, 1]
    a.view(np.float32).reshape(3, 4, 2)[0, 0, 1] = 5
    a[2] = 1j
    a[:, 3] *= 2j
    np.testing.assert_array_equal(x.numpy(), a)
    pairs = Tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    pairs.view_as_complex()[1] = 4j
    assert pairs.tolist() == [[1, 2], [0, 4]]


def test_large_memory_is_written_in_place() -> None:
    value = numbers(rng_for("large"), 100, 200)
    x = Tensor(value).realize()
    place = storage(x._node).memory
    x[5, ::2] = 1 + 2j
    x.realize()
    x.real[7] = 3
    x.realize()
    x.view_as_real()[8, :, 1] = 2
    x.realize()
    x[9:11] = x[3:5] * 2
    x.realize()
    value[5, ::2] = 1 + 2j
    value.real[7] = 3
    value.imag[8] = 2
    value[9:11] = value[3:5] * 2
    np.testing.assert_array_equal(x.numpy(), value)
    assert storage(x._node).memory == place


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_functions(dtype: Any) -> None:
    rng = rng_for("functions", dtype)
    a = numbers(rng, 60, dtype=dtype)
    a = np.concatenate([a, a * 1e-3, a * 20])
    for name, function in FUNCTIONS.items():
        got, want = meant(getattr(Tensor(a), name)()), function(a)
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(got, want, rtol=80 * eps, atol=20 * eps, err_msg=name)


def test_special_values() -> None:
    z = np.array([complex(x, y) for x in EDGES for y in EDGES])
    x, y = np.meshgrid(z, z)

    def wrong(got: Tensor, want: Any) -> Any:
        bad = np.zeros(z.shape if want.ndim == 1 else x.shape, bool)
        value = meant(got)
        for a, b in ((value.real, want.real), (value.imag, want.imag)):
            near = (a == b) | (np.abs(a - b) <= 1e-14 * np.abs(b))
            bad |= ~(np.isnan(a) & np.isnan(b)) & ~(near & (np.signbit(a) == np.signbit(b)))
        return bad

    with np.errstate(all="ignore"):
        for name in EXACT:
            bad = wrong(getattr(Tensor(z), name)(), FUNCTIONS[name](z))
            assert not bad.any(), f"{name} of {z[bad]}"
        assert not wrong(Tensor(x) * Tensor(y), x * y).any()
        assert not wrong(Tensor(x) / Tensor(y), x / y).any()
        for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh"):
            want = FUNCTIONS[name](z)
            np.testing.assert_allclose(
                np.nan_to_num(np.abs(meant(getattr(Tensor(z), name)())), nan=-1),
                np.nan_to_num(np.abs(want), nan=-1), rtol=1e-13, atol=1e-15, err_msg=name,
            )  # fmt: skip


def test_powers() -> None:
    rng = rng_for("powers")
    a, b = numbers(rng, 40, dtype=np.complex128), numbers(rng, 40, dtype=np.complex128)
    for got, want in (
        (Tensor(a) ** Tensor(b), a**b), (Tensor(a) ** 3, a**3), (Tensor(a) ** -2.0, a**-2.0),
        (Tensor(a) ** 0.5, a**0.5), (2j ** Tensor(b), 2j**b), (Tensor(a) ** 0, a**0),
        (Tensor([0j, 0j, 0j]) ** Tensor([0j, 2.0, 1j]),
         np.array([1, 0, complex(np.nan, np.nan)], np.complex64)),
    ):  # fmt: skip
        np.testing.assert_allclose(meant(got), want, rtol=1e-12, atol=1e-12)


GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda a, b: (a @ b).abs().sum(),
    "quotient": lambda a, b: ((a * a) / (a + 2)).abs().square().sum(),
    "functions": lambda a, b: (a.exp() * 2j).real.sum() + b.sin().imag.sum() + a.angle().sum(),
    "roots": lambda a, b: a.log().imag.sum() + b.sqrt().real.sum() + b.tanh().abs().sum(),
    "conjugate": lambda a, b: (
        (a * a.conj()).real.sum() + (b[1:, ::2] - b[1:, ::2].conj()).abs().sum()
    ),
    "products": lambda a, b: a.prod(0).abs().sum() + b.cumsum(0).angle().sum(),
    "running": lambda a, b: a.cumprod(1).abs().sum() + (b ** (0.3 + 0.2j)).abs().sum(),
    "inverse": lambda a, b: (a.asin() + a.acosh()).abs().sum() + (b.atanh() * 1j).real.sum(),
    "indexed": lambda a, b: (a[[0, 2, 0]] * 1j).imag.square().sum() + b[1:3].flip((0,)).abs().sum(),
    "parts": lambda a, b: (a.real * a.imag).sum() + (b.mean() * 1j).real,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_torchs(name: str) -> None:
    rng, function = rng_for("gradients", name), GRADIENTS[name]
    values = numbers(rng, 3, 4), numbers(rng, 4, 5)
    theirs = [torch.tensor(value, requires_grad=True) for value in values]
    ours = [Tensor(value, requires_grad=True) for value in values]
    function(*theirs).backward()
    function(*ours).backward()
    for mine, other in zip(ours, theirs, strict=True):
        if other.grad is None:
            assert mine.grad is None
        else:
            np.testing.assert_allclose(meant(mine.grad), other.grad.numpy(), 2e-4, 2e-5)


def test_second_gradients_and_seeds() -> None:
    z = Tensor(2 + 1j, requires_grad=True)
    (slope,) = (z * z * z).gradient(z, gradient=Tensor(1 + 0j))
    assert abs(meant(slope) - np.conj(3 * (2 + 1j) ** 2)) < 1e-4
    (second,) = slope.abs().square().gradient(z)
    w = torch.tensor(2 + 1j, requires_grad=True)
    (first,) = torch.autograd.grad(w * w * w, w, torch.tensor(1 + 0j), create_graph=True)
    (want,) = torch.autograd.grad(first.abs().square(), w)
    assert abs(meant(second) - want.item()) < 2e-2
    with pytest.raises(DTypeError, match="gradient="):
        (z * z).backward()


def test_jit_replays(device: str) -> None:
    rng = rng_for("jit", device)

    @jit
    def step(w: Tensor, x: Tensor) -> Tensor:
        loss = (w * x).abs().square().sum()
        (slope,) = loss.gradient(w)
        w.assign(w - 0.1 * slope)
        return loss.realize()

    value, x = numbers(rng, 4), numbers(rng, 4)
    w = Tensor(value, device=device)
    for _ in range(4):
        step(w, Tensor(x, device=device))
        value = value - np.float32(0.2) * value * np.abs(x) ** 2
    close(w, value, 2000)


def test_over_several_devices() -> None:
    a, places = numbers(rng_for("devices"), 4, 6), ("CPU:0", "CPU:1")
    for axis in (1, None):
        x = Tensor(a).shard(places, axis=axis)
        close(x * x + 1j, a * a + np.complex64(1j))
        close(x.sum(0), a.sum(0))
        close(x.imag, a.imag)
        close(x[Tensor([1, 0]).shard(places)], a[[1, 0]])
    w = Tensor(a, requires_grad=True)
    w.shard(places, axis=0).abs().square().sum().backward()
    close(w.grad, 2 * a)  # type: ignore[arg-type]


def test_made_of_python_numbers_and_shown(tmp_path: Path) -> None:
    x = Tensor([1j, 2])
    assert repr(x) == "Tensor([0.+1.j, 2.+0.j], dtype=complex64, device=CPU)"
    assert x.tolist() == [1j, 2]
    assert complex(x[0]) == x[0].item() == 1j
    assert Tensor([1j], dtype="complex128").dtype is dtypes.complex128
    assert (Tensor([1.0], dtype="float64") * 1j).dtype is dtypes.complex128
    assert (Tensor([1]) + 1j).tolist() == [1 + 1j]
    assert Tensor.full((2,), 1j).tolist() == [1j, 1j]
    assert Tensor.eye(2, dtype="complex64").tolist() == [[1, 0], [0, 1]]
    assert Tensor.arange(3, dtype="complex128").tolist() == [0, 1, 2]
    assert Tensor.complex(Tensor([1.0]), Tensor([2.0])).tolist() == [1 + 2j]
    assert abs(Tensor.polar(Tensor([2.0]), Tensor([np.pi])).item() + 2) < 1e-6
    npy_save(x, tmp_path / "x.npy")
    assert npy_load(tmp_path / "x.npy").tolist() == [1j, 2]
    np.save(tmp_path / "y.npy", np.array([1j, 2], ">c16"))
    assert npy_load(tmp_path / "y.npy").tolist() == [1j, 2]
    assert Tensor.from_dlpack(np.array([3j])).tolist() == np.from_dlpack(Tensor([3j])).tolist()
    assert torch.from_dlpack(x).tolist() == [1j, 2]
    for dtype in (torch.complex64, torch.complex128):
        torch.save({"x": torch.tensor([[1j, 2], [3, 4j]], dtype=dtype).T}, tmp_path / "x.pt")
        assert torch_load(tmp_path / "x.pt")["x"].tolist() == [[1j, 3], [2, 4j]]


def test_what_is_refused(device: str) -> None:
    x = Tensor([1j, 2], device=device)
    for refused in (
        lambda: x < 1, x.float, x.max, x.sort, x.argmax,
        x.floor, x.round, lambda: x % 2, lambda: x // 2, x.relu,
        lambda: x.atan2(x), x.erf, lambda: x.clamp(0, 1), lambda: float(x[0]),
        lambda: x.bitcast("int64"), x.softmax, lambda: Tensor([1.0]).imag,
        lambda: Tensor.full((2,), 1j, dtype="float32"), lambda: Tensor([1j], dtype="float32"),
        lambda: Tensor([1.0]).assign(Tensor([1j])), lambda: Tensor([1.0, 2]).__setitem__(0, 1j),
    ):  # fmt: skip
        with pytest.raises(DTypeError):
            refused()
    if widest(device) is np.complex64:
        with pytest.raises(Unsupported, match="no complex128"):
            x.cast("complex128").realize()


def test_loops_and_unknown_operations_say_so() -> None:
    from gpu import scan

    with pytest.raises(Unsupported, match="view_as_real"):
        scan(lambda total, x: (total + x, total), Tensor(1j), Tensor([1j, 2, 3]))
    with pytest.raises(GpuError, match="scatter"):
        x = Tensor.ones(3, dtype="complex64")
        x.scatter_reduce(0, Tensor([1]), Tensor([2j]), "prod").realize()


def test_the_standards_names() -> None:
    x = xp.asarray([1 + 2j, 3])
    assert xp.isdtype(x.dtype, "complex floating")
    assert xp.isdtype(x.dtype, "numeric")
    assert not xp.isdtype(x.dtype, "real floating")
    assert xp.real(x).tolist() == [1, 3]
    assert xp.imag(x).tolist() == [2, 0]
    assert xp.conj(x).tolist() == [1 - 2j, 3]
    assert xp.finfo(xp.complex128).dtype is xp.float64
    assert xp.result_type(xp.float64, xp.complex64) is xp.complex128
    info = xp.__array_namespace_info__()
    assert set(info.dtypes(kind="complex floating")) == {"complex64", "complex128"}
    assert info.default_dtypes()["complex floating"] is xp.complex64


def test_numbers_are_arguments_of_one_kernel() -> None:
    x = Tensor(numbers(rng_for("numbers"), 5)).realize()
    for factor in (0.25, 0.75):  # the second shows that the number varies
        (x * factor + factor * 1j).realize()
    before = Counters.compiled
    for factor in (0.3, 7.5, 1e-3):
        close(x * factor + factor * 1j, x.numpy() * np.float32(factor) + np.complex64(factor * 1j))
    assert Counters.compiled == before


def test_safetensors(tmp_path: Path) -> None:
    safe_save({"x": Tensor([1j, 2])}, tmp_path / "x.safetensors")
    assert safe_load(tmp_path / "x.safetensors")["x"].tolist() == [1j, 2]
    with pytest.raises(DTypeError, match="complex128"):
        safe_save({"x": Tensor([1j], dtype="complex128")}, tmp_path / "y.safetensors")
