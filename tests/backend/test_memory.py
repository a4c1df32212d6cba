"""What a device's allocator promises: contents, separateness, copies, and an end to memory."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from gpu import dtypes
from gpu.core.errors import OutOfMemory
from gpu.runtime.allocator import Allocator
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device

SIZES = (1, 3, 4, 255, 256, 4095, 4096, 4097, 65_536, 1_000_003)


def filled(allocator: Allocator[Any], data: bytes) -> Any:
    memory = allocator.alloc(len(data))
    allocator.copy_in(memory, memoryview(data))
    return memory


def content(allocator: Allocator[Any], memory: Any, size: int) -> bytes:
    data = bytearray(size)
    allocator.copy_out(memoryview(data), memory)
    return bytes(data)


def test_what_was_written_is_read(device: str) -> None:
    allocator = Device[device].allocator
    rng = np.random.default_rng(1)
    wanted = [rng.bytes(size) for size in SIZES]
    memories = [filled(allocator, data) for data in wanted]  # all at once: they must not overlap
    for data, memory in zip(wanted, memories, strict=True):
        assert content(allocator, memory, len(data)) == data
        allocator.free(memory, len(data))


def test_a_part_is_written_and_read(device: str) -> None:
    allocator = Device[device].allocator
    memory = filled(allocator, bytes(range(100)))
    allocator.copy_in(memory, memoryview(b"\xff" * 8))
    assert content(allocator, memory, 9) == b"\xff" * 8 + b"\x08"
    assert content(allocator, memory, 100)[8:] == bytes(range(8, 100))
    allocator.free(memory, 100)


def test_copies_within_the_device(device: str) -> None:
    allocator = Device[device].allocator
    data = np.random.default_rng(2).bytes(70_001)
    source, target = filled(allocator, data), filled(allocator, bytes(70_001))
    allocator.copy(target, source, 65_540)
    assert content(allocator, target, 70_001) == data[:65_540] + bytes(70_001 - 65_540)
    for memory in (source, target):
        allocator.free(memory, 70_001)


def test_memory_of_garbage_may_be_used_again(device: str) -> None:
    size = 4099
    for number in range(3):
        garbage: list[Any] = [Buffer(device, size, dtypes.float32)]
        garbage[0].copy_in(np.zeros(size, np.float32))
        garbage.append(garbage)
        del garbage
        gc.collect()
        data = np.random.default_rng(number).random(size, np.float32)
        again = Buffer(device, size, dtypes.float32).copy_in(data)
        assert (again.copy_out() == data).all()


def test_memory_may_be_used_again(device: str) -> None:
    allocator = Device[device].allocator
    for number in range(300):
        size = 1 + number * 37 % 9000
        data = bytes([number % 256]) * size
        memory = filled(allocator, data)
        assert content(allocator, memory, size) == data
        allocator.free(memory, size)
    allocator.free_cache()


def test_the_host_reads_in_place_what_was_copied_in(device: str) -> None:
    import ctypes

    allocator = Device[device].allocator
    memory = filled(allocator, b"in place")
    address = allocator.host_address(memory)
    if address is not None:  # most devices have memory of their own
        assert ctypes.string_at(address, 8) == b"in place"
    allocator.free(memory, 8)


@pytest.mark.parametrize("size", [1 << 50, 1 << 62])
def test_there_is_an_end_to_memory(device: str, size: int) -> None:
    allocator = Device[device].allocator
    with pytest.raises(OutOfMemory, match=r"\d"):  # it says how much
        allocator.alloc(size)
    memory = filled(allocator, b"still alive")
    assert content(allocator, memory, 11) == b"still alive"
    allocator.free(memory, 11)
