"""What two streams touch and nothing orders: hardware promises nothing, the model tells of it."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from gpu.sim.cuda.library import Library
from gpu.sim.races import Spans
from sim.cuda.kernels import module
from sim.cuda.raw_cuda import RawCuda

Act = Callable[[int, int, int], None]


def acts(raw: RawCuda) -> dict[str, Act]:
    """What work does with bytes: by name a function of a stream, an address and a size."""
    kernels = raw.module(module())
    twice, count = raw.function(kernels, "twice"), raw.function(kernels, "count")
    spare = raw.alloc(1 << 12)

    def run(function: int, threads: int, stream: int, address: int) -> None:
        assert raw.launch(
            function, (1,), (threads,), ctypes.c_uint64(address), stream=stream
        ) == 0  # fmt: skip

    return {
        "fill": lambda s, a, n: raw.call("cuMemsetD8Async", a, 1, n, s),
        "read": lambda s, a, n: raw.call("cuMemcpyDtoDAsync_v2", spare, a, n, s),
        "kernel": lambda s, a, n: run(twice, n // 4, s, a),
        "count": lambda s, a, n: run(count, 1, s, a),
    }


PAIRS = [("fill", "fill"), ("fill", "read"), ("kernel", "fill"), ("kernel", "kernel"),
         ("read", "kernel"), ("count", "fill")]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_unordered_work_on_the_same_bytes(
    raw: RawCuda, library: Library, pair: tuple[str, str]
) -> None:
    raw.start()
    act, address = acts(raw), raw.alloc(256)
    raw.call("cuMemsetD8_v2", address, 0, 256)
    raw.call("cuCtxSynchronize")
    streams = raw.stream(1), raw.stream(1)
    # A kernel that ran before the other work was queued is not looked at: not every turn finds it.
    for _ in range(8):
        for name, stream in zip(pair, streams, strict=True):
            act[name](stream, address, 128)
        raw.call("cuCtxSynchronize")
    assert any("nothing orders" in line for line in library.violations)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("order", ["stream", "event", "default", "host", "query", "bytes"])
def test_ordered_work_breaks_no_rule(cuda: RawCuda, pair: tuple[str, str], order: str) -> None:
    act, address = acts(cuda), cuda.alloc(1024)
    cuda.call("cuMemsetD8_v2", address, 0, 1024)
    cuda.call("cuCtxSynchronize")
    one = cuda.stream(0 if order == "default" else 1)
    other = one if order == "stream" else cuda.stream(1)
    event = cuda.event(2)
    for turn in range(4):
        act[pair[0]](one, address, 128)
        if order == "event":
            cuda.call("cuEventRecord", event, one)
            cuda.call("cuStreamWaitEvent", other, event, 0)
        elif order == "default":
            other = 0
        elif order == "host":
            cuda.call("cuStreamSynchronize", one)
        elif order == "query":
            while cuda.result("cuStreamQuery", one):
                pass
        act[pair[1]](other, address + (128 if order == "bytes" else 0), 128)
        if order != "default" or turn == 3:
            cuda.call("cuCtxSynchronize")


def test_readers_and_counters_need_no_order(cuda: RawCuda) -> None:
    act, address = acts(cuda), cuda.alloc(256)
    cuda.call("cuMemsetD8_v2", address, 0, 256)
    cuda.call("cuCtxSynchronize")
    streams = cuda.stream(1), cuda.stream(1)
    for _ in range(4):
        for stream in streams:
            act["count"](stream, address, 4)
    cuda.call("cuCtxSynchronize")
    assert cuda.download(address, np.zeros(1, np.uint32))[0] == 8
    targets = cuda.alloc(64), cuda.alloc(64)
    for stream, target in zip(streams, targets, strict=True):
        cuda.call("cuMemcpyDtoDAsync_v2", target, address, 64, stream)
    cuda.call("cuCtxSynchronize")


def test_results_are_the_same_while_it_looks(cuda: RawCuda, seed: int) -> None:
    """A kernel beside other work sees the memory that it sees alone."""
    kernels = cuda.module(module())
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 1 << 30, 4096, np.uint32)
    host = cuda.pinned(4 * 4096).view(np.uint32)
    host[:] = data
    address, busy = cuda.upload(data), cuda.alloc(64)
    stream, other = cuda.stream(1), cuda.stream(1)
    cuda.call("cuCtxSynchronize")
    twice, table = cuda.function(kernels, "twice"), cuda.function(kernels, "mixed")
    target, pair = cuda.alloc(16), cuda.upload(np.full(4, 9, np.uint32))
    wide = cuda.function(kernels, "wide")
    cuda.call("cuCtxSynchronize")
    for _ in range(3):
        cuda.call("cuMemsetD8Async", busy, 1, 64, other)
        for place in (address, host.ctypes.data):
            assert cuda.launch(twice, (16,), (256,), ctypes.c_uint64(place), stream=stream) == 0
        arguments = (
            ctypes.c_uint8(1),
            ctypes.c_uint64(target),
            ctypes.c_float(0),
            ctypes.c_uint16(2),
        )
        assert cuda.launch(table, (1,), (1,), *arguments, stream=stream) == 0
        assert cuda.launch(wide, (1,), (1,), ctypes.c_uint64(pair), stream=stream) == 0
    cuda.call("cuCtxSynchronize")
    assert (cuda.download(address, data) == data << 3).all()
    assert (host == data << 3).all()
    assert cuda.download(target, np.zeros(4, np.uint32))[3] == 3
    assert (cuda.download(pair, np.zeros(4, np.uint32)) == 9).all()


def test_spans_are_the_union() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        spans, model = Spans(), np.zeros(300, bool)
        for _ in range(rng.integers(1, 40)):
            start = int(rng.integers(0, 280))
            end = start + int(rng.integers(1, 20))
            spans.add(start, end)
            model[start:end] = True
        found = list(spans)
        for (_, end), (start, _) in itertools.pairwise(found):
            assert end < start
        covered = np.zeros(300, bool)
        for start, end in found:
            covered[start:end] = True
        assert (covered == model).all()
