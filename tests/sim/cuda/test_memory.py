"""Memory of devices and of the host, and what pointers say."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

from gpu.sim.cuda.library import Library
from sim.cuda.kernels import module
from sim.cuda.raw_cuda import RawCuda

INVALID_VALUE, OUT_OF_MEMORY = 1, 2


def pointer_attribute(cuda: RawCuda, attribute: int, address: int) -> int:
    return int(cuda.get("cuPointerGetAttribute", attribute, address))


def test_allocations_are_aligned_and_counted(cuda: RawCuda) -> None:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    addresses = [cuda.alloc(size) for size in (1, 100, 4096, 3 << 20)]
    assert all(address % 256 == 0 for address in addresses)
    before = free.value
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert before - free.value == 1 + 100 + 4096 + (3 << 20)
    for address in addresses:
        cuda.call("cuMemFree_v2", address)
    cuda.call("cuMemFree_v2", 0)  # freeing nothing is no error


def test_bad_sizes_and_addresses(cuda: RawCuda) -> None:
    place = ctypes.c_uint64()
    assert cuda.result("cuMemAlloc_v2", ctypes.byref(place), 0) == INVALID_VALUE
    assert cuda.result("cuMemAlloc_v2", None, 64) == INVALID_VALUE
    assert cuda.result("cuMemAlloc_v2", ctypes.byref(place), 1 << 40) == OUT_OF_MEMORY
    address = cuda.alloc(64)
    assert cuda.result("cuMemFree_v2", address + 16) == INVALID_VALUE
    cuda.call("cuMemFree_v2", address)
    assert cuda.result("cuMemFree_v2", address) == INVALID_VALUE


def test_large_memory_costs_none_of_the_machine(cuda: RawCuda) -> None:
    address = cuda.alloc(100 << 30)
    data = np.arange(16, dtype=np.uint8)
    last = address + (100 << 30) - data.nbytes
    cuda.call("cuMemcpyHtoD_v2", last, data.ctypes.data, data.nbytes)
    assert (cuda.download(last, data) == data).all()


def test_new_memory_holds_something(cuda: RawCuda) -> None:
    assert cuda.download(cuda.alloc(64), np.zeros(64, np.uint8)).any()


def test_device_memory_is_none_of_the_process() -> None:
    code = """
