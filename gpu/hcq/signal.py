"""Signals, which queues and the host wait for, and timelines, which number submissions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from gpu.core.arguments import whole
from gpu.core.errors import InvalidValue
from gpu.core.window import MemoryWindow, Window
from gpu.hcq.commands import TIMESTAMP, SymbolicSignal
from gpu.hcq.symbol import TIMELINE_ADDRESS, GpuVA

SIGNAL_SIZE: Final = 32


class Signal:
    """A value (u64 at 0) and a timestamp in ticks (u64 at `TIMESTAMP`) that both sides see.

    ``bits`` is how much of the value the device compares and writes; the rest is never looked at.
    ``check_usable`` raises when the memory may not be touched, as in a forked child.
    """

    __slots__ = ("_check", "_item", "_width", "_window", "address", "bits")

    def __init__(
        self, window: Window, address: GpuVA, bits: int, check_usable: Callable[[], None]
    ) -> None:
        if bits not in (32, 64):
            raise InvalidValue(f"signals of {bits} bits: a device compares 32 or 64")
        self._window = window
        self._width = bits // 8
        self._check = check_usable
        self._item = _item(window, bits)
        self.bits = bits
        self.address = address

    @property
    def value(self) -> int:
        """The value now, one aligned load."""
        self._check()
        item = self._item
        return self._window.read(0, self._width) if item is None else item[0]

    def set(self, value: int) -> None:
        """Store a value from the host, with one aligned store.

        Raises `InvalidValue` for one that is too wide, `InvalidType`.
        """
        self._check()
        number = whole(value, "the value of a signal", 0, (1 << self.bits) - 1)
        self._window.write(0, self._width, number)

    @property
    def timestamp(self) -> int:
        """The ticks that the last `Timestamp` command wrote."""
        self._check()
        return self._window.read(TIMESTAMP, 8)


def _item(window: Window, bits: int) -> memoryview[int] | None:
    """In memory of this process the value as an item of a typed view; None elsewhere.

    That is what the window would read in the end: whoever polls spares the way.
    """
    if not isinstance(window, MemoryWindow):
        return None
    value = window.memory[: bits // 8]
    return value.cast("I") if bits == 32 else value.cast("Q")


# Stands for the signal of the timeline of whatever queue a submission goes to.
OWN_TIMELINE: Final = SymbolicSignal(TIMELINE_ADDRESS)


class Timeline:
    """Numbers the submissions of one queue: 1, 2, 3, ... without end.

    On the device a number is the payload ``value - epoch`` of one of two signals. Before payloads
    outgrow what the device compares, all is waited for and the other signal begins a new epoch:
    whoever still polls the old one finds it satisfied for as long as another epoch lasts.
    """

    def __init__(self, signals: tuple[Signal, Signal], start: int = 0):
        """Starts with payload ``start``, so that a test can begin just before the wrap."""
        self.limit = 1 << signals[0].bits
        if not 0 <= start < self.limit:
            raise InvalidValue(f"timeline starts at {start:#x}: give 0 to {self.limit - 1:#x}")
        # Epoch and signals change together: who reads without the lock sees one epoch's pair.
        self._now = (0, *signals)
        # The same for who holds the lock.
        self.epoch = 0
        self.address: int = signals[0].address
        self.last = ctypes.c_uint64(start)
        """The last value submitted, stored by the call that publishes."""
        self.last_address = ctypes.addressof(self.last)
        self._seen = 0  # a value that is known to have passed: not all ask the signal
        self.signal.set(start)

    @property
    def signal(self) -> Signal:
        """The signal of this epoch."""
        return self._now[1]

    @property
    def submitted(self) -> int:
        """The last value submitted."""
        return self.last.value

    def payload(self, value: int) -> int:
        """What the signal has, at least, when ``value`` has passed; 0 if it did an epoch ago."""
        return max(value - self._now[0], 0)

    def awaited(self, value: int) -> tuple[Signal, int]:
        """What others wait for until ``value`` has passed, without the lock: signal and payload."""
        epoch, signal, _ = self._now
        return signal, max(value - epoch, 0)

    def reached(self) -> int:
        """The last value that has passed."""
        epoch, signal, _ = self._now
        return epoch + signal.value

    def passed(self, value: int) -> bool:
        """Whether all up to ``value`` is done, without waiting."""
        if value > self._seen:
            self._seen = self.reached()
        return value <= self._seen

    def settle(self) -> None:
        """Count all that was submitted as done: the queue that had it is gone."""
        self._seen = self.submitted
        self.signal.set(self.payload(self.submitted))

    def swap(self) -> None:
        """Begin a new epoch on the other signal; all that was submitted has passed."""
        assert self.passed(self.submitted), "a timeline is drained before its signal is swapped"
        _, old, new = self._now
        new.set(0)
        self._now = (self.submitted, new, old)
        self.epoch, self.address = self.submitted, new.address
