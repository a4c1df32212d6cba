"""The suites, faults and benchmarks on a simulated GPU, with kernels that nvrtc compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpu import Tensor
from gpu.core.errors import DeviceError, Unsupported
from gpu.runtime.default import Found, Look
from gpu.sim.machine import machines
from gpu.sim.nv.chip.compute import ComputeEngine
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.world import World
from simulated import SIMULATED
from tools.hw_acceptance import folder as prepared
from tools.hw_acceptance.bench import queues, rows, stamina, tensors, theirs
from tools.hw_acceptance.child import Context, run_step
from tools.hw_acceptance.cli import main
from tools.hw_acceptance.faults import killing, provoke
from tools.hw_acceptance.kernels import SOURCES
from tools.hw_acceptance.model import Outcome, Step, read_report
from tools.hw_acceptance.nvrtc import load_nvrtc
from tools.hw_acceptance.prepare import compile_kernels
from tools.hw_acceptance.runner import without_hardware
from tools.hw_acceptance.simulation import Simulation, simulate
from tools.hw_acceptance.steplog import StepFailed, StepLog, Told, Unavailable, read_step
from tools.hw_acceptance.suites import chains, conformance, cuda, exchange
from tools.hw_acceptance.suites import tensors as op_suite
from tools.hw_acceptance.suites.mapped import FORBIDDEN, mapped_libraries
from tools.hw_acceptance.suites.supervise import NAMES
from tools.hw_acceptance.suites.target import LAYOUTS

CHIP = "gh100"
Run = Callable[..., Told]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, need: Callable[[str], None]) -> Path:
    need("nvrtc")
    try:
        compiler = load_nvrtc()
    except Unsupported as missing:
        pytest.skip(missing.message)
    place = tmp_path_factory.mktemp("folder")
    compile_kernels(place / prepared.KERNELS, compiler, [90])
    return place


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Run:
    """Runs a step in this process, on a model of its own; what it told."""

    def go(
        step: Callable[[Context], None],
        outcome: Outcome = Outcome.PASS,
        checks: str = "",
        chip: str = CHIP,
    ) -> Told:
        simulation = simulate(chip, folder)
        machine = machines()[-1]
        log = StepLog(tmp_path)
        options = {NAMES: checks}
        context = Context(
            *(simulation.world, log, folder), options=options, simulation=simulation, limit=600.0
        )
        found = run_step(step, context)
        log.close()
        machine.close()
        told = read_step(tmp_path)
        assert found is outcome, told.reason
        return told

    return go


def test_a_model_knows_the_folders_kernels_and_no_others(folder: Path) -> None:
    assert isinstance(simulate(CHIP, folder), Simulation)
    machines()[-1].close()
    assert set(LAYOUTS) <= set(SOURCES)
    for name in LAYOUTS:
        assert prepared.read_kernel(folder, 90, name)


def test_checks_of_conformance(run: Run) -> None:
    checks = "copies,launches,graphs,peers,closing"
    told = run(conformance.run_part, checks=checks)
    ends = {name: fact["outcome"] for name, fact in told.facts.items() if name != "checks"}
    assert ends == {
        "ended: copies": "pass",
        "ended: launches": "pass",
        "ended: graphs": "pass",
        "ended: peers": "unavailable",
        "ended: closing": "pass",
    }
    assert told.facts["checks"] == 5
    assert "one of them twice" in told.facts["ended: peers"]["error"]


def test_peers_of_a_machine_with_two_gpus(run: Run) -> None:
    told = run(conformance.run_part, checks="peers", chip="gh100,gh100")
    assert told.facts["ended: peers"]["outcome"] == "pass"


def test_faults_are_told_and_the_device_goes_on(run: Run) -> None:
    checks = (
        "a spinning kernel,a pointer to nowhere,a copy from nowhere,a misaligned pointer,a trap"
    )
    told = run(provoke.run_part, checks=checks)
    for name in checks.split(","):
        assert told.facts[f"ended: {name}"]["outcome"] == "pass", told.facts
    assert "fill (argument 0 is 0x1000)" in told.facts["a store to nowhere"]
    assert "warp error" in told.facts["a trap"]
    assert told.facts["a trap, then made anew"] == "queues"
    notifiers = told.facts["a store to nowhere: what notifiers say"]
    assert notifiers["compute queue"] == 31 and notifiers["compute queue 1"] is None
    assert told.facts["rounds of the spinning kernel"] > 1


def test_a_fault_that_does_not_come_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provoke, "NOWHERE", 0)
    monkeypatch.setattr(provoke.Rig, "submit_at", lambda *_, **__: None)
    told = run(provoke.run_part, checks="a pointer to nowhere")
    end = told.facts["ended: a pointer to nowhere"]
    assert end["outcome"] == "fail" and "a store to nowhere is no fault" in end["error"]
    state = (tmp_path / "a-pointer-to-nowhere-state.txt").read_text()
    assert "compute queue 1: token" in state and "errors of SMs and MMU" in state


def test_chained_launches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "_REPLAYS", 3)
    monkeypatch.setattr(chains, "_LENGTH", 4)
    told = run(chains.chains)
    assert told.facts["action"] == "INVALIDATE_COPY_SCHEDULE"
    assert [check["ok"] for check in told.checks] == [True] * 3
    start = ComputeEngine.launch

    def once(self: ComputeEngine, address: int, invalidate: bool) -> None:
        """A GPU that does not start what a descriptor names."""
        start(self, address, invalidate)
        self.grids[-1].dependents.clear()

    monkeypatch.setattr(ComputeEngine, "launch", once)
    assert "replay 1" in run(chains.chains, Outcome.FAIL).reason


def test_rows_of_queues(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "mapped_libraries", list)  # torch may have loaded some
    told = run(queues.ours)
    assert set(told.facts[rows.OURS]) == {
        *(rows.OPEN, rows.LAUNCH, rows.LAUNCH_PYTHON, rows.GRAPH),
        *(rows.COPY, rows.TO_DEVICE, rows.TO_HOST),
    }
    assert all(seconds > 0 for seconds in told.facts[rows.OURS].values())
    assert all(check["ok"] for check in told.checks) and len(told.checks) == 3
    sizes = [size for size, _ in told.facts["copies within the device"]]
    assert sizes == list(rows.SMALL.within)


def test_stamina(run: Run) -> None:
    told = run(stamina.stamina)
    assert len(told.checks) == stamina.THREADS + 1 and all(check["ok"] for check in told.checks)


def test_rows_of_tensors(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "mapped_libraries", list)  # other tests may have loaded some
    small = rows.Sizes(1 << 12, 1 << 12, 32, ((8, 16),), ())
    monkeypatch.setattr(rows, "SMALL", small)
    told = run(tensors.ours, chip=SIMULATED["NV"])  # the device `NV` is one for all tests
    assert all(check["ok"] for check in told.checks)
    names = [
        rows.row(what, dtype, (8, 16))
        for dtype in ("bf16", "f32")
        for what in ("softmax", "layernorm")
    ]
    assert sorted(told.facts[rows.OURS]) == sorted([*names, rows.GEMM, rows.NEGATE])


def test_a_wrong_tensor_is_noticed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SMALL", rows.Sizes(1 << 12, 1 << 12, 32, ()))
    monkeypatch.setattr(tensors, "_TOLERANCE", {"bf16": 0.0, "f32": -1.0})
    told = run(tensors.ours, Outcome.FAIL, chip=SIMULATED["NV"])
    assert rows.NEGATE in told.reason


@pytest.mark.slow
@pytest.mark.parametrize("by", ["by_nvrtc", "by_libcuda"])
def test_the_op_suite_runs_tests_of_the_tree(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(op_suite, "TESTS", ("tests/backend/test_programs.py",))
    told = run(getattr(op_suite, by))
    assert told.facts["tests"]["all"] == told.facts["tests"]["passed"] > 8
    lines = [json.loads(line) for line in (tmp_path / "tests.jsonl").read_text().splitlines()]
    order = [line["test"] for line in lines if "test" in line]
    assert order != sorted(order), "they are shuffled"
    assert {"mapped": [], "torch": False} in lines


def test_the_op_suite_takes_the_variants_that_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, env: dict[str, str], **others: object) -> None:
        raise StepFailed(env["NV_VARIANTS"])

    monkeypatch.setattr(op_suite.subprocess, "Popen", started)
    machine, log = NvSimWorld(), StepLog(tmp_path)
    force = {"copy channel": "own group", "doorbell": "BAR0"}
    context = Context(World(machine.os, machine.waiter), log, tmp_path, force=force)
    with pytest.raises(StepFailed, match="copy channel=own group,doorbell=BAR0"):
        op_suite.run_tests(context, ("--device", "NV"), (), 1.0)
    log.close()
    machine.close()


def test_a_cut_op_suite_says_how_many_of_how_many(run: Run, tmp_path: Path) -> None:
    lines = [
        {"total": 4},
        {"test": "a", "outcome": "passed", "seconds": 1.0, "error": ""},
        {"test": "b", "outcome": "failed", "seconds": 1.0, "error": "it is 3"},
        {"test": "c", "outcome": "failed", "error": "NVIDIA GPU 1: this process can reach 1 (x)"},
        {"module": "tests/d.py", "error": "No module named 'cffi'"},
        {"mapped": ["libcuda.so.1"], "torch": False},
    ]
    out = tmp_path / "told.jsonl"
    out.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"test": "cut')
    told = run(lambda context: op_suite.tell(context, out), Outcome.FAIL)
    broken = told.facts["modules that could not be imported"]
    assert broken == {"tests/d.py": "No module named 'cffi'"}
    assert told.facts["tests"] == {
        "all": 4,
        "ran": 3,
        "passed": 1,
        "failed": 1,
        "without a second GPU": 1,
    }
    assert [(check["name"], check["ok"]) for check in told.checks] == [
        ("b", False),
        ("tests", False),
        ("no run-time library of the vendor's", False),
    ]
    assert told.checks[1]["details"] == "3 of 4 ran, 1 failed, 0 skipped"
    of_libcuda = run(lambda context: op_suite.tell(context, out, bare=False), Outcome.FAIL)
    assert [check["name"] for check in of_libcuda.checks] == ["b", "tests"]


def test_without_libcuda_its_suite_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op_suite, "find_library", lambda name: name)
    monkeypatch.setattr(op_suite.find, "look", lambda: Look(Found.NOTHING, "it is not there"))
    machine, log = NvSimWorld(), StepLog(tmp_path)
    context = Context(World(machine.os, machine.waiter), log, tmp_path)  # of no model
    with pytest.raises(Unavailable, match="DEV=CUDA has nothing to run on: it is not there"):
        op_suite.by_libcuda(context)
    log.close()
    machine.close()


def test_a_vendors_loader_that_is_not_here_is_unavailable(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Devices:
        def __getitem__(self, name: str) -> object:
            if name == "WEBGPU":
                raise DeviceError("there is no adapter")
            return SimpleNamespace(describe=lambda: {"compiler": "Portable Computing Language"})

    monkeypatch.setattr("gpu.Device", Devices())
    told = run(op_suite.by_webgpu, Outcome.UNAVAILABLE)
    assert told.reason == "DEV=WEBGPU cannot be opened: there is no adapter"
    told = run(op_suite.by_opencl, Outcome.UNAVAILABLE)
    assert told.reason == "DEV=CL is not of NVIDIA: compiler Portable Computing Language"


def test_cuda_and_nv_in_one_process(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    chip = SIMULATED["NV"]  # the devices are one for all tests
    told = run(cuda.beside, chip=chip)
    assert [check["name"] for check in told.checks] == ["CUDA", "NV", "copies between them"]
    monkeypatch.setattr(cuda.np, "maximum", lambda a, _: a)  # what it compares with is wrong
    monkeypatch.setattr(cuda, "_move", lambda _: False)
    told = run(cuda.beside, Outcome.FAIL, chip=chip)
    assert [check["ok"] for check in told.checks][-3:] == [False] * 3


def test_a_library_that_takes_wrong_values_is_noticed() -> None:
    class Other:
        """One whose results are the host's; `wrong` names what it spoils."""

        wrong = ""

        def triple(self, values: np.ndarray) -> np.ndarray:
            return values * (2 if self.wrong == "theirs" else 3)

        def plus_one(self, shared: Tensor) -> np.ndarray:
            return shared.numpy() + 1

        def host(self, array: np.ndarray) -> np.ndarray:
            return array * 2 if self.wrong == "ours" else array

    other = Other()
    exchange.play(other, 3)
    for other.wrong in ("theirs", "ours"):
        with pytest.raises(StepFailed, match=f"round 0, {other.wrong} of shape"):
            exchange.play(other, 1)


