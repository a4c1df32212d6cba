"""`GPU_PROFILE=file.json` writes a timeline that keeps the rules of its format."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gpu
from gpu import Context, Device, Tensor
from gpu.core.config import config
from gpu.core.errors import ConfigError
from gpu.runtime import timeline
from gpu.runtime.prepared import Counters
from gpu.runtime.profile import PROFILE
from gpu.runtime.timeline import RECORDINGS, Facts, Recording, Span
from gpu.runtime.tracefile import write
from trace_events import TraceFile, checked

HERE = Path(__file__).name


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where something is recorded while the test runs."""
    path = tmp_path / "trace.json"
    with Context(GPU_PROFILE=path):
        yield path
    RECORDINGS.by_setting.clear()
    PROFILE.clear()


def saved(path: Path) -> TraceFile:
    """What was recorded until now."""
    PROFILE.save()
    return checked(path)


def values(*shape: int, device: str = "CPU", seed: int = 0) -> Tensor:
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(array, device=device).realize()


def test_kernels_of_a_device_and_what_had_them_launched(device: str, path: Path) -> None:
    @gpu.jit
    def step(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).contiguous().softmax(1)

    x, w = values(9, 14, device=device), values(14, 6, device=device, seed=1)
    before = Counters.launches
    results = [step(x, w).numpy() for _ in range(4)]
    launched = Counters.launches - before
    trace = saved(path)
    kernels = trace.of("kernel")
    assert len(kernels) == launched == len(trace.causes)
    assert {trace.device_of(each) for each in kernels} == {x.device}
    products = [each for each in kernels if each["name"] == "matmul_f32_9x6x14"]
    assert len(products) == 4
    for each in products:
        args = each["args"]
        assert HERE in args["line"] and "x @ w" in args["line"] and "mul" in args["computes"]
        assert args["operations"] == 2 * 9 * 6 * 14
        assert args["bytes"] == 4 * (9 * 14 + 14 * 6 + 9 * 6)
    names = [each["name"] for each in trace.slices]
    capture = f"{step.function.__qualname__}"
    assert names.count(f"capture {capture}") == 2 and names.count(f"replay {capture}") == 4
    copies = [each for each in trace.of("copy") if "bytes" in each["args"]]
    assert any(each["args"]["bytes"] == 4 * 9 * 14 for each in copies)
    array = x.numpy() @ w.numpy()
    exponents = np.exp(array - array.max(1, keepdims=True))
    for result in results:
        np.testing.assert_allclose(result, exponents / exponents.sum(1, keepdims=True), rtol=1e-4)


def test_a_kernel_lies_inside_of_what_waited_for_it(path: Path) -> None:
    before = time.perf_counter_ns()
    (values(40, 30) * 3 + 1).sum().item()
    after = time.perf_counter_ns()
    trace = saved(path)
    for kernel in trace.of("kernel"):
        assert before <= kernel["ts"] * 1000
        assert (kernel["ts"] + kernel["dur"]) * 1000 <= after + 1000
    stages = {each["name"] for each in trace.of("compile")}
    assert stages <= {"plan", "build", "schedule", "lower", "render", "compile", "load"}


def test_two_devices_and_a_step_that_is_spread_over_them(path: Path) -> None:
    devices = ("CPU", "CPU:1")
    x = Tensor(np.ones((8, 6), np.float32)).shard(devices, axis=0)
    w = Tensor(np.ones((6, 4), np.float32)).shard(devices)

    @gpu.jit
    def step(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sum(0)

    for _ in range(3):
        np.testing.assert_allclose(step(x, w).numpy(), np.full(4, 48.0))
    trace = saved(path)
    kernels = trace.of("kernel")
    assert {trace.device_of(each) for each in kernels} == set(devices)
    between = [each for each in trace.of("copy") if "from" in each["args"]]
    assert between and {each["args"]["from"] for each in between} <= set(devices)


def test_threads_have_lanes_of_their_own(path: Path) -> None:
    setting, errors = config.GPU_PROFILE, []

    def work(number: int) -> None:
        try:
            with Context(GPU_PROFILE=setting):
                for _ in range(5):
                    (values(4 + number, 9, seed=number) + number).realize()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(number,), name=f"worker {number}")
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    trace = saved(path)
    names = {trace.threads[each["pid"], each["tid"]] for each in trace.of("launch")}
    assert names == {"worker 0", "worker 1", "worker 2"}


