"""Which threads touched each element of team memory since the last barrier; finds races.

The interpreters move all threads of a block in step, so that a barrier that is missing would not
show in what they compute. It shows here.
"""

from __future__ import annotations

import numpy as np

from gpu.compiler.ir.evaluate import Array
from gpu.core.errors import VerifyError

_NOBODY = -1
_SEVERAL = -2


class TeamLog:
    """The accesses to one piece of team memory.

    `what` names it in messages, `elements` are those of one block and `size` those of all.
    """

    def __init__(self, what: str, elements: int, size: int):
        self.what, self.elements = what, elements
        self.stored = np.full(size, _NOBODY, np.int32)
        self.loaded = np.full(size, _NOBODY, np.int32)
        self.used = False

    def barrier(self) -> None:
        """Whatever was touched before is in order with what comes."""
        if self.used:
            self.stored.fill(_NOBODY)
            self.loaded.fill(_NOBODY)
            self.used = False

    def load(self, positions: Array, threads: Array) -> None:
        """Elements loaded, and by which threads. Raises VerifyError for a race."""
        self.used = True
        by = self.stored[positions]
        self._check("loaded", positions, threads, (by != _NOBODY) & (by != threads), by)
        before = self.loaded[positions]
        alone = (before == _NOBODY) | (before == threads)
        self.loaded[positions] = np.where(alone, threads, _SEVERAL)
        self.loaded[positions[self.loaded[positions] != threads]] = _SEVERAL

    def store(self, positions: Array, threads: Array) -> None:
        """Elements stored, and by which threads. Raises VerifyError for a race."""
        self.used = True
        for log in (self.stored, self.loaded):
            by = log[positions]
            self._check("stored", positions, threads, (by != _NOBODY) & (by != threads), by)
        self.stored[positions] = threads
        by = self.stored[positions]
        self._check("stored", positions, threads, by != threads, by)

    def _check(self, done: str, positions: Array, threads: Array, races: Array, by: Array) -> None:
        if not races.any():
            return
        at = int(np.flatnonzero(races)[0])
        other = f"thread {by[at]}" if by[at] != _SEVERAL else "several threads"
        raise VerifyError(
            f"a race: element {positions[at] % self.elements} of {self.what} is {done} by thread"
            f" {threads[at]} and was touched by {other} of the block without a barrier in between"
        )


def check_alone(what: str, positions: Array, points: Array) -> None:
    """Raises VerifyError where several of `points` store one element of a parameter at once."""
    if not positions.size:
        return
    first = int(positions.min())
    stored_by = np.full(int(positions.max()) - first + 1, _NOBODY, np.int32)
    stored_by[positions - first] = points
    wrong = np.flatnonzero(stored_by[positions - first] != points)
    if wrong.size:
        raise VerifyError(
            f"a race: element {positions[wrong[0]]} of {what} is stored by several threads at once"
        )


def check_arrivals(active: Array | None, threads: int, what: str = "barrier") -> None:
    """Raises VerifyError unless all threads of a block, or none, reach what they do together."""
    if active is None:
        return
    blocks = active.reshape(-1, threads)
    if not (blocks == blocks[:, :1]).all():
        raise VerifyError(f"a {what} that only some of the {threads} threads of a block reach")


def exchanged(
    values: Array, active: Array | None, shape: tuple[int, int], distance: int, warp: int
) -> Array:
    """What each thread of a block gets from the one whose number is its own xor `distance`.

    `values` has an element, or a row, for each point, `active` whether a point is reached, `shape`
    says how many threads a block has, and of how many points one consists. Raises VerifyError where
    only some threads of a warp take part.
    """
    threads, lanes = shape
    if active is not None:
        blocks = active.reshape(-1, threads, lanes)
        for first in range(0, threads, warp):
            together = blocks[:, first : first + warp]
            if not (together == together[:, :1]).all():
                raise VerifyError(
                    f"an exchange in which only some of the threads of a warp take part, of threads"
                    f" {first} to {min(first + warp, threads) - 1}"
                )
    partners = np.arange(threads) ^ distance
    blocks = values.reshape(-1, threads, lanes, *values.shape[1:])
    return blocks[:, partners].reshape(values.shape)
