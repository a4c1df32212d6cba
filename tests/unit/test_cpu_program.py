from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from functools import cache

import numpy as np
import pytest

from gpu.backends.cpu import graph as cpu_graph
from gpu.backends.cpu.graph import CPUGraph, grouped
from gpu.backends.cpu.pool import Pool, shared_pool
from gpu.backends.cpu.program import CPUProgram
from gpu.compiler.targets.cpu import host_architecture
from gpu.compiler.toolchain.llvm import LLVMCompiler
from gpu.core.config import config
from gpu.core.errors import InvalidValue

# Worker w adds w + 1 to word w of the array at words[0] (so that races and repeats show), the
# value at words[2] to the array's word 8 if it is worker 0, and writes scratch at words[1].
COUNT = """
define void @count(ptr %args, i64 %worker, i64 %workers) nounwind {
  %array = load ptr, ptr %args
  %at = getelementptr i64, ptr %array, i64 %worker
  %old = load i64, ptr %at
  %one = add i64 %worker, 1
  %new = add i64 %old, %one
  store i64 %new, ptr %at
  ret void
}
define void @value(ptr %args, i64 %worker, i64 %workers) nounwind {
  %array = load ptr, ptr %args
  %at = getelementptr i64, ptr %args, i64 2
  %value = load i64, ptr %at
  store i64 %value, ptr %array
  ret void
}
define void @touch(ptr %args, i64 %worker, i64 %workers) nounwind {
  %array = load ptr, ptr %args
  %scratch.at = getelementptr i64, ptr %args, i64 1
  %scratch = load ptr, ptr %scratch.at
  %offset = mul i64 %worker, 1048576
  %mine = getelementptr i8, ptr %scratch, i64 %offset
  %last = getelementptr i8, ptr %mine, i64 1048568
  store i64 7, ptr %mine
  store i64 8, ptr %last
  %a = load i64, ptr %mine
  %b = load i64, ptr %last
  %sum = add i64 %a, %b
  %at = getelementptr i64, ptr %array, i64 %worker
  store i64 %sum, ptr %at
  ret void
}
"""


@cache
def lib() -> bytes:
    return LLVMCompiler(host_architecture()).compile(COUNT)


def program(name: str = "count", **options: object) -> CPUProgram:
    return CPUProgram(name, lib(), **options)  # type: ignore[arg-type]


@pytest.fixture
def pool() -> Pool:
    return Pool(3)


@pytest.fixture
def pair() -> Pool:
    return Pool(2)


def counted(launches: int, workers: int) -> list[int]:
    return [launches * (w + 1) if w < workers else 0 for w in range(8)]


def test_a_serial_program_runs_on_the_caller_alone() -> None:
    array = np.zeros(8, np.int64)
    assert program()(array.ctypes.data) is None
    assert array.tolist() == counted(1, 1)
    seconds = program()(array.ctypes.data, wait=True)
    assert seconds is not None and 0 < seconds < 1


@pytest.mark.parametrize("value", [0, -5, (1 << 63) - 1])
def test_values_follow_scratch(value: int) -> None:
    array = np.zeros(1, np.int64)
    program("value")(array.ctypes.data, vals=(value,))
    assert array[0] == value


def test_ten_thousand_launches(pair: Pool) -> None:
    array = np.zeros(8, np.int64)
    run = program(parallel=True, pool=pair)
    for _ in range(10_000):
        run(array.ctypes.data)
    assert array.tolist() == counted(10_000, 2)


def test_launches_that_find_the_workers_asleep() -> None:
    array = np.zeros(8, np.int64)
    run = program(parallel=True, pool=Pool(4, spin=0))
    for _ in range(500):
        run(array.ctypes.data)
    time.sleep(0.01)
    run(array.ctypes.data)
    assert array.tolist() == counted(501, 4)


def test_workers_look_for_work_as_long_as_told_and_then_sleep() -> None:
    """By the clock: pauses are 25 to 140 cycles long. Seen by the processor time they take."""
    array = np.zeros(8, np.int64)
    run = program(parallel=True, pool=Pool(2, spin=100_000_000))
    run(array.ctypes.data)
    before = time.process_time()
    time.sleep(0.3)
    looked = time.process_time() - before
    assert looked < 0.15
    run(array.ctypes.data)
    before = time.process_time()
    deadline = time.monotonic() + 60
    # Others may have the processor: some run finds the worker looking for more than a few pauses.
    while time.process_time() - before < 0.01 and time.monotonic() < deadline:
        run(array.ctypes.data)
        before = time.process_time()
        time.sleep(0.05)
    assert time.process_time() - before >= 0.01


