"""Memory of DEV=CUDA shared with another library of the process, on the model of libcuda.

What nothing orders, the model tells of: see `keeping_rules`.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from gpu import Context, Device, Tensor, jit
from gpu.compiler.fusion import inplace
from gpu.core.errors import DeviceError, InvalidType, InvalidValue, Unsupported
from gpu.runtime import execute
from gpu.runtime.recent import Recent
from gpu.sim.cuda import drivers
from libcuda.foreign import CUDA, Foreign, Make, Taken
from sim.cuda.raw_cuda import RawCuda

READ_ONLY, IS_COPIED = 1, 2
OWN = 3
"""Stands for a stream of the consumer's own."""


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-50, 50, shape).astype(np.float32)


# Theirs, used here.


@pytest.mark.parametrize("seed", range(4))
def test_their_memory_is_used_in_place_behind_their_stream(make: Make, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 9, rng.integers(1, 4)))
    theirs = make(draw(rng, *shape))
    x = Tensor.from_dlpack(theirs, copy=False)
    assert theirs.asked == [
        {"max_version": (1, 0), "stream": Device["CUDA"].allocator.exchange.stream}
    ]
    assert x.device == "CUDA" and x.shape == shape
    np.testing.assert_array_equal(x.numpy(), theirs.values)
    np.testing.assert_array_equal((x * 2 + 1).numpy(), theirs.values * 2 + 1)
    new = draw(rng, *shape)
    theirs.fill(new)  # and nothing here was computed of it yet: in place, so this is seen
    np.testing.assert_array_equal(Tensor.from_dlpack(theirs).numpy(), new)


class Overwritten(Foreign):
    """Of a library that uses the memory for something else at once when it has it back."""

    def _give_back(self, _: int) -> None:
        super()._give_back(_)
        self.raw.call("cuMemsetD32Async", self.address, 0, self.values.size, self.stream)


@pytest.mark.parametrize("replayed", [False, True])
def test_their_memory_is_given_back_as_soon_as_work_on_it_has_ended(
    make: Make, replayed: bool
) -> None:
    """While the program goes on to launch, and never waits."""

    def step(x: Tensor) -> Tensor:
        return (x + 1).realize()

    run, results, most = jit(step) if replayed else step, [], 0
    arrays = [make(np.full(64, i, np.float32), Overwritten) for i in range(16)]
    for theirs in arrays:
        results.append(run(Tensor.from_dlpack(theirs)) + 0)
        results[-1].realize()
        for _ in range(100):  # time goes on, and nobody waits
            theirs.raw.result("cuStreamQuery", Device["CUDA"].allocator.exchange.stream)
        gc.collect()
        most = max(most, len(results) - sum(each.given_back for each in arrays))
    assert most < len(arrays) - 5
    for i, result in enumerate(results):  # else some were overwritten, or raced
        assert result.tolist() == [i + 1] * 64
    del theirs
    Device["CUDA"].synchronize()
    assert all(each.given_back for each in arrays)


def test_their_memory_is_given_back_at_once_where_nothing_uses_it(make: Make) -> None:
    theirs = make(np.arange(64, dtype=np.float32))
    x = Tensor.from_dlpack(theirs)
    assert (x + 1).tolist() == list(range(1, 65))
    gc.collect()
    assert not theirs.given_back
    del x
    gc.collect()
    assert theirs.given_back == 1


def test_a_read_of_their_memory_waits_for_their_stream(make: Make) -> None:
    """A copy to the host is in another stream than launches."""
    for round_ in range(6):
        theirs = make(np.full(300, round_, np.float32))
        assert Tensor.from_dlpack(theirs).tolist() == [round_] * 300


def test_a_capsule_without_a_stream_waits_for_all(make: Make) -> None:
    theirs = make(np.arange(10, dtype=np.int32))
    assert (Tensor.from_dlpack(theirs.capsule()) + 1).tolist() == list(range(1, 11))


