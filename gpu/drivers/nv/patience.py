"""Waiting in several threads on a model, which says at once that nothing will come.

On hardware it is the world's waiter and nothing else.
"""

from __future__ import annotations

import threading

from gpu.core.errors import HwTimeout
from gpu.core.wait import Waiter


class PatientWaiter:
    """Passes on that a model is stuck only to who looked again since it was.

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
