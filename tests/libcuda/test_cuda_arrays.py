"""`__cuda_array_interface__` of DEV=CUDA both ways, on the model of libcuda."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from gpu import Context, Device, Tensor, dtypes, jit
from gpu.backends.cuda.context import CudaContext
from gpu.core.errors import FormatError, GpuError, InvalidType, InvalidValue, Unsupported
from libcuda.foreign import CUDA, Make, WithInterface
from sim.cuda.raw_cuda import RawCuda

INTERFACE = "__cuda_array_interface__"


def draw(rng: np.random.Generator) -> np.ndarray:
    shape = tuple(rng.integers(1, 9, rng.integers(0, 4)))
    return rng.integers(0, 2, shape).astype(rng.choice(["?", "u1", "i2", "i8", "f2", "f4", "f8"]))


# Theirs, used here.


@pytest.mark.parametrize("seed", range(8))
def test_their_memory_is_used_in_place_behind_all_there_is(make: Make, seed: int) -> None:
    theirs = make(draw(np.random.default_rng(seed)), WithInterface)
    x = Tensor.from_dlpack(theirs, copy=False)
    assert (x.device, x.shape, x.dtype.np) == ("CUDA", theirs.shape, theirs.values.dtype)
    np.testing.assert_array_equal((x + x).numpy(), theirs.values + theirs.values)
    new = (1 - theirs.values).astype(theirs.values.dtype)
    theirs.fill(new)
    np.testing.assert_array_equal(Tensor.from_dlpack(theirs).numpy(), new)


@pytest.mark.parametrize("which", ["own", 1, 2])
def test_a_stream_that_is_named_is_followed_and_the_host_goes_on(
    make: Make, monkeypatch: pytest.MonkeyPatch, which: Any
) -> None:
    monkeypatch.setattr(CudaContext, "synchronize_all", None)
    for value in range(6):
        theirs = make(np.zeros(400, np.int32), WithInterface)
        theirs.raw.call("cuStreamSynchronize", theirs.stream)
        stream = theirs.stream if which == "own" else which
        theirs.raw.call("cuMemsetD32Async", theirs.address, value, 400, stream)
        theirs.changes["stream"] = stream
        assert (Tensor.from_dlpack(theirs) * 3).tolist() == [3 * value] * 400


@pytest.mark.parametrize("version", [0, 2, 3])
def test_without_a_stream_all_is_waited_for(make: Make, version: int) -> None:
    theirs = make(np.arange(9, dtype=np.float32), WithInterface, version=version)
    if version < 3:
        theirs.changes["stream"] = None
    assert (Tensor.from_dlpack(theirs) + 1).tolist() == list(range(1, 10))


def test_their_memory_is_kept_until_work_on_it_has_ended(make: Make) -> None:
    theirs = make(np.arange(64, dtype=np.float32), WithInterface)
    holds = type("Holds", (), {INTERFACE: property(lambda self: getattr(theirs, INTERFACE))})
    array = holds()
    kept = weakref.ref(array)
    x = Tensor.from_dlpack(array)
    del array
    y = (x + 1).realize()
    del x
    gc.collect()
    assert kept() is not None
    assert y.tolist() == list(range(1, 65)) and kept() is None


def test_what_they_say_is_read_only_is_not_written(make: Make) -> None:
    theirs = make(np.arange(6, dtype=np.float32), WithInterface)
    theirs.changes["data"] = (theirs.address, True)
    x = Tensor.from_dlpack(theirs)
    x += 1
    x[2] = 100
    assert x.tolist() == [1, 2, 100, 4, 5, 6]
    assert theirs.now().tolist() == list(range(6))


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((3, 4), (4, 12), 0), ((4,), (-4,), 12), ((2, 3), (24, 8), 0), ((3, 2), (0, 4), 4)],
)
def test_strides_are_copied(
    make: Make, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    values = np.arange(24, dtype=np.int32)
    theirs = make(values, WithInterface)
    theirs.shape, theirs.strides, theirs.offset = shape, strides, offset
    with pytest.raises(InvalidValue, match=r"without a copy.*strides"):
        Tensor.from_dlpack(theirs, copy=False)
    want = np.lib.stride_tricks.as_strided(values[offset // 4 :], shape, strides)
    np.testing.assert_array_equal(Tensor.from_dlpack(theirs).numpy(), want)


def test_a_tensor_of_an_array_is_a_copy_that_nothing_reaches(make: Make) -> None:
    for kind in ({"kind": WithInterface}, {}):
        theirs = make(np.arange(8, dtype=np.float32), **kind)
        if not kind:  # of a library that has both
            type(theirs).__cuda_array_interface__ = {}
        try:
            x = Tensor(theirs)
        finally:
            if not kind:
                del type(theirs).__cuda_array_interface__
        theirs.raw.call("cuMemsetD32Async", theirs.address, 0, 8, theirs.stream)
        assert x.device == "CUDA" and x.tolist() == list(range(8))
        assert Tensor(make(np.ones(3, np.int32), WithInterface), dtype="float32").dtype == (
            dtypes.float32
        )


def test_memory_of_another_gpu_stays_there_or_is_copied(raw: RawCuda, make: Make) -> None:
    first, other = raw.get("cuCtxGetCurrent"), raw.start(1)
    theirs = make(np.arange(5, dtype=np.float32), WithInterface)
    try:
        raw.call("cuStreamSynchronize", theirs.stream)
        assert Tensor.from_dlpack(theirs).device == "CUDA:1"
        y = Tensor.from_dlpack(theirs, device="CUDA")
        assert y.device == "CUDA" and y.tolist() == [0, 1, 2, 3, 4]
        assert Tensor(theirs, device="CUDA").tolist() == [0, 1, 2, 3, 4]
        gc.collect()
        Device["CUDA:1"].synchronize()
    finally:
        raw.call("cuCtxSetCurrent", other)
        theirs.close()
        theirs.close = lambda: None  # type: ignore[method-assign]
        raw.call("cuCtxSetCurrent", first)
        raw.call("cuDevicePrimaryCtxRelease_v2", 1)


def test_nothing_to_share(make: Make) -> None:
    theirs = make(np.zeros(4, np.float32), WithInterface, shape=(0, 3), data=(0, False))
    assert Tensor.from_dlpack(theirs).shape == (0, 3)
    empty = getattr(Tensor(np.zeros((0, 3), np.float32)), INTERFACE)
    assert (empty["shape"], empty["data"][0]) == ((0, 3), 0)


BAD: list[tuple[dict[str, Any], type[GpuError], str]] = [
    ({"mask": object()}, Unsupported, "mask"),
    ({"shape": 4}, FormatError, "shape"),
    ({"shape": (-1,)}, FormatError, "negative"),
    ({"shape": (2.0,)}, FormatError, "tuple of ints"),
    ({"typestr": ">f4"}, Unsupported, "other byte order"),
    ({"typestr": "<M8[s]"}, Unsupported, "datetime64"),
    ({"typestr": "<V2"}, Unsupported, "void16"),
    ({"typestr": "nonsense"}, FormatError, "no type of numpy's"),
    ({"typestr": None}, FormatError, "must be a str"),
    ({"data": None}, FormatError, "data"),
    ({"data": (0, False)}, FormatError, "without memory"),
    ({"data": "ab"}, FormatError, "data"),
    ({"strides": (4, 4)}, FormatError, "strides"),
    ({"strides": (6,)}, Unsupported, "multiples of the 4 bytes"),
    ({"stream": 0}, InvalidValue, "0 is forbidden"),
    ({"stream": -1}, InvalidValue, "expected None"),
    ({"stream": True}, InvalidValue, "expected None"),
    ({"stream": 1 << 70}, InvalidValue, "expected None"),
    ({"shape": (5,)}, InvalidValue, "20 bytes are needed there, and it has 16"),
    ({"shape": (1 << 40,)}, InvalidValue, "bytes are needed"),
]


@pytest.mark.parametrize(("changes", "error", "says"), BAD)
def test_what_cannot_be_taken(
    make: Make, changes: dict[str, Any], error: type[GpuError], says: str
) -> None:
    theirs = make(np.arange(4, dtype=np.float32), WithInterface)
    theirs.changes.update(changes)
    for take in (Tensor.from_dlpack, Tensor):
        with pytest.raises(error, match=says):
            take(theirs)
    theirs.changes.clear()
    assert Tensor.from_dlpack(theirs).tolist() == [0, 1, 2, 3]


def test_addresses_that_are_not_the_gpus(raw: RawCuda, make: Make) -> None:
    theirs, host = make(np.arange(4, dtype=np.float32), WithInterface), np.zeros(8)
    gone, lost = raw.alloc(64), raw.stream(1)
    raw.call("cuMemFree_v2", gone)
    raw.call("cuStreamDestroy_v2", lost)
    for changes, says in (
        ({"data": (theirs._pinned.ctypes.data, False)}, "pinned memory of the host"),
        ({"data": (host.ctypes.data & ~15, False)}, "no memory there. It is of the host"),
        ({"data": (gone, False)}, "was freed"),
    ):
        theirs.changes = changes
        with pytest.raises(InvalidValue, match=says):
            Tensor.from_dlpack(theirs)


def test_what_is_no_dict(make: Make) -> None:
    array = type("Odd", (), {INTERFACE: 7})()
    with pytest.raises(FormatError, match="must be a dict"):
        Tensor.from_dlpack(array)


def test_other_devices_say_why_not(make: Make) -> None:
    theirs = make(np.zeros(4, np.float32), WithInterface)
    for take in (Tensor.from_dlpack, Tensor):
        with pytest.raises(Unsupported, match=r"WithInterface.*device='CUDA' alone"):
            take(theirs, device="CPU")
    with pytest.raises(InvalidType, match=r"Tensor.from_dlpack takes the array"):
        Tensor.from_blob(theirs, 4, device="CUDA")  # type: ignore[arg-type]
    with Context(DEV="CPU"):
        assert Tensor.from_dlpack(theirs, device="CUDA").device == "CUDA"
        assert not hasattr(Tensor([1.0]), INTERFACE)


# Ours, lent to them.


@pytest.mark.parametrize("seed", range(4))
def test_our_memory_is_there_and_up_to_date(raw: RawCuda, seed: int) -> None:
    values = draw(np.random.default_rng(seed))
    x = Tensor(values) + Tensor(values)
    told = getattr(x, INTERFACE)
    assert told["shape"] == values.shape and told["typestr"] == values.dtype.str
    assert (told["version"], told["strides"], told["stream"]) == (3, None, None)
    address, read_only = told["data"]
    assert not read_only  # or torch would not take it
    np.testing.assert_array_equal(raw.download(address, values), values + values)
    assert getattr(x, INTERFACE) == told


def test_what_is_lent_is_never_written_and_stays_with_the_tensor(raw: RawCuda) -> None:
    """All that the other library keeps is the tensor, which comes to stand for other values."""
    x = Tensor(np.arange(300, dtype=np.float32)).realize()
    address = getattr(x, INTERFACE)["data"][0]
    x += 1
    x[0] = 50
    x.realize()

    @jit
    def step(v: Tensor) -> Tensor:
        v.assign(v + 1)
        return v

    for _ in range(4):
        step(x)
    x.assign(Tensor(np.zeros(300, np.float32))).realize()
    gc.collect()
    others = [Tensor(np.full(300, i, np.float32)).realize() for i in range(4)]
    assert address not in [getattr(each, INTERFACE)["data"][0] for each in (x, *others)]
    values = np.zeros(300, np.float32)
    assert raw.download(address, values).tolist() == list(range(300))


def test_memory_is_used_again_behind_all_they_do(raw: RawCuda) -> None:
    stream, target = raw.stream(1), raw.alloc(4000)
    x = Tensor(np.full(1000, 7, np.float32)).realize()
    address = getattr(x, INTERFACE)["data"][0]
    raw.call("cuMemcpyDtoDAsync_v2", target, address, 4000, stream)
    del x
    gc.collect()
    y = Tensor(np.zeros(1000, np.float32)).realize()
    assert getattr(y, INTERFACE)["data"][0] == address
    raw.call("cuStreamSynchronize", stream)
    assert raw.download(target, np.zeros(1000, np.float32)).tolist() == [7] * 1000
    raw.call("cuMemFree_v2", target)
    raw.call("cuStreamDestroy_v2", stream)


def test_views_are_computed_into_memory_of_their_own(raw: RawCuda) -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()
    y = x.T
    told = getattr(y, INTERFACE)
    assert told["shape"] == (3, 2) and told["data"][0] != getattr(x, INTERFACE)["data"][0]
    got = raw.download(told["data"][0], np.zeros(6, np.float32))
    assert got.tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2])
def test_dtypes_without_a_name_go_by_dlpack(raw: RawCuda, dtype: Any) -> None:
    x = Tensor([1.0, 2.0], dtype=dtype)
    assert not hasattr(x, INTERFACE)
    with pytest.raises(AttributeError, match=r"dtypes that numpy has.*from_dlpack"):
        getattr(x, INTERFACE)
    assert x.__dlpack_device__() == (CUDA, 0)


def test_what_is_exchanged_comes_back_as_it_was(raw: RawCuda) -> None:
    x = Tensor(np.arange(7, dtype=np.float32)).realize()
    array = type("Array", (), {INTERFACE: getattr(x, INTERFACE)})()
    y = Tensor.from_dlpack(array, copy=False)
    assert getattr(y, INTERFACE)["data"] == getattr(x, INTERFACE)["data"]
    assert (x + y).tolist() == [2 * i for i in range(7)]