@pytest.mark.slow
def test_libraries_that_are_here_exchange_and_others_say_why_not(
    run: Run, need: Callable[[str], None]
) -> None:
    need("numba")
    told = run(exchange.exchange)
    assert [check["name"] for check in told.checks] == ["numba"]
    assert told.facts["jax was not asked"] == "jax is not installed"
    assert told.facts["rounds"] == 5


@pytest.mark.slow
def test_rules_of_libcuda_run_in_children(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    test = "tests/sim/cuda/test_launches.py::test_faults_come_with_the_next_wait_and_stay"
    monkeypatch.setattr(cuda, "TESTS", (test,))
    told = run(cuda.rules)
    assert told.facts["tests"] == {"all": 5, "ran": 5, "passed": 3, "skipped": 2}  # timeouts


def test_the_table_of_rules_names_outcomes() -> None:
    from tools.hw_acceptance.suites.outcomes import outcomes

    found = outcomes()
    assert "tests/sim/cuda/test_launches.py:test_sizes_of_grids_and_blocks" in found
    assert "tests/sim/cuda/test_races.py:test_unordered_work_on_the_same_bytes" not in found


def test_mapped_libraries_are_found_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "7f0 r-xp 0 0 1 /usr/lib/libcuda.so.580.1\n7f1 r-xp 0 0 1 /x/libnvrtc.so.13\n7f2 [heap]"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert mapped_libraries() == ["libcuda.so.580.1"]
    assert all("nvrtc" not in name for name in FORBIDDEN)


@pytest.mark.slow
def test_a_rehearsal_runs_in_children_and_says_what_it_is(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the command to the report, through two generations of processes."""
    monkeypatch.setattr("tools.hw_acceptance.cli.KernelLog", _NoLog)
    monkeypatch.setattr("tools.hw_acceptance.cli.prepared.unpack_wheel", lambda *_: tmp_path)
    prepared.write_manifest(folder, {"architectures": [90]})
    out = tmp_path / "out"
    arguments = ["run", "--sim", CHIP, "--folder", str(folder), "--out", str(out)]
    assert main([*arguments, "--only", "faults"]) == 0, capsys.readouterr().out
    assert "a model of gh100 played the GPU" in capsys.readouterr().out
    report = read_report(out / "report.json.gz")
    assert report.simulated == CHIP
    assert report.passed("faults")
    assert len(report.of("faults")[0].checks) == 8


class _NoLog:
    absent = "a rehearsal has none"

    def new_lines(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


def test_speed_is_the_vendors_time_over_ours() -> None:
    from tools.hw_acceptance.bench.comparison import compare, comparison_lines
    from tools.hw_acceptance.model import Report, Result

    report = Report()
    ours = {rows.LAUNCH: 2e-6, rows.GEMM: 4e-3, "softmax": 1e-3}
    theirs = {rows.LAUNCH: 3e-6, rows.GEMM: 1e-3}
    for step, fact in (("queues", {rows.OURS: ours}), ("vendor's side", {rows.THEIRS: theirs})):
        report.add(Result(step, "default", "benchmarks", Outcome.PASS, facts=dict(fact)))
    found = {row.name: (row.speed, row.verdict) for row in compare(report)}
    assert found[rows.LAUNCH] == (pytest.approx(1.5), "reached")
    assert found[rows.GEMM] == (pytest.approx(0.25), "missed")
    assert found["softmax"] == (None, "not compared")
    assert any("2.00 us" in line and "reached" in line for line in comparison_lines(report))
    report.simulated = CHIP
    assert not compare(report)


def test_batches_are_as_long_as_the_work_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, calls=0)

    def call() -> None:
        clock.now += 0.03
        clock.calls += 1

    monkeypatch.setattr(rows.time, "perf_counter", lambda: clock.now)
    assert rows.time_calls(call, lambda: None, 1000) == pytest.approx(0.03)
    assert clock.calls == 5 + 1 + 5 * 3


class _Recorded:
    """libcuda, as a list of the calls that it got."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __enter__(self) -> _Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, name: str, *_: object) -> None:
        self.calls.append(name)

    def attribute(self, number: int) -> int:
        return {75: 9, 76: 0}[number]

    def load(self, cubin: bytes, kernel: str) -> str:
        assert cubin.startswith(b"\x7fELF")
        return kernel

    def alloc(self, size: int) -> int:
        return 0x1000

    def launch(self, function: str, *_: object) -> None:
        self.calls.append(f"launch {function}")


def test_the_vendors_graph_is_as_long_as_ours(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = _Recorded()
    monkeypatch.setattr(theirs, "Cuda", lambda: cuda)
    monkeypatch.setattr(theirs, "time_libcuda", lambda *_: [3000, 1000, 2000])
    monkeypatch.setattr(theirs.importlib.util, "find_spec", lambda _: None)
    told = run(theirs.theirs)
    assert cuda.calls.count("cuLaunchKernel") == rows.GRAPH_LENGTH
    begun, ended = (
        cuda.calls.index(f"cuStream{name}") for name in ("BeginCapture_v2", "EndCapture")
    )
    assert cuda.calls[begun + 1 : ended] == ["cuLaunchKernel"] * rows.GRAPH_LENGTH
    assert set(told.facts[rows.THEIRS]) == {rows.OPEN, rows.LAUNCH, rows.GRAPH}
    assert told.facts[rows.THEIRS][rows.LAUNCH] == 2e-6


def test_behind_a_killed_process_the_gpu_is_opened(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killing, "_ROUNDS", 2)
    monkeypatch.setattr(killing, "_LONGEST", 0.3)
    told = run(killing.kill)
    assert len(told.checks) == 2 and all(check["ok"] for check in told.checks)


def test_a_model_is_asked_what_it_can_do() -> None:
    def step(name: str, *needs: str, hardware: bool = False) -> Step:
        return Step(name, "", "group", "", 30.0, needs=needs, hardware=hardware)

    steps = [step("one", hardware=True), step("two", "one"), step("three", "two")]
    found = without_hardware(steps)
    assert [(each.name, each.needs) for each in found] == [("two", ()), ("three", ("two",))]
