"""Work of queues, which runs late, in an order drawn from the seed.

"Setting up a command structure", "Synchronizing events within a single device" (Apple). Command
buffers of a queue run in the order in which they were enqueued, queues in none among each other but
by events.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from gpu.sim.races import Access, Knowledge, Races, Touched
from gpu.sim.simulation import Simulation

_EAGERNESS: Final = (0.0, 0.05, 0.3)  # how often a commit lets work begin; one of them a seed
INTERNAL: Final = 1  # MTLJobError
TIMEOUT: Final = 2
PAGE_FAULT: Final = 3
INVALID_RESOURCE: Final = 9


class GpuFault(Exception):
    """Work has failed.

    Attributes:
        code: of MTLJobError.
    """

    def __init__(self, code: int, what: str):
        super().__init__(what)
        self.code = code


class Step(Protocol):
    """A part of a command buffer, which runs at once."""

    def is_ready(self) -> bool:
        """Whether it may run now."""
        ...

    def run(self, line: Line) -> None:
        """Does it. Raises GpuFault."""
        ...

    def why(self) -> str:
        """What it waits for, for messages."""
        ...


class Job(Protocol):
    """A command buffer, as far as its queue needs it.

    Attributes:
        line: its queue.
        started: when it began, in seconds, 0 before that.
    """

    line: Line
    started: float

    @property
    def told(self) -> str:
        """What it is."""
        ...

    def end(self, fault: GpuFault | None) -> None:
        """All of it has run, or some of it has failed."""
        ...


class Committed(NamedTuple):
    """A command buffer that was committed, and what the program knew to have happened."""

    buffer: Job
    steps: deque[Step]
    host: Knowledge


class Line:
    """What one queue has to do.

    Attributes:
        number: of the queue; step: of what it does.
        knows: what has happened before.
        order: its command buffers that were enqueued and have not ended.
        committed: those of them that may run.
    """

    def __init__(self, number: int):
        self.number = number
        self.step = 0
        self.knows = Knowledge()
        self.order: deque[Job] = deque()
        self.committed: dict[Job, Committed] = {}

    @property
    def next(self) -> Committed | None:
        """What comes next; None where nothing may."""
        return self.committed.get(self.order[0]) if self.order else None


class Scheduler:
    """All queues.

    Attributes:
        host: what the program knows to have happened.
    """

    def __init__(self, simulation: Simulation):
        self._simulation = simulation
        self._rng = simulation.rng
        self._eagerness = self._rng.choice(_EAGERNESS)
        self._lines: list[Line] = []
        self.host = Knowledge()
        self.races = Races(lambda what: simulation.debug.violation(f"queue-race: {what}"))

    def new_line(self) -> Line:
        """For a new queue."""
        self._lines.append(Line(len(self._lines) + 1))
        return self._lines[-1]

    def commit(self, line: Line, buffer: Job, steps: deque[Step]) -> None:
        """A command buffer is ready to run; some work may run at once."""
        line.committed[buffer] = Committed(buffer, steps, Knowledge(self.host))
        if self._rng.random() < self._eagerness:
            self._step()

    def look(self) -> None:
        """The program asks how far work is, and does not wait; some may run."""
        if self._rng.random() < 0.5:
            self._step()

    def run_while(self, holds: Callable[[], bool]) -> bool:
        """Runs work as long as this holds; False where nothing gets on and it still holds."""
        while holds():
            if not self._step():
                return False
        return True

    def blocked(self) -> list[str]:
        """What the first of each queue waits for."""
        return [
            ready.steps[0].why() for line in self._lines if (ready := line.next) and ready.steps
        ]

    def touch(self, line: Line, accesses: list[Access], what: str) -> None:
        """A step of a queue has accessed memory."""
        told = f"{what} (queue {line.number}, step {line.step})"
        knows = Knowledge(line.knows)
        self.races.add(Touched(a, line.number, line.step, knows, told) for a in accesses)

    def fail(self, buffer: Job, fault: GpuFault) -> None:
        """Ends a command buffer with an error."""
        line = buffer.line
        self._simulation.debug.fault(f"{buffer.told}: {fault}")
        line.committed[buffer].steps.clear()
        self._end(line, line.committed[buffer], fault)

    def _step(self) -> bool:
        """Does some of what may run now; False where nothing may."""
        ready = [
            (line, job)
            for line in self._lines
            if (job := line.next) is not None and (not job.steps or job.steps[0].is_ready())
        ]
        if not ready:
            return False
        line, job = self._rng.choice(ready)
        if not job.buffer.started:
            job.buffer.started = time.perf_counter()
            line.knows.add(job.host)
        if not job.steps:
            self._end(line, job, None)
            return True
        line.step += 1
        step = job.steps.popleft()
        try:
            step.run(line)
        except GpuFault as fault:
            self.fail(job.buffer, fault)
            return True
        line.knows.note(line.number, line.step)
        if not job.steps:
            self._end(line, job, None)
        return True

    def _end(self, line: Line, job: Committed, fault: GpuFault | None) -> None:
        line.order.remove(job.buffer)
        del line.committed[job.buffer]
        job.buffer.end(fault)
