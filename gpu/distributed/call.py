"""What is under way with other ranks, and how a thread waits for it."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from gpu.core.callsite import CallSite, user_call_site
from gpu.core.errors import DistributedError
from gpu.distributed import messages
from gpu.distributed.exchange import Steps
from gpu.distributed.messages import What

if TYPE_CHECKING:
    from gpu.distributed.engine import Engine


class Traffic(NamedTuple):
    """What this rank's collectives of tensors took, of those whose results it waited for.

    Attributes:
        calls: how many there were; those that go together are one.
        nbytes: of what this rank gave to them: its operands.
        seconds: while their bytes moved.
        waited: seconds in which the program waited for them.
    """

    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    @property
    def hidden(self) -> float:
        """The share of the time in which the program did something else; 1.0 where none was."""
        return max(0.0, 1 - self.waited / self.seconds) if self.seconds else 1.0


class _Total:
    """Of this process."""

    traffic = Traffic()


def take_traffic() -> Traffic:
    """What there was since this was called before."""
    found, _Total.traffic = _Total.traffic, Traffic()
    return found


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
        nbytes: of what this rank gives.
    """

    def __init__(
        self,
        what: What,
        site: CallSite | None,
        make: Make,
        peer: int | None = None,
        kept: object = None,
        lane: int = 0,
        nbytes: int = 0,
    ):
        self.what, self.site, self.peer, self.kept, self.lane = what, site, peer, kept, lane
        self.nbytes = nbytes
        self.make: Make | None = make
        self.number = 0
        self.steps: Steps | None = None
        self.requests: list[Any] = []
        self.began = self.deadline = self.asked = self.ended = 0.0
        self._is_counted = not what.dtype
        self._process = os.getpid()
        self._error: Exception | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def wait(self) -> None:
        """Returns when it is done; raises what went wrong. Ctrl-C ends the wait, not the call."""
        since = time.monotonic()
        if not self._done.acquire(blocking=False):
            refuse_forked(self._process)
            self._done.acquire()
        self._done.release()
        if not self._is_counted:
            self._is_counted = True
            calls, nbytes, seconds, waited = _Total.traffic
            seconds, waited = seconds + self.ended - self.began, waited + time.monotonic() - since
            _Total.traffic = Traffic(calls + 1, nbytes + self.nbytes, seconds, waited)
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
        self._error, self.ended = error, time.monotonic()
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
