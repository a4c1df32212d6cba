"""What a process has one of, whichever of its threads needs it first."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from typing import TypeVar

T = TypeVar("T")


def once(make: Callable[[], T]) -> Callable[[], T]:
    """A function that calls `make` the first time, and gives the same from then on.

    `functools.cache` may call it in two threads at once, of which one then has another value than
    everybody else. What raises is tried again the next time.
    """
    lock = RLock()
    made = cache(make)

    @wraps(make)
    def get() -> T:
        with lock:
            return made()

    return get
