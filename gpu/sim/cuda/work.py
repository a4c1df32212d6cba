"""Streams, and the work in them that runs late, in an order drawn from the seed.

"CUDA Driver API", "Stream synchronization behavior" and "Stream Management"; "CUDA C++ Programming
Guide", "Asynchronous Concurrent Execution".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

from gpu.sim.cuda.codes import LAUNCH_TIMEOUT, CudaError
from gpu.sim.races import Access, Knowledge, Races, Touched
from gpu.sim.simulation import Simulation

Kind = Literal["blocking", "non-blocking", "legacy", "per-thread"]
_MOST_PENDING: Final = 1024  # a submission beyond it waits, as hardware's queues do
_EAGERNESS: Final = (0.0, 0.05, 0.3)  # how often a submission lets work begin; one of them a seed
_OVERHEAD_NS: Final = 2_000

Run = Callable[["Op"], bool]
"""Does work, or a part of it; True when it is done. It may raise CudaError, which is its fault."""


class Space:
    """What the work of one context has in common.

    Attributes:
        error: the result of all calls from now on, 0 where nothing has failed.
        why: what has failed.
        legacy: its default stream; per_thread: those of threads, by their number.
        streams: all of them.
    """

    def __init__(self, number: int) -> None:
        self.error = 0
        self.why = ""
        self.streams: list[Stream] = []
        self.legacy = Stream(self, "legacy", f"the default stream of context {number}")
        self.per_thread: dict[int, Stream] = {}

    def check(self) -> None:
        """Raises CudaError where something has failed: such an error stays."""
        if self.error:
            raise CudaError(self.error, self.why)


class Stream:
    """A queue of work that runs in order.

    Attributes:
        tail: the last that was queued, done or not.
        flags, priority: as it was made.
    """

    _made = 0

    def __init__(self, space: Space, kind: Kind, name: str = "", flags: int = 0, priority: int = 0):
        Stream._made += 1
        self.id = Stream._made
        self.space = space
        self.kind = kind
        self.name = name or f"stream {self.id}"
        self.flags = flags
        self.priority = priority
        self.count = 0
        self.tail: Op | None = None
        self.queue: deque[Op] = deque()
        self._ended = False
        space.streams.append(self)

    def is_ordered(self, op: Op) -> bool:
        """Whether all its work is before another's, or after it."""
        known = op.knows.last(self.id)
        if known >= self.count:
            return True
        # The first that is not before it: if that is after it, all that follow are.
        behind = known + 1 - self.queue[0].number if self.queue else -1
        return behind >= 0 and self.queue[behind].knows.covers(op.stream.id, op.number)

    def end(self) -> None:
        """It was destroyed: what it has queued still runs."""
        self._ended = True
        if not self.queue:
            self.forget()

    def forget(self) -> None:
        """Leaves the context, if it was destroyed and all its work is done."""
        if self._ended:
            self.space.streams.remove(self)

    def before(self) -> Iterator[Op]:
        """The work that what comes next in this stream waits for."""
        space = self.space
        others = [self]
        if self.kind == "legacy":
            others += [s for s in space.streams if s.kind in ("blocking", "per-thread")]
        elif self.kind != "non-blocking":
            others.append(space.legacy)
        return (stream.tail for stream in others if stream.tail is not None)


class Op:
    """One piece of work in a stream.

    Attributes:
        number: in its stream, from 1.
        waits: work that must be done before.
        knows: what has happened when it begins.
        touches: bytes that it accesses, as far as they are known.
        done, finished_ns: whether and when it ended.
        stuck: why it cannot go on unless others do, empty where it may.
    """

    __slots__ = (
        *("stream", "number", "what", "run", "waits", "knows", "touches", "done"),
        *("finished_ns", "stuck"),
    )
    number: int
    done: bool

    def __init__(self, stream: Stream, what: str, run: Run, waits: Iterable[Op], host: Knowledge):
        self.stream = stream
        self.what = what
        self.run = run
        given = list(waits)
        self.waits = [op for op in given if not op.done]
        self.knows = Knowledge(host)
        for op in given:
            self.knows.add(op.knows)
            self.knows.note(op.stream.id, op.number)
        stream.count += 1
        self.number = stream.count
        self.touches: list[Access] = []
        self.done = False
        self.finished_ns = 0
        self.stuck = ""

    def is_ready(self) -> bool:
        """Whether all that it waits for is done."""
        if self.waits:
            self.waits = [op for op in self.waits if not op.done]
        return not self.waits

    def told(self) -> str:
        """What and where it is, for messages."""
        return f"{self.what} ({self.stream.name}, number {self.number})"


