"""Which threads touch values, so that memory is reused while one of them does alone.

A graph may compute into memory that, by its references, nobody needs any more. Another thread could
still come by a reference while that happens. So a thread is known from the first value it touches
on, and as long as two are alive nothing is reused. Threads that never touch one, as those of a
progress bar or of an interactive shell, do not count.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet


class _Thread:
    """Stands for a thread that has touched values; it goes when the thread ends."""


class _Users:
    """The threads that have touched values.

    Attributes:
        lock: held while one of them, alone, reuses memory.
        alive: what stands for those that have not ended. (Numbers of threads are given again.)
        own: holds what stands for this thread, once it has touched a value.
    """

    lock: threading.RLock
    alive: WeakSet[_Thread]
    own: threading.local

    @classmethod
    def renew(cls) -> None:
        """As at the beginning, and in a forked child, in which whoever held the lock is not."""
        cls.lock, cls.alive, cls.own = threading.RLock(), WeakSet(), threading.local()


_Users.renew()
os.register_at_fork(after_in_child=_Users.renew)


def note_thread() -> None:
    """To be called where this thread is about to touch memory of a value.

    The first time it waits until memory that is being reused has its new value.
    """
    if not hasattr(_Users.own, "thread"):
        with _Users.lock:
            _Users.own.thread = _Thread()
            _Users.alive.add(_Users.own.thread)


@contextmanager
def touching_alone() -> Iterator[bool]:
    """Whether this is the only living thread that touches values; if so, none begins to inside."""
    with _Users.lock:
        own = getattr(_Users.own, "thread", None)
        if all(thread is own for thread in _Users.alive):
            yield True
            return
    yield False
