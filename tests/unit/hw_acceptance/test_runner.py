"""The order of a run: what is tried, settled, left out, resumed and stopped; and its files."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu.core.errors import FormatError, InvalidValue
from tools.hw_acceptance import bundle
from tools.hw_acceptance.children import Ended
from tools.hw_acceptance.kernellog import KernelLog, format_record
from tools.hw_acceptance.model import Outcome, Report, Result, Step, Trial, read_report
from tools.hw_acceptance.plan import LAST, STEPS
from tools.hw_acceptance.runner import VARIANTS, Runner, choose
from tools.hw_acceptance.stops import stop_reason, xids
from tools.hw_acceptance.table import format_table

XID = "12.5 NVRM: Xid (PCI:0000:0f:00): %d, pid=7, name=python3, what happened"


class Stage:
    """Plays the children: each end is looked up by step and trial."""

    def __init__(self, **ends: str):
        self.ends = ends
        self.calls: list[tuple[str, str, dict[str, str], float]] = []
        self.clock = 0.0
        self.lines: list[str] = []

    def __call__(self, step: Step, trial: Trial, work: Path, limit: float, /) -> Ended:
        self.calls.append((step.name, trial.name, {**trial.force, **trial.options}, limit))
        self.clock += 1.0
        end = self.ends.get(f"{step.name}_{trial.name}", self.ends.get(step.name, "pass"))
        if end == "hang":
            return Ended(-9, True, 30.0, "")
        if end == "stuck":
            return Ended(None, True, 1.0, "")
        if end.startswith("kernel "):
            self.lines.append(end.removeprefix("kernel "))
            end = "fail"
        if end.startswith("status "):
            call = {"call": "ioctl", "status": end.removeprefix("status ")}
            (work / "calls.jsonl").write_text(json.dumps(call) + "\n")
            end = "fail"
        line = {"end": end, "reason": "" if end == "pass" else f"it was {end}"}
        (work / "log.jsonl").write_text(json.dumps(line) + "\n")
        return Ended(0, False, 1.0, "")

    @property
    def names(self) -> list[str]:
        return [name if trial == "default" else f"{name} {trial}" for name, trial, *_ in self.calls]


class Log(KernelLog):
    """The kernel's log of a stage."""

    def __init__(self, stage: Stage):
        self.absent = ""
        self._stage = stage

    def new_lines(self) -> list[str]:
        lines, self._stage.lines = self._stage.lines, []
        return lines


