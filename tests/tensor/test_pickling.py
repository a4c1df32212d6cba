"""Tensors in pickles: values, in few bytes more than they have, and nothing else."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu import Device, JitError, Tensor, Var, dtypes, jit
from gpu.core.errors import (
    ConfigError,
    DeviceError,
    DTypeError,
    FormatError,
    GpuError,
    InvalidType,
    Unsupported,
)
from gpu.nn.state import get_parameters
from gpu.runtime.device import BACKENDS, register
from gpu.tensor.formats.pickled import rebuilt
from tensor.reference import rng_for
from workers import Model, Named, Trainer, doubled

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
DTYPES = [d.name for d in (dtypes.bool, dtypes.int8, dtypes.uint64, dtypes.fp8e5m2)]
DTYPES += ["fp8e4m3", "bfloat16", "float16", "float32", "float64"]


def again(value: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_shapes_and_dtypes(dtype: str, protocol: int) -> None:
    rng = rng_for(dtype, protocol)
    for shape in [(), (0,), (1,), (3, 0, 2), *(tuple(rng.integers(1, 9, n)) for n in range(1, 5))]:
        x = Tensor(rng.integers(0, 2 if dtype == "bool" else 9, shape)).cast(dtype)
        y = again(x, protocol)
        assert (type(y), y.dtype, y.shape, y.device) == (Tensor, x.dtype, x.shape, x.device)
        assert y.tolist() == x.tolist() and (y + y).tolist() == (x + x).tolist()


@pytest.mark.parametrize("protocol", (2, 4, 5))
def test_on_every_device(device: str, protocol: int) -> None:
    base = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    lazy, view = base * 2 - 1, base[:, ::-1].T
    for x in (base, lazy, view, base[1, 2], base.expand(2, 2, 3), base[:0]):
        y = again(x, protocol)
        assert y.device == device and y.shape == x.shape and y.tolist() == x.tolist()
        y.assign(y + 1).realize()
        assert y.tolist() == (x + 1).tolist()
    assert base.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_pickles_hold_the_value_alone() -> None:
    others = [Tensor.rand(100_000).realize() for _ in range(3)]
    scalar = Tensor(3.0).realize()
    for protocol in PROTOCOLS:
        assert len(pickle.dumps(scalar, protocol)) < 200
        assert (
            len(pickle.dumps(others[0][5], protocol)) < 200
        )  # and not the whole it shows a bit of
        assert len(pickle.dumps(others[1], protocol)) > 400_000
    model = pickle.dumps(Model())
    assert len(model) < 2000


def test_a_pickle_is_a_snapshot() -> None:
    x = Tensor([1.0, 2.0]).realize()
    pickled = pickle.dumps(x)
    x.assign(x * 0).realize()
    assert pickle.loads(pickled).tolist() == [1.0, 2.0]
    one, two = pickle.loads(pickled), pickle.loads(pickled)
    one[0] = 5.0
    assert two.tolist() == [1.0, 2.0]


def test_leaves_and_results() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    v = again(w)
    assert v.requires_grad is True and v.grad is None  # as in torch
    (v * 3).sum().backward()
    assert v.grad.tolist() == [3.0, 3.0] and w.grad is not None and w.grad.tolist() == [2.0, 4.0]
    assert again(Tensor([1], requires_grad=False)).requires_grad is False
    assert again(w * 2).tolist() == [2.0, 4.0] and again(w * 2).requires_grad is None


def test_identity_is_kept_and_views_are_values() -> None:
    x = Tensor([1.0, 2.0])
    one, two, view = again([x, x, x[1:]])
    assert one is two
    one[1] = 5.0
    assert view.tolist() == [2.0]


def test_out_of_band_buffers_are_the_memory_itself() -> None:
    x = Tensor(rng_for("band").standard_normal(100_000).astype(np.float32))
    x.realize()
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(x, 5, buffer_callback=buffers.append)
    assert len(pickled) < 200 and [b.raw().nbytes for b in buffers] == [x.nbytes()]
    values = x.tolist()
    y = pickle.loads(pickled, buffers=buffers)
    addresses = {np.asarray(t).ctypes.data for t in (x, y)}
    assert len(addresses) == 1
    x[0] = -1.0
    x.realize()
    y[1] = -2.0
    y.realize()
    assert x.tolist() == [-1.0, *values[1:]] and y.tolist() == [values[0], -2.0, *values[2:]]
    assert pickle.loads(pickled, buffers=buffers).tolist() == values


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_tensors_on_several_devices(axis: int | None) -> None:
    for values in ([[1, 2], [3, 4]], np.zeros((2, 4, 0), np.float32)):
        x = Tensor(values).shard(("CPU", "CPU:1"), axis)
        for y in (again(x), again(x * 1, 2)):
            assert (y.device, y.shard_axis, y.shape) == (x.device, axis, x.shape)
            assert y.tolist() == x.tolist()


def test_images(need: Callable[[str], None]) -> None:
    need("opencl")
    values = rng_for("image").standard_normal((8, 16, 4)).astype(np.float32)
    try:
        x = Tensor(values, device="CL").cast(dtypes.imagef((8, 16))).realize()
    except Unsupported as error:
        pytest.skip(error.message)
    y = again(x)
    assert y.dtype is x.dtype and y.tolist() == values.tolist()
    data = [values.tobytes()]
    with pytest.raises(Unsupported, match="no images"):
        rebuilt(Tensor, (8, 16, 4), x.dtype.name, "CPU", None, data, None)


def test_memory_of_others() -> None:
    memory = np.arange(64, dtype=np.float32)
    x = Tensor.from_blob(memory.ctypes.data, (64,), device="CPU")
    pickles = [pickle.dumps(x, protocol) for protocol in PROTOCOLS]
    memory[:] = -1
    assert all(pickle.loads(pickled).tolist() == list(range(64)) for pickled in pickles)


def test_what_cannot_be_pickled_says_so() -> None:
    n = Var("n", 1, 10).bind(3)
    x = Tensor.arange(10)[:n]
    with pytest.raises(Unsupported, match=r"of shape \[n\].* pickle what its numpy\(\) gives"):
        pickle.dumps(x)
    assert again(Tensor(x.numpy())).tolist() == [0, 1, 2]
    y = Tensor([1.0]).realize()
    for thing in (n, y._node, y._node.attr[0], Device["CPU"], Device["CPU"].allocator):
        with pytest.raises(InvalidType, match="belongs to the process that made it"):
            pickle.dumps(thing)

    @jit
    def pickled(x: Tensor) -> bytes:
        return pickle.dumps(x)

    with pytest.raises(JitError, match="pickling a tensor inside a jitted function"):
        pickled(y)


def test_things_there_is_one_of() -> None:
    for protocol in PROTOCOLS:
        for one in (Device, dtypes.bfloat16, dtypes.imageh((2, 3))):
            assert again(one, protocol) is one
    assert again(Tensor.zeros(2, 3).size)(-1) == 3
    assert repr(again(Var("k", 2, 8, 2))) == repr(Var("k", 2, 8, 2))


def test_classes_derived_from_tensor() -> None:
    x = Named([1.0, 2.0])
    x.label = "weights"
    y = again(x)
    assert type(y) is Named and y.label == "weights" and y.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("protocol", (2, 5))
def test_models_and_optimisers_stay_together(protocol: int) -> None:
    first = Trainer()
    first.losses(3)
    second = again(first, protocol)
    assert second.parameters[0] is second.model.first.weight
    assert [id(p) for p in second.optimizer.params] == [id(p) for p in second.parameters]
    assert [p.requires_grad for p in second.parameters] == [True] * 4
    expected = first.losses(3)
    np.testing.assert_allclose(second.losses(3), expected, rtol=1e-5)
    alone = again(first.optimizer)
    assert {id(p) for p in alone.params}.isdisjoint(map(id, get_parameters(first.model)))


def test_jitted_methods_are_those_of_the_new_object() -> None:
    model = Model()
    x = Tensor([[1.0, 2.0, 3.0]])
    for _ in range(3):
        model.predict(x)
    other = again(model)
    other.second.bias.assign(Tensor([100.0]))
    for _ in range(4):
        assert other.predict(x).item() > 50 > model.predict(x).item()
    method = again(model.predict)
    assert method(x).item() == pytest.approx(model.predict(x).item())


def test_jitted_functions_go_by_name() -> None:
    assert again(Model.predict) is Model.predict
    jitted = jit(doubled)
    assert again(jitted)(Tensor([2.0])).item() == 4.0 and again(jitted).captures == 0
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(jit(lambda x: x))


def test_a_device_that_is_not_there() -> None:
    def refuse(name: str, spec: object) -> Any:
        raise DeviceError(f"{name}: nothing is plugged in")

    register("UNPLUGGED", refuse)
    try:
        for device in ("UNPLUGGED", "UNPLUGGED:3"):
            with pytest.raises(DeviceError, match=r"plugged in.*pickle its .to\('CPU'\)"):
                rebuilt(Tensor, (1,), "float32", device, None, [b"1234"], None)
    finally:
        del BACKENDS["UNPLUGGED"]
        from gpu.core.devspec import DEVICES

        del DEVICES["UNPLUGGED"]
    with pytest.raises(ConfigError, match="NOSUCH"):
        rebuilt(Tensor, (1,), "float32", "NOSUCH", None, [b"1234"], None)


GOOD: dict[str, Any] = {
    "kind": Tensor,
    "shape": (2, 3),
    "dtype": "float32",
    "device": "CPU",
    "axis": None,
    "data": [bytes(24)],
    "requires_grad": None,
}
FORGED: list[dict[str, Any]] = [
    {"kind": int}, {"kind": "Tensor"}, {"kind": None},
    {"shape": [2, 3]}, {"shape": (2, -3)}, {"shape": (2, 3.0)}, {"shape": (True, 6)},
    {"shape": (2, 4)}, {"shape": (1 << 62, 3)}, {"shape": (1 << 200,)}, {"shape": None},
    {"shape": (6, "x")},
    {"dtype": "float64"}, {"dtype": "float31"}, {"dtype": 7}, {"dtype": dtypes.float32},
    {"dtype": "imagef((2, 3))"}, {"dtype": "imagef((1000000, 1000000))"},
    {"device": 4711}, {"device": ("CPU", "CPU")}, {"device": ()}, {"device": "CPU:-1"},
    {"device": ("CPU", "CPU:1"), "data": [bytes(24)] * 2},
    {"device": ("CPU", "CPU:1"), "axis": 1},
    {"axis": 0}, {"axis": "x"}, {"axis": -1, "device": ("CPU", "CPU:1")},
    {"axis": 0, "device": ("CPU", "CPU:1"), "data": [bytes(12), bytes(11)]},
    {"data": []}, {"data": [bytes(23)]}, {"data": [bytes(25)]}, {"data": bytes(24)},
    {"data": [None]}, {"data": ["x" * 24]}, {"data": [[0] * 24]}, {"data": [bytes(24)] * 2},
    {"requires_grad": 1}, {"requires_grad": "yes"}, {"requires_grad": True, "dtype": "int32"},
]  # fmt: skip


def test_what_is_forged_is_forged() -> None:
    assert rebuilt(**GOOD).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("change", FORGED, ids=str)
def test_forged_pickles_are_typed_errors(change: dict[str, Any]) -> None:
    with pytest.raises((FormatError, DTypeError, GpuError)):
        rebuilt(**(GOOD | change))


def test_bools_are_made_0_and_1() -> None:
    x = rebuilt(Tensor, (4,), "bool", "CPU", None, [bytes([0, 1, 2, 255])], None)
    assert x.numpy().view(np.uint8).tolist() == [0, 1, 1, 1]


LOAD = """
import pickle, sys
from gpu import Device, Tensor
x = pickle.load(sys.stdin.buffer)
print(Device.DEFAULT, x.device, (x * 2).tolist(), (Tensor([1.0], device=x.device) + x).tolist())
"""


@pytest.mark.parametrize("protocol", (2, 3, 4, 5))
@pytest.mark.parametrize(("here", "there"), [("CPU", "PYTHON"), ("PYTHON", "CPU")])
def test_in_a_process_with_another_default_device(here: str, there: str, protocol: int) -> None:
    x = Tensor([1.0, 2.0, 3.0], device=here) * 2
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        input=pickle.dumps(x, protocol),
        env={**os.environ, "DEV": there, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    expected = f"{there} {here} [4.0, 8.0, 12.0] [3.0, 5.0, 7.0]\n"
    assert (done.stdout.decode(), done.returncode) == (expected, 0), done.stderr.decode()


def test_files_of_numpy_and_python_hold_them(tmp_path: Path) -> None:
    x = Tensor([[1.0, 2.0]])
    with (tmp_path / "file").open("wb") as file:
        pickle.Pickler(file, 4).dump({"x": x, "copy": copy.deepcopy(x)})
    with (tmp_path / "file").open("rb") as file:
        loaded = pickle.Unpickler(file).load()
    assert loaded["x"].tolist() == loaded["copy"].tolist() == [[1.0, 2.0]]
