"""Steps that are run in children by tests: each ends in its own way."""

from __future__ import annotations

import os
import signal
import time

from gpu.core.errors import DeviceError, Unsupported
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.steplog import Unavailable
from tools.hw_acceptance.suites.supervise import run_checks, supervise


def good(context: Context) -> None:
    context.log.fact("answer", 42)
    context.log.fact("given", [dict(context.force), dict(context.options)])
    context.log.check("arithmetic", 1 + 1 == 2)
    context.log.dump("note.txt", "all is well\n")


def wrong(context: Context) -> None:
    context.log.check("arithmetic", 1 + 1 == 3, "it was 2")
    context.log.fact("went on", True)


def typed(context: Context) -> None:
    error = DeviceError("the engine is cold")
    error.add_note("while warming up")
    raise error


def absent(context: Context) -> None:
    raise Unavailable("this machine has no wings")


def bug(context: Context) -> None:
    raise ZeroDivisionError("a bug")


def crash(context: Context) -> None:
    context.log.fact("before the crash", True)
    os.kill(os.getpid(), signal.SIGSEGV)


def notified(context: Context) -> None:
    context.log.notified(79)


def supervised(context: Context) -> None:
    names = ["well", "hang", "refuse", "die", "lack", "last"]
    lines = supervise(context, f"{__name__}:parts", names, 1.0)
    context.log.fact("lines", [(line.name, line.outcome, line.error) for line in lines])


def parts(context: Context) -> None:
    def refuse() -> None:
        raise DeviceError("it is cold")

    def lack() -> None:
        raise Unsupported("no wings")

    run_checks(
        context,
        {
            "well": lambda: None,
            "last": lambda: None,
            "refuse": refuse,
            "lack": lack,
            "hang": lambda: time.sleep(60),
            "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
        },
    )
