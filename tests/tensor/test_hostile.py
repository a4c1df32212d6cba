"""What goes wrong around a computation leaves a typed error and everything as it was."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Context, Tensor
from gpu.core import available, files
from gpu.core.available import available_memory, check_memory
from gpu.core.errors import CompileError, OutOfMemory
from gpu.runtime.device import Device
from gpu.runtime.prepared import Counters
from gpu.tensor.jit import jit

ROOT = Path(gpu.__file__).parents[1]


def fresh(number: int) -> Tensor:
    """A value that nothing has compiled yet: 1 + number / 7 in each of `number` elements."""
    return Tensor(np.ones(number, np.float32)) + number / 7


def child(code: str) -> str:
    """Standard output of a Python process; fails with its errors where it does."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# The cache folder.


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def make_unwritable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o500)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere


def make_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", no_space)


def make_anothers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: 12345678)


def make_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_bytes(b"")


def fill_with_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    for namespace in ("graphs", "llvm"):
        (folder / namespace).write_bytes(b"garbage")


@pytest.mark.parametrize(
    ("number", "spoil", "words"),
    [
        (101, make_unwritable, "cannot be written to"),
        (102, make_full, "No space left"),
        (103, make_anothers, "belongs to user"),
        (104, make_a_file, "cannot be made"),
        (105, fill_with_folders, "cannot be"),
    ],
)
def test_a_cache_folder_that_cannot_be_used_costs_nothing_but_time(
    number: int,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(files.DiskCache, "_warn", _always_warn)
    spoil(tmp_path / "cache", monkeypatch)
    folder = tmp_path / "cache"
    with Context(CACHE_DIR=folder, OBJECT_CACHE_DIR=folder), caplog.at_level(logging.WARNING):
        assert fresh(number).tolist() == pytest.approx([1 + number / 7] * number)
    assert words in caplog.text
    assert not list(tmp_path.rglob(".tmp-*"))


def _always_warn(cache: files.DiskCache, action: str, error: OSError) -> None:
    logging.getLogger("gpu").warning("%s cannot be %s: %s", cache.namespace, action, error)


# Errors and Ctrl-C while compiling.


@pytest.mark.parametrize("error", [CompileError("no"), KeyboardInterrupt(), MemoryError()])
def test_an_error_while_compiling_leaves_no_state(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(sources: object) -> list[bytes]:
        raise error

    number = 200 + len(type(error).__name__)
    x, used = fresh(number), Device["CPU"].allocator.live
    with monkeypatch.context() as patch:
        patch.setattr(Device["CPU"].compiler, "compile_many_cached", fail)
        with pytest.raises(type(error)):
            x.realize()
    assert Device["CPU"].allocator.live == used
    launches = Counters.launches
    assert x.tolist() == pytest.approx([1 + number / 7] * number)
    assert Counters.launches == launches + 1


def test_a_jitted_function_that_cannot_be_compiled_works_once_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = Tensor(np.zeros(5, np.float32)).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        weight.assign(weight + x)
        return weight * 3.21

    def fail(sources: object) -> list[bytes]:
        raise CompileError("no")

    x = Tensor(np.ones(5, np.float32)).realize()
    with monkeypatch.context() as patch:
        patch.setattr(Device["CPU"].compiler, "compile_many_cached", fail)
        with pytest.raises(CompileError):
            step(x)
    assert weight.tolist() == [0] * 5
    for count in range(1, 5):
        assert step(x).tolist() == pytest.approx([3.21 * count] * 5)


def test_ctrl_c_during_a_kernel_ends_it_and_launches_nothing_later() -> None:
    said = child("""
        import os, signal, threading
        import numpy as np
        from gpu import Device, Tensor
        from gpu.backends.cpu.program import CPUProgram

        n, launched, launch = 2000, [], CPUProgram.__call__

        def interrupted(program, *addresses, **options):
            launched.append(program)
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
            launch(program, *addresses, **options)

        x = Tensor(np.ones((n, n), np.float32)).realize()
        y = (x @ x) @ x  # two launches
        used = Device["CPU"].allocator.live
        CPUProgram.__call__ = interrupted
        try:
            y.realize()
        except KeyboardInterrupt:
            print(len(launched) == 1)
        print(Device["CPU"].allocator.live == used)
        CPUProgram.__call__ = launch
        print(bool((y == n * n).all()))
    """)
    assert said.split() == ["True"] * 3


INTERRUPTED = """
import os, signal, threading
import numpy as np
import gpu
from gpu import Tensor
from gpu.backends.cpu import graph
from gpu.backends.cpu.pool import Pool
from gpu.compiler.fusion import inplace

graph.LONGEST, inplace.MIN_BYTES = 0.0, 0  # every launch is a long one
at, launched, replay = None, 0, Pool.replay

def interrupted(pool, table, count):
    global launched
    launched += count
    if launched == at:
        send()
    replay(pool, table, count)

Pool.replay = interrupted

def run(step, when):
    global at, launched
    at, launched = when, 0
    try:
        step()
    except KeyboardInterrupt:
        return f"interrupted after {launched}"
    return f"ran {launched}"
"""


def test_ctrl_c_during_a_replay_launches_nothing_later() -> None:
    said = child(f"""{INTERRUPTED}
def send():  # comes while the launch runs
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()

n = 2000
ones = Tensor(np.ones((n, n), np.float32)).realize()
total = Tensor(np.zeros(n, np.float32)).realize()

@gpu.jit
def step(x):
    y = ((x @ x) @ x) @ x
    total.assign(total + y.sum(0))
    return y

for _ in range(2):
    step(ones)
before = total.tolist()
print(run(lambda: step(ones), 2), total.tolist() == before)
print(run(lambda: step(ones), None), total.tolist() != before)
""")
    assert said.splitlines() == ["interrupted after 2 True", "ran 4 True"]


def test_ctrl_c_while_memory_changes_waits_for_the_end() -> None:
    said = child(f"""{INTERRUPTED}
send = lambda: signal.raise_signal(signal.SIGINT)

n = 64
cache = Tensor(np.zeros((n, n), np.float32)).realize()

@gpu.jit
def step(x):
    for _ in range(4):
        x = (x @ x).flip(0).contiguous() / n
    cache[:8] = x[:8] + 1
    return [cache[i : i + 8].flip(0).sum(i).contiguous() for i in range(2)]

x = Tensor(np.ones((n, n), np.float32)).realize()
for _ in range(3):
    step(x)
_, count = run(lambda: step(x), None).split()
print(count, cache.sum().item())
for when in range(1, int(count) + 1):
    cache[:] = 0
    cache.realize()
    print(run(lambda: step(x), when).removeprefix("interrupted after "), cache.sum().item())
""")
    (count, written), *stops = [line.split() for line in said.splitlines()]
    first = stops.index([count, written])  # the launch that writes
    assert stops[:first] == [[str(number), "0.0"] for number in range(1, first + 1)]
    assert stops[first:] == [[count, written]] * (int(count) - first) and first >= 4


# Memory.


@pytest.mark.parametrize("name", ["CPU", "PYTHON"])
def test_out_of_memory_under_a_limit_leaves_a_working_process(name: str) -> None:
    said = child(f"""
        import resource
        import numpy as np
        from gpu import Device, Tensor
        from gpu.core.errors import OutOfMemory

        x = Tensor(np.ones(1000, np.float32), device="{name}")
        (x + 1).realize()
        y = Tensor.zeros(1 << 28, device="{name}").contiguous()
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (200 << 20),) * 2)
        used = getattr(Device["{name}"].allocator, "used", 0)
        try:
            y.realize()
        except MemoryError as error:
            print(type(error) is OutOfMemory, "1,073,741,824 bytes of host memory" in str(error))
            print("smaller" in str(error), "<string>" in str(error))
        print(getattr(Device["{name}"].allocator, "used", 0) == used)
        print((x + 2).sum().item() == 3000)
    """)
    assert said.split() == ["True"] * 6


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Files of the system: 8 GiB of memory, no limit."""
    texts = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:  7340032 kB\nSwapFree: 1048576 kB\n"}
    monkeypatch.setattr(available, "_text", lambda path: texts.get(path, ""))
    yield texts


def test_what_is_left_is_looked_at_before_much_is_taken(system: dict[str, str]) -> None:
    assert available_memory() == 8 << 30
    check_memory(8 << 30)
    with pytest.raises(OutOfMemory, match=r"8,589,934,593 bytes .* 8,589,934,592 are left"):
        check_memory((8 << 30) + 1)
    with pytest.raises(OutOfMemory, match=r"are left.*\(at .*test_hostile.py"):
        Tensor.zeros(3 << 30).contiguous().realize()
    group = "/sys/fs/cgroup/memory."
    system |= {f"{group}max": f"{2 << 30}\n", f"{group}current": f"{1 << 30}\n"}
    assert available_memory() == 1 << 30
    system[f"{group}stat"] = f"anon 5\ninactive_file {1 << 29}\n"
    assert available_memory() == 3 << 29
    system[f"{group}max"] = "max\n"
    assert available_memory() == 8 << 30
    del system["/proc/meminfo"]
    assert available_memory() is None
    check_memory(1 << 60)


@pytest.mark.slow
def test_a_chain_of_50000_operations_is_built_differentiated_and_run() -> None:
    start = Tensor(np.array([0.5, 1.0, 2.0]))
    x: Any = start
    powers = 0
    for number in range(50_000):
        square = number % 10_000 == 5
        x = x * start if square else x + 0.001
        powers += square
    (slope,) = x.sum().gradient(start)
    x.realize(slope)
    value, derivative = np.array([0.5, 1.0, 2.0]), np.ones(3)
    at = value.copy()
    for number in range(50_000):
        if number % 10_000 == 5:
            value, derivative = value * at, derivative * at + value
        else:
            value = value + 0.001
    assert powers == 5
    np.testing.assert_allclose(x.numpy(), value, 1e-9)
    np.testing.assert_allclose(slope.numpy(), derivative, 1e-9)
