"""What a device's compiler and programs promise: order, timing, typed errors, honest text."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from backend.kernels import SIZE, job_of, loaded
from gpu import Tensor, Var
from gpu.core.errors import GpuError, Unsupported
from gpu.runtime.device import Device


def test_launches_and_copies_keep_their_order(device: str) -> None:
    allocator = Device[device].allocator
    program = loaded(job_of(device, lambda x: x * 2 + 1))
    a, b = allocator.alloc(SIZE * 4), allocator.alloc(SIZE * 4)
    values = np.arange(SIZE, dtype=np.float32)
    for _ in range(3):
        allocator.copy_in(a, memoryview(values).cast("B"))
        for _ in range(4):
            program(b, a)
            program(a, b)
        got = np.empty_like(values)
        allocator.copy_out(memoryview(got).cast("B"), a)
        np.testing.assert_array_equal(got, values * 256 + 255)
        values = values[::-1].copy()
    for memory in (a, b):
        allocator.free(memory, SIZE * 4)


def test_waiting_gives_seconds(device: str) -> None:
    allocator = Device[device].allocator
    program = loaded(job_of(device, lambda x: x + 1))
    a, b = allocator.alloc(SIZE * 4), allocator.alloc(SIZE * 4)
    allocator.copy_in(a, memoryview(bytes(SIZE * 4)))
    seconds = program(b, a, wait=True)
    assert isinstance(seconds, float) and 0 <= seconds < 600
    assert program(b, a) is None
    Device[device].synchronize()
    for memory in (a, b):
        allocator.free(memory, SIZE * 4)


def test_a_program_may_go_while_it_runs(device: str) -> None:
    allocator = Device[device].allocator
    a, b = allocator.alloc(SIZE * 4), allocator.alloc(SIZE * 4)
    allocator.copy_in(a, memoryview(bytes(SIZE * 4)))
    for number in range(1, 4):
        program = loaded(job_of(device, lambda x, number=number: x + number))  # type: ignore[misc]
        program(b, a)
        del program
        gc.collect()
        got = np.empty(SIZE, np.float32)
        allocator.copy_out(memoryview(got).cast("B"), b)
        np.testing.assert_array_equal(got, number)
    for memory in (a, b):
        allocator.free(memory, SIZE * 4)


def test_rendering_and_keys_are_the_same_again(device: str) -> None:
    first, second = (job_of(device, lambda x: x.exp() - 1) for _ in range(2))
    assert first == second
    assert Device[device].compiler.key == Device[device].compiler.key != ""
    assert all(isinstance(value, int) for value in first.data.values())  # caches keep ints


def test_source_that_makes_no_sense_is_refused(device: str) -> None:
    compiler = Device[device].compiler
    with pytest.raises(GpuError) as caught:
        Device[device].runtime("k", compiler.compile("this is no kernel {"), {})
    assert str(caught.value)
    assert (Tensor([1.0, 2.0], device=device) + 1).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("lib", [b"", b"\x7fELF", b"no code at all" * 100])
def test_code_that_makes_no_sense_is_refused(device: str, lib: bytes) -> None:
    job = job_of(device, lambda x: x + 1)
    with pytest.raises(GpuError) as caught:
        Device[device].runtime(job.name, lib, job.data)
    assert str(caught.value)
    assert (Tensor([1.0, 2.0], device=device) * 3).tolist() == [3.0, 6.0]


def test_code_can_be_read(device: str) -> None:
    compiler = Device[device].compiler
    lib = compiler.compile_cached(job_of(device, lambda x: x + 1).source)
    try:
        text = compiler.disassemble(lib)
    except Unsupported as error:
        assert len(error.message.split()) > 5  # it says why, or what is missing
    else:
        assert text.strip()


def test_it_describes_itself(device: str) -> None:
    described = Device[device].describe()
    assert described["device"] == device
    assert all(isinstance(text, str) for text in described.values())


def test_threads_share_a_device(device: str) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        x = Tensor(np.full((20, 30), number, np.float32), device=device)
        for _ in range(5):
            total = ((x + 1) @ x.permute(1, 0)).sum().item()
            if total != 20 * 20 * 30 * number * (number + 1):
                wrong.append(f"{number}: {total}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_pass_values_of_their_own(device: str) -> None:
    x = Tensor(np.arange(64, dtype=np.float32), device=device).realize()
    length = Var("length", 1, 64)
    assert x[: length.bind(3)].sum().item() == 3
    wrong: list[str] = []

    def work(number: int) -> None:
        for step in range(40):
            size = (step * 7 + number * 13) % 64 + 1
            total = x[: length.bind(size)].sum().item()
            if total != size * (size - 1) // 2:
                wrong.append(f"{number}: {size} numbers are {total}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
