"""Other clocks than the host's: what a device's ticks are on the host's monotonic clock.

A device's clock is read between two readings of the host's; half of what lies between those is how
far off the comparison may be. Between two comparisons time is taken to pass evenly, before the
first and after the last at the device's nominal rate.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

HostClock = Callable[[], int]
"""Nanoseconds of the host's monotonic clock."""
EVERY_NS: Final = 1_000_000_000
"""After how long clocks are compared again, if nothing else is said."""
_KEPT: Final = 4096  # comparisons: of older times none is asked any more
_TRIES: Final = 8


class Bracket(NamedTuple):
    """One reading of a device's clock: the host's before, the ticks, the host's after."""

    before_ns: int
    ticks: int
    after_ns: int


class ClockPair(NamedTuple):
    """The device's ticks at a time of the host, which is at most ``error_ns`` off."""

    host_ns: int
    ticks: int
    error_ns: int


def bracketed(read: Callable[[], int], host_ns: HostClock) -> Bracket:
    """A reading of a clock that tells at once."""
    before = host_ns()
    ticks = read()
    return Bracket(before, ticks, host_ns())


class ClockMap:
    """Turns ticks of a device into nanoseconds of the host's clock. Threads may share it.

    Attributes:
        hz: ticks a second.
    """

    def __init__(
        self,
        bracket: Callable[[], Bracket],
        hz: float,
        host_ns: HostClock = time.perf_counter_ns,
        every_ns: int = EVERY_NS,
    ):
        """Compares the clocks for the first time; ``bracket`` reads both, as `bracketed` does."""
        self.hz = hz
        self._bracket, self._host_ns, self._every_ns = bracket, host_ns, every_ns
        self._pairs: deque[ClockPair] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self.compare()

    def compare(self) -> ClockPair:
        """Compares the clocks now: the tightest of some readings."""
        readings = [self._bracket() for _ in range(_TRIES)]
        best = min(readings, key=lambda reading: reading.after_ns - reading.before_ns)
        middle, width = (best.before_ns + best.after_ns) // 2, best.after_ns - best.before_ns
        pair = ClockPair(middle, best.ticks, (width + 1) // 2)
        with self._lock:
            if not self._pairs or (pair.host_ns > self._pairs[-1].host_ns):
                self._pairs.append(pair)
            return self._pairs[-1]

    def refresh(self) -> ClockPair:
        """Compares again if the last time is long enough ago; what is in force."""
        if self._host_ns() - self._pairs[-1].host_ns > self._every_ns:
            return self.compare()
        return self._pairs[-1]

    def host_ns(self, ticks: int) -> int:
        """When the device's clock had ``ticks``, in nanoseconds of the host's."""
        before, after = self._around(ticks)
        if before is None or after is None or after.ticks == before.ticks:
            pair = before or after
            assert pair is not None, "clocks are compared when the map is made"
            return pair.host_ns + round((ticks - pair.ticks) * 1e9 / self.hz)
        share = (ticks - before.ticks) / (after.ticks - before.ticks)
        return before.host_ns + round(share * (after.host_ns - before.host_ns))

    def error_ns(self, ticks: int) -> int:
        """How far off `host_ns` may be: by the readings, and by a clock that ran unevenly."""
        before, after = self._around(ticks)
        pairs = [pair for pair in (before, after) if pair is not None]
        error = max(pair.error_ns for pair in pairs)
        if before is None or after is None:
            return error
        passed = (after.ticks - before.ticks) * 1e9 / self.hz
        return error + abs(round(after.host_ns - before.host_ns - passed))

    def _around(self, ticks: int) -> tuple[ClockPair | None, ClockPair | None]:
        """The comparisons before and after a time."""
        with self._lock:
            place = bisect_right(self._pairs, ticks, key=lambda pair: pair.ticks)
            before = self._pairs[place - 1] if place else None
            return before, self._pairs[place] if place < len(self._pairs) else None
