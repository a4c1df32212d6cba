"""Which threads touch values, so that memory is reused while one of them does alone.

A graph may compute into memory that, by its references, nobody needs any more. Another thread could
still come by a reference while that happens. So a thread is known from the first value it touches
on, and as long as two are alive nothing is reused. Threads that never touch one, as those of a
progress bar or of an interactive shell, do not count.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Users:
    """The threads that have touched values.

    Attributes:
        lock: held while one of them, alone, reuses memory.
        known: their identifiers; some may have ended.
    """

    lock = threading.RLock()
    known: set[int] = set()

    @classmethod
    def renew(cls) -> None:
        """For a forked child, in which whoever held the lock is not."""
        cls.lock, cls.known = threading.RLock(), set()


os.register_at_fork(after_in_child=_Users.renew)


def note_thread() -> None:
    """To be called where this thread is about to touch memory of a value.

    The first time it waits until memory that is being reused has its new value.
    """
    if threading.get_ident() not in _Users.known:
        with _Users.lock:
            _Users.known.add(threading.get_ident())


@contextmanager
def touching_alone() -> Iterator[bool]:
    """Whether this is the only living thread that touches values; if so, none begins to inside."""
    with _Users.lock:
        own = {threading.get_ident()}
        if _Users.known - own:
            _Users.known.intersection_update(sys._current_frames())
        if not _Users.known - own:
            yield True
            return
    yield False
