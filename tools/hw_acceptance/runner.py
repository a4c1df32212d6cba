"""Running the plan on the machine with the GPU: one child after another, the report after each."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from gpu.core.errors import InvalidValue
from tools.hw_acceptance import bundle
from tools.hw_acceptance.children import Ended, run_bounded
from tools.hw_acceptance.kernellog import KernelLog
from tools.hw_acceptance.model import Outcome, Report, Result, Step, Trial, write_report
from tools.hw_acceptance.scrub import Scrubber
from tools.hw_acceptance.steplog import read_step
from tools.hw_acceptance.stops import stop_reason
from tools.hw_acceptance.table import format_table

ROOT: Final = Path(__file__).resolve().parents[2]
VARIANTS: Final = "variants"
"""The group of trials that only answer questions."""
_RESERVE: Final = 45.0  # seconds that are kept for the last steps
_LATE: Final = 60.0  # seconds that questions leave to late steps
_LEAST: Final = 3.0  # seconds that are worth starting a child for
_SHARE: Final = 4.0  # likewise, a step's deadline by what is left for it, at most


class Launch(Protocol):
    """Starts a child for one trial, and returns when it has ended."""

    def __call__(self, step: Step, trial: Trial, work: Path, limit: float, /) -> Ended:
        """``work`` is an empty folder for what it writes, ``limit`` in seconds."""
        ...


@dataclass(frozen=True)
class ChildLauncher:
    """Starts this package in a new interpreter.

    Attributes:
        folder: the prepared folder.
        library: the unpacked wheel, whose `gpu` the child imports.
        recorder: the shared object that records the ioctls of steps that ask for it.
        chip: what is simulated instead of this machine; empty for its GPUs.
        ladder: whose steps they are, as `ladders` names it.
    """

    folder: Path
    library: Path
    recorder: Path
    chip: str = ""
    ladder: str = "nvidia"

    def __call__(self, step: Step, trial: Trial, work: Path, limit: float, /) -> Ended:
        """See `Launch`."""
        command = [sys.executable, "-m", "tools.hw_acceptance", "child", "--run", step.run]
        command += ["--work", str(work), "--folder", str(self.folder)]
        command += ["--force", json.dumps(trial.force), "--options", json.dumps(trial.options)]
        command += ["--sim", self.chip, "--limit", f"{limit:.1f}", "--ladder", self.ladder]
        return run_bounded(command, limit, work / "output.txt", self._environment(step, work))

    def _environment(self, step: Step, work: Path) -> dict[str, str]:
        # Without a safe path the child would find the tree's `gpu` in the current folder.
        # What the caller added to the path stays behind them: packages that were brought along.
        given = (os.path.abspath(each) for each in filter(None, _given_paths()))
        paths = os.pathsep.join((str(self.library), str(ROOT), *given))
        ours = {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "PYTHONFAULTHANDLER": "1"}
        if step.preload:
            ours |= {"LD_PRELOAD": str(self.recorder), "NV_RECORD": str(work / "ioctls.jsonl")}
        return {**os.environ, **ours}


def _given_paths() -> list[str]:
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)


def choose(steps: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """The steps that ``--only`` names, by name, first word or group; all for an empty list.

    Those that are always run stay. Raises InvalidValue for what names none.
    """
    for wanted in only:
        if not any(_is_named(step, wanted) for step in steps):
            names = ", ".join(repr(step.name) for step in steps)
            raise InvalidValue(f"no step or group {wanted!r}; there are {names}")
    if not only:
        return list(steps)
    return [step for step in steps if step.always or any(_is_named(step, each) for each in only)]


def without_hardware(steps: Sequence[Step]) -> list[Step]:
    """The steps that a simulated GPU can take, without those that they would build on."""
    missing = {step.name for step in steps if step.hardware}
    return [
        replace(step, needs=tuple(name for name in step.needs if name not in missing))
        for step in steps
        if not step.hardware
    ]


def _is_named(step: Step, wanted: str) -> bool:
    return wanted in (step.name, step.group, step.name.partition(" ")[0])


@dataclass
class Runner:
    """A run of some steps.

    Attributes:
        steps: in order; `last` follows whatever time is left, unless the run was stopped.
        report: what is known from earlier, which this run adds to.
        out: the folder of results; it exists.
        work: a folder for what children write; it exists.
        launch: how a child is started.
        kernel_log: read after every child.
        deadline: seconds that all of it may take.
        patience: how often its deadline a step may take; a model is slower than a GPU.
        check_needs: whether a step is left out that builds on one that did not pass.
        scrub: takes out what tells whose machine this is of all that is written.
        say: where progress goes.
        now: seconds on a clock.
    """

    steps: Sequence[Step]
    last: Sequence[Step]
    report: Report
    out: Path
    work: Path
    launch: Launch
    kernel_log: KernelLog
    deadline: float
    patience: float = 1.0
    check_needs: bool = True
    scrub: Scrubber = field(default_factory=Scrubber)
    say: Callable[[str], None] = print
    now: Callable[[], float] = time.monotonic
    _lines: list[str] = field(default_factory=list)
    _left_out: dict[str, list[str]] = field(default_factory=dict)
    _began: float = 0.0

    def run(self) -> bool:
        """Runs all; whether everything that had to pass did. The table is said last."""
        bundle.check_groups([*(step.group for step in (*self.steps, *self.last)), VARIANTS])
        self._began = self.now()
        self.report.stopped = ""
        if self.kernel_log.absent:
            self.say(f"no kernel log: {self.kernel_log.absent}")
        late = [step for step in self.steps if step.late]
        for step in self.steps:
            if not step.late:
                self._take(step, _RESERVE)
        self._answer_questions(_RESERVE + (_LATE if late else 0.0))
        for step in late:
            self._take(step, _RESERVE)
        for step in self.last:
            self._take(step, reserve=0.0)
        self.say(format_table(self.report))
        return not self.report.stopped and all(
            each.outcome in (Outcome.PASS, Outcome.UNAVAILABLE)
            or each.group == VARIANTS
            or self.report.passed(each.step)
            for each in self.report.results
        )

    def _take(self, step: Step, reserve: float) -> None:
        """Takes a step by the first of its trials that passes, which is settled from then on."""
        if not step.always and self.report.passed(step.name):
            self.say(f"{'':9} {step.name}: passed in the report that is resumed")
            return
        for trial in step.trials:
            result = self._try(step, self._with_settled(trial), step.group, reserve)
            if result.outcome is Outcome.PASS:
                self.report.force |= trial.force
                self.report.options |= trial.options
            if result.outcome in (Outcome.PASS, Outcome.UNAVAILABLE, Outcome.NOT_RUN):
                break

    def _answer_questions(self, reserve: float) -> None:
        for step in self.steps:
            if not self.report.passed(step.name):
                continue
            tried = {
                each.trial for each in self.report.of(step.name) if each.outcome != Outcome.NOT_RUN
            }
            for trial in (*step.trials, *step.questions):
                if trial.name not in tried:
                    self._try(step, self._with_settled(trial), VARIANTS, reserve)

    def _with_settled(self, trial: Trial) -> Trial:
        return Trial(
            trial.name,
            {**self.report.force, **trial.force},
            {**self.report.options, **trial.options},
        )

    def _try(self, step: Step, trial: Trial, group: str, reserve: float) -> Result:
        result = Result(
            *(step.name, trial.name, group, Outcome.NOT_RUN),
            force=trial.force,
            options=trial.options,
        )
        allowed = step.deadline * self.patience
        limit = min(allowed, self.deadline - self._elapsed() - reserve)
        missing = [name for name in step.needs if not self.report.passed(name)]
        if self.report.stopped:
            result.reason = f"the run was stopped: {self.report.stopped}"
        elif missing and self.check_needs:
            result.reason = f"it builds on {', '.join(missing)}"
        elif limit < max(_LEAST, step.deadline / _SHARE):
            result.reason = "no time was left: resume with --resume"
        else:
            self._run_child(step, trial, limit, result)
        result = self.scrub.result(result)
        self.report.add(result)
        self._save(result)
        return result

    def _run_child(self, step: Step, trial: Trial, limit: float, result: Result) -> None:
        work = self.work / result.group / _slug(step.name) / _slug(trial.name)
        work.mkdir(parents=True)
        ended = self.launch(step, trial, work, limit)
        told = read_step(work)
        result.seconds = round(ended.seconds, 3)
        result.facts, result.checks, result.statuses = told.facts, told.checks, told.statuses
        result.kernel_log = self.kernel_log.new_lines()
        result.files = sorted(
            str(each.relative_to(self.work / result.group))
            for each in work.rglob("*")
            if each.is_file()
        )
        if ended.timed_out or ended.code is None:
            result.outcome, result.reason = Outcome.TIMEOUT, ended.reason
        elif ended.code or told.outcome is None:
            result.outcome, result.reason = Outcome.CRASH, ended.reason
        else:
            result.outcome, result.reason = told.outcome, told.reason
        result.stop = stop_reason(result.kernel_log, told.statuses, told.notified, told.lost)
        if ended.code is None:
            result.stop = result.stop or f"a child of {step.name!r} is stuck in the kernel"
        if step.guards and result.outcome not in (Outcome.PASS, Outcome.UNAVAILABLE):
            result.stop = result.stop or f"{step.name!r} did not pass"
        self.report.stopped = self.scrub(result.stop)

    def _save(self, result: Result) -> None:
        self._lines += [f"== {result.step} [{result.trial}]", *result.kernel_log]
        root = self.work / result.group
        if root.exists():
            archive = self.out / f"{result.group}.tar.gz"
            self._left_out[result.group] = bundle.write_archive(archive, root, scrub=self.scrub)
        self.report.left_out = [each for names in self._left_out.values() for each in names]
        if not self.kernel_log.absent:
            bundle.write_text(self.out / bundle.KERNEL_LOG, "\n".join(self._lines) + "\n")
        write_report(self.out / bundle.REPORT, self.report)
        name = result.step if result.trial == "default" else f"{result.step} [{result.trial}]"
        reason = f": {result.reason}" if result.reason else ""
        self.say(f"{self._elapsed():7.1f} s {result.outcome:11} {name}{reason}")

    def _elapsed(self) -> float:
        return self.now() - self._began


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)
