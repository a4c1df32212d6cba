"""Child processes with a deadline, killed with all that they started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Seconds that a killed process may take to end: the kernel driver first ends its channels.
_GRACE: Final = 20.0
_PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
_TAIL: Final = 2000  # bytes of output that a reason may quote


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        code: its exit status, negative for a signal; None where it could not be ended.
        timed_out: whether it was killed at its deadline.
        seconds: how long it ran.
        tail: the end of its output.
    """

    code: int | None
    timed_out: bool
    seconds: float
    tail: str

    @property
    def reason(self) -> str:
        """In words, why this was no good end."""
        if self.code is None:
            return "it could not be killed: it is stuck in the kernel"
        if self.timed_out:
            return f"killed after {self.seconds:.0f} s"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        lines = self.tail.strip().splitlines()
        return f"exit status {self.code}" + (f": {lines[-1]}" if lines else "")


def run_bounded(
    command: Sequence[str],
    limit: float,
    output: Path,
    environment: Mapping[str, str],
    cwd: Path | None = None,
) -> Ended:
    """Runs a command for at most ``limit`` seconds; its output goes to a file.

    It leads a process group of its own, which is killed whole at the deadline, and also when it
    ends, so that nothing it started stays. Raises OSError where it cannot be started.
    """
    began = time.monotonic()
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            process_group=0,  # no session of its own: it must not outlive who started all of this
        )
        timed_out = False
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _kill_group(process.pid)
        code = _wait(process)
    seconds = time.monotonic() - began
    return Ended(code, timed_out, seconds, _tail(output))


def die_with_parent() -> None:
    """Has this process killed when the one that started it ends, also by SIGKILL; on Linux.

    What is left of a run that was killed would keep the GPU busy in the next one.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        return None


def _tail(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        return file.read().decode("utf-8", "replace")