@pytest.mark.parametrize("more", [0, 1])
def test_woken_workers_are_kept_off_the_callers_processor(more: int) -> None:
    """Linux may wake them there, and they would wait until it has done its share."""
    allowed = os.sched_getaffinity(0)
    workers = len(allowed) + more
    array = np.zeros(workers, np.int64)
    pool = Pool(workers, spin=0)
    run = program(parallel=True, pool=pool)
    for _ in range(3):
        run(array.ctypes.data)
        time.sleep(0.01)
    free = {t: len(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")}
    pool.stop()
    deadline = time.monotonic() + 20  # a thread is listed a little longer than it can be waited for
    while len(ended := free.keys() - os.listdir("/proc/self/task")) < workers - 1:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    # All are as free as the caller where there are more of them than processors.
    assert [free[thread] for thread in ended] == [len(allowed) - 1 + more] * (workers - 1)
    assert array.tolist() == [3 * (w + 1) for w in range(workers)]


def test_a_launch_waits_for_slow_workers() -> None:
    source = """
define void @slow(ptr %args, i64 %worker, i64 %workers) nounwind {
entry:
  %array = load ptr, ptr %args
  %at = getelementptr i64, ptr %array, i64 %worker
  %limit = mul i64 %worker, 3000000
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %next = add i64 %i, 1
  store volatile i64 %next, ptr %at
  %more = icmp slt i64 %next, %limit
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""
    array = np.zeros(8, np.int64)
    slow = CPUProgram(
        "slow", LLVMCompiler(host_architecture()).compile(source), parallel=True, pool=Pool(3)
    )
    for _ in range(3):
        array[:] = 0
        slow(array.ctypes.data)
        assert array.tolist() == [1, 3_000_000, 6_000_000, 0, 0, 0, 0, 0]


def test_several_python_threads_share_a_pool(pair: Pool) -> None:
    arrays = [np.zeros(8, np.int64) for _ in range(4)]
    run = program(parallel=True, pool=pair)

    def launch(array: np.ndarray) -> None:
        for _ in range(2_500):
            run(array.ctypes.data)

    threads = [threading.Thread(target=launch, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(array.tolist() == counted(2_500, 2) for array in arrays)


def test_exceptions_leave_the_pool_usable(pool: Pool) -> None:
    array = np.zeros(8, np.int64)
    run = program(parallel=True, pool=pool)
    run(array.ctypes.data)
    with pytest.raises(TypeError):
        pool.run("count", 0)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError), pool.lock:
        run(array.ctypes.data)
        raise ZeroDivisionError
    run(array.ctypes.data)
    assert array.tolist() == counted(3, 3)


def test_a_stopped_pool_starts_again(pool: Pool) -> None:
    array = np.zeros(8, np.int64)
    run = program(parallel=True, pool=pool)
    before = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0
    for _ in range(20):
        run(array.ctypes.data)
        pool.stop()
    assert array.tolist() == counted(20, 3)
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/task")) <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_workers_of_its_own(pool: Pool) -> None:
    array = np.zeros(8, np.int64)
    run = program(parallel=True, pool=pool)
    run(array.ctypes.data)
    child = os.fork()
    if child == 0:
        for _ in range(100):
            run(array.ctypes.data)
        os._exit(0 if array.tolist() == counted(101, 3) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(array.ctypes.data)
    assert array.tolist() == counted(2, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_another_thread_launches(pool: Pool) -> None:
    array, other = np.zeros(8, np.int64), np.zeros(8, np.int64)
    run = program(parallel=True, pool=pool)
    over = threading.Event()

    def launch() -> None:
        while not over.is_set():
            run(other.ctypes.data)

    thread = threading.Thread(target=launch)
    thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                run(array.ctypes.data)
                os._exit(0 if array.tolist() == counted(1, 3) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        over.set()
        thread.join()


def test_replay_runs_a_table_in_order(pool: Pool) -> None:
    array = np.zeros(8, np.int64)
    count, value = program(), program("value")
    some = np.frombuffer(count.words((array.ctypes.data,)), np.uint64)
    reset = np.frombuffer(value.words((array.ctypes.data,), (100,)), np.uint64)
    rows = [
        (count.address, some.ctypes.data, 1),
        (count.address, some.ctypes.data, 0),
        (value.address, reset.ctypes.data, 0),
        (count.address, some.ctypes.data, 1),
    ]
    table = np.array(rows * 50, np.uint64)
    pool.replay(table.ctypes.data, len(table))
    assert array.tolist() == [101, 2 * 100, 3 * 100, 0, 0, 0, 0, 0]
    pool.replay(table.ctypes.data, 0)
    assert array[0] == 101


def test_a_graph_is_replayed_in_calls_of_limited_length(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.zeros(8, np.int64)
    graph = CPUGraph([(program(), (0,), ())] * 7, 1)
    calls: list[int] = []
    replay = Pool.replay

    def counted_replay(pool: Pool, table: int, count: int) -> None:
        calls.append(count)
        replay(pool, table, count)

    monkeypatch.setattr(Pool, "replay", counted_replay)
    for _ in range(2):
        graph((array.ctypes.data,))
    assert calls == [1] * 7 + [7] and array[0] == 14
    monkeypatch.setattr(cpu_graph, "LONGEST", 0.0)  # every call is too long: timed anew
    for _ in range(3):
        graph((array.ctypes.data,))
    assert calls[8:] == [7] + [1] * 14 and array[0] == 35


def test_launches_are_grouped_by_how_long_they_take() -> None:
    assert grouped([1, 1, 1, 1, 1], 2) == [(0, 2), (2, 2), (4, 1)]
    assert grouped([5, 1, 1, 7, 7], 2) == [(0, 1), (1, 2), (3, 1), (4, 1)]
    assert grouped([0.1], 2) == [(0, 1)]


@pytest.mark.parametrize("parallel", [False, True])
def test_scratch_memory_grows_and_is_each_workers_own(pool: Pool, parallel: bool) -> None:
    array = np.zeros(8, np.int64)
    kept = pool.scratch(64)
    touch = program("touch", scratch=1 << 20, parallel=parallel, pool=pool)
    touch(array.ctypes.data)
    grown = pool.scratch(1 << 20)
    assert array.tolist() == ([15, 15, 15] if parallel else [15, 0, 0]) + [0] * 5
    assert grown.address % 64 == 0 and grown.size >= 3 << 20 and grown is not kept
    assert pool.scratch(1 << 10) is grown
    assert kept.mapping[:8] == bytes(8)  # still there for those who hold it


def test_the_shared_pool_has_the_configured_workers() -> None:
    assert shared_pool().workers == config.CPU_THREADS or sys.platform != "linux"
    assert shared_pool() is program(parallel=True).pool
    for workers in (0, -1, 5000):
        with pytest.raises(InvalidValue, match="workers"):
            Pool(workers)


def test_systems_without_futex_get_one_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with caplog.at_level("WARNING"):
        alone = Pool(4)
    monkeypatch.undo()
    assert alone.workers == 1 and "darwin" in caplog.text
    array = np.zeros(8, np.int64)
    program(parallel=True, pool=alone)(array.ctypes.data)
    assert array.tolist() == counted(1, 1)


_AT_EXIT = """
import atexit, sys, threading
import numpy as np
array = np.zeros(8, np.int64)
def late():
    pool.run_packed(count.address, count.words((array.ctypes.data,)))
    print(array.tolist(), flush=True)
atexit.register(late)  # runs after the pools' own
import pathlib
from gpu.backends.cpu.pool import Pool
from gpu.backends.cpu.program import CPUProgram
pool = Pool(3)
count = CPUProgram("count", pathlib.Path(sys.argv[1]).read_bytes(), parallel=True, pool=pool)
count(array.ctypes.data)
other = np.zeros(8, np.int64)
def forever():
    while True:
        count(other.ctypes.data)
if len(sys.argv) > 2:
    threading.Thread(target=forever, daemon=True).start()
assert "llvmlite" not in sys.modules, "a warm process imports no compiler"
"""


@pytest.mark.parametrize("daemon", [[], ["daemon"]])
def test_the_interpreter_exits_cleanly(tmp_path: object, daemon: list[str]) -> None:
    shared_pool()  # puts the pool's code into the disk cache
    path = os.path.join(str(tmp_path), "count.o")
    with open(path, "wb") as file:
        file.write(lib())
    done = subprocess.run(
        [sys.executable, "-c", _AT_EXIT, path, *daemon],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[2, 2, 3, 0, 0, 0, 0, 0]\n"


def test_collected_pools_leave_no_threads() -> None:
    if sys.platform != "linux":
        pytest.skip("counts threads in /proc")
    before = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        array = np.zeros(8, np.int64)
        program(parallel=True, pool=Pool(3))(array.ctypes.data)
    assert len(os.listdir("/proc/self/task")) <= before
