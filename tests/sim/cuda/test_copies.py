"""Copies and fills: what is read when, and who waits."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from gpu.sim.cuda.library import Library
from sim.cuda.kernels import module
from sim.cuda.raw_cuda import RawCuda

INVALID_VALUE = 1


def test_copies_of_all_kinds_agree_with_numpy(cuda: RawCuda, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = 1 << 12
    model = {name: rng.integers(0, 256, size, np.uint8) for name in ("a", "b")}
    device = {name: cuda.upload(data) for name, data in model.items()}
    host = cuda.pinned(size)
    stream = cuda.stream()
    for _ in range(60):
        one, other = rng.permutation(["a", "b"])
        count = int(rng.integers(1, size // 2))
        to, start = int(rng.integers(0, size - count)), int(rng.integers(0, size - count))
        queue = stream if rng.random() < 0.5 else 0
        kind = rng.integers(0, 4)
        if kind == 0:
            cuda.call("cuMemcpyDtoDAsync_v2", device[one] + to, device[other] + start, count, queue)
            model[one][to : to + count] = model[other][start : start + count]
        elif kind == 1:
            data = rng.integers(0, 256, count, np.uint8)
            cuda.call("cuMemcpyHtoDAsync_v2", device[one] + to, data.ctypes.data, count, queue)
            model[one][to : to + count] = data
            data[:] = 0  # pageable memory has been read by now
        elif kind == 2:
            cuda.call("cuStreamSynchronize", queue)
            host[:count] = rng.integers(0, 256, count, np.uint8)
            model[one][to : to + count] = host[:count]
            cuda.call("cuMemcpyHtoDAsync_v2", device[one] + to, host.ctypes.data, count, queue)
            cuda.call("cuStreamSynchronize", queue)
        else:
            value = int(rng.integers(0, 256))
            cuda.call("cuMemsetD8Async", device[one] + to, value, count, queue)
            model[one][to : to + count] = value
    for name, data in model.items():
        assert (cuda.download(device[name], data) == data).all()


def test_pinned_sources_are_read_late(raw: RawCuda, library: Library) -> None:
    raw.start()
    host, address = raw.pinned(64), raw.alloc(64 * 40)
    late = 0
    for number in range(40):
        host[:] = 1
        raw.call("cuMemcpyHtoDAsync_v2", address + 64 * number, host.ctypes.data, 64, 0)
        host[:] = 2
        raw.call("cuCtxSynchronize")
        late += int((raw.download(address + 64 * number, host) == 2).all())
    assert late
    assert any("wrote to its pinned source" in line for line in library.violations)
    assert len(library.violations) == late


def test_pinned_targets_are_written_late(cuda: RawCuda) -> None:
    host, address = cuda.pinned(64), cuda.alloc(64)
    cuda.call("cuMemsetD8_v2", address, 9, 64)
    host[:] = 0
    early = 0
    for _ in range(20):
        cuda.call("cuMemcpyDtoHAsync_v2", host.ctypes.data, address, 64, 0)
        early += int((host == 9).all())
        cuda.call("cuStreamSynchronize", 0)
        assert (host == 9).all()
        host[:] = 0
    assert early < 20


def test_a_pinned_buffer_may_come_and_go(cuda: RawCuda) -> None:
    """What a device writes to pinned memory before a copy reads it breaks no rule."""
    twice = cuda.function(cuda.module(module()), "twice")
    host, one, other = cuda.pinned(64), cuda.alloc(64), cuda.alloc(64)
    host[:] = 0
    stream = cuda.stream(1)
    cuda.call("cuMemsetD8Async", one, 7, 64, stream)
    cuda.call("cuMemcpyDtoHAsync_v2", host.ctypes.data, one, 64, stream)
    cuda.call("cuMemcpyHtoDAsync_v2", other, host.ctypes.data, 64, stream)
    cuda.call("cuStreamSynchronize", stream)
    assert (cuda.download(other, host) == 7).all()
    for turn in range(1, 4):
        cuda.launch(twice, (1,), (16,), ctypes.c_uint64(host.ctypes.data), stream=stream)
        cuda.call("cuMemcpyHtoDAsync_v2", other, host.ctypes.data, 64, stream)
        cuda.call("cuStreamSynchronize", stream)
        assert (cuda.download(other, host) == 7 << turn).all()


def test_copies_to_pageable_memory_wait(cuda: RawCuda) -> None:
    address = cuda.alloc(64)
    for value in range(20):
        target = np.zeros(64, np.uint8)
        cuda.call("cuMemsetD8Async", address, value, 64, 0)
        cuda.call("cuMemcpyDtoHAsync_v2", target.ctypes.data, address, 64, 0)
        assert (target == value).all()


def test_copies_on_the_device_wait_for_nobody(cuda: RawCuda, library: Library) -> None:
    one, other = cuda.alloc(64), cuda.alloc(64)
    pending = 0
    for _ in range(20):
        cuda.call("cuMemcpyDtoD_v2", one, other, 64)
        pending += cuda.result("cuStreamQuery", 0) == 600
        cuda.call("cuCtxSynchronize")
    assert pending


def test_bad_copies(cuda: RawCuda) -> None:
    address, data = cuda.alloc(64), np.zeros(128, np.uint8)
    at = data.ctypes.data
    assert cuda.result("cuMemcpyHtoD_v2", address, at, 65) == INVALID_VALUE
    assert cuda.result("cuMemcpyHtoD_v2", at, at, 8) == INVALID_VALUE
    assert cuda.result("cuMemcpyDtoH_v2", None, address, 8) == INVALID_VALUE
    assert cuda.result("cuMemcpyDtoD_v2", address, address + 60, 8) == INVALID_VALUE
    cuda.call("cuMemcpyHtoD_v2", address, at, 0)
    cuda.call("cuMemcpyDtoH_v2", None, address, 0)


@pytest.mark.parametrize(("bits", "type_"), [(8, np.uint8), (16, np.uint16), (32, np.uint32)])
def test_fills(cuda: RawCuda, bits: int, type_: type) -> None:
    address = cuda.alloc(1024)
    cuda.call("cuMemsetD8_v2", address, 0, 1024)
    value = 0xA1B2C3D4 & ((1 << bits) - 1)
    cuda.call(f"cuMemsetD{bits}Async", address + 16, value, 31, 0)
    expected = np.zeros(1024 * 8 // bits, type_)
    expected[128 // bits : 128 // bits + 31] = value
    assert (cuda.download(address, expected) == expected).all()
    if bits > 8:
        assert cuda.result(f"cuMemsetD{bits}Async", address + 1, 1, 1, 0) == INVALID_VALUE


def test_fills_of_rows(cuda: RawCuda) -> None:
    expected = np.zeros((6, 16), np.uint32)
    address = cuda.upload(expected)
    cuda.call("cuMemsetD2D32_v2", address + 4, 64, 77, 3, 6)
    expected[:, 1:4] = 77
    assert (cuda.download(address, expected) == expected).all()


def test_rows_are_copied(cuda: RawCuda) -> None:
    source = np.arange(20 * 32, dtype=np.uint8).reshape(20, 32)
    address = cuda.alloc(10 * 8)
    words = np.zeros(16, np.uint64)
    words[[0, 1, 2, 3, 6]] = 4, 2, 1, source.ctypes.data, 32  # x, y, host memory, pitch
    words[[7, 8, 9, 11, 13]] = 0, 0, 2, address, 8
    words[[14, 15]] = 8, 10
    cuda.call("cuMemcpy2D_v2", words.ctypes.data)
    got = cuda.download(address, np.zeros((10, 8), np.uint8))
    assert (got == source[2:12, 4:12]).all()


def test_memory_of_any_kind_in_one_call(cuda: RawCuda) -> None:
    data, back = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    one, other = cuda.alloc(64), cuda.alloc(64)
    cuda.call("cuMemcpy", one, data.ctypes.data, 64)
    cuda.call("cuMemcpyAsync", other, one, 64, 0)
    cuda.call("cuMemcpy", back.ctypes.data, other, 64)
    assert (back == data).all()
    again = np.zeros(64, np.uint8)
    cuda.call("cuMemcpy", again.ctypes.data, back.ctypes.data, 64)
    assert (again == data).all()
    assert ctypes.sizeof(ctypes.c_void_p) == 8
