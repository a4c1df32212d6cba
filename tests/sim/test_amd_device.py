"""The AMD device of the tensor library on simulated GPUs: `SIM=gfx1100 DEV=AMD`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gpu import Context, Tensor
from gpu.backends.amd import device as backend
from gpu.backends.amd.device import AMDDevice, open_device
from gpu.core import hostmem
from gpu.core.devspec import parse_device_spec
from gpu.core.errors import (
    ConfigError,
    DeviceError,
    DeviceLost,
    GpuFault,
    InvalidIndex,
    Unsupported,
)
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.kfd.port import open_kfd
from gpu.runtime.device import Compiled, Device
from gpu.transport.world import World
from simulated import SIMULATED, own_machines

SIM = SIMULATED["AMD"]


@pytest.fixture(autouse=True)
def simulated(need: Callable[[str], None]) -> Iterator[None]:
    need("llvmlite")
    with Context(SIM=SIM, DEV="AMD"):
        yield


def test_tensors_on_two_gpus() -> None:
    a = np.random.default_rng(0).normal(size=(70, 90)).astype(np.float32)
    first = Tensor(a)
    assert first.device == "AMD"
    product = (first @ first.T).softmax(1)
    second = product.to("AMD:1") + 1
    assert second.device == "AMD:1"
    exact = a.astype(np.float64) @ a.T
    exact = np.exp(exact - exact.max(1, keepdims=True))
    np.testing.assert_allclose(
        second.numpy(), exact / exact.sum(1, keepdims=True) + 1, rtol=1e-4, atol=1e-5
    )
    for name in ("AMD", "AMD:1"):
        device = Device[name]
        assert isinstance(device, AMDDevice)
        device.synchronize()
        assert device.describe()["target"] == "gfx1100, simulated"


def test_a_bad_pointer_and_going_on() -> None:
    """After a fault the device works again, with the memory it had."""
    with own_machines(), Context(SIM="gfx1100"):  # its GPU is in another context afterwards
        _fault_and_go_on(open_device("AMD", parse_device_spec("AMD")))


def _fault_and_go_on(device: Compiled) -> None:
    assert isinstance(device, AMDDevice)
    a, found = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    hole, kept = hostmem.reserve(1 << 16), device.allocator.alloc(256)
    device.allocator.copy_in(kept, memoryview(a).cast("B"))
    device.synchronize()
    assert not device.recover()
    device.queues.queue("copy").copy(hole, kept, 4).submit(device.queues)
    with pytest.raises(GpuFault, match=rf"page {hole:#x}, which is not mapped"):
        device.synchronize()
    with pytest.raises(DeviceLost, match="recover"):
        device.allocator.copy_out(memoryview(found).cast("B"), kept)
    assert device.recover()
    device.allocator.copy_out(memoryview(found).cast("B"), kept)
    np.testing.assert_array_equal(found, a)
    hostmem.release(hole, 1 << 16)
    del kept
    device.queues.close()


def test_a_chip_that_the_compiler_refuses_leaves_no_queue_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[AmDevice] = []

    def noted(world: World, index: int, **options: Any) -> AmDevice:
        opened.append(open_kfd(world, index, **options))
        return opened[-1]

    def refused(chip: str) -> None:
        raise Unsupported(f"no code for {chip}")

    monkeypatch.setattr(backend, "open_kfd", noted)
    monkeypatch.setattr(backend, "AMDCompiler", refused)
    with (
        own_machines(),
        Context(SIM="gfx1100"),
        pytest.raises(Unsupported, match="no code for gfx1100"),
    ):
        open_device("AMD", parse_device_spec("AMD"))
    assert [device.is_closed for device in opened] == [True]


def test_timing_empty_and_large_copies() -> None:
    assert Tensor(np.zeros((0, 3), np.float32)).sum().item() == 0
    big = np.arange(3 << 20, dtype=np.float32)
    np.testing.assert_array_equal(Tensor(big).realize().numpy(), big)


@pytest.mark.parametrize("renderer", ["LLVM", "HIP"])
def test_another_chip_than_there_is(renderer: str) -> None:
    with own_machines(), pytest.raises(Unsupported, match="is a gfx1100"):
        open_device("AMD", parse_device_spec(f"AMD:{renderer}:gfx942"))


def test_chips_whose_code_no_model_runs() -> None:
    with (
        Context(SIM="gfx90a"),
        pytest.raises(ConfigError, match=r"'gfx90a' that runs .* of gfx942"),
    ):
        open_device("AMD", parse_device_spec("AMD"))


def test_a_gpu_that_is_not_there() -> None:
    with own_machines(), pytest.raises(InvalidIndex, match="there are 2"):
        open_device("AMD:2", parse_device_spec("AMD:2"))


def test_without_a_driver_the_error_says_so() -> None:
    with Context(SIM=""), pytest.raises(DeviceError):
        open_device("AMD", parse_device_spec("AMD"))
