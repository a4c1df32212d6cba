"""Runs the steps of a Mac's report, each in a process of its own, and writes what came of them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gpu.core.errors import InvalidValue
from gpu.core.files import atomic_file
from gpu.sim.metal.chips import CHIPS
from gpu.sim.worlds import parse_setting
from tools.hw_acceptance.amd.environment import describe_tree
from tools.hw_acceptance.metal.steps import STEPS
from tools.hw_acceptance.model import Outcome, Report, Result
from tools.hw_acceptance.scrub import ROOT, Scrubber

_RESULT: Final = "gpu-hw-acceptance-facts "
_WORDS: Final = 4000
"""Letters of a failed process that are kept."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--out", type=Path, default=Path("metal-report.json"))
    parser.add_argument("--only", default="", help="names of steps, with commas")
    parser.add_argument(
        "--risk", action="store_true", help="also what may reset the GPU of a screen"
    )
    parser.add_argument("--sim", default="", metavar="GPU", help="rehearse on a model, as apple7")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)


def command(options: argparse.Namespace) -> int:
    """Runs all steps; 0 if all that ran passed, 1 if not."""
    if options.step:
        print(_RESULT + json.dumps(STEPS[options.step].run()), flush=True)
        return 0
    chips = [*CHIPS]
    if options.sim and not set(parse_setting(options.sim)[0]) <= CHIPS.keys():
        raise InvalidValue(f"--sim {options.sim}: there are models of {', '.join(chips)}")
    if not options.sim and platform.system() != "Darwin":
        print(f"There is no Metal on {platform.system()}: --sim {chips[0]} rehearses on a model.")
        print("Nothing was run, and nothing is claimed.")
        return 0
    wanted = [each for each in options.only.split(",") if each] or [*STEPS]
    if unknown := [each for each in wanted if each not in STEPS]:
        raise InvalidValue(f"--only {unknown[0]}: the steps are {', '.join(STEPS)}")
    report = Report(manifest=describe_tree(), vendor="metal", simulated=options.sim)
    report.started = datetime.now(UTC).isoformat(timespec="seconds")
    scrubber = Scrubber()
    for name in wanted:
        result = scrubber.result(_run(name, options))
        report.add(result)
        _write(options.out, report, scrubber)
        told = f": {result.reason.splitlines()[-1][:100]}" if result.reason else ""
        print(f"{result.outcome:11} {name} ({result.seconds:.1f} s){told}", flush=True)
    print(f"wrote {options.out.name}: it names no user, no path and no serial number; look at it")
    bad = (Outcome.FAIL, Outcome.CRASH, Outcome.TIMEOUT)
    return int(any(each.outcome in bad for each in report.results))


def _run(name: str, options: argparse.Namespace) -> Result:
    step = STEPS[name]
    result = Result(name, "default", "metal", Outcome.PASS)
    if step.risks and not (options.risk or options.sim):
        result.outcome, result.reason = Outcome.NOT_RUN, f"--risk runs it: {step.risks}"
        return result
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tools.hw_acceptance", "metal", "--step", name],
            env={**os.environ, "DEV": "METAL", "SIM": options.sim},
            cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=step.seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        result.outcome, result.reason = Outcome.TIMEOUT, f"it ran longer than {step.seconds} s"
    else:
        facts = [line for line in done.stdout.splitlines() if line.startswith(_RESULT)]
        if done.returncode == 0 and facts:
            result.facts = json.loads(facts[-1].removeprefix(_RESULT))
        else:
            # What a signal ended: an exception of Objective-C, whose words are on stderr.
            died = done.returncode < 0
            result.outcome = Outcome.CRASH if died else Outcome.FAIL
            result.reason = f"{done.stderr[-_WORDS:]}\nthe process ended with {done.returncode}"
    result.seconds = round(time.monotonic() - began, 2)
    return result


def _write(path: Path, report: Report, scrubber: Scrubber) -> None:
    content: dict[str, Any] = json.loads(report.to_json())
    content["manifest"] = scrubber.value(content["manifest"])
    with atomic_file(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())
