"""Initialisation, devices, primary contexts, and what a thread has."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np
import pytest

from gpu.sim.cuda.library import Library, load
from gpu.sim.nv.chip.chips import CHIPS
from sim.cuda.kernels import module
from sim.cuda.raw_cuda import RawCuda

INVALID_VALUE, NOT_INITIALIZED, INVALID_DEVICE, INVALID_CONTEXT = 1, 3, 101, 201
INVALID_HANDLE, NOT_FOUND = 400, 500


def text(raw: RawCuda, function: str, code: int) -> str:
    place = ctypes.c_char_p()
    raw.call(function, code, ctypes.byref(place))
    assert place.value is not None
    return place.value.decode()


def test_nothing_goes_before_init(raw: RawCuda) -> None:
    count = ctypes.c_int()
    assert raw.result("cuDeviceGetCount", ctypes.byref(count)) == NOT_INITIALIZED
    assert raw.result("cuCtxSynchronize") == NOT_INITIALIZED
    assert raw.result("cuInit", 1) == INVALID_VALUE
    assert raw.get("cuDriverGetVersion", kind=ctypes.c_int) >= 12000
    raw.call("cuInit", 0)
    assert raw.get("cuDeviceGetCount", kind=ctypes.c_int) >= 1


def test_errors_have_names_and_texts(raw: RawCuda) -> None:
    assert text(raw, "cuGetErrorName", 0) == "CUDA_SUCCESS"
    assert text(raw, "cuGetErrorName", 700) == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert text(raw, "cuGetErrorString", 700) == "an illegal memory access was encountered"
    place = ctypes.c_char_p(b"something")
    assert raw.result("cuGetErrorName", 12345, ctypes.byref(place)) == INVALID_VALUE
    assert place.value is None


@pytest.mark.parametrize("chip", CHIPS)
def test_devices_say_what_they_are(chip: str) -> None:
    library = load(f"{chip},{chip}")
    raw, known = RawCuda(library.functions), CHIPS[chip]
    raw.call("cuInit", 0)
    assert raw.get("cuDeviceGetCount", kind=ctypes.c_int) == 2
    name = ctypes.create_string_buffer(64)
    raw.call("cuDeviceGetName", name, len(name), 1)
    assert name.value.decode() == known.board

    def ask(attribute: int) -> int:
        return int(raw.get("cuDeviceGetAttribute", attribute, 1, kind=ctypes.c_int))

    assert (ask(75), ask(76)) == (known.sm_version >> 8, known.sm_version & 255)
    assert ask(16) == known.sms
    assert ask(97) == known.carveouts[-1] * 1024 - 1024
    assert ask(39) == 32 * known.warps
    assert raw.get("cuDeviceTotalMem_v2", 0) == known.vram_size
    uuids = [raw.get("cuDeviceGetUuid_v2", index, kind=ctypes.c_char * 16) for index in (0, 1)]
    assert uuids[0] != uuids[1]
    raw.call("cuDeviceGetPCIBusId", name, len(name), 1)
    assert raw.get("cuDeviceGetByPCIBusId", name.value, kind=ctypes.c_int) == 1
    assert raw.result("cuDeviceGetName", name, len(name), 2) == INVALID_DEVICE
    assert raw.result("cuDeviceGetAttribute", ctypes.byref(ctypes.c_int()), 9999, 0) == 1


def test_names_lead_to_the_newest_function_of_a_version(raw: RawCuda, library: Library) -> None:
    place, status = ctypes.c_uint64(), ctypes.c_int()

    def find(name: bytes, version: int, flags: int = 0) -> tuple[int, int, int]:
        place.value, status.value = 1, 7
        code = raw.result(
            *("cuGetProcAddress_v2", name, ctypes.byref(place)),
            *(version, flags, ctypes.byref(status)),
        )
        return code, place.value, status.value

    for name, flags, symbol in (
        (b"cuMemAlloc", 0, "cuMemAlloc_v2"),
        (b"cuStreamQuery", 0, "cuStreamQuery"),
        (b"cuStreamQuery", 2, "cuStreamQuery_ptsz"),
        (b"cuMemcpyHtoD", 2, "cuMemcpyHtoD_v2_ptds"),
        (b"cuMemcpyHtoD", 1, "cuMemcpyHtoD_v2"),
    ):
        code, address, status_of_it = find(name, 12000, flags)
        assert (code, status_of_it) == (0, 0)
        if isinstance(library, Library):  # a file may lead to them by other ways
            assert address == raw.functions[symbol]
    assert find(b"cuLaunchKernelEx", 11000) == (NOT_FOUND, 0, 2)
    assert find(b"cuNoSuchThing", 12000) == (NOT_FOUND, 0, 1)
    assert find(b"cuStreamQuery", 12000, 8)[0] == INVALID_VALUE


def test_the_primary_context_is_one_and_counted(raw: RawCuda) -> None:
    raw.call("cuInit", 0)
    flags, active = ctypes.c_uint(), ctypes.c_int()

    def state() -> tuple[int, int]:
        raw.call("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
        return flags.value, active.value

    assert state() == (0, 0)
    first = raw.get("cuDevicePrimaryCtxRetain", 0)
    assert raw.get("cuDevicePrimaryCtxRetain", 0) == first
    assert state()[1] == 1
    assert raw.get("cuCtxGetCurrent") == 0  # retaining makes nothing current
    raw.call("cuCtxSetCurrent", first)
    address = raw.alloc(64)
    raw.call("cuDevicePrimaryCtxRelease_v2", 0)
    raw.call("cuMemFree_v2", address)
    raw.call("cuDevicePrimaryCtxRelease_v2", 0)
    assert state()[1] == 0
    assert raw.result("cuDevicePrimaryCtxRelease_v2", 0) == INVALID_CONTEXT
    assert raw.result("cuCtxSynchronize") == INVALID_CONTEXT
    assert raw.get("cuDevicePrimaryCtxRetain", 0) != first


def test_a_release_ends_all_that_is_in_the_context(library: Library, raw: RawCuda) -> None:
    raw.start()
    free = ctypes.c_size_t()
    raw.call("cuMemGetInfo_v2", ctypes.byref(free), None)
    raw.alloc(1 << 20)
    raw.stream()
    raw.call("cuDevicePrimaryCtxRelease_v2", 0)
    assert not library.left()
    raw.start()
    again = ctypes.c_size_t()
    raw.call("cuMemGetInfo_v2", ctypes.byref(again), None)
    assert again.value == free.value


def test_handles_of_a_context_end_with_it(library: Library, raw: RawCuda) -> None:
    raw.start()
    stream = raw.stream()
    raw.call("cuDevicePrimaryCtxRelease_v2", 0)
    raw.start()
    assert raw.result("cuStreamSynchronize", stream) == INVALID_HANDLE
    assert any("was destroyed" in line for line in library.violations)


def test_primary_flags_are_checked(raw: RawCuda) -> None:
    raw.call("cuInit", 0)
    raw.call("cuDevicePrimaryCtxSetFlags_v2", 0, 4)
    assert raw.result("cuDevicePrimaryCtxSetFlags_v2", 0, 0x1000) == INVALID_VALUE
    assert raw.result("cuDevicePrimaryCtxSetFlags_v2", 0, 3) == INVALID_VALUE


def test_a_thread_has_a_stack_of_contexts(raw: RawCuda) -> None:
    primary = raw.start()
    made = raw.get("cuCtxCreate_v2", 0, 0)
    assert raw.get("cuCtxGetCurrent") == made
    assert raw.result("cuDevicePrimaryCtxRelease_v2", 1) == INVALID_DEVICE
    assert raw.get("cuCtxPopCurrent_v2") == made
    assert raw.get("cuCtxGetCurrent") == primary
    raw.call("cuCtxPushCurrent_v2", made)
    assert raw.get("cuCtxGetDevice", kind=ctypes.c_int) == 0
    raw.call("cuCtxDestroy_v2", made)  # what is current is popped
    assert raw.get("cuCtxGetCurrent") == primary
    assert raw.result("cuCtxDestroy_v2", primary) == INVALID_CONTEXT
    raw.call("cuCtxSetCurrent", 0)
    assert raw.result("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p())) == INVALID_CONTEXT


def test_a_thread_without_a_context_can_do_nothing(cuda: RawCuda) -> None:
    results: list[int] = []

    def other() -> None:
        results.append(cuda.result("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 64))
        results.append(cuda.result("cuCtxSynchronize"))
        results.append(int(cuda.get("cuCtxGetCurrent")))
        context = cuda.get("cuDevicePrimaryCtxRetain", 0)
        results.append(cuda.result("cuCtxSetCurrent", context))
        results.append(cuda.result("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 64))
        results.append(cuda.result("cuDevicePrimaryCtxRelease_v2", 0))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert results == [INVALID_CONTEXT, INVALID_CONTEXT, 0, 0, 0, 0]


def test_limits(cuda: RawCuda) -> None:
    assert cuda.get("cuCtxGetLimit", 0) == 1024
    cuda.call("cuCtxSetLimit", 0, 2048)
    assert cuda.get("cuCtxGetLimit", 0) == 2048
    assert cuda.result("cuCtxSetLimit", 99, 1) == 215
    least, greatest = ctypes.c_int(), ctypes.c_int()
    cuda.call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    assert least.value == 0 > greatest.value


def test_a_forked_child_is_not_initialised(cuda: RawCuda) -> None:
    child = os.fork()
    if not child:
        results = (
            cuda.result("cuInit", 0),
            cuda.result("cuCtxSynchronize"),
            cuda.result("cuDeviceGetCount", ctypes.byref(ctypes.c_int())),
        )
        os._exit(0 if results == (NOT_INITIALIZED,) * 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cuda.call("cuCtxSynchronize")


def test_a_child_of_a_process_that_never_called_it_starts_afresh(raw: RawCuda) -> None:
    child = os.fork()
    if not child:
        os._exit(raw.result("cuInit", 0))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_peers_see_each_others_memory(seed: int) -> None:
    library = load("gh100,gh100", seed=seed)
    raw = RawCuda(library.functions)
    raw.call("cuInit", 0)
    contexts = [raw.get("cuDevicePrimaryCtxRetain", index) for index in (0, 1)]
    assert raw.get("cuDeviceCanAccessPeer", 0, 1, kind=ctypes.c_int) == 1
    assert raw.get("cuDeviceCanAccessPeer", 0, 0, kind=ctypes.c_int) == 0
    raw.call("cuCtxSetCurrent", contexts[0])
    assert raw.result("cuCtxDisablePeerAccess", contexts[1]) == 705
    raw.call("cuCtxEnablePeerAccess", contexts[1], 0)
    assert raw.result("cuCtxEnablePeerAccess", contexts[1], 0) == 704
    assert raw.result("cuCtxEnablePeerAccess", contexts[0], 0) == INVALID_CONTEXT
    raw.call("cuCtxSetCurrent", contexts[1])
    data = np.arange(32, dtype=np.uint32)
    theirs = raw.upload(data)
    raw.call("cuCtxSynchronize")
    raw.call("cuCtxSetCurrent", contexts[0])
    function = raw.function(raw.module(module()), "twice")
    assert raw.launch(function, (1,), (32,), ctypes.c_uint64(theirs)) == 0
    raw.call("cuCtxSynchronize")
    assert (raw.download(theirs, data) == 2 * data).all()
    raw.call("cuCtxDisablePeerAccess", contexts[1])
    assert raw.launch(function, (1,), (32,), ctypes.c_uint64(theirs)) == 0
    assert raw.result("cuCtxSynchronize") == 700
    assert not library.violations
    library.close()


def test_a_thread_without_a_context_gives_things_back(cuda: RawCuda, library: Library) -> None:
    memory, pinned, event, stream = cuda.alloc(64), cuda.pinned(64), cuda.event(), cuda.stream()
    cuda.call("cuMemsetD32Async", memory, 0, 16, stream)
    context = cuda.get("cuCtxPopCurrent_v2")
    for name, handle in (
        ("cuMemFree_v2", memory), ("cuMemFreeHost", pinned.ctypes.data),
        ("cuEventDestroy_v2", event), ("cuStreamDestroy_v2", stream),
    ):  # fmt: skip
        cuda.call(name, handle)
    assert [line for line in library.left() if "primary" not in line] == []
    cuda.call("cuCtxSetCurrent", context)
    assert cuda.result("cuMemFree_v2", memory) == INVALID_VALUE  # it was freed
