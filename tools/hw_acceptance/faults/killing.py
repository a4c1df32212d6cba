"""Processes that are killed while they use the GPU, and one after the other that opens it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from gpu.hcq.conformance.kit import WORDS, download, expect_equal, numbers, upload
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.steplog import StepFailed
from tools.hw_acceptance.suites.opens import target_for

_ROUNDS: Final = 8
_SEED: Final = 1
_LONGEST: Final = 1.5  # seconds from its start to its end: importing, opening, or working
_GRACE: Final = 20.0


def kill(context: Context) -> None:
    """Kills processes at seeded moments; behind each this process opens the GPU and computes.

    Raises StepFailed, and what opening raises.
    """
    moments = random.Random(_SEED)
    for number in range(_ROUNDS):
        after = moments.uniform(0.2, _LONGEST)
        work = context.log.folder / f"killed-{number}"
        work.mkdir()
        process = _start(context, work)
        time.sleep(after)
        process.kill()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired as late:
            raise StepFailed(f"process {number} is stuck in the kernel") from late
        _compute(context)
        context.log.check(f"killed after {after:.2f} s", True)


def endless(context: Context) -> None:
    """Opens the GPU, launches and copies, again and again, until it is killed."""
    while True:
        _compute(context)


def _start(context: Context, work: Path) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "tools.hw_acceptance", "child", "--run", f"{__name__}:endless"),
        *("--work", str(work), "--folder", str(context.folder)),
        *("--force", json.dumps(dict(context.force)), "--ladder", context.ladder),
    ]
    with open(work / "output.txt", "wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


def _compute(context: Context) -> None:
    target = target_for(context)
    with target.open() as device:
        add = target.program(device, "add")
        a, out = upload(device, numbers(0)), upload(device, numbers(1))
        for _ in range(50):
            add(out, a, a, vals=(WORDS,))
        expect_equal(download(device, out), 2 * numbers(0), "sums")