Run = Callable[..., tuple[Report, bool]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    count = iter(range(100))

    def go(
        stage: Stage,
        *steps: Step,
        report: Report | None = None,
        deadline: float = 1000.0,
        last: tuple[Step, ...] = (),
        patience: float = 1.0,
    ) -> tuple[Report, bool]:
        place = tmp_path / str(next(count))
        (place / "out").mkdir(parents=True)
        report = report or Report()
        said: list[str] = []
        runner = Runner(
            *(steps, last, report, place / "out", place / "work", stage, Log(stage), deadline),
            patience=patience,
            say=said.append,
            now=lambda: stage.clock,
        )
        good = runner.run()
        assert said[-1] == format_table(report)
        assert read_report(place / "out" / bundle.REPORT) == report
        return report, good

    return go


def _step(name: str, *needs: str, **more: object) -> Step:
    return Step(name, "", "group", "", 30.0, needs=needs, **more)  # type: ignore[arg-type]


ONE, TWO = _step("one"), _step("two", "one")
WAYS = (Trial(), Trial("b", {"door": "b"}), Trial("c", {}, {"way": "c"}))


def _outcomes(report: Report) -> dict[str, str]:
    return {f"{each.step} {each.trial}": each.outcome.value for each in report.results}


def test_all_pass(run: Run) -> None:
    stage = Stage()
    report, good = run(stage, ONE, TWO)
    assert good and stage.names == ["one", "two"]
    assert not report.stopped


def test_what_builds_on_a_failure_is_left_out(run: Run) -> None:
    stage = Stage(one="fail")
    report, good = run(stage, ONE, TWO, _step("three"))
    assert not good and stage.names == ["one", "three"]
    assert _outcomes(report)["two default"] == "not run"
    assert report.of("two")[0].reason == "it builds on one"


def test_the_first_trial_that_passes_is_settled_for_what_follows(run: Run) -> None:
    stage = Stage(one_default="fail")
    report, good = run(stage, _step("one", trials=WAYS), TWO)
    assert good and report.force == {"door": "b"} and report.options == {}
    assert stage.calls[2][:3] == ("two", "default", {"door": "b"})
    # The way behind it is only a question, asked when all else is done.
    assert stage.names == ["one", "one b", "two", "one c"]
    assert stage.calls[3][2] == {"door": "b", "way": "c"}
    assert report.of("one")[2].group == VARIANTS


def test_questions_fail_nothing_and_are_not_asked_of_failed_steps(run: Run) -> None:
    asked = (Trial("q", {}, {"q": "1"}),)
    stage = Stage(one_q="fail", two="fail")
    report, good = run(stage, _step("one", questions=asked), _step("two", questions=asked))
    assert stage.names == ["one", "two", "one q"] and not good
    stage = Stage(one_q="fail")
    report, good = run(stage, _step("one", questions=asked))
    assert good and _outcomes(report) == {"one default": "pass", "one q": "fail"}


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("kernel " + XID % 79, "Xid 79"),
        ("kernel " + XID % 119, "Xid 119"),
        ("kernel " + XID % 120, "Xid 120"),
        ("kernel 1.0 NVRM: GPU0 GSP RPC timed out", "a timeout of the GPU's firmware"),
        ("status NV_ERR_GPU_IS_LOST", "the kernel driver answered NV_ERR_GPU_IS_LOST"),
        ("status NV_ERR_TIMEOUT", "the kernel driver answered NV_ERR_TIMEOUT"),
        ("status NV_ERR_RESET_REQUIRED", "the kernel driver answered NV_ERR_RESET_REQUIRED"),
        ("stuck", "a child of 'one' is stuck in the kernel"),
    ],
)
def test_stop_rules(run: Run, end: str, reason: str) -> None:
    stage = Stage(one=end)
    steps = (_step("one", trials=WAYS), _step("two", always=True))
    report, good = run(stage, *steps, last=(_step("last", always=True),))
    assert not good and report.stopped.startswith(reason)
    assert stage.names == ["one"]
    assert report.of("last")[0].reason == f"the run was stopped: {report.stopped}"


@pytest.mark.parametrize("end", ["kernel " + XID % 13, "kernel " + XID % 31, "fail"])
def test_errors_of_a_kernel_do_not_stop_the_run(run: Run, end: str) -> None:
    report, _ = run(Stage(one=end), ONE, _step("two"))
    assert not report.stopped and report.passed("two")


def test_a_failed_health_check_stops_the_run_and_an_unavailable_one_does_not(run: Run) -> None:
    guard = _step("health", guards=True)
    report, _ = run(Stage(health="fail"), guard, ONE)
    assert report.stopped == "'health' did not pass" and not report.of("one")[0].seconds
    report, good = run(Stage(health="unavailable"), guard, ONE)
    assert good and report.passed("one")


def test_a_child_that_was_killed_is_a_timeout_and_the_run_goes_on(run: Run) -> None:
    report, good = run(Stage(one_default="hang"), _step("one", trials=WAYS), TWO)
    first = report.of("one")[0]
    assert (first.outcome, first.reason) == (Outcome.TIMEOUT, "killed after 30 s")
    assert good and report.passed("two")


def test_lines_of_the_kernel_are_read_for_reasons() -> None:
    assert xids([XID % 13, "nothing", XID % 79]) == [13, 79]
    assert stop_reason([], {}, [31, 120]) == "Xid 120"
    assert stop_reason(["the GSP is fine", "a timeout elsewhere"], {"NV_OK": 3}) == ""