class Work:
    """All that was queued and has not run.

    Attributes:
        host: what the program knows to have happened.
    """

    def __init__(self, simulation: Simulation):
        self._simulation = simulation
        self._rng = simulation.rng
        self.draw()
        self._busy: dict[int, Stream] = {}
        self._count = 0
        self.host = Knowledge()
        self.races = Races(simulation.debug.violation)

    def draw(self) -> None:
        """Draws how often a submission lets work run."""
        self._eagerness = self._rng.choice(_EAGERNESS)

    def submit(
        self,
        stream: Stream,
        what: str,
        run: Run,
        touches: Iterable[Access] = (),
        after: Iterable[Op] = (),
    ) -> Op:
        """Queues work, which also waits for what is `after`. Raises CudaError of an older fault."""
        op = Op(stream, what, run, [*stream.before(), *after], self.host)
        op.touches += touches
        stream.tail = op
        stream.queue.append(op)
        self._busy[stream.id] = stream
        self._count += 1
        if self._rng.random() < self._eagerness:
            self._step()
        if self._count > _MOST_PENDING:
            self._run_while(lambda: self._count > _MOST_PENDING // 2)
        return op

    def wait(self, ops: Iterable[Op | None]) -> None:
        """Runs work until these are done; the program knows it then."""
        wanted = [op for op in ops if op is not None]
        for op in wanted:
            self._run_while(lambda op=op: not op.done)  # type: ignore[misc]
            self._learn(op)
        if not self._count:
            self.races.forget([self.host])

    def look(self, op: Op | None) -> bool:
        """Whether work is done, for a program that asks and does not wait; some may run."""
        if op is None:
            return True
        if not op.done and self._rng.random() < 0.5:
            self._unstick()
            self._step()
        if op.done:
            self._learn(op)
        return op.done

    def go_on(self) -> None:
        """Some work may run, while the program makes no calls."""
        if self._count:
            self._unstick()
            self._step()

    def is_alone(self, op: Op) -> bool:
        """Whether all that other streams of its context have queued is ordered with work."""
        return all(
            stream is op.stream or stream.is_ordered(op) for stream in op.stream.space.streams
        )

    def pending(self) -> Iterator[Op]:
        """What has not run."""
        for stream in self._busy.values():
            yield from stream.queue

    def abandon(self, space: Space) -> None:
        """Drops what a context has queued: none of it runs any more."""
        for stream in space.streams:
            for op in stream.queue:
                op.done, op.waits, op.run = True, [], _nothing
                op.finished_ns = self._simulation.clock.now_ns
            self._count -= len(stream.queue)
            stream.queue.clear()
            self._busy.pop(stream.id, None)

    def _learn(self, op: Op) -> None:
        self.host.add(op.knows)
        self.host.note(op.stream.id, op.number)

    def _run_while(self, holds: Callable[[], bool]) -> None:
        self._unstick()  # the program may have written what kernels wait for
        while holds():
            if not self._step():
                ready = self._ready()
                assert ready, "work waits for work that is not queued"
                self._give_up(ready[0])

    def _step(self) -> bool:
        """Does some of what may run now; False where nothing gets on."""
        getting_on = [op for op in self._ready() if not op.stuck]
        if not getting_on:
            return False
        op = self._rng.choice(getting_on)
        try:
            ended = op.run(op)
        except CudaError as fault:
            self._fail(op, fault)
            return True
        if ended:
            self._finish(op)
        elif not op.stuck:
            self._unstick()
        return True

    def _ready(self) -> list[Op]:
        """The work that waits for no other."""
        return [s.queue[0] for s in self._busy.values() if s.queue[0].is_ready()]

    def _unstick(self) -> None:
        for stream in self._busy.values():
            stream.queue[0].stuck = ""

    def _finish(self, op: Op) -> None:
        clock = self._simulation.clock
        clock.advance(_OVERHEAD_NS)
        op.done, op.finished_ns, op.run = True, clock.now_ns, _nothing
        stream = op.stream
        stream.queue.popleft()
        self._count -= 1
        if not stream.queue:
            del self._busy[stream.id]
            stream.forget()
        self._unstick()
        told = op.told()
        if op.touches:
            self.races.add(Touched(a, stream.id, op.number, op.knows, told) for a in op.touches)

    def _give_up(self, op: Op) -> None:
        self._fail(op, CudaError(LAUNCH_TIMEOUT, f"{op.told()} does not end: {op.stuck}"))

    def _fail(self, op: Op, fault: CudaError) -> None:
        self._simulation.debug.fault(f"{op.told()}: {fault}")
        space = op.stream.space
        space.error, space.why = fault.code, str(fault)
        self.abandon(space)


def _nothing(_: Op) -> bool:
    return True
