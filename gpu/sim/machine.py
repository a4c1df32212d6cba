"""A machine with simulated GPUs of some vendor: its processes, its time, and what works when."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import count
from typing import ClassVar, Final, Protocol
from weakref import WeakValueDictionary

from gpu.core.errors import HwTimeout
from gpu.sim.faults import Given
from gpu.sim.physical import Pool
from gpu.sim.process import SimOs, SimProcess, System

_MOST_STEPS: Final = 64  # that an engine makes before another may
_CALL_SHARE: Final = 0.25  # of calls during which an engine works
_MOMENT_S: Final = 0.001
_open: WeakValueDictionary[int, Machine] = WeakValueDictionary()
_numbers: Final = count()


class Engine(Protocol):
    """What works by itself: a queue, a channel."""

    @property
    def due_ns(self) -> int | None:
        """When it goes on by itself, if it waits for a time."""
        ...

    def why_idle(self) -> str:
        """What it waits for; empty where it has nothing to do."""
        ...


class Gpu(Protocol):
    """What a machine needs of a GPU."""

    plugged: bool

    def sample(self) -> None:
        """Look at what the host has written."""
        ...

    def unplug(self) -> None:
        """It is gone from its bus."""
        ...

    def close(self) -> None:
        """Give its memory back."""
        ...


class SimWaiter:
    """The clock of a machine; idling lets its engines work. See `gpu.core.wait.Waiter`."""

    spin_ns: int = 0

    def __init__(self, machine: Machine):
        self._machine = machine

    def now_ns(self) -> int:
        """Virtual time."""
        return self._machine.clock.now_ns

    def idle(self, timeout_ns: int) -> None:
        """Lets engines work for a while. Raises HwTimeout at once when none can do anything."""
        with self._machine.lock:
            machine, deadline = self._machine, self._machine.clock.now_ns + timeout_ns
            with machine.undisturbed:
                worked = machine.work(deadline)
            if not worked and not machine.let_others(deadline):
                raise machine.stuck("idle")


class Machine(System):
    """What all simulated machines share; those of vendors derive from it.

    Engines work when someone waits, and a little in every call. Which of them, and for how long, is
    drawn from the seed; the same seed and the same calls give the same run.

    Attributes: those of `System`, and
        os, waiter: what a driver of the first process is given.
        process: that process; `new_process` makes others, `SimProcess.fork` children.
        is_served: whether other real processes use it; see `gpu.sim.server`.
    """

    gpus: Sequence[Gpu]
    call_ns: ClassVar[int] = 0  # virtual time that a call takes

    def __init__(self, seed: int, faults: Given, host_memory: int):
        super().__init__(seed, faults)
        self._others = threading.Condition(self.lock)
        self.is_served = False
        self._host = Pool("system memory", host_memory)
        self._processes: list[SimProcess] = []
        self._next_pid = 1000
        self.process = self.new_process()
        self.waiter = SimWaiter(self)
        self._number = next(_numbers)
        _open[self._number] = self

    @property
    def os(self) -> SimOs:
        """The operating system of the first process."""
        return self.process.os

    def new_process(self) -> SimProcess:
        """Another process on this machine."""
        process = SimProcess(self, self._next_pid)
        self._next_pid += 1
        self.add_process(process)
        return process

    def add_process(self, process: SimProcess) -> None:
        """A process that was made elsewhere lives on this machine from now on."""
        self._processes.append(process)

    def work(self, deadline_ns: int | None = None) -> bool:
        """Lets one engine work for a random while; False when none can do anything."""
        for gpu in self.gpus:
            gpu.sample()
        if not self._run_one():
            due = [engine.due_ns for engine in self._engines() if engine.due_ns is not None]
            if not due:
                return False
            target = min(due) if deadline_ns is None else min(*due, deadline_ns)
            self.clock.advance(max(target - self.clock.now_ns, 0))
        self._time_passed()
        return True

    def let_others(self, deadline_ns: int | None = None) -> bool:
        """Where nothing can be done now, gives other real processes a moment, and says so.

        On a served machine time then passes as on the host's clock; on another nobody could bring
        what is waited for, and the result is False.
        """
        if not self.is_served:
            return False
        start = time.monotonic_ns()
        self._others.wait(_MOMENT_S)  # without the lock
        passed = time.monotonic_ns() - start
        if deadline_ns is not None:
            passed = min(passed, max(deadline_ns - self.clock.now_ns, 0))
        self.clock.advance(passed)
        return True

    def run_until_idle(self, most: int = 1_000_000) -> None:
        """Lets engines work until none can; for tests."""
        for _ in range(most):
            if not self.work():
                return
        raise self.stuck(f"engines still work after {most} turns")

    def wait(self, is_over: Callable[[], bool], timeout_ns: int) -> None:
        """Lets engines work until something is so, or nothing can be done, at most so long."""
        deadline = self.clock.now_ns + timeout_ns
        with self.lock, self.undisturbed:
            while not is_over() and self.clock.now_ns < deadline:
                if not self.work(deadline) and not self.let_others(deadline):
                    self.clock.advance(deadline - self.clock.now_ns)

    def work_a_little(self) -> None:
        """What goes on while a process makes a call, which it counts."""
        self.counts.ioctls += 1
        self.clock.advance(self.call_ns)
        self._time_passed()
        if self.faults.due("remove"):
            self.unplug()
        if self.rng.random() < _CALL_SHARE and self._engines():
            self.work()

    def unplug(self) -> None:
        """Takes all GPUs away: calls fail from now on, engines stand still."""
        for gpu in self.gpus:
            gpu.unplug()

    def stuck(self, what: str) -> HwTimeout:
        """The error of a wait that cannot end; says what each engine waits for."""
        reasons = [reason for engine in self._engines() if (reason := engine.why_idle())]
        reasons += self.debug.violations[-3:]
        said = "; ".join(reasons) if reasons else "no engine has anything to do"
        return HwTimeout(f"{what}: nothing is runnable on the model ({said})", None, "progress", 0)

    def end_process(self, process: SimProcess) -> list[str]:
        """Frees all that a process has; returns what it should have freed itself."""
        self._processes.remove(process)
        return []

    def close(self) -> None:
        """Ends all processes and gives the memory back; nothing of it may be used any more."""
        _open.pop(self._number, None)
        for process in list(self._processes):
            process.exit()
        for gpu in self.gpus:
            gpu.close()
        self._host.close()
        self.user.close()

    def _steps(self) -> int:
        """How many steps the engine whose turn it is may make."""
        return self.rng.randint(1, _MOST_STEPS)

    @abstractmethod
    def _engines(self) -> Sequence[Engine]:
        """Those of all GPUs."""

    @abstractmethod
    def _run_one(self) -> bool:
        """Lets an engine that can do something make `_steps`; False when there is none."""

    def _time_passed(self) -> None:
        """Shows the new time where processes map a clock."""


def machines() -> list[Machine]:
    """The machines of this process that are not closed, oldest first.

    So those can be looked at that something else has made, such as a device that is opened where
    the setting SIM names chips.
    """
    return list(_open.values())
