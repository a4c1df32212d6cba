"""What a step tells while it runs: a line an item, so that a crash loses nothing that was told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from gpu.core.errors import DeviceError, Unsupported
from gpu.core.files import read_bytes
from tools.hw_acceptance.model import Outcome

LOG: Final = "log.jsonl"
CALLS: Final = "calls.jsonl"


class StepFailed(DeviceError):
    """A step found what it must not find; the message says what."""


class Unavailable(Unsupported):
    """This machine lacks what a step needs; nothing is wrong with a GPU."""


def open_lines(path: Path) -> TextIO:
    """A new text file that has every line the moment it is written; the caller closes it."""
    return open(path, "w", buffering=1, encoding="utf-8")


class StepLog:
    """Writes what a step finds; all of it lies in ``folder``."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = open_lines(folder / LOG)
        self._wrong: list[str] = []

    def fact(self, name: str, value: object) -> None:
        """Something found out: anything that JSON can hold."""
        self._write({"fact": name, "value": value})

    def check(self, name: str, right: bool, details: str = "") -> None:
        """Something compared. A step with a wrong one fails, but goes on until it ends."""
        self._write({"check": name, "ok": right, "details": details})
        if not right:
            self._wrong.append(f"{name}: {details}" if details else name)

    @property
    def has_wrong(self) -> bool:
        """Whether a check was wrong so far."""
        return bool(self._wrong)

    def notified(self, number: int) -> None:
        """RM wrote this number, which the kernel's log calls Xid, into a channel's notifier."""
        self._write({"notified": number})

    def lost(self, why: str) -> None:
        """The device is lost, and nothing made it usable again."""
        self._write({"lost": why})

    def dump(self, name: str, text: str) -> None:
        """Writes a text file beside the log."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def finish(self) -> None:
        """Ends a step that ran through. Raises StepFailed if a check was wrong."""
        if self._wrong:
            raise StepFailed("; ".join(self._wrong))

    def end(self, outcome: Outcome, reason: str = "") -> None:
        """The last line."""
        self._write({"end": outcome, "reason": reason})

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, default=str) + "\n")


@dataclass
class Told:
    """What a step told: read from its folder, whatever became of its process."""

    outcome: Outcome | None = None
    reason: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    notified: list[int] = field(default_factory=list)
    lost: str = ""
    statuses: dict[str, int] = field(default_factory=dict)


def read_step(folder: Path) -> Told:
    """What a step told, as far as it came."""
    told = Told()
    for line in _lines(folder / LOG):
        if "fact" in line:
            told.facts[line["fact"]] = line["value"]
        elif "check" in line:
            check = {"name": line["check"], "ok": line["ok"], "details": line["details"]}
            told.checks.append(check)
        elif "notified" in line:
            told.notified.append(line["notified"])
        elif "lost" in line:
            told.lost = line["lost"]
        elif "end" in line:
            told.outcome, told.reason = Outcome(line["end"]), line["reason"]
    for calls in sorted(folder.rglob(CALLS)):  # also of processes that the step started
        for line in _lines(calls):
            if status := line.get("status"):
                told.statuses[status] = told.statuses.get(status, 0) + 1
    return told


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file; none if there is no file."""
    if not path.exists():
        return
    *whole, _cut = read_bytes(path).split(b"\n")
    for line in whole:
        yield json.loads(line)
