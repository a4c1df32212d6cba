"""What a caller passes by mistake is refused by name on every device; numpy's ints work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backend.kernels import SIZE, job_of, loaded
from gpu import Tensor, Var, dtypes
from gpu.core.errors import GpuError, InvalidType, InvalidValue, OutOfMemory
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device

NO_NUMBERS = (1.5, None, True, "8", [8], b"x", float("nan"), np.float32(8), np.array([8, 8]))
NUMBERS = (8, np.int64(8), np.uint8(8), np.int32(8))
ANY: Any = None


def refused(error: type[GpuError], name: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=name):
        call()


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_sizes_are_whole_numbers(device: str, value: Any) -> None:
    allocator = Device[device].allocator
    refused(InvalidType, "the size of an allocation must be an int", lambda: allocator.alloc(value))
    wanted = "the number of a buffer's elements must be an int"
    refused(InvalidType, wanted, lambda: Buffer(device, value, dtypes.float32))


def test_sizes_are_not_negative_and_fit(device: str) -> None:
    allocator = Device[device].allocator
    refused(InvalidValue, "allocation is -1: give 0 or more", lambda: allocator.alloc(-1))
    refused(InvalidValue, "elements is -8", lambda: Buffer(device, -8, dtypes.float32))
    with pytest.raises(OutOfMemory):
        allocator.alloc(1 << 70)
    with pytest.raises(OutOfMemory):
        _ = Buffer(device, 1 << 70, dtypes.float32).memory


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_numpys_numbers_are_sizes(device: str, value: Any) -> None:
    allocator = Device[device].allocator
    memory = allocator.alloc(value)
    allocator.copy_in(memory, memoryview(b"12345678"))
    back = bytearray(8)
    allocator.copy_out(memoryview(back), memory)
    assert back == b"12345678"
    allocator.free(memory, 8)
    assert Buffer(device, value, dtypes.float32).copy_out().size == 8


@pytest.mark.parametrize("dtype", [None, "float32", np.float32, float, 1.5], ids=repr)
def test_a_buffers_dtype_is_one_of_ours(device: str, dtype: Any) -> None:
    refused(InvalidType, "dtype must be one of dtypes", lambda: Buffer(device, 8, dtype))


@pytest.mark.parametrize("data", [None, 8, 1.5, "text", [1, 2]], ids=repr)
def test_bytes_of_the_host_are_a_buffer(device: str, data: Any) -> None:
    allocator = Device[device].allocator
    memory = allocator.alloc(64)
    refused(InvalidType, "must be a buffer of bytes", lambda: allocator.copy_in(memory, data))
    refused(InvalidType, "must be a buffer of bytes", lambda: allocator.copy_out(data, memory))
    allocator.free(memory, 64)


def test_bytes_of_the_host_may_be_written_and_are_contiguous(device: str) -> None:
    allocator = Device[device].allocator
    memory = allocator.alloc(64)
    view = memoryview(bytearray(64))
    refused(InvalidValue, "read-only", lambda: allocator.copy_out(memoryview(bytes(8)), memory))
    refused(InvalidValue, "not contiguous", lambda: allocator.copy_in(memory, view[::2]))
    refused(InvalidValue, "not contiguous", lambda: allocator.copy_out(view[::2], memory))
    allocator.free(memory, 64)


@pytest.mark.parametrize("name", [1.5, ["CPU", "CPU"], b"CPU", 8, ["CPU", 3]], ids=repr)
def test_a_device_is_opened_by_a_name(name: Any) -> None:
    with pytest.raises((InvalidType, InvalidValue), match="device"):
        Device[name]


@pytest.mark.parametrize("memory", [None, 1.5, "x"], ids=repr)
def test_a_kernel_takes_memory(device: str, memory: Any) -> None:
    allocator = Device[device].allocator
    program = loaded(job_of(device, lambda x: x + 1))
    mine = allocator.alloc(SIZE * 4)
    for wrong in ((mine, memory), (memory, mine)):
        with pytest.raises(GpuError, match=r"buffer|memory|allocation"):
            program(*wrong)
    allocator.free(mine, SIZE * 4)


@pytest.mark.parametrize("value", [1.5, None, "8", [8], 1 << 70], ids=repr)
def test_a_kernels_values_are_numbers(device: str, value: Any) -> None:
    allocator = Device[device].allocator
    n = Var("n", 1, SIZE)
    program = loaded(job_of(device, lambda x: x[: n.bind(3)] + n.bind(3)))
    a, b = allocator.alloc(SIZE * 4), allocator.alloc(SIZE * 4)
    with pytest.raises(GpuError):
        program(a, b, vals=(value,))
    with pytest.raises(GpuError):
        program(a, b, vals=ANY)
    allocator.copy_in(b, memoryview(np.arange(SIZE, dtype=np.float32)))
    program(a, b, vals=(np.int32(5),))
    got = np.empty(5, np.float32)
    allocator.copy_out(memoryview(got), a)
    np.testing.assert_array_equal(got, np.arange(5) + 5)
    for memory in (a, b):
        allocator.free(memory, SIZE * 4)


def test_an_address_of_foreign_memory_has_64_bits() -> None:
    for pointer in (1.5, None, True, "8", [8]):
        refused(InvalidType, "ptr", lambda p=pointer: Tensor.from_blob(p, (2,)))  # type: ignore[misc]
    for pointer in (0, -8, 7, 1 << 64, 1 << 70):
        refused(InvalidValue, "ptr", lambda p=pointer: Tensor.from_blob(p, (2,)))  # type: ignore[misc]
    for shape in ((1 << 62,), (1 << 70,), (1 << 40, 1 << 40)):
        with pytest.raises(InvalidValue, match="does not end within 64 bits"):
            Tensor.from_blob(4096, shape)
