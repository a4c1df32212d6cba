"""The steps of a Mac's report: what each shows, which names its numbers."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import gpu
from gpu import Device, Tensor, jit
from gpu.core.errors import CompileError, GpuFault

Facts = dict[str, Any]
Array = npt.NDArray[Any]
_RANDOM: Final = 20260119
_FUNCTIONS: Final = ("exp", "log", "sin", "cos", "tanh", "sqrt", "rsqrt", "sigmoid", "exp2", "log2")


@dataclass(frozen=True)
class MacStep:
    """A step.

    Attributes:
        about: what it shows that nothing but a Mac can.
        run: gives facts; raises what shows that it failed.
        seconds: after which it is stopped.
        risks: what may happen to the machine; empty where nothing may.
    """

    about: str
    run: Callable[[], Facts]
    seconds: float = 120
    risks: str = ""


STEPS: Final[dict[str, MacStep]] = {}


def _step(about: str, seconds: float = 120, risks: str = "") -> Callable[[Any], Any]:
    def note(run: Callable[[], Facts]) -> Callable[[], Facts]:
        STEPS[run.__name__] = MacStep(about, run, seconds, risks)
        return run

    return note


def _rng() -> np.random.Generator:
    return np.random.default_rng(_RANDOM)


def _require(right: bool, what: str) -> None:
    if not right:
        raise AssertionError(what)


@_step("which system, Python and GPU this is")
def machine() -> Facts:
    """Names of products and versions, and nothing that tells two of a kind apart."""
    return {
        "system": platform.system(),
        "release": platform.mac_ver()[0] or platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gpu": gpu.__version__,
    }


@_step("messages arrive: a device opens and tells of itself")
def opening() -> Facts:
    """What Metal tells of the GPU."""
    device = Device["METAL"]
    return dict(device.describe())


@_step("structures arrive by value (sizes of a launch), and every thread of a grid runs once")
def grids() -> Facts:
    """Launches of many sizes, each of whose threads writes its number."""
    write = gpu.kernel(
        {"metal": "out[global_id] = (int)global_id + a[global_id];"},
        outputs=lambda a: (a.shape, a.dtype),
        grid=lambda a: a.shape[0] // 32,
        block=32,
        name="write",
    )
    sizes = [32 * int(each) for each in _rng().integers(1, 4000, 12)]
    for size in sizes:
        found = write(Tensor(np.full(size, 7, np.int32))).numpy()
        _require(bool((found == np.arange(size) + 7).all()), f"{size} threads: wrong numbers")
    return {"sizes": sizes}


@_step("Apple's compiler takes the printed MSL of every dtype and operation here")
def arithmetic() -> Facts:
    """Elementwise operations of all dtypes against numpy."""
    rng, right = _rng(), []
    names = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    for name in (*names, "float16", "float32"):
        kind = np.dtype(name)
        if kind.kind == "f":
            a, b = rng.standard_normal((2, 1000)).astype(kind)
        else:
            low, high = np.iinfo(kind).min, np.iinfo(kind).max
            a, b = rng.integers(low, high, (2, 1000), dtype=kind, endpoint=True)
        x, y = Tensor(a), Tensor(b)
        for operation, found, wanted in (
            ("+", x + y, a + b), ("*", x * y, a * b), ("max", x.maximum(y), np.maximum(a, b)),
            ("<", x < y, a < b), ("where", (x < y).where(x, y), np.where(a < b, a, b)),
        ):  # fmt: skip
            same = np.array_equal(found.numpy(), wanted)
            _require(same, f"{name} {operation} differs from numpy's")
        right.append(name)
    return {"dtypes": right}


@_step("how exact Metal's functions are with fast math off")
def accuracy() -> Facts:
    """The largest error of each function in units in the last place, against float64.

    Results below 1/64 count as that: where a sine is zero, no number of units says anything.
    """
    x = np.concatenate([_rng().uniform(0.01, 30, 20_000), _rng().uniform(1e-6, 1e-2, 5_000)])
    x = x.astype(np.float32)
    exact = {
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    }
    errors: Facts = {}
    for name in _FUNCTIONS:
        found = getattr(Tensor(x), name)().numpy().astype(np.float64)
        wanted = exact.get(name, getattr(np, name, None))(x.astype(np.float64))
        ulp = np.spacing(np.maximum(np.abs(wanted), 1 / 64).astype(np.float32)).astype(np.float64)
        errors[name] = round(float(np.max(np.abs(found - wanted) / ulp)), 2)
    return {"ulps": errors}


@_step("threadgroup memory, barriers and SIMD-groups: sums, softmax, argmax, sort, scan")
def reductions() -> Facts:
    """Against numpy."""
    a = _rng().standard_normal((37, 1030)).astype(np.float32)
    x = Tensor(a)
    soft = np.exp(a - a.max(1, keepdims=True))
    soft = soft / soft.sum(1, keepdims=True)
    worst = {}
    for name, found, wanted in (
        ("sum", x.sum(1), a.sum(1)), ("softmax", x.softmax(1), soft),
        ("cumsum", x.cumsum(1), np.cumsum(a, 1)), ("sort", x.sort(1)[0], np.sort(a, 1)),
        ("argmax", x.argmax(1), a.argmax(1)),
    ):  # fmt: skip
        difference = np.abs(found.numpy().astype(np.float64) - wanted)
        worst[name] = float(difference.max())
        _require(worst[name] < 1e-3, f"{name} is off by {worst[name]}")
    return {"largest differences": worst}


@_step("products of matrices")
def products() -> Facts:
    """Sizes that fit blocks and sizes that do not, in float32 and float16, with their speed."""
    rng, rates = _rng(), {}
    for name, tolerance in (("float32", 1e-3), ("float16", 0.5)):
        for size in (_small(512), _small(333)):
            a, b = rng.standard_normal((2, size, size)).astype(name)
            x, y = Tensor(a).realize(), Tensor(b).realize()
            wanted = a.astype(np.float64) @ b.astype(np.float64)
            worst = np.abs((x @ y).numpy() - wanted).max()
            _require(worst < tolerance, f"{name} {size}: off by {worst}")
            seconds = _best(lambda x=x, y=y: (x @ y).realize(), 5)
            rates[f"{name} {size}"] = round(2 * size**3 / seconds / 1e9, 1)
    return {"GFLOP/s, whole call": rates}


@_step("memory is one: numpy reads in place, pages of the host are borrowed")
def memory() -> Facts:
    """What is shared with the host."""
    x = (Tensor.arange(5000).float() * 3).realize()
    first, second = np.from_dlpack(x), np.from_dlpack(x)
    _require(np.shares_memory(first, second), "numpy does not read in place")
    page = 16 << 10
    whole = np.zeros(4 * page, np.uint8)
    begin = -whole.ctypes.data % page
    data = whole[begin : begin + 2 * page].view(np.float32)
    data[:] = np.arange(data.size)
    _require(Tensor(data).sum().item() == data.sum(dtype=np.float64), "borrowed pages differ")
    return {"largest buffer": Device["METAL"].context.info.most_memory}


@_step("replays: the same launches again, with new values and memory")
def replays() -> Facts:
    """A step of several kernels, launched and replayed, with the time of each."""

    def step(x: Tensor) -> Tensor:
        for _ in range(10):
            x = (x @ x.T * 0.01).softmax(1) + x
            x = x.realize()
        return x

    replayed, rng = jit(step), _rng()
    for _ in range(4):
        a = rng.standard_normal((64, 64)).astype(np.float32)
        wanted = step(Tensor(a)).numpy()
        np.testing.assert_allclose(replayed(Tensor(a)).numpy(), wanted, rtol=1e-5, atol=1e-5)
    x = Tensor(a).realize()
    times = {
        name: round(1e6 * _best(lambda run=run: run(x).numpy(), 10), 1)
        for name, run in (("launched", step), ("replayed", replayed))
    }
    return {"microseconds of 10 rounds": times}


@_step("what a launch and a copy cost")
def speed() -> Facts:
    """The time of a launch that is waited for, and bytes a second of an addition."""
    x = Tensor.zeros(64).contiguous().realize()
    waited = _best(lambda: (x + 1).realize().numpy(), 30)
    size = _small(16 << 20)
    large = Tensor.zeros(size).contiguous().realize()
    again = jit(lambda t: (t + 1).realize())
    for _ in range(3):
        again(large).numpy()

    def added() -> None:
        again(large)
        Device["METAL"].synchronize()

    seconds = _best(added, 10)
    return {
        "microseconds of a launch that is read": round(1e6 * waited, 1),
        "GB/s of an addition": round(8 * size / seconds / 1e9, 1),
    }


@_step("words of Apple's compiler become a typed error that names the line")
def refusals() -> Facts:
    """A kernel that is no MSL."""
    wrong = _block("\nout[global_id] = nothing_of_that_name;", "wrong")
    try:
        wrong(Tensor.arange(64).realize()).numpy()
    except CompileError as error:
        return {"message": str(error)[:600]}
    raise AssertionError("a wrong source was taken")


@_step(
    "a kernel that writes where nothing is: a typed error, and the device goes on",
    risks="the GPU is reset by the system; what other programs had on it may be lost",
)
def faults() -> Facts:
    """A write 512 MiB behind its memory."""
    away = _block("out[global_id + (1 << 27)] = a[global_id];", "away")
    try:
        away(Tensor.arange(64).realize()).numpy()
        told = "no error: the write went somewhere"
    except GpuFault as error:
        told = str(error)[:600]
    _require((Tensor([1.0]) + 1).item() == 2.0, "the device does not go on")
    return {"message": told}


def _block(body: str, name: str) -> Callable[[Tensor], Tensor]:
    """A kernel of one threadgroup of 64 threads."""
    made: Callable[[Tensor], Tensor] = gpu.kernel(
        {"metal": body},
        outputs=lambda a: (a.shape, a.dtype),
        grid=lambda a: 1,
        block=64,
        name=name,
    )
    return made


def _best(run: Callable[[], object], times: int) -> float:
    """The least of some times, in seconds."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _small(size: int) -> int:
    """A size, or less of it where a model stands in, which takes a thousand times as long."""
    return size if platform.system() == "Darwin" else max(24, size // 16 if size < 4096 else 4096)
