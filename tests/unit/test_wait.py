"""Waiting, on clocks of our own: nothing here measures real time."""

from __future__ import annotations

import pytest

from gpu.core import wait
from gpu.core.errors import DeviceLost, GpuFault, HwTimeout, InvalidValue
from gpu.core.wait import HostWaiter, Waiter, wait_until


class FakeWaiter:
    """A clock that moves a microsecond with each look, and by what is idled."""

    def __init__(self, spin_ns: int = 0):
        self.spin_ns = spin_ns
        self.now = 1 << 40
        self.idled: list[int] = []

    def now_ns(self) -> int:
        self.now += 1000
        return self.now

    def idle(self, timeout_ns: int) -> None:
        self.idled.append(timeout_ns)
        self.now += timeout_ns


class StuckModel(FakeWaiter):
    """A model with nothing runnable."""

    def idle(self, timeout_ns: int) -> None:
        raise HwTimeout("the model", None, "anything runnable", 0.0)


def test_waiters_are_waiters() -> None:
    waiters: list[Waiter] = [HostWaiter(), FakeWaiter()]
    assert [w.spin_ns for w in waiters] == [50_000, 0]


def test_a_value_that_is_there_costs_one_read_and_no_idling() -> None:
    waiter = FakeWaiter()
    values = iter([7])
    assert wait_until(waiter, lambda: next(values), 7, what="x", timeout=0) == 7
    assert waiter.idled == []


def test_models_are_run_from_the_first_round_on() -> None:
    waiter = FakeWaiter()
    values = iter([0, 0, 0, 5])
    got = wait_until(waiter, lambda: next(values), lambda v: v > 3, what="x", timeout=1)
    assert got == 5
    assert waiter.idled == [50_000, 100_000, 200_000]


def test_hosts_spin_first_and_sleep_in_growing_steps() -> None:
    waiter = FakeWaiter(spin_ns=50_000)
    start = waiter.now
    reads: list[int] = []

    def read() -> int:
        reads.append(waiter.now - start)
        return int(waiter.now - start > 20_000_000)

    wait_until(waiter, read, 1, what="x", timeout=1)
    assert len([t for t in reads if t <= 51_000]) == 51
    assert waiter.idled[0] == 50_000
    assert max(waiter.idled) == 1_000_000


def test_a_timeout_tells_what_the_last_value_and_the_wanted_one() -> None:
    waiter = FakeWaiter()
    with pytest.raises(
        HwTimeout, match=r"the fence: the last value was 0x2a, wanted 0x10, after 0\.5"
    ) as caught:
        wait_until(waiter, lambda: 42, 16, what="the fence", timeout=0.5)
    assert (caught.value.what, caught.value.last, caught.value.wanted) == ("the fence", 42, "0x10")
    with pytest.raises(HwTimeout, match="wanted the ring to be idle"):
        wait_until(
            waiter, lambda: 1, lambda v: not v, what="x", timeout=0, wanted="the ring to be idle"
        )
    with pytest.raises(HwTimeout, match="wanted a value that the caller accepts"):
        wait_until(waiter, lambda: 1, lambda v: False, what="x", timeout=0)


def test_the_time_is_never_overslept_by_a_step() -> None:
    waiter = FakeWaiter()
    start = waiter.now
    with pytest.raises(HwTimeout):
        wait_until(waiter, lambda: 0, 1, what="x", timeout=0.0105)
    assert waiter.now - start < 10_500_000 + 100_000


def test_the_value_is_read_once_more_after_the_time() -> None:
    """A process that did not run for longer than the timeout still sees what came meanwhile."""
    waiter = FakeWaiter()
    reads = 0

    def read() -> int:
        nonlocal reads
        reads += 1
        waiter.now += 10**12  # suspended for long right after the load
        return int(reads == 2)

    assert wait_until(waiter, read, 1, what="x", timeout=1) == 1


def test_with_progress_the_timeout_counts_from_the_last_change() -> None:
    waiter = FakeWaiter()
    start = waiter.now

    def counter() -> int:  # moves every 0.4 s up to 10
        return min((waiter.now - start) // 400_000_000, 10)

    assert wait_until(waiter, counter, 10, what="x", timeout=0.5, progress=True) == 10
    start = waiter.now
    with pytest.raises(HwTimeout, match=r"wanted 0x14 \(or a change within 0\.5 s\)") as caught:
        wait_until(waiter, counter, 20, what="x", timeout=0.5, progress=True)
    assert 4.4 < caught.value.seconds < 4.7
    start = waiter.now
    with pytest.raises(HwTimeout):
        wait_until(waiter, counter, 10, what="x", timeout=0.5)


def test_a_stuck_model_ends_the_wait_at_once_with_the_names() -> None:
    with pytest.raises(HwTimeout, match="the doorbell: the last value was 0x3, wanted 0x4"):
        wait_until(StuckModel(), lambda: 3, 4, what="the doorbell", timeout=1000)


def test_each_round_checks_for_faults() -> None:
    rounds = 0

    def check() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            raise GpuFault("page fault", 0x1000)

    with pytest.raises(GpuFault, match="page fault"):
        wait_until(FakeWaiter(), lambda: 0, 1, what="x", timeout=1, check=check)
    assert rounds == 3

    def lost() -> int:
        raise DeviceLost("gone")

    with pytest.raises(DeviceLost):
        wait_until(FakeWaiter(), lost, 1, what="x", timeout=1)


@pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan")])
def test_unbounded_waits_are_refused(timeout: float) -> None:
    with pytest.raises(InvalidValue, match="give a finite number from 0 up"):
        wait_until(FakeWaiter(), lambda: 1, 1, what="x", timeout=timeout)


def test_the_host_sleeps_as_told_but_at_most_a_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(wait.time, "sleep", slept.append)
    waiter = HostWaiter()
    waiter.idle(20_000)
    waiter.idle(10**9)
    assert slept == [20e-6, 1e-3]
    assert waiter.now_ns() <= waiter.now_ns()
