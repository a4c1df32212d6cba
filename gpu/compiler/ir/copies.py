"""Asynchronous copies of an interpreted block: started, committed in groups, landed by a wait.

Threads move together, so that a group is one of all of them. What a copy will overwrite is poison
from its start on: a wait that is missing shows in what is read.
"""

from __future__ import annotations

from typing import NamedTuple

from gpu.compiler.ir.evaluate import Array
from gpu.compiler.ir.interp import poison
from gpu.compiler.ir.races import TeamLog
from gpu.core.dtype import DType


class Landing(NamedTuple):
    """What a copy brings.

    Attributes:
        flat, log: the team memory it goes to, and who touched it.
        positions: in `flat`, a row for each thread that copies.
        threads: these threads, in a column.
        values: as `positions`.
    """

    flat: Array
    log: TeamLog | None
    positions: Array
    threads: Array
    values: Array

    def note(self) -> None:
        """Tells the log that these threads store."""
        if self.log is not None:
            threads = self.threads + 0 * self.positions
            self.log.store(self.positions.ravel(), threads.ravel())


class Copies:
    """All copies that are on their way."""

    def __init__(self) -> None:
        self._started: list[Landing] = []
        self._groups: list[list[Landing]] = []

    def start(self, landing: Landing, dtype: DType) -> None:
        """A copy starts; raises VerifyError where other threads still use what it overwrites."""
        landing.note()
        landing.flat[landing.positions] = poison((1,), dtype)
        self._started.append(landing)

    def commit(self) -> None:
        """What was started since the last commit is a group."""
        self._groups.append(self._started)
        self._started = []

    def wait(self, pending: int) -> None:
        """All groups but the last `pending` land."""
        count = max(len(self._groups) - pending, 0)
        for group in self._groups[:count]:
            for landing in group:
                landing.note()
                landing.flat[landing.positions] = landing.values
        del self._groups[:count]