def test_memory_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_SPANS", 20)
    x = values(5, 5)
    Device["CPU"]
    (recording,) = RECORDINGS.by_setting.values()
    recording.spans = type(recording.spans)(recording.spans, maxlen=20)
    for number in range(60):
        (x + number).realize()
    trace = saved(path)
    assert trace.about["earlier spans that were dropped"] > 60
    assert len(trace.slices) <= 20 + len(trace.of("launch"))
    assert trace.of("kernel") and len(trace.of("kernel")) == len(trace.causes)


def test_what_overlaps_on_a_queue_is_put_beside_it(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    recording = Recording(tmp_path / "overlaps.json")
    for number in range(200):
        start = int(random.integers(10**12, 10**12 + 10**6))
        length = int(random.integers(0, 50_000))
        recording.add(Span(("GPU", "queue"), f"{number}", "kernel", start, start + length, Facts()))
    trace = checked(write(recording))
    assert len(trace.of("kernel")) == 200
    assert "queue (2)" in trace.threads.values()


def test_nothing_is_recorded_where_nobody_asks(tmp_path: Path) -> None:
    before = dict(RECORDINGS.by_setting)
    (values(3, 7) + 5).realize()
    assert RECORDINGS.by_setting == before


@pytest.mark.parametrize("text", ["2", "trace", "trace.jsn", "-1"])
def test_what_is_no_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"takes 0, 1, or a file that ends in \.json"):
        Context(GPU_PROFILE=text)


@pytest.mark.parametrize(("text", "value"), [("0", ""), ("off", ""), ("1", "1"), ("yes", "1")])
def test_switches_are_understood_as_ever(text: str, value: str) -> None:
    with Context(GPU_PROFILE=text):
        assert value == config.GPU_PROFILE


def test_a_path_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder.json"
    folder.mkdir()
    for path, why in (
        (tmp_path / "none" / "trace.json", "no such folder"),
        (folder, "is a folder"),
    ):
        with Context(GPU_PROFILE=path), pytest.raises(ConfigError, match=why):
            (values(3, 3) + 1).realize()
    assert not RECORDINGS.by_setting


