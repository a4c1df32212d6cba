"""What a run consists of: steps, the trials of a step, and what became of each.

A report is JSON. It is written anew after every step, so that whatever ends a run costs one step.
"""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from gpu.core.errors import FormatError
from gpu.core.files import atomic_file, read_bytes

FORMAT: Final = "gpu-hw-acceptance"
VERSION: Final = 1
RISKED: Final = "display"
"""The option of steps that says that a card which lights a screen may lose it."""


class Outcome(StrEnum):
    """How a trial of a step ended."""

    PASS = "pass"
    FAIL = "fail"
    CRASH = "crash"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Trial:
    """One way to take a step.

    Attributes:
        name: what differs from the other ways, for people.
        force: variants that the driver's opening is to take (`gpu.drivers.nv.channel.probes`).
        options: likewise for what the step itself submits.
    """

    name: str = "default"
    force: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A step: a function that runs in a child process of its own.

    Attributes:
        name: unique; what ``--only`` takes, as it does the group.
        about: the one thing that it proves.
        group: which archive its files go to, and what is printed before it.
        run: ``module:function`` of a function that takes a `child.Context`.
        deadline: seconds after which a child is killed.
        needs: steps that must have passed.
        trials: tried in order until one passes, which later steps then take as well.
        questions: trials that only answer questions. They are run when all else is done, as are
            the trials behind the one that passed, and their failures fail nothing.
        preload: whether the recorder of ioctls is loaded into the child.
        always: whether it is run even if an earlier report has its result.
        guards: whether its failure ends the run.
        late: whether it is run behind all questions, since a GPU may not survive it.
        hardware: whether a simulated GPU cannot take it.
    """

    name: str
    about: str
    group: str
    run: str
    deadline: float
    needs: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = (Trial(),)
    questions: tuple[Trial, ...] = ()
    preload: bool = False
    always: bool = False
    guards: bool = False
    late: bool = False
    hardware: bool = False


@dataclass
class Result:
    """What became of one trial.

    Attributes:
        reason: why it did not pass; empty if it did.
        facts: what it found out, by name.
        checks: what it compared: name, whether it was right, details.
        statuses: how often each NV_STATUS was answered, by name.
        kernel_log: the kernel's lines while it ran.
        stop: why nothing may follow it; empty if something may.
        files: its files, by their names in the archive of its group.
    """

    step: str
    trial: str
    group: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0
    force: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    kernel_log: list[str] = field(default_factory=list)
    stop: str = ""
    files: list[str] = field(default_factory=list)


@dataclass
class Report:
    """All results of a run, and of those that it resumed.

    Attributes:
        manifest: of the prepared folder: names, sizes and hashes of its files.
        started: when the latest run began, in UTC.
        stopped: why the run ended early; empty if it did not.
        force: variants that were found to serve, by question.
        options: likewise for what steps submit.
        left_out: files that were too large to bring back.
        simulated: the chip that a model played; empty for a real GPU.
        vendor: whose ladder it is.
    """

    manifest: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    stopped: str = ""
    force: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    simulated: str = ""
    vendor: str = "nvidia"

    def of(self, step: str) -> list[Result]:
        """The results of a step's trials, in the order in which they ran."""
        return [each for each in self.results if each.step == step]

    def passed(self, step: str) -> bool:
        """Whether some trial of a step passed."""
        return any(each.outcome is Outcome.PASS for each in self.of(step))

    def add(self, result: Result) -> None:
        """Adds a result, in place of an earlier one of the same trial."""
        same = (result.step, result.trial)
        self.results = [each for each in self.results if (each.step, each.trial) != same]
        self.results.append(result)

    def to_json(self) -> str:
        """The report as text."""
        head = {"format": FORMAT, "version": VERSION}
        return json.dumps({**head, **asdict(self)}, indent=1) + "\n"


def write_report(path: Path, report: Report) -> None:
    """Replaces a report, gzipped, so that readers see the old one or the new one.

    Raises OSError as the system does.
    """
    with atomic_file(path) as file:
        file.write(gzip.compress(report.to_json().encode(), mtime=0))


def read_report(path: str | os.PathLike[str]) -> Report:
    """Reads a report, gzipped or not.

    Raises FormatError for what is none or is of another version, OSError as the system does.
    """
    name, data = os.path.basename(os.fspath(path)), read_bytes(path)
    try:
        text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        content = json.loads(text)
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise FormatError(f"{name} is no report: {error}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise FormatError(f"{name} is no report: it does not say {FORMAT!r}")
    if (version := content.pop("version", None)) != VERSION:
        raise FormatError(f"{name} is a report of version {version}; this tool reads {VERSION}")
    try:
        results = [_result(each) for each in content.pop("results")]
        return Report(results=results, **content)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{name} is a damaged report: {error}") from error


def _result(content: dict[str, Any]) -> Result:
    known = {each.name for each in fields(Result)}
    if unknown := content.keys() - known:
        raise ValueError(f"a result has the fields {', '.join(sorted(unknown))}")
    return Result(**{**content, "outcome": Outcome(content["outcome"])})