def test_resuming_runs_only_what_has_not_passed(run: Run) -> None:
    health = _step("health", always=True)
    report, _ = run(Stage(two="fail"), health, ONE, TWO, _step("three", "two"))
    stage = Stage()
    report, good = run(stage, health, ONE, TWO, _step("three", "two"), report=report)
    assert good and stage.names == ["health", "two", "three"]
    assert sorted(_outcomes(report).values()) == ["pass"] * 4


def test_resuming_asks_only_open_questions_and_keeps_what_was_settled(run: Run) -> None:
    step = replace(_step("one", trials=WAYS, questions=(Trial("q"),)), deadline=8.0)
    report, _ = run(Stage(one_default="fail", one_c="fail"), step, deadline=48.5)
    assert _outcomes(report) == {
        "one default": "fail",
        "one b": "not run",
    }, "no time is left but the reserve"
    report, _ = run(Stage(one_default="fail", one_c="fail"), step, deadline=50.5)
    asked = {name: end for name, end in _outcomes(report).items() if end != "not run"}
    assert asked == {"one default": "fail", "one b": "pass", "one c": "fail"}
    stage = Stage()
    report, _ = run(stage, step, TWO, report=report)
    assert stage.names == ["two", "one q"]
    assert stage.calls[0][2] == {"door": "b"}


def test_a_stop_does_not_outlive_its_run(run: Run) -> None:
    report, _ = run(Stage(one="kernel " + XID % 79), ONE, TWO)
    assert report.stopped
    report, good = run(Stage(), ONE, TWO, report=report)
    assert good and not report.stopped


def test_children_get_no_more_than_is_left(run: Run) -> None:
    stage = Stage()
    last = Step("last", "", "group", "", 30.0, always=True)
    report, _ = run(stage, *(_step(str(i)) for i in range(5)), deadline=54.0, last=(last,))
    limits = {name: limit for name, _, _, limit in stage.calls}
    assert limits == {"0": 9.0, "1": 8.0, "last": 30.0}
    assert report.of("2")[0].reason.startswith("no time was left")


def test_a_step_is_not_begun_that_cannot_end(run: Run) -> None:
    stage = Stage()
    long = Step("long", "", "group", "", 80.0)
    report, _ = run(stage, long, _step("short"), deadline=55.0)
    assert [name for name, *_ in stage.calls] == ["short"]
    assert report.of("long")[0].reason.startswith("no time was left")


def test_a_model_is_given_more_time(run: Run) -> None:
    stage = Stage()
    run(stage, _step("one"), patience=3.0)
    assert [limit for *_, limit in stage.calls] == [90.0]


def test_only_names_steps_by_number_name_or_group() -> None:
    steps = [_step("1 one"), _step("12 two"), Step("x", "", "other", "", 1, always=True)]
    assert [each.name for each in choose(steps, ["12"])] == ["12 two", "x"]
    assert [each.name for each in choose(steps, ["1 one"])] == ["1 one", "x"]
    assert len(choose(steps, ["group"])) == len(choose(steps, [])) == 3
    with pytest.raises(InvalidValue, match="no step or group '3'; there are '1 one'"):
        choose(steps, ["3"])


def test_the_plan_is_well_formed() -> None:
    names = [step.name for step in (*STEPS, *LAST)]
    assert len(set(names)) == len(names)
    bundle.check_groups([*(step.group for step in STEPS), VARIANTS])
    for place, step in enumerate(STEPS):
        assert set(step.needs) <= set(names[:place]), f"{step.name} builds on what comes before"
        trials = [trial.name for trial in (*step.trials, *step.questions)]
        assert len(set(trials)) == len(trials)
    numbers = [name.partition(" ")[0] for name in names if name[0].isdigit()]
    assert numbers == [str(number) for number in range(1, 13)]


def test_too_many_groups_are_refused() -> None:
    with pytest.raises(InvalidValue, match="7 groups"):
        bundle.check_groups("abcdefg")


