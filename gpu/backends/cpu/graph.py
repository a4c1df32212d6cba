"""Many launches as one native call: the arguments of all of them are filled in at once.

Python delivers a Ctrl-C between native calls. So what takes long is replayed in several: the first
time each launch is timed, and from then on a call is as many of them as take `LONGEST` together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from gpu.backends.cpu.pool import Pool, shared_pool
from gpu.backends.cpu.program import CPUProgram

# Seconds that several launches in one native call may take.
LONGEST: Final = 0.05
_ROW_BYTES: Final = 24


class CPUGraph:
    """Launches that are always run together, in order.

    Calling it with an address for each slot, and the values of symbolic sizes, runs them all; it
    returns when they have finished. A Ctrl-C is delivered when the running launch ends, or after
    `LONGEST` seconds, and nothing is launched after it.
    """

    def __init__(
        self,
        launches: Sequence[tuple[CPUProgram, tuple[int, ...], tuple[int, ...]]],
        slots: int,
    ):
        """`launches` are programs with the slots they run on, of which there are `slots`, and with
        which of the values they take.
        """
        # Their code must stay loaded.
        self._programs = [program for program, _, _ in launches]
        self._scratch = max(program.scratch for program in self._programs)
        # One word for each argument; after them the address of scratch memory, then values.
        scratch_slot = slots
        self._vals = 1 + max((val for *_, vals in launches for val in vals), default=-1)
        source: list[int] = []
        starts: list[int] = []
        for _, used, vals in launches:
            starts.append(len(source))
            source += [*used, scratch_slot, *(slots + 1 + val for val in vals)]
        self._source = np.array(source, np.intp)
        self._words = np.zeros(len(source), np.uint64)
        self._slots = slots
        self._addresses = np.zeros(slots + 1 + self._vals, np.uint64)
        self._values = self._addresses[slots + 1 :].view(np.int64)
        base, rows = self._words.ctypes.data, zip(self._programs, starts, strict=True)
        table = [(p.address, base + start * 8, int(p.parallel)) for p, start in rows]
        self._table = np.array(table, np.uint64)
        # Address and number of launches of each native call, once it is known how long they take.
        self._calls: list[tuple[int, int]] | None = None

    def __call__(self, addresses: Sequence[int], vals: Sequence[int] = ()) -> None:
        """Runs all launches on the memory at `addresses`, one for each slot."""
        pool = shared_pool()
        with pool.lock:
            self._addresses[: self._slots] = addresses
            if self._vals:
                self._values[:] = vals[: self._vals]
            if self._scratch:
                self._addresses[self._slots] = pool.scratch(self._scratch).address
            np.take(self._addresses, self._source, out=self._words)
            if self._calls is None:
                self._calls = self._run_timed(pool)
            else:
                self._run(pool, self._calls)

    def _run(self, pool: Pool, calls: Sequence[tuple[int, int]]) -> None:
        began = time.perf_counter()
        for table, count in calls:
            pool.replay(table, count)
        if len(calls) < len(self._table) and time.perf_counter() - began > 2 * LONGEST * len(calls):
            self._calls = None  # slower than it was: sizes may have changed

    def _run_timed(self, pool: Pool) -> list[tuple[int, int]]:
        """Runs launch after launch; returns the native calls that will do it from now on."""
        table = self._table.ctypes.data
        seconds: list[float] = []
        for number in range(len(self._table)):
            began = time.perf_counter()
            pool.replay(table + number * _ROW_BYTES, 1)
            seconds.append(time.perf_counter() - began)
        return [(table + first * _ROW_BYTES, count) for first, count in grouped(seconds, LONGEST)]


def grouped(seconds: Sequence[float], longest: float) -> list[tuple[int, int]]:
    """Runs of neighbours as (first, count), each as long as its sum is at most `longest`."""
    groups: list[tuple[int, int]] = []
    first, total = 0, 0.0
    for number, each in enumerate(seconds):
        if number > first and total + each > longest:
            groups.append((first, number - first))
            first, total = number, 0.0
        total += each
    return [*groups, (first, len(seconds) - first)]
