"""What this process has open, which is told when the process is forked and when it ends.

Both are kept weakly: what is not used any more is told of nothing.
"""

from __future__ import annotations

import atexit
import os
from typing import Final, Protocol
from weakref import WeakSet

from gpu.core.errors import GpuError
from gpu.core.log import get_logger

log = get_logger(__name__)


class Forks(Protocol):
    """What does not work in a forked child."""

    def forked(self) -> None:
        """Told in the child: every later use is to raise."""


class Closes(Protocol):
    """What ends with the process."""

    def close(self) -> None:
        """Told when the process ends. May raise GpuError."""


_FORK: Final[WeakSet[Forks]] = WeakSet()
_CLOSE: Final[WeakSet[Closes]] = WeakSet()


def tell_of_forks(told: Forks) -> None:
    """Has `told.forked` called in each child that this process forks."""
    _FORK.add(told)


def close_at_exit(closed: Closes) -> None:
    """Has `closed.close` called when this process ends; a GpuError of it is logged."""
    _CLOSE.add(closed)


def _after_fork() -> None:
    for told in list(_FORK):
        told.forked()


def _at_exit() -> None:
    for closed in list(_CLOSE):
        try:
            closed.close()
        except GpuError as error:
            log.warning("when the process ended: %s", error.message)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
