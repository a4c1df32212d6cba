"""Checks in a row, each with a limit of time, in a process that is replaced when one ends it.

A check that hangs or crashes costs itself alone: the process is killed, and another one goes on
with the check behind it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu.core.errors import GpuError, Unsupported
from gpu.core.files import read_bytes
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.model import Outcome
from tools.hw_acceptance.steplog import LOG, StepFailed, Told, read_step
from tools.hw_acceptance.stops import stop_reason

NAMES: Final = "checks"
"""The option with the names of checks that a process runs, with commas."""
_START: Final = 30.0  # seconds until the first check begins, beyond its own limit
_GRACE: Final = 20.0  # for the kernel driver to end the channels of a process that was killed
_POLL: Final = 0.02
_TAIL: Final = 300  # characters of output that a reason quotes
_ENDED: Final = "ended: "  # before the names of checks, beside which there are other facts


@dataclass(frozen=True)
class Line:
    """What became of a check."""

    name: str
    outcome: Outcome
    seconds: float
    error: str = ""


def run_checks(context: Context, checks: Mapping[str, Callable[[], None]]) -> None:
    """The inside of a process: runs the checks that the option names, and tells of each.

    An error that is no `GpuError` is a bug: it ends the process.
    """
    context.log.fact("checks", len(context.options[NAMES].split(",")))
    for name in context.options[NAMES].split(","):
        outcome, error = Outcome.PASS, ""
        began = time.monotonic()
        try:
            checks[name]()
        except Unsupported as missing:
            outcome, error = Outcome.UNAVAILABLE, missing.message
        except GpuError as failure:
            outcome, error = Outcome.FAIL, f"{type(failure).__name__}: {failure}"
        seconds = round(time.monotonic() - began, 3)
        told = {"outcome": outcome, "seconds": seconds, "error": error}
        context.log.fact(_ENDED + name, told)


def supervise(
    context: Context, run: str, names: Sequence[str], limit: float, *, alone: bool = False
) -> list[Line]:
    """Has all checks run by ``run``, a function that calls `run_checks`; tells of each at once.

    Each may take ``limit`` seconds; ``alone`` says that each has a process of its own. Returns the
    lines. Raises StepFailed, leaving the rest out, where a process cannot be ended or its calls
    were answered by what must end a run.
    """
    left, lines, part = list(names), list[Line](), 0
    while left:
        work = context.log.folder / f"part-{part}"
        work.mkdir()
        part += 1
        now = left[:1] if alone else left
        told, reason, ended = _run_part(context, run, now, limit, work)
        ended_checks = {
            name: told.facts[_ENDED + name] for name in now if _ENDED + name in told.facts
        }
        found = [_line(name, row) for name, row in ended_checks.items()]
        if len(found) < len(now):
            outcome = Outcome.TIMEOUT if reason.startswith("killed") else Outcome.CRASH
            found.append(Line(now[len(found)], outcome, limit, reason))
        for name, value in told.facts.items():
            if not name.startswith(_ENDED):
                context.log.fact(name, value)
        for line in found:
            _tell(context, line)
        lines += found
        left = left[len(found) :]
        stop = stop_reason((), told.statuses, told.notified)
        if left and (stop or not ended):
            raise StepFailed(f"{len(left)} checks left out: {stop or reason}")
    return lines


def _run_part(
    context: Context, run: str, names: Sequence[str], limit: float, work: Path
) -> tuple[Told, str, bool]:
    """One process: what it told, why it ended before its end, and whether it ended at all."""
    output = work / "output.txt"
    with open(output, "wb") as file:
        # In the group of this process, with which it is killed at the step's deadline.
        process = subprocess.Popen(
            _command(context, run, names, work), stdout=file, stderr=subprocess.STDOUT
        )
        reason = _watch(process, work, limit)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        return read_step(work), "it could not be killed: it is stuck in the kernel", False
    if not reason:
        tail = output.read_text(encoding="utf-8", errors="replace").strip()[-_TAIL:]
        reason = f"exit status {process.returncode}: {tail}"
    return read_step(work), reason, True


def _command(context: Context, run: str, names: Sequence[str], work: Path) -> list[str]:
    options = {**context.options, NAMES: ",".join(names)}
    return [
        *(sys.executable, "-m", "tools.hw_acceptance", "child", "--run", run),
        *("--work", str(work), "--folder", str(context.folder), "--sim", context.chip),
        *("--ladder", context.ladder),
        *("--force", json.dumps(dict(context.force)), "--options", json.dumps(options)),
    ]


def _watch(process: subprocess.Popen[bytes], work: Path, limit: float) -> str:
    """Waits while checks end in time; kills the process otherwise, and says so."""
    known, since = 0, time.monotonic()
    while process.poll() is None:
        told = _count_ended(work / LOG)
        if told > known:
            known, since = told, time.monotonic()
        late = time.monotonic() - since - (0 if known else _START)
        if late > limit:
            process.kill()
            return f"killed after {limit:.0f} s"
        time.sleep(_POLL)
    return ""


def _count_ended(log: Path) -> int:
    """How many checks a log tells the end of; cheap, since it is asked again and again."""
    return read_bytes(log).count(b'{"fact": "' + _ENDED.encode()) if log.exists() else 0


def _line(name: str, told: dict[str, Any]) -> Line:
    return Line(name, Outcome(told["outcome"]), told["seconds"], told["error"])


def _tell(context: Context, line: Line) -> None:
    if line.outcome is Outcome.UNAVAILABLE:
        context.log.fact(f"{line.name} was not asked", line.error)
    else:
        details = f"{line.outcome}, {line.seconds:.2f} s" + (
            f": {line.error}" if line.error else ""
        )
        context.log.check(line.name, line.outcome is Outcome.PASS, details)