def test_writing_to_their_memory_makes_a_copy(make: Make) -> None:
    theirs = make(np.arange(6, dtype=np.float32))
    x = Tensor.from_dlpack(theirs)
    x += 1
    x[2] = 100
    assert x.tolist() == [1, 2, 100, 4, 5, 6]
    assert theirs.now().tolist() == list(range(6))


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((3, 4), (1, 3), 0), ((4,), (-1,), 12), ((2, 3), (6, 2), 0), ((3, 2), (0, 1), 4),
     ((2, 2, 2), (1, 2, 4), 16), ((1, 5), (77, 1), 0), ((5,), (1,), 4)],
)  # fmt: skip
def test_strides_and_odd_addresses_are_copied(
    make: Make, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    values = np.arange(24, dtype=np.int32)
    theirs = make(values)
    theirs.shape, theirs.strides, theirs.offset = shape, strides, offset
    want = np.lib.stride_tricks.as_strided(
        values[offset // 4 :], shape, tuple(4 * step for step in strides)
    )
    if (shape, strides, offset) != ((1, 5), (77, 1), 0):  # whose elements lie in order
        with pytest.raises(InvalidValue, match=r"without a copy.*strides"):
            Tensor.from_dlpack(theirs, copy=False)
    x = Tensor.from_dlpack(theirs)
    np.testing.assert_array_equal(x.numpy(), want)


@pytest.mark.parametrize("kind", ["float16", "uint8"])
def test_small_elements_at_odd_addresses(make: Make, kind: str) -> None:
    theirs = make(np.arange(40).astype(kind))
    theirs.shape, theirs.offset = (20,), 3 * theirs.values.itemsize
    assert Tensor.from_dlpack(theirs).tolist() == list(range(3, 23))


def test_a_copy_is_apart(make: Make) -> None:
    theirs = make(np.arange(8, dtype=np.float32))
    x = Tensor.from_dlpack(theirs, copy=True)
    x.realize()
    Device["CUDA"].synchronize()
    theirs.fill(np.zeros(8, np.float32))
    assert x.tolist() == list(range(8))


def test_nothing_to_share(make: Make) -> None:
    theirs = make(np.zeros(4, np.float32))
    theirs.shape = (0, 3)
    assert Tensor.from_dlpack(theirs).shape == (0, 3)


def test_memory_of_another_gpu_stays_there_or_is_copied(raw: RawCuda, make: Make) -> None:
    other = raw.start(1)
    theirs = make(np.arange(5, dtype=np.float32), device=(CUDA, 1))
    try:
        x = Tensor.from_dlpack(theirs, device="CUDA:1", copy=False)
        assert x.device == "CUDA:1" and x.tolist() == [0, 1, 2, 3, 4]
        assert Tensor.from_dlpack(theirs).device == "CUDA:1"
        y = Tensor.from_dlpack(theirs, device="CUDA")
        assert y.device == "CUDA" and y.tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(InvalidValue, match="without a copy"):
            Tensor.from_dlpack(theirs, device="CUDA", copy=False)
        theirs.device = (CUDA, 0)
        with pytest.raises(InvalidValue, match=r"memory of CUDA:1; name that device"):
            Tensor.from_dlpack(theirs.capsule())
        del x, y
        gc.collect()
        Device["CUDA:1"].synchronize()
    finally:
        raw.call("cuCtxSetCurrent", other)
        theirs.close()
        theirs.close = lambda: None  # type: ignore[method-assign]
        raw.call("cuDevicePrimaryCtxRelease_v2", 1)


# What cannot be used.


def test_memory_that_is_not_the_gpus(raw: RawCuda, make: Make) -> None:
    theirs = make(np.arange(16, dtype=np.float32))
    mine = theirs.address
    host = np.zeros(16, np.float32)
    for address, says in (
        (theirs._pinned.ctypes.data, "pinned memory of the host"),
        (host.ctypes.data, "no memory there. It is of the host, or was freed"),
        (mine + 32, "64 bytes are needed there, and it has 32"),
    ):
        theirs.address = address
        with pytest.raises(InvalidValue, match=says):
            Tensor.from_dlpack(theirs)
    theirs.address = mine
    gone = raw.alloc(64)
    raw.call("cuMemFree_v2", gone)
    theirs.address = gone
    with pytest.raises(InvalidValue, match="was freed"):
        Tensor.from_dlpack(theirs)
    theirs.address = mine
    gc.collect()
    assert theirs.given_back == 4


def test_memory_of_another_context(raw: RawCuda, make: Make) -> None:
    primary = raw.get("cuCtxGetCurrent")
    theirs = make(np.arange(16, dtype=np.float32))
    own = raw.get("cuCtxCreate_v2", 0, 0)
    mine, theirs.address = theirs.address, raw.alloc(64)
    raw.call("cuCtxSetCurrent", primary)
    with pytest.raises(InvalidValue, match="another context than the primary one"):
        Tensor.from_dlpack(theirs)
    theirs.address = mine
    raw.call("cuCtxDestroy_v2", own)


@pytest.mark.parametrize(("kind", "says"), [(10, r"10 \(ROCm\)"), (3, "pinned"), (13, "type 13")])
def test_devices_that_are_not_cuda(make: Make, kind: int, says: str) -> None:
    theirs = make(np.zeros(4, np.float32), device=(kind, 0))
    with pytest.raises(Unsupported, match=says):
        Tensor.from_dlpack(theirs)
    capsule = theirs.capsule()
    with pytest.raises(Unsupported, match=says):
        Tensor.from_dlpack(capsule)
    assert not theirs.asked
    theirs.device = (CUDA, 0)
    assert Tensor.from_dlpack(theirs).tolist() == [0] * 4


def test_there_is_no_gpu_of_that_number(make: Make) -> None:
    theirs = make(np.zeros(4, np.float32), device=(CUDA, 77))
    with pytest.raises(DeviceError, match="there is no CUDA:77"):
        Tensor.from_dlpack(theirs)


def test_a_device_that_cannot_use_it_says_which_does(make: Make) -> None:
    theirs = make(np.zeros(4, np.float32))
    with pytest.raises(Unsupported, match=r"2 \(CUDA\).*device='CUDA'"):
        Tensor.from_dlpack(theirs, device="CPU")
    with Context(DEV="CPU"):
        assert Tensor.from_dlpack(theirs, device="CUDA").device == "CUDA"


def test_a_capsule_is_taken_once(make: Make) -> None:
    theirs = make(np.arange(4, dtype=np.float32))
    capsule = theirs.capsule()
    Tensor.from_dlpack(capsule)
    with pytest.raises(InvalidType, match="taken already"):
        Tensor.from_dlpack(capsule)


# By a pointer alone.


def test_a_pointer_is_used_in_place_behind_all_there_is(make: Make) -> None:
    theirs = make(np.arange(24, dtype=np.float32))
    x = Tensor.from_blob(theirs.address, (2, 3), device="CUDA")
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    theirs.fill(theirs.values + 1)
    y = Tensor.from_blob(theirs.address + 16, 20, "int32", device="CUDA").bitcast("float32")
    assert (y * 1).tolist() == list(range(5, 25))
    x += 1
    assert x.tolist() == [[2, 3, 4], [5, 6, 7]]
    assert theirs.now().tolist() == list(range(1, 25))
    assert Tensor.from_blob(theirs.address, (0, 3), device="CUDA").shape == (0, 3)


def test_pointers_that_are_not_the_gpus(raw: RawCuda, make: Make) -> None:
    theirs, host, gone = make(np.arange(24, dtype=np.float32)), np.zeros(8), raw.alloc(64)
    raw.call("cuMemFree_v2", gone)
    for address, count, says in (
        (theirs.address, 25, "100 bytes are needed there, and it has 96"),
        (theirs.address, 1 << 40, "4,398,046,511,104 bytes are needed"),
        (theirs.address + 8, 2, "multiple of 16"),
        (theirs.address + 2, 2, "multiple of 4"),
        (theirs._pinned.ctypes.data, 2, "pinned memory of the host"),
        (host.ctypes.data & ~15, 2, "no memory there. It is of the host, or was freed"),
        (gone, 2, "was freed"),
    ):
        with pytest.raises(InvalidValue, match=says):
            Tensor.from_blob(address, count, device="CUDA")
    with pytest.raises(InvalidValue, match=r"memory of CUDA:0; name that device"):
        Tensor.from_blob(theirs.address, 2, device="CUDA:1")


# Ours, lent to them.


def lent(x: Tensor, **options: Any) -> Taken:
    return Taken(x.__dlpack__(max_version=(1, 0), **options))


def test_our_memory_is_lent_in_place(raw: RawCuda) -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()
    assert x.__dlpack_device__() == (CUDA, 0)
    first, second = lent(x, stream=1), lent(x, stream=None, dl_device=(CUDA, 0), copy=False)
    assert first.address == second.address and first.flags == READ_ONLY
    assert (first.shape, first.strides) == ((2, 3), (3, 1))
    assert (first.tensor.code, first.tensor.bits, first.tensor.device_type) == (2, 32, CUDA)
    raw.call("cuStreamSynchronize", 1)
    assert raw.download(first.address, np.zeros(6, np.float32)).tolist() == list(range(6))
    first.drop()
    second.drop()


@pytest.mark.parametrize("stream", [None, 1, 2, OWN])
@pytest.mark.parametrize("seed", range(3))
def test_their_stream_waits_for_ours_and_reuse_for_theirs(
    raw: RawCuda, stream: int | None, seed: int
) -> None:
    """They read late, and give the memory back at once; it gets other contents then."""
    rng = np.random.default_rng(seed)
    own, count = raw.stream(1), int(rng.integers(100, 2000))
    handle = own if stream == OWN else stream
    target, values = raw.alloc(4 * count), draw(rng, count)
    for _ in range(3):
        x = Tensor(values) * 2
        taken = lent(x, stream=handle)
        place = taken.address
        raw.call("cuMemcpyDtoDAsync_v2", target, place, 4 * count, handle or 1)
        taken.drop()
        del x, taken
        gc.collect()
        again = Tensor(-values).realize()
        y = (again + 0.5).realize()
        assert place in (lent_address(again), lent_address(y))
        raw.call("cuStreamSynchronize", handle or 1)
        np.testing.assert_array_equal(raw.download(target, values), values * 2)
        np.testing.assert_array_equal(y.numpy(), 0.5 - values)
    raw.call("cuMemFree_v2", target)
    raw.call("cuStreamDestroy_v2", own)


def lent_address(x: Tensor) -> int:
    taken = lent(x, stream=-1)
    taken.drop()
    return taken.address


def test_minus_one_asks_for_no_order(raw: RawCuda) -> None:
    stream = raw.stream(1)
    x = (Tensor(np.arange(8, dtype=np.float32)) + 1).realize()
    taken = lent(x, stream=-1)
    Device["CUDA"].synchronize()
    target = raw.alloc(32)
    raw.call("cuMemcpyDtoDAsync_v2", target, taken.address, 32, stream)
    taken.drop()
    del x, taken
    gc.collect()
    Tensor(np.zeros(8, np.float32)).realize()  # which waits for all: nobody said for what
    raw.call("cuStreamSynchronize", stream)
    assert raw.download(target, np.zeros(8, np.float32)).tolist() == list(range(1, 9))
    raw.call("cuMemFree_v2", target)
    raw.call("cuStreamDestroy_v2", stream)


def test_memory_given_to_the_driver_waits_for_them(raw: RawCuda) -> None:
    stream, target = raw.stream(1), raw.alloc(4000)
    x = Tensor(np.full(1000, 7, np.float32)).realize()
    taken = lent(x, stream=stream)
    raw.call("cuMemcpyDtoDAsync_v2", target, taken.address, 4000, stream)
    taken.drop()
    del x, taken
    gc.collect()
    Device["CUDA"].allocator.free_cache()
    raw.call("cuStreamSynchronize", stream)
    assert raw.download(target, np.zeros(1000, np.float32)).tolist() == [7] * 1000
    raw.call("cuMemFree_v2", target)
    raw.call("cuStreamDestroy_v2", stream)


@pytest.mark.parametrize("which", [OWN, 2])
def test_memory_given_back_in_another_thread(raw: RawCuda, which: int) -> None:
    """Which has no context of its own, and keeps none; and 2 is another stream there."""
    own, target = raw.stream(1), raw.alloc(160)
    stream = own if which == OWN else which
    x = Tensor(np.arange(40, dtype=np.float32)).realize()
    taken, current = lent(x, stream=stream), []
    raw.call("cuMemcpyDtoDAsync_v2", target, taken.address, 160, stream)

    def give_back() -> None:
        taken.drop()
        current.append(raw.get("cuCtxGetCurrent"))

    thread = threading.Thread(target=give_back)
    thread.start()
    thread.join()
    assert current == [0]
    del x
    gc.collect()
    assert Tensor(np.ones(40, np.float32)).tolist() == [1] * 40
    raw.call("cuStreamSynchronize", stream)
    raw.call("cuStreamDestroy_v2", own)
    raw.call("cuMemFree_v2", target)


def test_lending_often_makes_one_event_a_stream(raw: RawCuda) -> None:
    stream = raw.stream(1)
    x = Tensor(np.arange(4, dtype=np.float32)).realize()
    lent(x, stream=stream).drop()
    context = Device["CUDA"].context
    before = handles_of(raw)
    for _ in range(50):
        lent(x, stream=stream).drop()
    assert handles_of(raw) == before
    assert not context.is_lost
    del x
    gc.collect()
    Device["CUDA"].allocator.free_cache()
    raw.call("cuStreamSynchronize", stream)
    raw.call("cuStreamDestroy_v2", stream)


def handles_of(raw: RawCuda) -> int:
    (library,) = (one for one in drivers() if one.functions is raw.functions)
    return sum(len(context.owned) for context in library.driver.all_contexts())


def test_what_was_lent_is_never_written(raw: RawCuda) -> None:
    x = Tensor(np.arange(8, dtype=np.float32)).realize()
    taken = lent(x, stream=1)
    x += 1
    x[0] = 50
    x.realize()
    x.assign(x * 2).realize()

    @jit
    def step(v: Tensor) -> Tensor:
        v.assign(v + 1)
        return v

    for _ in range(4):
        step(x)
    assert x.tolist() == [104, *range(8, 21, 2)]
    raw.call("cuCtxSynchronize")
    assert raw.download(taken.address, np.zeros(8, np.float32)).tolist() == list(range(8))
    taken.drop()


def test_what_they_gave_back_is_not_written_either(
    raw: RawCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their work on it may not have run. What is small is written in place as well here."""
    monkeypatch.setattr(inplace, "MIN_BYTES", 0)
    monkeypatch.setattr(inplace, "MOST_WRITTEN", 1)
    monkeypatch.setattr(execute, "_schedules", Recent(1000))
    monkeypatch.setattr(execute, "find_on_disk", lambda key, devices: None)
    monkeypatch.setattr(execute, "keep_on_disk", lambda key, devices, recipe: None)
    stream, target = raw.stream(1), raw.alloc(400)
    x = Tensor(np.arange(100, dtype=np.float32).reshape(10, 10)).realize()
    taken = lent(x, stream=stream)
    raw.call("cuMemcpyDtoDAsync_v2", target, taken.address, 400, stream)
    taken.drop()
    x[3] = 7
    x.realize()
    raw.call("cuStreamSynchronize", stream)
    assert raw.download(target, np.zeros(100, np.float32)).tolist() == list(range(100))
    assert x[3].tolist() == [7] * 10
    raw.call("cuMemFree_v2", target)
    raw.call("cuStreamDestroy_v2", stream)


def test_copies_that_they_may_write(raw: RawCuda) -> None:
    x = Tensor(np.arange(4, dtype=np.float32)).realize()
    old = Taken(x.__dlpack__(stream=1))
    new = lent(x, stream=1, copy=True)
    assert old.flags is None and new.flags == IS_COPIED
    for each in (old, new):
        raw.call("cuMemsetD32Async", each.address, 0, 4, 1)
        each.drop()
    raw.call("cuCtxSynchronize")
    assert x.tolist() == [0, 1, 2, 3]
    assert new.address != old.address != lent_address(x) != new.address


def test_views_and_symbols_of_layout_are_computed(raw: RawCuda) -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()
    taken = lent(x.T + 0, stream=1)
    raw.call("cuCtxSynchronize")
    assert taken.shape == (3, 2)
    assert raw.download(taken.address, np.zeros(6, np.float32)).tolist() == [0, 3, 1, 4, 2, 5]
    taken.drop()
    empty = lent(Tensor(np.zeros((0, 3), np.float32)), stream=1)
    assert empty.shape == (0, 3)
    empty.drop()


def test_host_memory_is_lent_when_asked_for(raw: RawCuda) -> None:
    x = Tensor(np.arange(4, dtype=np.float32)) + 1
    assert np.from_dlpack(x, device="cpu").tolist() == [1, 2, 3, 4]
    with pytest.raises(BufferError, match="without a stream"):
        x.__dlpack__(dl_device=(1, 0), stream=1)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"stream": 0}, "0 is refused"), ({"stream": -2}, "-2"), ({"stream": "main"}, "'main'"),
     ({"stream": True}, "True"), ({"dl_device": (CUDA, 1)}, r"\(2, 1\)"),
     ({"dl_device": (10, 0)}, r"\(10, 0\)"), ({"copy": False, "max_version": None}, "later")],
)  # fmt: skip
def test_what_cannot_be_lent(raw: RawCuda, options: dict[str, Any], says: str) -> None:
    x = Tensor(np.arange(4, dtype=np.float32)).realize()
    with pytest.raises(BufferError, match=says):
        x.__dlpack__(**{"max_version": (1, 0), **options})


def test_a_view_of_another_tensor_is_a_copy(raw: RawCuda) -> None:
    x = Tensor(np.arange(4, dtype=np.float32)).realize()
    with pytest.raises(BufferError, match="view of another tensor"):
        x[1:3].__dlpack__(max_version=(1, 0), copy=False)


def test_what_is_exchanged_comes_back_as_it_was(raw: RawCuda) -> None:
    x = Tensor(np.arange(7, dtype=np.float32)).realize()
    y = Tensor.from_dlpack(x, copy=False)
    assert lent_address(x) == lent_address(y)
    assert (x + y).tolist() == [2 * i for i in range(7)]