import ctypes
from gpu.sim.cuda.library import load
from sim.cuda.raw_cuda import RawCuda
raw = RawCuda(load("gh100").functions)
raw.start()
ctypes.string_at(raw.alloc(64), 1)
"""
    path = {"PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", code], env=path, check=False)
    assert ended.returncode < 0


def test_pointers_say_what_they_are(cuda: RawCuda) -> None:
    address, host = cuda.alloc(256), cuda.pinned(128).ctypes.data
    assert pointer_attribute(cuda, 2, address + 7) == 2
    assert pointer_attribute(cuda, 2, host) == 1
    assert pointer_attribute(cuda, 1, address) == cuda.get("cuCtxGetCurrent")
    assert pointer_attribute(cuda, 3, host) == host
    assert pointer_attribute(cuda, 4, host) == host
    assert pointer_attribute(cuda, 11, address + 7) == address
    assert pointer_attribute(cuda, 12, address + 7) == 256
    assert pointer_attribute(cuda, 7, address) != pointer_attribute(cuda, 7, host)
    place = ctypes.c_uint64()
    assert cuda.result("cuPointerGetAttribute", ctypes.byref(place), 4, address) == INVALID_VALUE
    own = np.zeros(16, np.uint8)
    asked = cuda.result("cuPointerGetAttribute", ctypes.byref(place), 2, own.ctypes.data)
    assert asked == INVALID_VALUE
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    cuda.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address + 9)
    assert (base.value, size.value) == (address, 256)


def test_several_attributes_are_zero_for_memory_of_others(cuda: RawCuda) -> None:
    kinds = (ctypes.c_int * 3)(2, 9, 12)
    kind, device, size = ctypes.c_uint(7), ctypes.c_int(7), ctypes.c_size_t(7)
    places = (ctypes.c_void_p * 3)(*(ctypes.addressof(each) for each in (kind, device, size)))
    own = np.zeros(16, np.uint8)
    cuda.call("cuPointerGetAttributes", 3, kinds, places, own.ctypes.data)
    assert (kind.value, device.value, size.value) == (0, -2, 0)
    cuda.call("cuPointerGetAttributes", 3, kinds, places, cuda.alloc(48))
    assert (kind.value, device.value, size.value) == (2, 0, 48)


def test_pinned_memory_is_memory_of_the_process(cuda: RawCuda) -> None:
    host = cuda.pinned(4096)
    host[:] = np.arange(4096, dtype=np.uint32).astype(np.uint8)
    address = cuda.alloc(4096)
    cuda.call("cuMemcpyHtoD_v2", address, host.ctypes.data, 4096)
    assert (cuda.download(address, host) == host).all()
    at = host.ctypes.data
    assert cuda.get("cuMemHostGetDevicePointer_v2", at, 0) == at
    assert cuda.result("cuMemFreeHost", at + 64) == INVALID_VALUE
    cuda.call("cuMemFreeHost", at)
    assert cuda.result("cuMemFreeHost", at) == INVALID_VALUE


def test_registered_memory_is_pinned(cuda: RawCuda) -> None:
    data = np.arange(64, dtype=np.uint32)
    at = data.ctypes.data
    assert cuda.result("cuMemHostUnregister", at) == 713
    cuda.call("cuMemHostRegister_v2", at, data.nbytes, 0)
    assert cuda.result("cuMemHostRegister_v2", at + 8, 8, 0) == 712
    assert cuda.result("cuMemHostRegister_v2", 0, 8, 0) == INVALID_VALUE
    function = cuda.function(cuda.module(module()), "twice")
    assert cuda.launch(function, (2,), (32,), ctypes.c_uint64(at)) == 0
    cuda.call("cuCtxSynchronize")
    assert (data == 2 * np.arange(64)).all()
    cuda.call("cuMemHostUnregister", at)


def test_memory_in_the_order_of_a_stream(cuda: RawCuda) -> None:
    stream = cuda.stream(1)
    address = cuda.get("cuMemAllocAsync", 256, stream)
    cuda.call("cuMemsetD8Async", address, 5, 256, stream)
    host = cuda.pinned(256)
    cuda.call("cuMemcpyDtoHAsync_v2", host.ctypes.data, address, 256, stream)
    cuda.call("cuMemFreeAsync", address, stream)
    assert cuda.result("cuMemFreeAsync", address, stream) == INVALID_VALUE
    assert cuda.result("cuMemFree_v2", address) == INVALID_VALUE
    cuda.call("cuStreamSynchronize", stream)
    assert (host == 5).all()
    plain = cuda.alloc(64)
    assert cuda.result("cuMemFreeAsync", plain, stream) == INVALID_VALUE


def test_memory_freed_in_one_stream_is_gone_in_others(raw: RawCuda, library: Library) -> None:
    raw.start()
    one, other = raw.stream(1), raw.stream(1)
    address = raw.get("cuMemAllocAsync", 256, one)
    raw.call("cuStreamSynchronize", one)
    raw.call("cuMemFreeAsync", address, one)
    raw.result("cuMemsetD8Async", address, 1, 256, other)
    raw.result("cuCtxSynchronize")
    assert library.violations or library.faults


def test_what_was_left_is_told(raw: RawCuda, library: Library) -> None:
    raw.start()
    address = raw.alloc(96)
    assert any("96 bytes of device memory" in line for line in library.left())
    with pytest.raises(RuntimeError, match="96 bytes"):
        library.check()
    raw.call("cuMemFree_v2", address)
    raw.call("cuDevicePrimaryCtxRelease_v2", 0)
    library.check()


def test_pinned_memory_is_not_freed_under_a_copy(raw: RawCuda, library: Library) -> None:
    raw.start()
    found = 0
    for _ in range(8):
        host, address = raw.pinned(64), raw.alloc(64)
        raw.call("cuMemcpyHtoDAsync_v2", address, host.ctypes.data, 64, 0)
        raw.call("cuMemFreeHost", host.ctypes.data)
        found = len(library.violations)
    assert found
