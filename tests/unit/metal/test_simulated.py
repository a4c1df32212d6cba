"""DEV=METAL on the simulated Mac: families of GPUs, what users see of memory and errors."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gpu
from backend.kernels import SIZE, job_of, loaded
from gpu import Context, Device, Tensor, jit
from gpu.backends.metal.memory import PAGE, MetalMemory
from gpu.core.errors import (
    CompileError,
    ConfigError,
    DeviceError,
    GpuFault,
    OutOfMemory,
    Unsupported,
)
from gpu.runtime.default import default_choice
from simulated import SIMULATED, keeping_rules

GPUS = {
    "METAL": "apple7, Apple M1",
    "METAL:2": "apple9, Apple M3",
    "METAL:3": "mac2, AMD Radeon Pro 5500M",
    "METAL:4": "mac2, Apple Paravirtual device",
}


@pytest.fixture(autouse=True)
def mac(need: Callable[[str], None]) -> Iterator[None]:
    need("simulated-mac")
    with Context(SIM=SIMULATED["METAL"], DEV="METAL"):
        yield


@pytest.mark.parametrize("name", GPUS)
def test_every_family_computes(name: str) -> None:
    rng = np.random.default_rng(len(name) + ord(name[-1]))
    rows, inner, columns = rng.integers(3, 70, 3)
    a = rng.standard_normal((rows, inner), np.float32)
    b = rng.standard_normal((inner, columns), np.float32)
    with keeping_rules(name):
        x, y = Tensor(a, device=name), Tensor(b, device=name)
        np.testing.assert_allclose((x @ y).numpy(), a @ b, rtol=1e-4, atol=1e-4)
        assert x.argmax(1).tolist() == a.argmax(1).tolist()
    assert Device[name].describe()["target"] == GPUS[name]


@pytest.mark.parametrize("name", GPUS)
def test_copies_of_odd_numbers_of_bytes(name: str) -> None:
    rng = np.random.default_rng(ord(name[-1]))
    with keeping_rules(name):
        for count in rng.integers(1, 99, 5):
            data = rng.integers(0, 256, count, np.uint8)
            copied = copy.deepcopy(Tensor(data, device=name).realize())
            assert copied.tolist() == data.tolist()


def test_there_are_as_many_as_metal_lists() -> None:
    with pytest.raises(DeviceError, match=r"no METAL:5: Metal finds 5 GPU"):
        Device["METAL:5"]


def test_a_gpu_of_the_simulation_is_the_default() -> None:
    with Context(SIM="apple8", DEV=""):
        choice = default_choice()
    assert (choice.device, choice.reason) == ("METAL", "SIM=apple8 names one of its chips")
    with Context(SIM="apple7,apple1"), pytest.raises(ConfigError, match="apple1"):
        Device["METAL:6"]


def test_numpy_reads_memory_in_place() -> None:
    x = (Tensor.arange(10).float() * 3).realize()
    first, second = (np.from_dlpack(x, device="cpu") for _ in range(2))
    assert np.shares_memory(first, second)
    assert first.tolist() == [3.0 * i for i in range(10)]


def test_pages_of_the_host_are_used_in_place() -> None:
    whole = np.zeros(3 * PAGE, np.uint8)
    begin = -whole.ctypes.data % PAGE
    data = whole[begin : begin + PAGE].view(np.float32)
    data[:] = np.arange(data.size)
    with keeping_rules("METAL"):
        memory = Device["METAL"].allocator.borrow(data.ctypes.data, data.nbytes, data)
        assert isinstance(memory, MetalMemory) and memory.address == data.ctypes.data
        assert Tensor(data).sum().item() == data.sum()


def test_a_kernel_that_leaves_its_memory_is_a_fault_that_names_it() -> None:
    away = gpu.kernel(
        {"metal": "out[global_id + (1 << 27)] = a[global_id];"},
        outputs=lambda a: (a.shape, a.dtype),
        grid=lambda a: 1,
        block=64,
        name="away",
    )
    with pytest.raises(GpuFault, match=r"1 x 64 threads.*launched at .*test_simulated.py"):
        away(Tensor.arange(64).realize()).numpy()
    assert (Tensor([1.0]) + 1).item() == 2.0


def test_a_users_kernel_that_is_refused_names_its_line() -> None:
    wrong = gpu.kernel(
        {"metal": "\nout[global_id] = nothing;"},
        outputs=lambda a: (a.shape, a.dtype),
        grid=lambda a: 1,
        block=64,
        name="wrong",
    )
    with pytest.raises(CompileError, match=r"wrong:2:18: error: .*'nothing'"):
        wrong(Tensor.arange(64).realize()).numpy()


def test_more_than_a_buffer_holds_is_refused() -> None:
    with pytest.raises(OutOfMemory, match="maxBufferLength"):
        Device["METAL"].allocator.alloc(1 << 40)


@pytest.mark.parametrize(
    ("grid", "block", "told"),
    [
        (1, 2048, "blocks of 2048 threads, metal has at most 1024"),
        (1 << 40, 64, r"1,099,511,627,776 blocks, Metal has at most 67,108,863 of 64"),
        (1 << 31, 1, r"Metal has at most 2,147,483,647 of 1"),
    ],
)
def test_grids_beyond_what_metal_counts_are_refused(grid: int, block: int, told: str) -> None:
    large = gpu.kernel(
        {"metal": "out[0] = a[0];"},
        outputs=lambda a: (a.shape, a.dtype),
        grid=lambda a: grid,
        block=block,
    )
    with keeping_rules("METAL"), pytest.raises(Unsupported, match=told):
        large(Tensor.arange(4).realize()).numpy()


def test_replays_take_values_and_new_memory() -> None:
    @jit
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.sum(1).realize()
        return total, (x.T @ x + total.sum()).realize()

    rng = np.random.default_rng(4)
    with keeping_rules("METAL"):
        for _ in range(5):
            a = rng.standard_normal((17, 5), np.float32)
            total, product = both(Tensor(a).realize())
            np.testing.assert_allclose(total.numpy(), a.sum(1), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(product.numpy(), a.T @ a + a.sum(), rtol=1e-4, atol=1e-4)


def test_launches_are_timed_on_the_hosts_clock() -> None:
    timer = Device["METAL"].make_timer()
    program = loaded(job_of("METAL", lambda x: x + 1))
    memory = [Device["METAL"].allocator.alloc(4 * SIZE) for _ in range(2)]
    began = time.perf_counter_ns()
    timer.launch(program, memory, (), "it")
    (timed,) = timer.collect(wait=True)
    assert began <= timed.start_ns <= timed.end_ns <= time.perf_counter_ns()
    assert program(*memory, wait=True) > 0


def test_a_process_ends_with_work_in_flight_and_says_nothing() -> None:
    code = (
        "from gpu import Tensor\nx = Tensor.arange(1000).float().realize()\n"
        "for _ in range(3): x = (x + 1).realize()\nprint('done')\n"
    )
    root = Path(gpu.__file__).parents[1]
    environment = {**os.environ, "SIM": "apple7", "DEV": "METAL", "PYTHONPATH": str(root)}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ran.stdout, ran.stderr) == ("done\n", "")
