"""Timing what a device does by its own clock, without waiting for it.

A backend whose queues can write their clock gives a `Timer` of its own; all others run what is
timed to its end, by the host's clock.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from gpu.runtime.program import Program
from gpu.runtime.timeline import Recording


class Copied(NamedTuple):
    """A copy that a device did by itself: how many bytes, and where that is noted."""

    recording: Recording
    device: str
    nbytes: int


class Timed(NamedTuple):
    """Something that a device did.

    Attributes:
        key: what `Timer.launch` was given; of a copy `Copied`.
        name: of a copy, for people.
        queue: where it ran.
        start_ns, end_ns: when, on the host's monotonic clock (`time.perf_counter_ns`).
        seconds: how long it took, by the clock that timed it.
        error_ns: how far off the two times may be.
        counts: of performance counters (`GPU_COUNTERS`), by name.
    """

    key: object
    name: str
    queue: str
    start_ns: int
    end_ns: int
    seconds: float
    error_ns: int = 0
    counts: Mapping[str, int] = MappingProxyType({})


class Timer(ABC):
    """Times launches on a device. Threads may share it.

    Attributes:
        clock: whose clock it is, for people.
        batch: so many launches are worth a `collect`.
        counts_events: whether it reads the performance counters that `GPU_COUNTERS` names.
    """

    clock: ClassVar[str] = "the device's"
    batch: ClassVar[int] = 256
    counts_events: ClassVar[bool] = False

    @abstractmethod
    def launch(
        self, program: Program, memories: Sequence[Any], vals: Sequence[int], key: object
    ) -> None:
        """Launches a program, whose time `collect` gives under a key. Errors as of the program."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """How many launches and copies were timed, and are not collected."""

    @abstractmethod
    def collect(self, wait: bool) -> list[Timed]:
        """What is done since the last time; with `wait` all of it.

        Raises what the device reports, and then has nothing left to be collected.
        """


class HostTimer(Timer):
    """Runs each launch to its end. For devices that do so anyway, or tell no time."""

    clock = "the host's; each kernel is waited for"
    batch = 1

    def __init__(self) -> None:
        self._done: list[Timed] = []

    def launch(
        self, program: Program, memories: Sequence[Any], vals: Sequence[int], key: object
    ) -> None:
        """As `Timer.launch`; it is done when this returns."""
        began = time.perf_counter_ns()
        seconds = program(*memories, vals=vals, wait=True) or 0.0
        ended = time.perf_counter_ns()
        start = max(began, ended - round(seconds * 1e9))
        self._done.append(Timed(key, program.name, "kernels", start, ended, seconds))

    @property
    def pending(self) -> int:
        """As `Timer.pending`."""
        return len(self._done)

    def collect(self, wait: bool) -> list[Timed]:
        """As `Timer.collect`; of threads that do so at once one gets each launch."""
        found = []
        while self._done:
            try:
                found.append(self._done.pop(0))
            except IndexError:
                break
        return found
