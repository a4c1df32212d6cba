"""Loading code and launching it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest

from gpu.backends.cuda.program import count_parameters
from gpu.core.errors import (
    CompileError,
    DeviceError,
    FormatError,
    InvalidIndex,
    InvalidType,
    InvalidValue,
)
from libcuda.conftest import Opened
from libcuda.stand_in import StandIn


def test_a_launch_is_given_packed_arguments(cuda: Opened) -> None:
    seen: list[tuple[int, ...]] = []
    cuda.stand_in.kernels["k"] = lambda *words: seen.append(words)
    program = cuda.program(values=2, workspace=4096, shared=50_000)
    a, b = cuda.allocator.alloc(8), cuda.allocator.alloc(8)
    program(a, b, vals=[3, np.int64(-1)])
    assert seen == [(a.address, b.address, program.workspace[0].address, 3, 2**64 - 1)]
    ((stream, launch),) = cuda.stand_in.launches
    assert stream == cuda.context.streams.launches
    assert launch[:4] == (program.function, 3, 64, 50_000)
    assert cuda.stand_in.given("cuFuncSetAttribute") == [(program.function, 8, 50_000)]


def test_ptx_is_loaded_where_the_cubin_is_for_another_gpu(cuda: Opened) -> None:
    cuda.stand_in.fails["cubin"] = 209
    cuda.program("k")
    (image,) = cuda.stand_in.modules.values()
    assert image.startswith(b".version")


def test_a_cubin_that_is_refused_otherwise_is_an_error(cuda: Opened) -> None:
    cuda.stand_in.fails["cubin"] = 200
    with pytest.raises(DeviceError, match=r"load k: .*200"):
        cuda.program()
    assert not cuda.stand_in.modules


def test_the_drivers_compiler_is_quoted(cuda: Opened) -> None:
    cuda.stand_in.fails["ptx"] = 218
    cuda.stand_in.log = b"ptxas application ptx input, line 2; error: no"
    with pytest.raises(CompileError) as caught:
        cuda.program(cubin=b"")
    assert "line 2; error: no\n    .visible .entry k(" in caught.value.message
    cuda.stand_in.fails["ptx"] = 222
    with pytest.raises(CompileError, match="driver is older than the compiler"):
        cuda.program(cubin=b"")


def test_a_kernel_that_is_not_there_is_named(cuda: Opened) -> None:
    with pytest.raises(InvalidIndex, match="no kernel other in this code, but: k"):
        count_parameters(".visible .entry k() {", "other")
    with pytest.raises(FormatError, match="has 1 parameters, but 2 values"):
        cuda.program(buffers=-1, values=2)


def test_parameters_are_counted() -> None:
    ptx = ".visible .entry kernel_1(\n.param .u64 .ptr .align 1 a,\n.param .u64 b\n)\n.maxntid 8"
    assert count_parameters(ptx, "kernel_1") == 2
    assert count_parameters(".entry none()\n{", "none") == 0
    assert count_parameters(".entry none\n{", "none") == 0


def test_wrong_arguments_are_refused(cuda: Opened) -> None:
    program, memory = cuda.program(values=1), cuda.allocator.alloc(8)
    with pytest.raises(InvalidValue, match="takes 2 buffers and 1 values, got 1 and 1"):
        program(memory, vals=[1])
    with pytest.raises(InvalidValue, match="takes 2 buffers and 1 values, got 2 and 0"):
        program(memory, memory)
    with pytest.raises(InvalidType, match="buffer 1 of k must be memory"):
        program(memory, 3, vals=[1])  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="value 0 of k"):
        program(memory, memory, vals=[1.5])  # type: ignore[list-item]
    with pytest.raises(InvalidType, match="value 0 of k"):
        program(memory, memory, vals=[np.float32(1.5)])  # type: ignore[list-item]
    assert not cuda.stand_in.named("cuLaunchKernelEx")
    assert cuda.context.launched.told() == "nothing that was launched here was running"


def test_a_module_is_unloaded_when_its_launches_are_done(cuda: Opened) -> None:
    program, memory = cuda.program(), cuda.allocator.alloc(8)
    program(memory, memory)
    cuda.context.launched.forget(cuda.context.streams.ticket)
    del program
    gc.collect()
    assert not cuda.stand_in.named("cuModuleUnload")
    cuda.context.synchronize()
    assert cuda.stand_in.named("cuModuleUnload") and not cuda.stand_in.modules


class Interrupting(StandIn):
    """Something else happens while the host waits."""

    def cuStreamSynchronize(self, stream: int) -> None:
        self.meanwhile()

    def meanwhile(self) -> None:
        pass


def test_a_module_that_was_launched_while_the_host_waited_stays(
    opens: Callable[[StandIn], Opened],
) -> None:
    stand_in = Interrupting()
    cuda = opens(stand_in)
    memory = cuda.allocator.alloc(8)

    def launch_and_let_go() -> None:
        program = cuda.program()
        program(memory, memory)
        cuda.context.launched.forget(cuda.context.streams.ticket)
        del program
        gc.collect()

    launch_and_let_go()
    stand_in.meanwhile = launch_and_let_go  # type: ignore[method-assign]
    cuda.context.synchronize()
    assert len(stand_in.given("cuModuleUnload")) == 1 and len(stand_in.modules) == 1
    stand_in.meanwhile = lambda: None  # type: ignore[method-assign]
    cuda.context.synchronize()
    assert not stand_in.modules


def test_waiting_takes_the_time_between_events(cuda: Opened) -> None:
    program, memory = cuda.program(), cuda.allocator.alloc(8)
    assert program(memory, memory, wait=True) == 0.25e-3
    names = ("cuEventRecord", "cuLaunchKernelEx", "cuEventSynchronize")
    assert cuda.stand_in.named(*names) == [names[0], names[1], names[0], names[2]]
    cuda.context.synchronize()
    assert len(cuda.stand_in.given("cuEventDestroy_v2")) == 2


def test_threads_launch_with_arguments_of_their_own(cuda: Opened) -> None:
    seen: list[tuple[int, ...]] = []
    cuda.stand_in.kernels["k"] = lambda *words: seen.append(words)
    program, memory = cuda.program(buffers=1, values=2), cuda.allocator.alloc(8)

    def work(number: int) -> None:
        for _ in range(200):
            program(memory, vals=[number, number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 800 and all(first == second for _, first, second in seen)


def test_any_number_of_arguments_is_passed(cuda: Opened) -> None:
    rng = np.random.default_rng(3)
    for buffers in (0, 1, 12, 13, 40):
        values = [int(n) for n in rng.integers(-(2**62), 2**62, rng.integers(0, 3))]
        program = cuda.program(buffers=buffers, values=len(values), written=0)
        memories = [cuda.allocator.alloc(8) for _ in range(buffers)]
        program(*memories, vals=values)
        _, launch = cuda.stand_in.launches[-1]
        words = [memory.address for memory in memories] + [n % 2**64 for n in values]
        assert [n % 2**64 for n in launch.arguments] == words
