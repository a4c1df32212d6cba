"""Tensors over memory that others have on the same GPU: OpenCL's driver, and the host."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gpu import Context, Device, Tensor, dtypes
from gpu.autogen import kgsl
from gpu.backends.qcom.device import QCOMDevice
from gpu.core.errors import InvalidValue
from gpu.core.hostmem import MAP_SHARED, PROT_READ, PROT_WRITE
from simulated import SIMULATED

BYTES = 8192
COMBINED, CACHED = 0, kgsl.KGSL_CACHEMODE_WRITEBACK << kgsl.KGSL_CACHEMODE_SHIFT


@dataclass
class Other:
    """Another user of KGSL in the process, with an object that it has mapped."""

    system: Any
    file: int
    number: int
    address: int
    numbers: np.ndarray[Any, np.dtype[np.int32]]

    def describe(self) -> bytes:
        """A `cl_mem` of Qualcomm's, whose word at 0xa0 is where the GPU has the memory."""
        return bytes(0xA0) + self.address.to_bytes(8, "little") + bytes(0x58)

    def free(self) -> None:
        self.system.ioctl(
            self.file, kgsl.IOCTL_KGSL_GPUOBJ_FREE, kgsl.kgsl_gpuobj_free(id=self.number)
        )


@pytest.fixture
def device(need: Callable[[str], None]) -> Iterator[QCOMDevice]:
    need("tinymesa")
    with Context(DEV="QCOM", SIM=SIMULATED["QCOM"]):
        opened = Device["QCOM"]
        assert isinstance(opened, QCOMDevice)
        yield opened


@pytest.fixture(params=[COMBINED, CACHED], ids=["combined", "cached"])
def other(device: QCOMDevice, request: pytest.FixtureRequest) -> Iterator[Other]:
    system = device.queues.port.world.os
    file = system.open("/dev/kgsl-3d0", os.O_RDWR)
    made = kgsl.kgsl_gpuobj_alloc(size=BYTES, flags=request.param)
    system.ioctl(file, kgsl.IOCTL_KGSL_GPUOBJ_ALLOC, made)
    told = kgsl.kgsl_gpuobj_info(id=made.id)
    system.ioctl(file, kgsl.IOCTL_KGSL_GPUOBJ_INFO, told)
    host = system.mmap(file, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, made.id << 12)
    words = (ctypes.c_int32 * (BYTES // 4)).from_address(host)
    yield Other(system, file, made.id, told.gpuaddr, np.ctypeslib.as_array(words))
    settle(device)
    system.munmap(host, BYTES)
    system.close(file)


def settle(device: QCOMDevice) -> None:
    """Has memory that was let go of go back, which it does at a submission."""
    gc.collect()
    (Tensor.ones(4, device="QCOM") + 1).realize()
    device.synchronize()
    (Tensor.ones(4, device="QCOM") + 2).realize()


def test_a_buffer_of_opencl_is_used_in_place(device: QCOMDevice, other: Other) -> None:
    other.numbers[:64] = np.arange(64)
    cl_mem = ctypes.create_string_buffer(other.describe(), 0x100)
    address = int.from_bytes(cl_mem.raw[0xA0:0xA8], "little")
    x = Tensor.from_blob(address, (8, 8), dtype=dtypes.int, device="QCOM")
    assert x.tolist() == np.arange(64).reshape(8, 8).tolist()
    assert (x @ x).tolist() == (np.arange(64).reshape(8, 8) @ np.arange(64).reshape(8, 8)).tolist()
    later = Tensor.from_blob(address, 4, dtype=dtypes.int, device="QCOM", offset=32)
    assert (later + 1).tolist() == [9, 10, 11, 12]
    total, most = device.queues.port.memory.in_use, BYTES
    del x, later
    settle(device)
    assert device.queues.port.memory.in_use <= total - most


@pytest.mark.parametrize(
    ("behind", "count", "words"),
    [
        (BYTES - 16, 8, "of which 16 are .* needs 32"),
        (0, BYTES // 4 + 4, f"has {BYTES:,} bytes"),
        (4, 4, "multiple of 16; copy it"),
        (1 << 36, 4, "in no object of KGSL"),
    ],
)
def test_what_is_no_such_memory_is_refused(
    other: Other, behind: int, count: int, words: str
) -> None:
    with pytest.raises(InvalidValue, match=words):
        Tensor.from_blob(other.address + behind, count, dtype=dtypes.int, device="QCOM")


def test_memory_that_was_freed_is_refused(other: Other) -> None:
    other.free()
    with pytest.raises(InvalidValue, match="in no object of KGSL"):
        Tensor.from_blob(other.address, 4, dtype=dtypes.int, device="QCOM")


@pytest.mark.parametrize("count", [3, 1000, 5000])
def test_memory_of_the_host_is_used_in_place(device: QCOMDevice, count: int) -> None:
    values = np.random.default_rng(count).normal(size=count + 4).astype(np.float32)
    first = -values.ctypes.data % 16 // 4
    part = values[first : first + count]
    x = Tensor.from_blob(part.ctypes.data, count, device="QCOM")
    np.testing.assert_array_equal((x + 1).numpy(), part + 1)
    before = part.copy()
    x += 1
    np.testing.assert_array_equal(x.numpy(), before + 1)
    np.testing.assert_array_equal(part, before)
    del x
    settle(device)
