"""A bound on what a check may take, for those that a mistake makes endless."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Python drops what is raised in a finalizer or a weak reference's callback, and the end of what was
# stopped may not end either: so it is raised again after so many seconds of the processor.
_AGAIN = 0.5


def _stop(_: int, __: FrameType | None) -> None:
    raise TimeoutError


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block after so many seconds of the processor."""
    previous = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
