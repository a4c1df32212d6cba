"""Children: their outcome is known whatever becomes of them, and none outlives its deadline."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpu
from tools.hw_acceptance.children import run_bounded
from tools.hw_acceptance.kernellog import KernelLog
from tools.hw_acceptance.model import Outcome, Report, Result, Step, Trial
from tools.hw_acceptance.runner import ROOT, ChildLauncher, Runner


def _run(tmp_path: Path, function: str, deadline: float = 20.0) -> Result:
    step = Step("it", "", "group", f"unit.hw_acceptance.steps:{function}", deadline)
    out, work = tmp_path / "out", tmp_path / "work"
    out.mkdir()
    library = Path(gpu.__file__).parents[1]
    # What the child imports: the package under test, the tools, and the steps of this folder.
    paths = os.pathsep.join((str(library), str(ROOT / "tests")))
    launch = ChildLauncher(tmp_path, Path(paths), tmp_path / "recorder.so")
    report = Report()
    silent: list[str] = []
    runner = Runner(
        [step], [], report, out, work, launch, _no_log(tmp_path), 60.0 + deadline, say=silent.append
    )
    runner.run()
    (result,) = report.results
    return result


def _no_log(tmp_path: Path) -> KernelLog:
    return KernelLog(str(tmp_path / "no kmsg"))


def test_a_good_step_passes_with_all_it_told(tmp_path: Path) -> None:
    result = _run(tmp_path, "good")
    assert (result.outcome, result.reason, result.stop) == (Outcome.PASS, "", "")
    assert result.facts == {"answer": 42, "given": [{}, {}]}
    assert result.checks == [{"name": "arithmetic", "ok": True, "details": ""}]
    assert "it/default/note.txt" in result.files and "it/default/trace.jsonl" in result.files


def test_a_check_that_ends_its_process_costs_itself_alone(tmp_path: Path) -> None:
    result = _run(tmp_path, "supervised", 60.0)
    assert result.outcome is Outcome.FAIL
    lines = {name: (outcome, error) for name, outcome, error in result.facts["lines"]}
    assert lines["well"] == lines["last"] == ("pass", "")
    assert lines["hang"] == ("timeout", "killed after 1 s")
    assert lines["refuse"][0] == "fail" and "DeviceError: it is cold" in lines["refuse"][1]
    assert lines["die"][0] == "crash" and "exit status -9" in lines["die"][1]
    assert lines["lack"][0] == "unavailable" and result.facts["lack was not asked"] == "no wings"
    told = {check["name"]: check["ok"] for check in result.checks}
    assert told == {"well": True, "hang": False, "refuse": False, "die": False, "last": True}
    assert "it/default/part-2/log.jsonl" in result.files


@pytest.mark.parametrize(
    ("function", "outcome", "reason"),
    [
        ("wrong", Outcome.FAIL, "arithmetic: it was 2"),
        ("typed", Outcome.FAIL, "DeviceError: the engine is cold"),
        ("absent", Outcome.UNAVAILABLE, "no wings"),
        ("bug", Outcome.CRASH, "exit status 1: ZeroDivisionError: a bug"),
        ("crash", Outcome.CRASH, "ended by SIGSEGV"),
    ],
)
def test_each_end_has_its_outcome(
    tmp_path: Path, function: str, outcome: Outcome, reason: str
) -> None:
    result = _run(tmp_path, function)
    assert result.outcome is outcome and reason in result.reason
    if function == "crash":
        assert result.facts == {"before the crash": True}
    if function == "typed":
        assert result.reason.endswith("; while warming up")
    if function == "wrong":
        assert result.facts == {"went on": True}


def test_a_hanging_child_is_killed_with_its_own_children(tmp_path: Path) -> None:
    """It is deaf to polite requests, and has started a process that hangs as well."""
    script = "trap '' TERM; sleep 60 & echo $!; sleep 60"
    ended = run_bounded(["sh", "-c", script], 1.0, tmp_path / "output", os.environ)
    assert ended.timed_out and ended.reason == "killed after 1 s" and ended.seconds < 20
    other = int(ended.tail)
    for _ in range(100):
        if not _runs(other):
            return
        time.sleep(0.05)
    pytest.fail(f"process {other} outlived the deadline")


def _runs(pid: int) -> bool:
    """Whether a process is alive; one that nobody reaped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_fatal_notifier_stops_the_run(tmp_path: Path) -> None:
    assert _run(tmp_path, "notified").stop == "Xid 79"


def test_output_and_exit_status_of_a_command_are_kept(tmp_path: Path) -> None:
    code = "import sys; print('hello'); sys.exit(3)"
    ended = run_bounded([sys.executable, "-c", code], 20, tmp_path / "output", os.environ)
    assert (ended.code, ended.timed_out) == (3, False)
    assert ended.reason == "exit status 3: hello"


def test_forced_variants_reach_the_child(tmp_path: Path) -> None:
    trial = Trial("forced", {"doorbell": "BAR1"}, {"qmd QMD_TYPE": "0"})
    work = tmp_path / "work"
    work.mkdir()
    paths = os.pathsep.join((str(Path(gpu.__file__).parents[1]), str(ROOT / "tests")))
    launch = ChildLauncher(tmp_path, Path(paths), tmp_path / "recorder.so")
    ended = launch(Step("it", "", "g", "unit.hw_acceptance.steps:good", 20), trial, work, 20)
    assert ended.code == 0, ended.tail
    told = (work / "log.jsonl").read_text()
    assert '[{"doorbell": "BAR1"}, {"qmd QMD_TYPE": "0"}]' in told


def test_packages_that_were_brought_along_reach_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "brought"))
    launch = ChildLauncher(tmp_path, tmp_path / "library", tmp_path / "recorder.so")
    given = launch._environment(Step("it", "", "g", "m:f", 20), tmp_path)["PYTHONPATH"]
    assert given.split(os.pathsep) == [
        *(str(tmp_path / "library"), str(ROOT), str(tmp_path / "brought"))
    ]


def test_a_child_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    """It has no session of its own either, by which what is left of a command may be kept."""
    started = (
        "import os, subprocess, sys, time;"
        "child = 'from tools.hw_acceptance.children import die_with_parent as d;"
        "d(); import os, time; print(os.getpid(), os.getsid(0), flush=True); time.sleep(60)';"
        "from tools.hw_acceptance.children import run_bounded; from pathlib import Path;"
        "run_bounded([sys.executable, '-c', child], 60, Path(sys.argv[1]), os.environ)"
    )
    output = tmp_path / "output"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen([sys.executable, "-c", started, str(output)], env=environment)
    end = time.monotonic() + 20
    while not (output.exists() and output.read_text().endswith("\n")):
        assert time.monotonic() < end and run.poll() is None, "the child did not start"
        time.sleep(0.02)
    child, session = map(int, output.read_text().split())
    assert session == os.getsid(0)
    run.kill()
    run.wait()
    while _runs(child):
        assert time.monotonic() < end, "the child outlived the run"
        time.sleep(0.02)
