"""A device's clock is turned into the host's within the error that is told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.core.clocks import Bracket, ClockMap


class Clocks:
    """A host's clock and a device's, which drifts and begins anywhere.

    Attributes:
        now: nanoseconds of the host.
    """

    def __init__(self, hz: float, drift: float, offset: int, delays: list[int]):
        self.now = 1_000_000_000
        self._rate, self._offset = hz * (1 + drift) / 1e9, offset
        self._delays = delays
        self._readings = 0

    def host_ns(self) -> int:
        return self.now

    def ticks(self) -> int:
        """The device's ticks now."""
        return self._offset + int(self.now * self._rate)

    def bracket(self) -> Bracket:
        """A reading that takes a while, of which any part comes before the device's."""
        delay = self._delays[self._readings % len(self._delays)]
        before = self.now
        self.now += delay * (self._readings % 3) // 2
        ticks = self.ticks()
        self.now = before + delay
        self._readings += 1
        return Bracket(before, ticks, self.now)


@settings(deadline=None, max_examples=200)
@given(
    hz=st.sampled_from([1e6, 1e8, 1e9, 19.2e6]),
    drift=st.floats(-1e-3, 1e-3),
    offset=st.integers(0, 1 << 60),
    delays=st.lists(st.integers(10, 100_000), min_size=1, max_size=9),
    pauses=st.lists(st.integers(1, 3_000_000_000), min_size=1, max_size=6),
)
def test_the_error_is_told(
    hz: float, drift: float, offset: int, delays: list[int], pauses: list[int]
) -> None:
    clocks = Clocks(hz, drift, offset, delays)
    clock_map = ClockMap(clocks.bracket, hz, clocks.host_ns, every_ns=1_000_000)
    seen: list[tuple[int, int]] = []
    for pause in pauses:
        clocks.now += pause
        clock_map.refresh()
        seen.append((clocks.now, clocks.ticks()))
    clock_map.compare()
    tick_ns = round(1e9 / hz) + 2
    for host, ticks in seen:
        assert abs(clock_map.host_ns(ticks) - host) <= clock_map.error_ns(ticks) + tick_ns


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=30))
def test_time_never_runs_back(pauses: list[int]) -> None:
    clocks = Clocks(1e8, 4e-4, 77, [900, 40, 77_000, 300])
    clock_map = ClockMap(clocks.bracket, 1e8, clocks.host_ns, every_ns=10_000_000)
    ticks = []
    for pause in pauses:
        clocks.now += pause
        ticks.append(clocks.ticks())
        clock_map.refresh()
    clock_map.compare()
    told = [clock_map.host_ns(tick) for tick in ticks]
    assert told == sorted(told)


def test_a_clock_that_stands_still_is_no_error() -> None:
    """As that of a model does, while nobody waits for it."""
    now = iter(range(0, 10**9, 1000))
    clock_map = ClockMap(lambda: Bracket(next(now), 5, next(now)), 1e9, lambda: next(now))
    for _ in range(3):
        clock_map.compare()
    assert clock_map.host_ns(5) <= next(now)
    assert clock_map.error_ns(5) >= 0


def test_comparisons_are_made_when_the_last_is_old() -> None:
    clocks = Clocks(1e9, 0.0, 0, [10])
    clock_map = ClockMap(clocks.bracket, 1e9, clocks.host_ns, every_ns=1000)
    first = clock_map.refresh()
    assert clock_map.refresh() is first
    clocks.now += 2000
    assert clock_map.refresh().host_ns == pytest.approx(clocks.now, abs=100)
