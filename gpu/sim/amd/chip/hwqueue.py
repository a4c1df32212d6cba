"""Queues as hardware has them: a ring, two pointers, a doorbell, and whether they may run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from gpu.sim.amd.chip.asic import Asic
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.port import Port
from gpu.sim.translate import PageFault, Translation

Kind = Literal["pm4", "aql", "sdma"]
_PACKET_NS: Final = 200
_CHUNK: Final = 512  # dwords that are fetched ahead


class QueueHost(Protocol):
    """Who put a queue on the hardware, as the queue knows it: a kernel driver, or registers."""

    @property
    def name(self) -> str:
        """What records call the queue, behind its kind."""
        ...

    @property
    def space(self) -> Translation:
        """What its addresses lead to."""
        ...

    def why_off(self) -> str:
        """Why it may not run although it is enabled; empty where it may."""
        ...

    def doorbell(self) -> int | None:
        """What was rung since the last call; None where nothing was."""
        ...

    def page_fault(self, fault: PageFault) -> None:
        """The queue has stopped at a memory violation: tell whom it concerns."""
        ...

    def reset_gpu(self, why: str) -> None:
        """The GPU needs a reset."""
        ...

    def read_poison(self) -> None:
        """The queue read memory whose contents are lost."""
        ...

    def interrupt(self, number: int, bits: int) -> None:
        """An end-of-pipe or trap interrupt; `number` has so many valid bits."""
        ...


@dataclass(slots=True)
class Blocked:
    """What a queue waits for; `met` looks whether it is there."""

    what: str
    met: Callable[[], bool]


@dataclass(slots=True)
class RingSettings:
    """Where a queue is, in bytes, and whether it is switched on.

    `wptr` is 0 where the doorbell alone tells how far software has written.
    """

    ring: int
    size: int
    rptr: int
    wptr: int
    enabled: bool = True


class HwQueue:
    """One user queue. Subclasses know the packets, and count pointers in units of their own.

    Attributes:
        host: who put it on the hardware.
        asic, sim: the chip, and the run of the model.
        wptr, rptr: up to where software wrote and the engine has read; they never wrap.
        blocked: what the packet at `rptr` waits for.
        stopped: why it will not run any more, or "".
        is_unsaved: whether it runs what cannot be taken off.
        ring_words: what was fetched ahead.
    """

    kind: Kind
    unit: int  # bytes that its pointers count by
    unit_name: str

    def __init__(self, host: QueueHost, asic: Asic, settings: RingSettings):
        self.host = host
        self.asic = asic
        self.sim = asic.sim
        self.settings = settings
        self.port = Port(host.space, asic.caches, "sdma" if self.kind == "sdma" else "cp")
        self.rptr = 0
        self.wptr = 0
        self.blocked: Blocked | None = None
        self.stopped = ""
        self.is_unsaved = False
        self.ring_words = DwordRing(self)
        self._was_rung = False
        self._delayed: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.kind} queue {self.host.name}"

    @property
    def active(self) -> bool:
        """Whether it may run."""
        return self.settings.enabled and not self.stopped and not self.host.why_off()

    def stop(self, why: str) -> None:
        """Ends it; only destroying it is left."""
        self.stopped = self.stopped or why

    def sample(self) -> None:
        """Looks at the doorbell."""
        if self.active and (value := self.host.doorbell()) is not None:
            self._was_rung = True
            self.sim.counts.doorbells += 1
            fault = self.sim.faults.due("lost-doorbell", "late-doorbell")
            if fault is None:
                self._ring(value)
            elif fault.name == "late-doorbell":
                self._delayed = (self.sim.clock.now_ns + fault.late_ns, value)
            else:
                self.sim.debug.note(f"{self}: lost a ring of its doorbell")
        if self._delayed and self.sim.clock.now_ns >= self._delayed[0]:
            self._ring(self._delayed[1])
            self._delayed = None

    @property
    def due_ns(self) -> int | None:
        """When a delayed ring will be noticed."""
        return self._delayed[0] if self._delayed else None

    def remap(self) -> None:
        """The scheduler put it onto hardware again: only the write pointer in memory counts."""
        self.ring_words.forget()
        self._guarded(self._read_wptr)

    def _read_wptr(self) -> None:
        in_memory = self._wptr_in_memory(self.wptr)
        if in_memory < self.wptr:
            self.wptr = max(in_memory, self.rptr)
        elif in_memory > self.wptr:
            self._take_wptr(in_memory, in_memory)

    def _ring(self, value: int) -> None:
        """A doorbell came: checks it and takes it over."""
        if value >> 32 == 0xFFFFFFFF:
            self._violation(f"doorbell {value:#x}: rings are 64 bits wide, this one had 32")
            value &= 0xFFFFFFFF
        self._guarded(lambda: self._take_wptr(value, self._wptr_in_memory(value)))

    def _wptr_in_memory(self, otherwise: int) -> int:
        """The write pointer that software has stored; another value where it stores none."""
        return self.port.read_word(self.settings.wptr, 8) if self.settings.wptr else otherwise

    def _guarded(self, act: Callable[[], None]) -> None:
        """Does something; what goes wrong ends the queue."""
        try:
            act()
        except PageFault as fault:
            self._page_fault(fault)
        except PacketError as error:
            self.fail(str(error))

    def _take_wptr(self, doorbell: int, in_memory: int) -> None:
        """Takes over a write pointer that the doorbell tells, in the queue's units."""
        if in_memory < doorbell:
            self._violation(
                f"doorbell {doorbell:#x} while the write pointer in memory is {in_memory:#x}: store"
                " it first, the scheduler reads it when it maps the queue again"
            )
        if doorbell < self.wptr:
            raise PacketError(f"doorbell {doorbell:#x} after {self.wptr:#x}: pointers only grow")
        self._check_room(doorbell)
        self.wptr = doorbell

    def _check_room(self, wptr: int) -> None:
        size = self.settings.size // self.unit
        if wptr - self.rptr > size:
            raise PacketError(
                f"write pointer {wptr:#x} is more than the ring's {size:#x} {self.unit_name}"
                f" ahead of {self.rptr:#x}: packets were overwritten"
            )

    def runnable(self) -> bool:
        """Whether it could do something now; looking may already fault."""
        if not self.active:
            return False
        try:
            return self.has_work()
        except PageFault as fault:
            self._page_fault(fault)
        except PacketError as error:
            self.fail(str(error))
        return False

    def has_work(self) -> bool:
        """Whether there is something that does not wait. Raises PageFault."""
        return self.wptr > self.rptr and not self.waits()

    def waits(self) -> bool:
        """Whether what it is blocked by is not there yet. Raises PageFault."""
        return self.blocked is not None and not self.blocked.met()

    @property
    def stuck(self) -> bool:
        """Whether it stands at an unmet wait; a kernel is none, whatever that waits for."""
        at_wait = self.active and self.blocked is not None and not self.runs_kernels()
        return at_wait and not self.runnable()

    def runs_kernels(self) -> bool:
        """Whether kernels go on beside its packets."""
        return False

    def why_kernels_stuck(self) -> str:
        """Why none of them gets on. Raises PageFault, PacketError."""
        return ""

    def run(self, budget: int) -> int:
        """Handles at most so many packets; returns how many."""
        done = 0

        def work() -> None:
            nonlocal done
            while done < budget and self.runnable():
                if self.blocked and self.blocked.met():
                    self.blocked = None
                self.step()
                self.sim.clock.advance(_PACKET_NS)
                done += 1
            self.report()

        self._guarded(work)
        return done

    def step(self) -> None:
        """Handles one packet, or finds that it blocks. Raises PageFault, PacketError."""
        raise NotImplementedError

    def report(self) -> None:
        """Writes the read pointer to where software looks for it. Raises PageFault."""
        raise NotImplementedError

    def fail(self, what: str) -> None:
        """A bad packet: the driver's mistake, and the end of the queue."""
        self._violation(what)
        self.stop(what)

    def _page_fault(self, fault: PageFault) -> None:
        self.sim.debug.fault(f"{self}: {fault}")
        self.stop(f"page fault: {fault}")
        self.host.page_fault(fault)

    def _violation(self, what: str) -> None:
        self.sim.debug.violation(f"{self}: {what}")

    def interrupt(self, number: int, bits: int) -> None:
        """Raises an interrupt that names an event, unless a fault is to lose it."""
        if self.sim.faults.due("lost-interrupt"):
            self.sim.debug.note(f"{self}: lost the interrupt for event {number}")
            return
        self.host.interrupt(number, bits)

    def loses_completion(self) -> bool:
        """Whether a completion is lost on purpose."""
        if self.sim.faults.due("stuck-fence"):
            self.sim.debug.note(f"{self}: lost a completion")
            return True
        return False

    def _why_kernels_stuck(self) -> str:
        try:
            return self.why_kernels_stuck()
        except (PageFault, PacketError):  # told when it runs
            return ""

    def why_idle(self) -> str:
        """What it waits for, in words; "" when it has nothing to do."""
        if self.stopped:
            return f"{self} is stopped: {self.stopped}"
        if why := self.host.why_off():
            return f"{self} is {why}"
        if self.active and (why := self._why_kernels_stuck()):
            return f"{self} runs a kernel that does not get on: {why}"
        if self.blocked:
            return f"{self} waits for {self.blocked.what}"
        if not self.active:
            return f"{self} is disabled"
        try:
            in_memory = self._wptr_in_memory(0)
        except PageFault:
            return f"{self}: its write pointer is not mapped"
        if in_memory and not self._was_rung:
            return f"{self}: its doorbell was never rung; the write pointer is {in_memory:#x}"
        return ""


class DwordRing:
    """Fetches a ring of dwords ahead, as the engines do; positions are counts that never wrap."""

    def __init__(self, queue: HwQueue):
        self._queue = queue
        self._base = 0
        self._words: list[int] = []

    def words(self, position: int, end: int, count: int) -> list[int]:
        """At least `count` dwords from a position, if there are so many before `end`."""
        at = position - self._base
        if at < 0 or at + count > len(self._words):
            self._fetch(position, min(end, position + max(_CHUNK, count)))
            at = 0
        return self._words[at : at + count]

    def word(self, position: int, end: int) -> int:
        """One dword."""
        at = position - self._base
        if not 0 <= at < len(self._words):
            self._fetch(position, min(end, position + _CHUNK))
            at = 0
        return self._words[at]

    def forget(self) -> None:
        """Drops what was fetched."""
        self._words = []

    def _fetch(self, position: int, end: int) -> None:
        settings = self._queue.settings
        size = settings.size // 4
        port = self._queue.port
        start = position % size
        first = min(end - position, size - start)
        words = port.words(settings.ring + 4 * start, first)
        if end - position > first:
            words += port.words(settings.ring, end - position - first)
        self._base, self._words = position, words
