"""`gpu trace`: recordings of what drivers ask of the system."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable
from itertools import islice
from typing import Final

from gpu.core.errors import InvalidValue, TransportError
from gpu.core.trace import read_trace
from gpu.core.traceevent import Event
from gpu.transport.os import RealOs
from gpu.transport.reissue import differing_answers, first_difference
from gpu.transport.tracetext import format_event

_MOST_ANSWERS: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be done with traces."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    record = actions.add_parser("record", help="run a command, and record its drivers' calls")
    record.add_argument("out", help="the file to make")
    record.add_argument("program", nargs=argparse.REMAINDER, help="-- and the command")
    show = actions.add_parser("print", help="the calls, one by one")
    show.add_argument("trace")
    diff = actions.add_parser("diff", help="where the calls of two traces part")
    diff.add_argument("first")
    diff.add_argument("second")
    replay = actions.add_parser("replay", help="make the calls again, on a replay of the trace")
    replay.add_argument("trace")


def run(arguments: argparse.Namespace) -> int:
    """Does it; the exit code is 1 where traces differ, and that of a recorded command."""
    return _ACTIONS[arguments.action](arguments)


def _events(path: str) -> list[Event]:
    try:
        return read_trace(path)
    except OSError as error:
        raise TransportError(f"reading {path}: {error.strerror}", error.errno) from error


def _record(arguments: argparse.Namespace) -> int:
    program: list[str] = arguments.program
    command = program[1:] if program[:1] == ["--"] else program
    if not command:
        raise InvalidValue("no command to record: gpu trace record OUT -- python script.py")
    system = RealOs()
    if system.exists(arguments.out):
        raise InvalidValue(f"{arguments.out} exists: give another name, or remove it")
    # env sets the variable, so that ours need not be read here.
    finished = subprocess.run(["env", f"GPU_TRACE={arguments.out}", *command], check=False)
    if not system.exists(arguments.out):
        raise TransportError("nothing was recorded: the command opened no device through a driver")
    print(f"{arguments.out}: {len(_events(arguments.out))} calls")
    # A command that a signal ended has its number, negative: shells say 128 more than that.
    return finished.returncode if finished.returncode >= 0 else 128 - finished.returncode


def _print(arguments: argparse.Namespace) -> int:
    for number, event in enumerate(_events(arguments.trace)):
        print(f"{number:5}  {format_event(event)}")
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    first, second = _events(arguments.first), _events(arguments.second)
    answers = list(islice(differing_answers(first, second), _MOST_ANSWERS))
    found = first_difference(first, second)
    for answer in answers:
        print(f"answer {answer.event}: {answer.text}")
    print("the calls are the same" if found is None else found.text)
    return int(found is not None or bool(answers))


def _replay(arguments: argparse.Namespace) -> int:
    events = _events(arguments.trace)
    found = first_difference(events, events)
    print(f"{len(events)} calls replay" if found is None else found.text)
    return int(found is not None)


_ACTIONS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "record": _record,
    "print": _print,
    "diff": _diff,
    "replay": _replay,
}
