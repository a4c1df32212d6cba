"""What firmware of a card does by itself, after some time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from gpu.sim.clock import VirtualClock


class Later:
    """What firmware is about to do, by the time at which it will have done it."""

    def __init__(self, clock: VirtualClock):
        self._clock = clock
        self._order = count()
        self._waiting: list[tuple[int, int, str, Callable[[], None]]] = []

    @property
    def due_ns(self) -> int | None:
        """When the next is done."""
        return self._waiting[0][0] if self._waiting else None

    def after(self, delay_ns: int, what: str, act: Callable[[], None]) -> None:
        """Has something done in some time."""
        due = self._clock.now_ns + delay_ns
        heapq.heappush(self._waiting, (due, next(self._order), what, act))

    def run(self) -> bool:
        """Does all that is due; whether there was something."""
        done = False
        while self._waiting and self._waiting[0][0] <= self._clock.now_ns:
            heapq.heappop(self._waiting)[3]()
            done = True
        return done

    def forget(self) -> None:
        """None of it will be done."""
        self._waiting.clear()

    def why_idle(self) -> str:
        """What is waited for, in words."""
        return f"firmware still has to {self._waiting[0][2]}" if self._waiting else ""
