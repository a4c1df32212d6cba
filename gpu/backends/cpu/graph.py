"""Many launches as one native call: the arguments of all of them are filled in at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu.backends.cpu.pool import shared_pool
from gpu.backends.cpu.program import CPUProgram


class CPUGraph:
    """Launches that are always run together, in order.

    Calling it with an address for each slot, and the values of symbolic sizes, runs them all; it
    returns when they have finished.
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
        base, rows = self._words.ctypes.data, zip(self._programs, starts, strict=True)
        table = [(p.address, base + start * 8, int(p.parallel)) for p, start in rows]
        self._table = np.array(table, np.uint64)

    def __call__(self, addresses: Sequence[int], vals: Sequence[int] = ()) -> None:
        """Runs all launches on the memory at `addresses`, one for each slot."""
        pool = shared_pool()
        with pool.lock:
            self._addresses[: self._slots] = addresses
            if self._vals:
                self._addresses[self._slots + 1 :] = vals[: self._vals]
            if self._scratch:
                self._addresses[self._slots] = pool.scratch(self._scratch).address
            np.take(self._addresses, self._source, out=self._words)
            pool.replay(self._table.ctypes.data, len(self._table))
