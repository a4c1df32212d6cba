"""Which commands wait for which, on a queue that runs them in any order (`CL_REORDER=1`).

A command waits for those that wrote what it reads or writes, and for those that read what it
writes. Memory objects are the units: two views of one buffer count as one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any, Final

from gpu.backends.cl.api import handles

if TYPE_CHECKING:
    from gpu.backends.cl.context import CLContext
    from gpu.backends.cl.objects import CLMemory

# Readers of one memory that are kept apart; more are waited for as one.
_MOST_READERS: Final = 32


class Event:
    """The end of a command; released when nobody waits for it any more."""

    __slots__ = ("_context", "handle")

    def __init__(self, context: CLContext, handle: int):
        self._context, self.handle = context, handle

    def __del__(self) -> None:
        if not self._context.is_lost:
            self._context.api.clReleaseEvent(self.handle)


class Touched:
    """What happened to memory since the queue was last empty.

    Attributes:
        epoch: how often the queue had been empty then.
        writer: the command that wrote it last.
        readers: those that read it since.
    """

    __slots__ = ("epoch", "readers", "writer")

    def __init__(self, epoch: int, writer: Event | None = None):
        self.epoch, self.writer = epoch, writer
        self.readers: list[Event] = []


class Order:
    """The order that the commands of one queue need."""

    def __init__(self, context: CLContext):
        # The context has this object; events, which release themselves, need it.
        self._of: weakref.ref[CLContext] = weakref.ref(context)
        self._epoch = 0
        self._lock = threading.Lock()

    def finished(self) -> None:
        """The queue is empty: nothing has to be waited for any more."""
        self._epoch += 1

    def run(
        self,
        enqueue: Callable[..., int],
        arguments: Sequence[Any],
        reads: Sequence[CLMemory],
        writes: Sequence[CLMemory],
    ) -> tuple[int, Event | None]:
        """Calls a function of OpenCL's that enqueues a command; returns its code, and its event.

        `arguments` are those before the three on events. The command reads and writes the memory
        given, which remembers it.
        """
        with self._lock:
            waits = self._waits(reads, writes)
            event = c_void_p()
            known = handles(*waits) if waits else None
            code = enqueue(*arguments, len(waits), known, byref(event))
            if code:
                return code, None
            made = self._event(event)
            self._note(made, reads, writes)
        return code, made

    def _waits(self, reads: Sequence[CLMemory], writes: Sequence[CLMemory]) -> dict[int, None]:
        """The events that a command waits for, each once."""
        waits: dict[int, None] = {}
        for memory in reads:
            touched = self._touched(memory)
            if touched.writer is not None:
                waits[touched.writer.handle] = None
        for memory in writes:
            touched = self._touched(memory)
            # Readers have waited for the writer.
            before = touched.readers or ([touched.writer] if touched.writer else [])
            waits.update((event.handle, None) for event in before)
        return waits

    def _event(self, event: c_void_p) -> Event:
        context = self._of()
        assert context is not None
        return Event(context, event.value or 0)

    def _touched(self, memory: CLMemory) -> Touched:
        whole = memory.whole
        touched = whole.touched
        if touched is None or touched.epoch != self._epoch:
            touched = whole.touched = Touched(self._epoch)
        return touched

    def _note(self, event: Event, reads: Sequence[CLMemory], writes: Sequence[CLMemory]) -> None:
        for memory in reads:
            readers = self._touched(memory).readers
            readers.append(event)
            if len(readers) > _MOST_READERS:
                readers[:] = [self._together(readers)]
        for memory in writes:
            memory.whole.touched = Touched(self._epoch, event)

    def _together(self, events: Sequence[Event]) -> Event:
        """The end of several commands."""
        context, event = self._of(), c_void_p()
        assert context is not None
        known = handles(*(each.handle for each in events))
        code = context.api.clEnqueueMarkerWithWaitList(
            context.queue, len(events), known, byref(event)
        )
        context.check(code, "wait for several commands")
        return Event(context, event.value or 0)
