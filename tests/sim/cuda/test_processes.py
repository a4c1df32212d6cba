"""Memory of one process in another: outcomes of cuIpcGetMemHandle and what goes with it."""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.cuda.exporting import VALUES, exporter, handle_of
from sim.cuda.raw_cuda import IpcHandle, RawCuda

LAZY_PEER_ACCESS = 1


def opened(raw: RawCuda, handle: bytes, flags: int = LAZY_PEER_ACCESS) -> tuple[int, int]:
    """(address, CUresult)."""
    place = np.zeros(1, np.uint64)
    given = IpcHandle.from_buffer_copy(handle)
    code = raw.result("cuIpcOpenMemHandle_v2", place.ctypes.data, given, flags)
    return int(place[0]), code


@pytest.fixture
def other(which: str | None) -> Iterator[Any]:
    """The pipe to a process that has sent its handle."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=exporter, args=(theirs, which), daemon=True)
    process.start()
    theirs.close()

    def end() -> None:
        if process.is_alive():
            ours.send(None)
        process.join(30)

    yield SimpleNamespace(send=ours.send, recv=ours.recv, end=end)
    end()


def test_handles_of_memory(cuda: RawCuda) -> None:
    address = cuda.alloc(100)
    assert handle_of(cuda, address) == handle_of(cuda, address)
    assert cuda.result("cuIpcGetMemHandle", ctypes.addressof(IpcHandle()), address + 4) == 1
    assert cuda.result("cuIpcGetMemHandle", None, address) == 1
    pinned = cuda.pinned(64)
    assert cuda.result("cuIpcGetMemHandle", ctypes.addressof(IpcHandle()), pinned.ctypes.data) == 1
    before = handle_of(cuda, address)
    cuda.call("cuMemFree_v2", address)
    assert handle_of(cuda, cuda.alloc(100)) != before


def test_exported_memory_goes_on_as_before(cuda: RawCuda) -> None:
    address = cuda.upload(VALUES)
    handle_of(cuda, address)
    np.testing.assert_array_equal(cuda.download(address, VALUES), VALUES)
    cuda.call("cuMemsetD32Async", address, 5, 2999, 0)
    assert cuda.download(address, VALUES)[[0, 2998, 2999]].tolist() == [5, 5, 2999]


def test_handles_that_are_not_opened(cuda: RawCuda) -> None:
    handle = handle_of(cuda, cuda.alloc(100))
    assert opened(cuda, handle)[1] == 201
    assert opened(cuda, bytes(64))[1] == 400
    assert opened(cuda, handle, flags=0)[1] == 1


def test_memory_of_another_process(cuda: RawCuda, other: Any) -> None:
    handle = other.recv()
    (first, code), (second, again) = opened(cuda, handle), opened(cuda, handle)
    assert first == second and code == again == 0
    np.testing.assert_array_equal(cuda.download(first, VALUES), VALUES)
    cuda.call("cuMemsetD32Async", first, 7, 10, 0)
    cuda.call("cuCtxSynchronize")
    other.send("read")
    np.testing.assert_array_equal(other.recv()[:12], [7] * 10 + [10, 11])
    assert cuda.result("cuMemFree_v2", first) == 1
    cuda.call("cuIpcCloseMemHandle", first)
    np.testing.assert_array_equal(cuda.download(first, VALUES)[10:], VALUES[10:])
    cuda.call("cuIpcCloseMemHandle", first)
    assert cuda.result("cuIpcCloseMemHandle", first) == 1
    assert cuda.result("cuMemcpyDtoH_v2", VALUES.ctypes.data, first, 4) == 1


@pytest.mark.parametrize("how", ["freed", "ended"])
def test_memory_that_is_gone(cuda: RawCuda, other: Any, how: str) -> None:
    handle = other.recv()
    if how == "freed":
        other.send("free")
        other.recv()
    else:
        other.end()
    assert opened(cuda, handle)[1] == 205
