"""Waiting for hardware: with a bound, noticing faults, and saying what was waited for.

Every wait of the driver half takes a `Waiter`, so that device models run on virtual time: where
hardware works on its own while we sleep, a model works when the driver idles.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

from gpu.core.errors import HwTimeout, InvalidValue

_FIRST_SLEEP_NS = 50_000
_LONGEST_SLEEP_NS = 1_000_000


class Waiter(Protocol):
    """The clock of a world, and how to let that world go on.

    ``spin_ns`` is how long a wait re-reads before it idles: 0 on models, where only idling helps.
    """

    spin_ns: int

    def now_ns(self) -> int:
        """Nanoseconds on this world's clock, which never goes backwards."""
        ...

    def idle(self, timeout_ns: int) -> None:
        """Let the world go on for at most ``timeout_ns``.

        Hardware: sleep. Models: run; raises `HwTimeout` at once when nothing is runnable.
        """
        ...


class HostWaiter:
    """The real clock: a wait spins for 50 us, then sleeps in steps of up to 1 ms.

    What can sleep in the kernel until an interrupt is a waiter of its driver.
    """

    spin_ns: int = 50_000

    def now_ns(self) -> int:
        """The monotonic clock."""
        return time.monotonic_ns()

    def idle(self, timeout_ns: int) -> None:
        """Sleep, at most 1 ms; a Python signal handler that raises ends it."""
        time.sleep(min(timeout_ns, _LONGEST_SLEEP_NS) / 1e9)


class PatientWaiter:
    """Passes on that a model is stuck only to who looked again since it was; else it is ``inner``.

    Another thread may have run the model up to there after this one had looked at its value.
    """

    def __init__(self, inner: Waiter):
        """``inner`` is the world's waiter."""
        self.spin_ns: int = inner.spin_ns
        self._inner = inner
        self._seen = _Seen()

    def now_ns(self) -> int:
        """The world's clock."""
        return self._inner.now_ns()

    def idle(self, timeout_ns: int) -> None:
        """Let the world go on for at most ``timeout_ns``.

        Raises HwTimeout where a model is stuck, and was when this thread idled before, at the same
        time: then nobody ran it since this thread looked.
        """
        seen = self._seen
        try:
            self._inner.idle(timeout_ns)
        except HwTimeout:
            now = self._inner.now_ns()
            before, seen.stuck_ns = seen.stuck_ns, now
            if now == before:
                raise
        else:
            seen.stuck_ns = None


class _Seen(threading.local):
    """When a model was stuck as this thread idled last; None where it was not."""

    stuck_ns: int | None = None


def _no_check() -> None:
    """What a wait without a source of faults checks."""


def wait_until(
    waiter: Waiter,
    read: Callable[[], int],
    want: Callable[[int], bool] | int,
    *,
    what: str,
    timeout: float,
    wanted: str = "",
    check: Callable[[], None] = _no_check,
    progress: bool = False,
) -> int:
    """Re-read a value until it is wanted, and return it.

    ``want`` is the value itself or a test of it, which ``wanted`` then says in words; ``what``
    names what is waited for. Each round that does not end calls ``check``, which raises when the
    device has faulted, and lets Python signals run. ``timeout`` is in seconds, from the start or,
    with ``progress``, from the last change of the value.

    Raises `HwTimeout` with the last value when the time is over or a model has nothing runnable,
    and `InvalidValue` for a timeout that is negative or not finite.
    """
    if not (math.isfinite(timeout) and timeout >= 0):
        raise InvalidValue(f"timeout of {timeout} s for {what}: give a finite number from 0 up")
    accepts, wanted = _test_and_words(want, wanted)
    if progress:
        wanted += f" (or a change within {timeout:g} s)"
    step = _FIRST_SLEEP_NS
    started = since = now = waiter.now_ns()
    last: int | None = None
    while not accepts(value := read()):
        check()
        if progress and value != last:
            since = now
        last = value
        # `now` was taken before the read, so a process that did not run for long reads once more.
        left = since + round(timeout * 1e9) - now
        if left <= 0:
            raise HwTimeout(what, value, wanted, (now - started) / 1e9)
        if now - started >= waiter.spin_ns:
            try:
                waiter.idle(min(step, left))
            except HwTimeout as stuck:  # a model knows that nothing will come, but not of what
                seconds = (now - started) / 1e9
                raise HwTimeout(what, value, wanted, seconds, stuck.what) from stuck
            step = min(2 * step, _LONGEST_SLEEP_NS)
        now = waiter.now_ns()
    return value


def _test_and_words(
    want: Callable[[int], bool] | int, wanted: str
) -> tuple[Callable[[int], bool], str]:
    """A wanted value, or a test of it, as a test and as words."""
    if isinstance(want, int):
        return lambda value: value == want, wanted or f"{want:#x}"
    return want, wanted or "a value that the caller accepts"