def run(
    code: str, path: Path, status: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program that is recorded to a path."""
    folders = (Path(gpu.__file__).parents[1], Path(__file__).parents[1])
    environment = {
        **{name: value for name, value in os.environ.items() if name != "SIM"},
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "GPU_PROFILE": str(path),
        **variables,
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.returncode == status, ran.stderr
    return ran


COMPUTE = """
import os, signal, sys
from gpu import Tensor
x = Tensor([1.0, 2.0, 3.0])
for n in range(5):
    (x + n).tolist()
"""


def test_a_file_is_written_when_a_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run(COMPUTE, path, DEV="CPU")
    assert len(checked(path).of("kernel")) == 5
    assert os.listdir(tmp_path) == ["trace.json"]  # nothing is left beside it


def test_a_program_without_kernels_has_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run("from gpu import Tensor\nprint(Tensor([1.0, 2.0]).tolist())", path, DEV="CPU")
    assert not checked(path).of("kernel") and checked(path).of("copy")


def test_the_table_is_written_beside_the_log(tmp_path: Path) -> None:
    for level in "02":
        ran = run(COMPUTE, Path("1"), DEV="CPU", DEBUG=level, GPU_PROFILE="1")
        assert "ms in 5 kernels" in ran.stderr and not list(tmp_path.iterdir())


def test_a_file_is_whole_after_ctrl_c_and_an_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    interrupted = run(COMPUTE + "signal.raise_signal(signal.SIGINT)", path, 1, DEV="CPU")
    assert "KeyboardInterrupt" in interrupted.stderr
    assert len(checked(path).of("kernel")) == 5
    run(COMPUTE + "1 / 0", path, 1, DEV="CPU")
    assert len(checked(path).of("kernel")) == 5


def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    code = COMPUTE + (
        "sys.stdout.flush()\n"
        "child = os.fork()\n"
        "(x * 2).tolist()\n"
        "if not child: (x * 3).tolist(); sys.exit()\n"
        "os.waitpid(child, 0)\n"
    )
    run(code, path, DEV="CPU")
    (other,) = set(tmp_path.glob("*.json")) - {path}
    assert len(checked(path).of("kernel")) == 6 and len(checked(other).of("kernel")) == 2
    assert other.name == f"trace.{checked(other).of('launch')[0]['pid']}.json"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_that_are_started_write_files_of_their_own(method: str, tmp_path: Path) -> None:
    path, program = tmp_path / "trace.json", tmp_path / "program.py"
    program.write_text(
        "import multiprocessing\nfrom gpu import Tensor\n"
        "def work(number): (Tensor([1.0, 2.0]) + number).tolist()\n"
        "if __name__ == '__main__':\n"
        "    work(1)\n"
        f"    started = multiprocessing.get_context({method!r})\n"
        "    child = started.Process(target=work, args=(2,))\n"
        "    child.start(); child.join(); work(3)\n"
    )
    run(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')", path, DEV="CPU")
    (other,) = set(tmp_path.glob("*.json")) - {path}
    assert len(checked(path).of("kernel")) == 2 and len(checked(other).of("kernel")) == 1


def test_a_name_can_have_the_number_of_the_process(tmp_path: Path) -> None:
    run(COMPUTE, tmp_path / "trace.%p.json", DEV="CPU")
    (path,) = tmp_path.glob("*.json")
    assert path.name == f"trace.{checked(path).of('launch')[0]['pid']}.json"


def test_what_cannot_be_written_in_the_end_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    ran = run(COMPUTE + f"os.rmdir({str(folder)!r})", folder / "trace.json", DEV="CPU")
    assert "cannot be written" in ran.stderr and "Traceback" not in ran.stderr


EXAMPLE = Path(__file__).parents[2] / "examples/data_parallel.py"


@pytest.mark.parametrize(("chip", "kind"), [("", "CPU"), ("gfx1100", "AMD"), ("gh100", "NV")])
def test_a_step_on_four_gpus(
    chip: str, kind: str, tmp_path: Path, need: Callable[[str], None]
) -> None:
    """The same losses as on one CPU; kernels of all four, copies between them, and no wait."""
    need("nvrtc" if kind == "NV" else "llvmlite")
    path, devices = tmp_path / "step.json", [kind, *(f"{kind}:{n}" for n in (1, 2, 3))]
    simulated = {"SIM": ",".join([chip] * 4)} if chip else {}
    call = f"import runpy, sys; sys.argv = ['x', {{}}]; runpy.run_path({str(EXAMPLE)!r}, run_name="
    code = call + "'__main__')"
    ran = run(code.format(", ".join(map(repr, devices))), path, DEV="CPU", **simulated)
    alone = run(code.format("'CPU'"), tmp_path / "alone.json", DEV="CPU")
    assert ran.stdout == alone.stdout and "step 5: loss 0.0" in ran.stdout
    trace = checked(path)
    found = {trace.device_of(each) for each in trace.of("kernel")}
    assert found == set(devices)
    runs = dict.fromkeys(devices, 0)
    for each in trace.of("kernel"):
        runs[trace.device_of(each)] += 1
        assert "examples/data_parallel.py:" in each["args"]["line"]
        assert ("grid" in each["args"]) == bool(chip)
    assert min(runs.values()) > 30
    between = [each["args"] for each in trace.of("copy") if "from" in each["args"]]
    assert {args["from"] for args in between} == set(devices) == {args["to"] for args in between}
    queues = {trace.threads[each["pid"], each["tid"]] for each in trace.of("copy")}
    assert any("copy queue" in queue for queue in queues) == bool(chip)
    steps = [each for each in trace.of("python") if each["name"].startswith("replay ")]
    waits = [each["ts"] for each in trace.of("wait")]
    assert len(steps) >= 4 and bool(waits) == bool(chip)  # a loss is waited for, behind its step
    assert not [at for at in waits for each in steps if 0 <= at - each["ts"] < each["dur"]]


BROKEN = {
    "overlaps": [(0, 0, 100, 50), (0, 0, 120, 50)],
    "not in order": [(0, 0, 100, 1), (0, 0, 90, 1)],
}


@pytest.mark.parametrize("why", BROKEN)
def test_what_breaks_the_rules_is_found(why: str, tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "p"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "t"}},
    ]
    for process, thread, start, length in BROKEN[why]:
        place = {"pid": process, "tid": thread, "ts": start, "dur": length}
        events.append({"ph": "X", "name": "x", "cat": "kernel", "args": {}, **place})
    about = {"nanoseconds that times of devices may be off": {}}
    path = tmp_path / "broken.json"
    path.write_text(
        json.dumps({"displayTimeUnit": "ns", "otherData": about, "traceEvents": events})
    )
    with pytest.raises(AssertionError, match=why):
        checked(path)
