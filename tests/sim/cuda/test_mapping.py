"""Physical memory and addresses, each by itself: outcomes of virtual memory management."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import struct
from multiprocessing.reduction import recv_handle

import numpy as np
import pytest

from gpu.sim.cuda.library import Library
from sim.cuda.kernels import module
from sim.cuda.physical import (
    DESCRIPTOR,
    PRIVATE,
    READ_WRITE,
    SHAREABLE,
    SIZE,
    VALUES,
    create,
    exported,
    mapped,
    owner_of_a_file,
)
from sim.cuda.raw_cuda import RawCuda

INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS, NOT_SUPPORTED = 1, 2, 700, 801


def unmap(cuda: RawCuda, address: int, size: int = SIZE) -> None:
    cuda.call("cuMemUnmap", address, size)
    cuda.call("cuMemAddressFree", address, size)


def imported(cuda: RawCuda, file: int) -> int:
    handle: int = cuda.get("cuMemImportFromShareableHandle", file, DESCRIPTOR)
    return handle


def test_memory_is_created_in_whole_granules(cuda: RawCuda) -> None:
    assert cuda.get("cuMemGetAllocationGranularity", SHAREABLE, 0) == SIZE
    place = ctypes.byref(ctypes.c_uint64())
    for size, flags in ((0, 0), (SIZE + 1, 0), (SIZE, 1)):
        assert cuda.result("cuMemCreate", place, size, SHAREABLE, flags) == INVALID_VALUE
    assert cuda.result("cuMemCreate", place, 1 << 40, SHAREABLE, 0) == OUT_OF_MEMORY
    on_host = struct.pack("<4iQ8x", 1, 0, 2, 0, 0)
    assert cuda.result("cuMemCreate", place, SIZE, on_host, 0) == NOT_SUPPORTED
    assert cuda.result("cuMemCreate", place, SIZE, None, 0) == INVALID_VALUE


def test_memory_counts_until_nobody_has_it(cuda: RawCuda) -> None:
    def free() -> int:
        left: int = cuda.get("cuMemGetInfo_v2", None)
        return left

    before, handle = free(), create(cuda)
    assert before - free() == SIZE
    address = mapped(cuda, handle)
    cuda.call("cuMemRelease", handle)
    assert cuda.result("cuMemcpyDtoH_v2", VALUES.copy().ctypes.data, address, 4) == 0
    assert before - free() == SIZE
    unmap(cuda, address)
    assert free() == before


def test_what_is_mapped_may_be_touched_after_access_is_set(cuda: RawCuda, library: Library) -> None:
    handle = create(cuda)
    address = mapped(cuda, handle, access=b"")
    data = VALUES.copy()
    assert cuda.result("cuMemcpyHtoD_v2", address, data.ctypes.data, 64) == INVALID_VALUE
    nowhere = struct.pack("<3i", 1, 5, 3)
    assert cuda.result("cuMemSetAccess", address, SIZE, nowhere, 1) != 0
    assert cuda.result("cuMemSetAccess", address, SIZE, READ_WRITE, 0) == INVALID_VALUE
    assert cuda.result("cuMemSetAccess", address, SIZE // 2, READ_WRITE, 1) == INVALID_VALUE
    cuda.call("cuMemSetAccess", address, SIZE, READ_WRITE, 1)
    cuda.call("cuMemcpyHtoD_v2", address, data.ctypes.data, data.nbytes)
    np.testing.assert_array_equal(cuda.download(address, VALUES), VALUES)
    # 2: CU_POINTER_ATTRIBUTE_MEMORY_TYPE; 12: CU_POINTER_ATTRIBUTE_RANGE_SIZE.
    assert cuda.get("cuPointerGetAttribute", 2, address, kind=ctypes.c_int) == 2
    assert cuda.get("cuPointerGetAttribute", 12, address) == SIZE
    cuda.call("cuMemRelease", handle)
    unmap(cuda, address)
    assert cuda.result("cuMemcpyHtoD_v2", address, data.ctypes.data, 64) == INVALID_VALUE
    library.check(leaks=False)


def test_addresses_are_reserved_mapped_and_freed_whole(cuda: RawCuda) -> None:
    handle, place = create(cuda), ctypes.byref(ctypes.c_uint64())
    assert cuda.result("cuMemAddressReserve", place, 4096, 0, 0, 0) == INVALID_VALUE
    assert cuda.result("cuMemAddressReserve", place, SIZE, 3, 0, 0) == INVALID_VALUE
    start = cuda.get("cuMemAddressReserve", 2 * SIZE, 0, 0, 0)
    for wrong in (
        (start, 2 * SIZE, 0, handle, 0),  # more than there is
        (start, SIZE, SIZE, handle, 0),
        (start, SIZE, 0, handle, 1),
        (start + 2 * SIZE, SIZE, 0, handle, 0),
        (start, SIZE, 0, 0, 0),
    ):
        assert cuda.result("cuMemMap", *wrong) == INVALID_VALUE, wrong
    cuda.call("cuMemMap", start + SIZE, SIZE, 0, handle, 0)
    assert cuda.result("cuMemMap", start + SIZE, SIZE, 0, handle, 0) == INVALID_VALUE
    assert cuda.result("cuMemAddressFree", start, 2 * SIZE) == INVALID_VALUE
    assert cuda.result("cuMemUnmap", start, 2 * SIZE) == INVALID_VALUE
    assert cuda.result("cuMemFree_v2", start + SIZE) == INVALID_VALUE
    cuda.call("cuMemUnmap", start + SIZE, SIZE)
    assert cuda.result("cuMemUnmap", start + SIZE, SIZE) == INVALID_VALUE
    assert cuda.result("cuMemAddressFree", start, SIZE) == INVALID_VALUE
    cuda.call("cuMemAddressFree", start, 2 * SIZE)
    assert cuda.result("cuMemAddressFree", start, 2 * SIZE) == INVALID_VALUE
    cuda.call("cuMemRelease", handle)


def test_a_released_handle_is_told_of(raw: RawCuda, library: Library) -> None:
    raw.start()
    handle = create(raw)
    raw.call("cuMemRelease", handle)
    assert raw.result("cuMemRelease", handle) == INVALID_VALUE
    assert len(library.violations) == 1


def test_memory_is_exported_if_it_was_made_for_that(cuda: RawCuda) -> None:
    place = ctypes.byref(ctypes.c_int())
    private, shared = create(cuda, PRIVATE), create(cuda)
    export = "cuMemExportToShareableHandle"
    assert cuda.result(export, place, private, DESCRIPTOR, 0) == INVALID_VALUE
    assert cuda.result(export, place, shared, 2, 0) == INVALID_VALUE
    assert cuda.result(export, None, shared, DESCRIPTOR, 0) == INVALID_VALUE
    file = exported(cuda, shared)
    again = imported(cuda, file)
    os.close(file)
    address, other = mapped(cuda, shared), mapped(cuda, again)
    cuda.call("cuMemcpyHtoD_v2", address, VALUES.ctypes.data, VALUES.nbytes)
    np.testing.assert_array_equal(cuda.download(other, VALUES), VALUES)
    for at in (address, other):
        unmap(cuda, at)
    for handle in (private, shared, again):
        cuda.call("cuMemRelease", handle)


def test_files_that_are_no_memory_of_a_device(cuda: RawCuda) -> None:
    place, (end, other) = ctypes.byref(ctypes.c_uint64()), os.pipe()
    bring = "cuMemImportFromShareableHandle"
    assert cuda.result(bring, place, end, DESCRIPTOR) == INVALID_VALUE
    assert cuda.result(bring, place, end, 2) == INVALID_VALUE
    os.close(end)
    assert cuda.result(bring, place, end, DESCRIPTOR) == INVALID_VALUE
    os.close(other)


@pytest.mark.parametrize("seed", [0], indirect=True)
def test_memory_outlives_the_process_that_made_it(cuda: RawCuda, which: str | None) -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    arguments = (theirs, os.getpid(), which)
    process = spawn.Process(target=owner_of_a_file, args=arguments, daemon=True)
    process.start()
    theirs.close()
    file = recv_handle(ours)
    process.kill()
    process.join(30)
    handle = imported(cuda, file)
    os.close(file)
    address = mapped(cuda, handle)
    np.testing.assert_array_equal(cuda.download(address, VALUES), VALUES)
    unmap(cuda, address)
    cuda.call("cuMemRelease", handle)


def test_a_kernel_needs_access(raw: RawCuda) -> None:
    raw.start()
    address = mapped(raw, create(raw), access=struct.pack("<3i", 1, 0, 1))
    store = raw.function(raw.module(module()), "store")
    raw.launch(store, (1,), (1,), ctypes.c_uint64(address), ctypes.c_uint(7))
    assert raw.result("cuCtxSynchronize") == ILLEGAL_ADDRESS


def test_memory_in_use_is_not_unmapped(raw: RawCuda, library: Library) -> None:
    raw.start()
    address, pinned = mapped(raw, create(raw)), raw.pinned(SIZE)
    stream = raw.stream(1)
    for _ in range(40):
        raw.call("cuMemcpyHtoDAsync_v2", address, pinned.ctypes.data, SIZE, stream)
    raw.call("cuMemUnmap", address, SIZE)
    assert any("memory is unmapped before" in each for each in library.violations)


def test_what_was_left_is_told(cuda: RawCuda, library: Library) -> None:
    create(cuda)
    cuda.get("cuMemAddressReserve", SIZE, 0, 0, 0)
    left = library.left()
    assert "1 handles of cuMemCreate" in left and "1 reserved ranges of addresses" in left
