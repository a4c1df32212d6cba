"""Streams: one that keeps all launches in order, and one for copies between host and GPU.

What is enqueued has a number, its ticket. Memory remembers the ticket of what used it last, so that
a copy waits for kernels only where it has to, and memory is given back only when nothing uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.backends.cuda import codes
from gpu.backends.cuda.codes import Result
from gpu.backends.cuda.library import Library, Words

Check = Callable[[int, str], None]
"""Raises the error of a code, which comes with what was to be done."""


class Event:
    """A place in a stream that another one, or the host, can wait for."""

    def __init__(self, library: Library, check: Check, flags: int = codes.EVENT_DISABLE_TIMING):
        self._library, self._check = library, check
        words = Words()
        check(library.cuEventCreate(words.address, flags), "make an event")
        self.handle = words[0]

    def record(self, stream: int) -> None:
        """Is reached when all that is in the stream now is done."""
        self._check(self._library.cuEventRecord(self.handle, stream), "record an event")

    def has_come(self) -> bool:
        """Whether it is reached. Raises what went wrong on the GPU."""
        code = self._library.cuEventQuery(self.handle)
        if code == Result.NOT_READY:
            return False
        self._check(code, "ask what the GPU has done")
        return True

    def wait(self) -> None:
        """Waits for it. Raises what went wrong on the GPU."""
        self._check(self._library.cuEventSynchronize(self.handle), "wait for the GPU")

    def is_reached(self) -> bool:
        """Whether it was reached, without waiting. Raises what went wrong on the GPU."""
        code = self._library.cuEventQuery(self.handle)
        if code != codes.Result.NOT_READY:
            self._check(code, "ask whether an event was reached")
        return bool(code == 0)

    def destroy(self) -> None:
        """Gives it back; what waits for it still does."""
        self._check(self._library.cuEventDestroy_v2(self.handle), "give an event back")

    def seconds_since(self, earlier: Event) -> float:
        """The time from another event to this; both are timed, and were waited for."""
        words = Words()
        elapsed = self._library.cuEventElapsedTime(words.address, earlier.handle, self.handle)
        self._check(elapsed, "tell the time between two events")
        milliseconds: float = memoryview(words.memory).cast("f")[0]
        return milliseconds * 1e-3


class Streams:
    """The streams of a context.

    Attributes:
        launches: the handle of the stream of launches; neither waits for the default stream.
        copies: that of the stream of copies between host and GPU.
        ticket: of what was enqueued last.
        finished: all up to this ticket is known to be done.
    """

    def __init__(self, library: Library, check: Check):
        """Both are of the context that is current. Raises the error of a code."""
        self._library, self._check = library, check
        self.ticket = self.finished = 0
        self.launches, self.copies = self._create(), self._create()
        self._launched, self._copied, self._theirs = (Event(library, check) for _ in range(3))
        self._asked, self._asked_ticket = Event(library, check), 0

    def _create(self) -> int:
        words = Words()
        made = self._library.cuStreamCreate(words.address, codes.STREAM_NON_BLOCKING)
        self._check(made, "make a stream")
        return words[0]

    def next_ticket(self) -> int:
        """The ticket of what is about to be enqueued; the context's lock is held."""
        self.ticket += 1
        return self.ticket

    def has_come(self) -> bool:
        """Whether more is done than was known, without waiting for it; the lock is held.

        What is asked is whether that is done which was enqueued when it was last asked in vain.
        """
        has_come = self._asked_ticket > self.finished and self._asked.has_come()
        if has_come:
            self.finished = self._asked_ticket
        if self._asked_ticket <= self.finished < self.ticket:
            self._asked.record(self.launches)
            self._asked_ticket = self.ticket
        return has_come

    def let_copies_follow(self) -> None:
        """Copies from now on come after all launches up to now."""
        self._follow(self.launches, self._launched, self.copies)

    def let_launches_follow(self) -> None:
        """Launches from now on come after all copies up to now."""
        self._follow(self.copies, self._copied, self.launches)

    def mark(self) -> Event:
        """An event that is reached behind all launches up to now; to be waited for at once."""
        self._launched.record(self.launches)
        return self._launched

    def let_follow(self, stream: int) -> int:
        """A stream of others goes on behind all launches up to now; gives the code of that."""
        code: int = self._library.cuStreamWaitEvent(stream, self.mark().handle, _NO_FLAGS)
        return code

    def follow(self, stream: int) -> int:
        """Launches go on behind all that is in a stream of others; gives the code of that."""
        code: int = self._library.cuEventRecord(self._theirs.handle, stream)
        return code or self.follow_event(self._theirs)

    def follow_event(self, event: Event) -> int:
        """Launches from now on come after an event; gives the code of that."""
        code: int = self._library.cuStreamWaitEvent(self.launches, event.handle, _NO_FLAGS)
        return code

    def _follow(self, first: int, event: Event, then: int) -> None:
        event.record(first)
        waits = self._library.cuStreamWaitEvent(then, event.handle, _NO_FLAGS)
        self._check(waits, "let one stream wait for another")

    def destroy(self) -> None:
        """Gives both back, and their events; nothing is in them."""
        for stream in (self.launches, self.copies):
            self._check(self._library.cuStreamDestroy_v2(stream), "give a stream back")
        for event in (self._launched, self._copied, self._theirs, self._asked):
            event.destroy()


_NO_FLAGS: Final = 0