def test_an_archive_leaves_out_what_is_too_large(tmp_path: Path) -> None:
    import random

    root = tmp_path / "files"
    (root / "a").mkdir(parents=True)
    (root / "a/small.txt").write_text("small")
    (root / "large.bin").write_bytes(random.Random(1).randbytes(60_000))
    (root / "larger.bin").write_bytes(random.Random(2).randbytes(80_000))
    assert bundle.write_archive(tmp_path / "all.tar.gz", root) == []
    assert bundle.write_archive(tmp_path / "some.tar.gz", root, limit=100_000) == ["larger.bin"]
    with tarfile.open(tmp_path / "some.tar.gz") as archive:
        assert archive.getnames() == ["a/small.txt", "large.bin"]
    assert (tmp_path / "some.tar.gz").stat().st_size < 100_000


def test_a_long_text_keeps_its_end(tmp_path: Path) -> None:
    import random

    numbers = random.Random(3)
    text = "".join(f"{numbers.random()}\n" for _ in range(20_000)) + "the end\n"
    bundle.write_text(tmp_path / "log.gz", text, limit=50_000)
    kept = gzip.decompress((tmp_path / "log.gz").read_bytes()).decode()
    assert kept.startswith("(cut)\n") and kept.endswith("the end\n")
    assert (tmp_path / "log.gz").stat().st_size < 50_000


def test_a_result_has_few_files(run: Run, tmp_path: Path) -> None:
    run(Stage(), ONE, TWO)
    assert sorted(path.name for path in tmp_path.glob("*/out/*")) == [
        "group.tar.gz",
        "kernel-log.txt.gz",
        "report.json.gz",
    ]


def test_the_table_shows_outcomes_reasons_and_totals() -> None:
    report = Report(stopped="Xid 79", force={"doorbell": "BAR1"}, left_out=["trace.jsonl"])
    report.add(Result("1 control", "default", "ladder", Outcome.PASS, seconds=1.25))
    report.add(Result("2 device", "x: y", "ladder", Outcome.FAIL, reason="it\nbroke " * 40))
    report.add(Result("3 clock", "default", "bench", Outcome.NOT_RUN, reason="no time"))
    lines = format_table(report).splitlines()
    assert lines[0] == "-- ladder"
    assert lines[1].split() == ["pass", "1", "control", "1.2", "s"]
    assert "fail" in lines[2] and "2 device [x: y]" in lines[2]
    assert lines[3].strip().startswith("it broke it broke") and "..." in "".join(lines)
    assert "1 pass, 1 fail, 1 not run" in lines
    assert "variants that served: doorbell: BAR1" in lines
    assert lines[-1] == "STOPPED: Xid 79"
    assert max(len(line) for line in lines) <= 120


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no json", "is no report"),
        ("{}", "does not say 'gpu-hw-acceptance'"),
        ('{"format": "gpu-hw-acceptance", "version": 9}', "version 9"),
        ('{"format": "gpu-hw-acceptance", "version": 1}', "damaged"),
        ('{"format": "gpu-hw-acceptance", "version": 1, "results": [{"a": 1}]}', "damaged"),
    ],
)
def test_a_report_that_is_none_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=reason):
        read_report(path)


def test_kernel_records_are_read() -> None:
    record = b"4,861,12500000,-;NVRM: Xid (PCI:0000:0f:00): 31\n SUBSYSTEM=pci\n"
    assert format_record(record) == "12.500000 NVRM: Xid (PCI:0000:0f:00): 31"
    assert format_record(b"what is this") == "what is this"


def test_a_log_of_the_kernel_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "kmsg"))
    assert "No such file" in log.absent and log.new_lines() == []
    log.close()


def test_late_steps_come_behind_the_questions(run: Run) -> None:
    asked = _step("asked", questions=(Trial("q", {"door": "q"}),))
    stage = Stage()
    _, good = run(stage, _step("late", late=True), asked, last=(_step("last"),))
    assert good and stage.names == ["asked", "asked q", "late", "last"]
    stage = Stage()
    run(stage, _step("late", late=True), asked, deadline=100.0)
    assert stage.names == ["asked", "late"], "questions leave the time that late steps need"
