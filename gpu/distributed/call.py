"""What is under way with other ranks, and how a thread waits for it."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from gpu.core.callsite import CallSite, user_call_site
from gpu.core.errors import DistributedError
from gpu.distributed import messages
from gpu.distributed.exchange import Steps
from gpu.distributed.messages import What

if TYPE_CHECKING:
    from gpu.distributed.engine import Engine


Make: TypeAlias = "Callable[[Engine, Call], Steps]"


class Call:
    """Something that was started: `wait` for it.

    Attributes:
        what: it does.
        site: the user's line.
        number: how many calls were started before.
        peer: the one rank that it is with; None for all.
        make: gives its steps, in the thread of MPI.
        kept: what has to live until it is done.
        lane: among the calls of which it has its place, on all ranks the same; 1 of saves.
    """

    def __init__(
        self,
        what: What,
        site: CallSite | None,
        make: Make,
        peer: int | None = None,
        kept: object = None,
        lane: int = 0,
    ):
        self.what, self.site, self.peer, self.kept, self.lane = what, site, peer, kept, lane
        self.make: Make | None = make
        self.number = 0
        self.steps: Steps | None = None
        self.requests: list[Any] = []
        self.began = self.deadline = self.asked = 0.0
        self._process = os.getpid()
        self._error: Exception | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def wait(self) -> None:
        """Returns when it is done; raises what went wrong. Ctrl-C ends the wait, not the call."""
        if not self._done.acquire(blocking=False):
            refuse_forked(self._process)
            self._done.acquire()
        self._done.release()
        if self._error is not None:
            raise_again(self._error)

    @property
    def error(self) -> Exception | None:
        """What it ended with."""
        return self._error

    def finish(self, error: Exception | None = None) -> None:
        """It is done, or all ranks know that it is not; nothing is under way any more."""
        self.kept, self.make, self.steps, self.requests = None, None, None, []
        self.abandon(error)

    def abandon(self, error: Exception | None) -> None:
        """It has failed in the middle: what it holds may still be sent, or written to."""
        self._error = error
        self._done.release()

    def told(self) -> dict[str, Any]:
        """It in words, for others."""
        return {"what": str(self.what), "line": messages.place_of(self.site), "number": self.number}


def raise_again(error: Exception) -> NoReturn:
    """Raises an error of the other thread, for the line that waits; each time another object."""
    if not isinstance(error, DistributedError):
        raise error
    again = copy.copy(error)
    again.call_site = user_call_site()
    raise again from error


def refuse_forked(process: int) -> None:
    """Raises DistributedError where this is a child that was forked by a `process` of a group."""
    if os.getpid() != process:
        raise DistributedError(
            "this process was forked after distributed.init(), and MPI belongs to its parent: start"
            " processes before init(), or spawn them; what they compute alone needs no group"
        )
