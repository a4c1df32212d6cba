"""Launches: what is refused at once, and what comes later and stays."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

from gpu.sim.cuda.library import Library, load
from sim.cuda.kernels import module
from sim.cuda.raw_cuda import RawCuda

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE = 1, 201, 400
ILLEGAL_ADDRESS, OUT_OF_RESOURCES, TIMEOUT, MISALIGNED, FAILED = 700, 701, 702, 716, 719


def test_parameters_by_pointers_and_in_a_buffer(cuda: RawCuda) -> None:
    function, target = cuda.function(cuda.module(module()), "mixed"), cuda.alloc(16)
    data = bytearray(24)
    data[0] = 7
    data[8:16] = target.to_bytes(8, "little")
    data[16:20] = np.float32(2.5).tobytes()
    data[20:22] = (513).to_bytes(2, "little")
    buffer = (ctypes.c_ubyte * 24).from_buffer(data)
    size = ctypes.c_size_t(24)
    extra = (ctypes.c_size_t * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    sizes = (1, 1, 1, 1, 1, 1, 0, None)
    cuda.call("cuLaunchKernel", function, *sizes, None, extra)
    got = cuda.download(target, np.zeros(4, np.uint32))
    assert (got[0], got[1:2].view(np.float32)[0], *got[2:]) == (7, 2.5, 513, 3)
    both = (ctypes.c_void_p * 4)(*[ctypes.addressof(buffer)] * 4)
    assert cuda.result("cuLaunchKernel", function, *sizes, both, extra) == INVALID_VALUE
    size.value = 8
    assert cuda.result("cuLaunchKernel", function, *sizes, None, extra) == INVALID_VALUE
    assert cuda.result("cuLaunchKernel", function, *sizes, None, None) == INVALID_VALUE
    extra[0] = 9
    assert cuda.result("cuLaunchKernel", function, *sizes, None, extra) == INVALID_VALUE


def test_parameters_are_read_at_the_launch(cuda: RawCuda) -> None:
    function, target = cuda.function(cuda.module(module()), "store"), cuda.alloc(40)
    value, place = ctypes.c_uint32(), ctypes.c_uint64()
    for number in range(10):
        value.value, place.value = number + 100, target + 4 * number
        assert cuda.launch(function, (1,), (1,), place, value) == 0
        value.value = place.value = 0
    got = cuda.download(target, np.zeros(10, np.uint32))
    assert (got == np.arange(100, 110)).all()


def test_a_launch_by_its_configuration(cuda: RawCuda) -> None:
    function, data = cuda.function(cuda.module(module()), "twice"), np.arange(64, dtype=np.uint32)
    address = cuda.upload(data)
    argument = ctypes.c_uint64(address)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    words = np.zeros(14, np.uint32)
    words[:6] = 2, 1, 1, 32, 1, 1
    cuda.call("cuLaunchKernelEx", words.ctypes.data, function, pointers, None)
    assert (cuda.download(address, data) == 2 * data).all()
    attribute = np.zeros(18, np.uint32)
    attribute[:5] = 4, 0, 2, 1, 1  # a cluster of two blocks
    words[10:12] = np.array([attribute.ctypes.data], np.uint64).view(np.uint32)
    words[12] = 1
    assert cuda.result("cuLaunchKernelEx", words.ctypes.data, function, pointers, None) == 801


def test_shared_memory(cuda: RawCuda) -> None:
    function = cuda.function(cuda.module(module()), "reversed")
    data = np.arange(128, dtype=np.uint32)
    address = ctypes.c_uint64(cuda.upload(data))
    assert cuda.launch(function, (1,), (128,), address, dynamic=512) == 0
    assert (cuda.download(address.value, data) == data[::-1]).all()
    assert cuda.launch(function, (1,), (128,), address, dynamic=48 * 1024) == INVALID_VALUE
    cuda.call("cuFuncSetAttribute", function, 8, 64 * 1024)
    assert cuda.launch(function, (1,), (128,), address, dynamic=48 * 1024) == 0


@pytest.mark.parametrize(
    ("name", "grid", "block", "code"),
    [
        ("twice", (0,), (1,), INVALID_VALUE),
        ("twice", (1, 65536), (1,), INVALID_VALUE),
        ("twice", (1 << 31,), (1,), INVALID_VALUE),
        ("twice", (1,), (1025,), INVALID_VALUE),
        ("twice", (1,), (1, 1, 65), INVALID_VALUE),
        ("twice", (1,), (64, 32), INVALID_VALUE),
        ("reversed", (1,), (129,), OUT_OF_RESOURCES),
        ("exact", (1,), (64,), INVALID_VALUE),
        ("exact", (1,), (32, 2), 0),
    ],
)
def test_sizes_of_grids_and_blocks(
    cuda: RawCuda, name: str, grid: tuple[int, ...], block: tuple[int, ...], code: int
) -> None:
    function = cuda.function(cuda.module(module()), name)
    assert cuda.launch(function, grid, block, ctypes.c_uint64(cuda.alloc(4096))) == code
    cuda.call("cuCtxSynchronize")


@pytest.mark.parametrize(
    ("name", "beyond", "code"),
    [
        ("twice", 64, ILLEGAL_ADDRESS),
        ("odd", 0, MISALIGNED),
        ("trapped", 0, FAILED),
        ("endless", 0, TIMEOUT),
        ("spin", 0, TIMEOUT),
    ],
)
def test_faults_come_with_the_next_wait_and_stay(
    raw: RawCuda, library: Library, seed: int, name: str, beyond: int, code: int
) -> None:
    if code == TIMEOUT:
        assert library.driver  # a GPU without a screen waits for ever
    context = raw.start()
    address = raw.alloc(64)
    raw.call("cuMemsetD8_v2", address, 0, 64)
    raw.call("cuCtxSynchronize")
    function = raw.function(raw.module(module()), name)
    stream, event = raw.stream(1), raw.event()
    result = raw.launch(function, (1,), (4,), ctypes.c_uint64(address + beyond), stream=stream)
    assert result == 0
    waits = (("cuCtxSynchronize",), ("cuStreamSynchronize", stream))
    assert raw.result(*waits[seed % 2]) == code
    data = np.zeros(4, np.uint8)
    for call in (
        ("cuCtxSynchronize",),
        ("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 64),
        ("cuMemFree_v2", address),
        ("cuMemcpyDtoH_v2", data.ctypes.data, address, 4),
        ("cuEventRecord", event, stream),
        ("cuEventQuery", event),
        ("cuStreamDestroy_v2", stream),
        ("cuModuleLoadData", ctypes.byref(ctypes.c_void_p()), module()),
    ):
        assert raw.result(*call) == code
    assert raw.launch(function, (1,), (4,), ctypes.c_uint64(address)) == code
    assert raw.get("cuCtxGetCurrent") == context  # which context there is can be asked
    # "The process must be terminated and relaunched."
    raw.call("cuDevicePrimaryCtxReset_v2", 0)
    assert raw.result("cuCtxSynchronize") == INVALID_CONTEXT
    assert raw.result("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), 0) == code
    assert not library.violations


def test_a_fault_names_its_kernel(raw: RawCuda, library: Library) -> None:
    raw.start()
    raw.launch(raw.function(raw.module(module()), "trapped"), (1,), (1,))
    assert raw.result("cuCtxSynchronize") == FAILED
    assert "trapped" in library.faults[0]


def test_a_device_that_recovers(seed: int) -> None:
    library = load("gh100", seed=seed, recovers=True)
    raw = RawCuda(library.functions)
    for _ in range(2):
        raw.start()
        function = raw.function(raw.module(module()), "twice")
        assert raw.launch(function, (1,), (1,), ctypes.c_uint64(64)) == 0
        assert raw.result("cuCtxSynchronize") == ILLEGAL_ADDRESS
        raw.call("cuDevicePrimaryCtxReset_v2", 0)
    raw.start()
    raw.call("cuCtxSynchronize")
    library.close()


def test_memory_of_others_is_none_of_a_kernels(raw: RawCuda) -> None:
    raw.start()
    theirs = raw.alloc(64)
    raw.get("cuCtxCreate_v2", 0, 0)
    own = np.zeros(16, np.uint32)
    function = raw.function(raw.module(module()), "twice")
    for address in (theirs, own.ctypes.data):
        if address == theirs:
            assert raw.launch(function, (1,), (1,), ctypes.c_uint64(address)) == 0
            assert raw.result("cuCtxSynchronize") == ILLEGAL_ADDRESS
            raw.call("cuCtxPopCurrent_v2", None)
            continue
        raw.call("cuCtxSynchronize")  # the other context goes on


def test_a_kernel_may_wait_for_another(cuda: RawCuda) -> None:
    """Kernels of two streams run beside each other."""
    handle, address = cuda.module(module()), cuda.alloc(64)
    cuda.call("cuMemsetD8_v2", address, 0, 64)
    cuda.call("cuCtxSynchronize")
    host = cuda.pinned(64)
    host[:] = 0
    flag = ctypes.c_uint64(host.ctypes.data)
    one, other = cuda.stream(1), cuda.stream(1)
    assert cuda.launch(cuda.function(handle, "spin"), (1,), (32,), flag, stream=one) == 0
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    opens = kind(lambda _: host.__setitem__(0, 1))
    cuda.call("cuLaunchHostFunc", other, opens, None)
    cuda.call("cuStreamSynchronize", one)


def test_a_kernel_may_wait_for_the_program(cuda: RawCuda) -> None:
    """To ask is not to wait: a kernel that stands goes on when the program has written."""
    host, stream = cuda.pinned(64), cuda.stream(1)
    host[:] = 0
    function = cuda.function(cuda.module(module()), "spin")
    flag = ctypes.c_uint64(host.ctypes.data)
    assert cuda.launch(function, (1,), (32,), flag, stream=stream) == 0
    for _ in range(10):
        assert cuda.result("cuStreamQuery", stream) == 600
        cuda.call("cuMemsetD8Async", cuda.alloc(4), 0, 4, cuda.stream(1))
    host[0] = 1
    cuda.call("cuStreamSynchronize", stream)


def test_a_function_is_of_its_context(raw: RawCuda) -> None:
    raw.start()
    function, stream = raw.function(raw.module(module()), "trapped"), raw.stream()
    raw.get("cuCtxCreate_v2", 0, 0)
    assert raw.launch(function, (1,), (1,)) == INVALID_HANDLE
    own = raw.function(raw.module(module()), "trapped")
    assert raw.launch(own, (1,), (1,), stream=stream) == INVALID_HANDLE
    raw.call("cuCtxSynchronize")


def test_ctrl_c_comes_behind_a_call(cuda: RawCuda) -> None:
    import signal

    seen: list[str] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    def interrupt(_: int | None) -> None:
        signal.raise_signal(signal.SIGINT)
        seen.append("whole")

    function = kind(interrupt)
    cuda.call("cuLaunchHostFunc", 0, function, None)
    with pytest.raises(KeyboardInterrupt):
        cuda.call("cuCtxSynchronize")
        end = time.monotonic() + 30
        while time.monotonic() < end:
            time.sleep(0.001)
    assert seen == ["whole"]
    cuda.call("cuCtxSynchronize")


def test_bytes_behind_the_end(raw: RawCuda, library: Library) -> None:
    """A vector may reach there; what is written is told of when the memory is freed."""
    raw.start()
    wide, store = (raw.function(raw.module(module()), name) for name in ("wide", "store"))
    whole, short, spoilt = raw.alloc(16), raw.alloc(15), raw.alloc(12)
    assert raw.launch(wide, (1,), (1,), ctypes.c_uint64(whole)) == 0
    assert raw.launch(store, (1,), (1,), ctypes.c_uint64(spoilt + 12), ctypes.c_uint(1)) == 0
    raw.call("cuCtxSynchronize")
    for address in (whole, short):
        raw.call("cuMemFree_v2", address)
    assert not library.violations
    raw.call("cuMemFree_v2", spoilt)
    assert library.violations == [f"a kernel has written behind the end of 12 bytes at {spoilt:#x}"]
    far = ctypes.c_uint64(raw.alloc(12) + 16)
    raw.launch(store, (1,), (1,), far, ctypes.c_uint(1))
    assert raw.result("cuCtxSynchronize") == ILLEGAL_ADDRESS
