"""A machine with simulated GPUs: what a driver is given instead of the real one.

    world = SimWorld(seed=1, chip="gfx1100")
    driver = open_it(World(world.os, world.waiter))     # gpu.transport.world.World
    assert not world.debug.violations

Engines work when someone waits: in `SimWaiter.idle`, in WAIT_EVENTS, and a little in every other
call. Which of them, and for how long, is drawn from the seed; the same seed and the same calls give
the same run. A wait for something that cannot come fails at once.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from gpu.core.errors import HwTimeout
from gpu.sim.amd.caches import Mode
from gpu.sim.amd.chips import find_chip
from gpu.sim.amd.dispatch import KernelExecutor, NoExecutor
from gpu.sim.amd.drm import DrmFile
from gpu.sim.amd.events import Events
from gpu.sim.amd.gpu import SimGpu
from gpu.sim.amd.kfd import KfdFile
from gpu.sim.amd.memory import release, unmap
from gpu.sim.amd.objects import KfdProcess
from gpu.sim.amd.pci_files import add_pci_files
from gpu.sim.amd.queues import drop_queue
from gpu.sim.amd.topology import HOST_MEMORY, Board, add_topology
from gpu.sim.clock import VirtualClock
from gpu.sim.faults import FaultPlan
from gpu.sim.kernel import SysError, UserMemory
from gpu.sim.os import SimOs
from gpu.sim.physical import Pool
from gpu.sim.process import SimFile, SimProcess
from gpu.sim.record import DebugChannel
from gpu.sim.tree import FileTree

_MOST_PACKETS: Final = 64  # that a queue handles before another may
_CALL_SHARE: Final = 0.25  # of calls during which an engine works


class SimWaiter:
    """The clock of a world; idling lets its engines work. See `gpu.core.wait.Waiter`."""

    spin_ns: int = 0

    def __init__(self, world: SimWorld):
        self._world = world

    def now_ns(self) -> int:
        """Virtual time."""
        return self._world.clock.now_ns

    def idle(self, timeout_ns: int) -> None:
        """Lets engines work for a while. Raises HwTimeout at once when none can do anything."""
        with self._world.lock:
            if not self._world.work(self._world.clock.now_ns + timeout_ns):
                raise self._world.stuck("idle")


class SimWorld:
    """A machine.

    Args:
        seed: of all that is left to chance.
        chip: name of one GPU, or of each of several; see `gpu.sim.amd.chips`.
        plan: faults to inject.
        coherence: what caches do; see `gpu.sim.amd.caches`.
        executor: runs kernels; without one a dispatch is an error.

    Attributes:
        os, waiter: what a driver of the first process is given.
        process: that process; `new_process` makes others, `SimProcess.fork` children.
        gpus, debug, clock, rng: the parts, for tests.
    """

    def __init__(
        self,
        seed: int = 0,
        chip: str | Sequence[str] = "gfx1100",
        *,
        plan: FaultPlan = FaultPlan(),  # noqa: B008 - frozen
        coherence: Mode = "check",
        executor: KernelExecutor | None = None,
    ):
        self.lock = threading.RLock()  # threads of a driver come one after another
        self.clock = VirtualClock()
        self.debug = DebugChannel(self.clock)
        self.rng = random.Random(seed)
        self.user = UserMemory()
        self.tree = FileTree()
        self.plan = plan
        self._host = Pool("system memory", HOST_MEMORY)
        self.gpus = self._make_gpus(chip, coherence, executor or NoExecutor())
        self.devices: dict[str, Callable[[SimProcess], SimFile]] = {"/dev/kfd": self._open_kfd}
        self._add_files()
        self._processes: list[SimProcess] = []
        self._next_pid = 1000
        self._calls = 0
        self.process = self.new_process()
        self.waiter = SimWaiter(self)

    @property
    def os(self) -> SimOs:
        """The operating system of the first process."""
        return self.process.os

    def new_process(self) -> SimProcess:
        """Another process on this machine."""
        process = SimProcess(self, self._next_pid)
        self._next_pid += 1
        self._processes.append(process)
        return process

    def work(self, deadline_ns: int | None = None) -> bool:
        """Lets one engine work for a random while; False when none can do anything."""
        for gpu in self.gpus:
            gpu.sample()
        runnable = [(gpu, queue) for gpu in self.gpus for queue in gpu.runnable()]
        if runnable:
            gpu, queue = self.rng.choice(runnable)
            gpu.run(queue, self.rng.randint(1, _MOST_PACKETS))
            return True
        due = [q.due_ns for gpu in self.gpus for q in gpu.queues if q.due_ns is not None]
        if not due:
            return False
        target = min(due) if deadline_ns is None else min(*due, deadline_ns)
        self.clock.advance(max(target - self.clock.now_ns, 0))
        return True

    def run_until_idle(self, most: int = 1_000_000) -> None:
        """Lets engines work until none can; for tests."""
        for _ in range(most):
            if not self.work():
                return
        raise self.stuck(f"engines still work after {most} turns")

    def work_a_little(self) -> None:
        """What goes on while a process makes a call; also counts the calls."""
        self._calls += 1
        if self.plan.unplug_after and self._calls > self.plan.unplug_after:
            self.unplug()
        if self.rng.random() < _CALL_SHARE and any(gpu.queues for gpu in self.gpus):
            self.work()

    def unplug(self) -> None:
        """Takes all GPUs away: calls fail with ENODEV from now on, queues stand still."""
        for gpu in self.gpus:
            gpu.plugged = False

    def stuck(self, what: str) -> HwTimeout:
        """The error of a wait that cannot end; says what each queue waits for."""
        queues = [queue.why_idle() for gpu in self.gpus for queue in gpu.queues]
        reasons = [reason for reason in queues if reason]
        reasons += self.debug.violations[-3:]
        said = "; ".join(reasons) if reasons else "no queue has anything to do"
        return HwTimeout(f"{what}: nothing is runnable on the model ({said})", None, "progress", 0)

    def end_process(self, process: SimProcess) -> list[str]:
        """Frees all that a process has; returns what it should have freed itself."""
        p: KfdProcess | None = process.state.pop(KfdProcess, None)
        self._processes.remove(process)
        if p is None:
            return []
        left = [str(queue) for _, queue in p.queues]
        for _, queue in list(p.queues):
            drop_queue(p, queue)
        for device in p.devices.values():
            for number, allocation in list(device.allocations):
                if device.gpu_handle(number) != p.events.page_handle:
                    left.append(f"allocation of {allocation.bo.size:#x} at {allocation.va:#x}")
                for other in list(allocation.mapped):
                    unmap(allocation, other)
                release(device, number)
            device.close()
            device.gpu.processes.remove(p)
        p.events.close()
        return left

    def close(self) -> None:
        """Ends all processes and gives the memory back; nothing of it may be used any more."""
        for process in list(self._processes):
            process.exit()
        for gpu in self.gpus:
            gpu.close()
        self._host.close()
        self.user.close()

    def _make_gpus(
        self, chip: str | Sequence[str], coherence: Mode, executor: KernelExecutor
    ) -> list[SimGpu]:
        names = [chip] if isinstance(chip, str) else list(chip)
        gpus: list[SimGpu] = []
        for node, name in enumerate(names, 1):
            board = Board(find_chip(name), node, tuple(gpu.gpu_id for gpu in gpus))
            parts = (self._host, self.clock, self.debug, self.rng, self.plan)
            gpus.append(SimGpu(board, *parts, coherence, executor))
        return gpus

    def _add_files(self) -> None:
        add_topology(self.tree, [gpu.board for gpu in self.gpus])
        self.tree.add("/dev/kfd", b"")
        for gpu in self.gpus:
            add_pci_files(self.tree, gpu.board, partial(getattr, gpu, "vram_used"))
            path = f"/dev/dri/renderD{gpu.board.minor}"
            self.tree.add(path, b"")
            self.devices[path] = partial(_open_drm, gpu)

    def _open_kfd(self, process: SimProcess) -> SimFile:
        if not any(gpu.plugged for gpu in self.gpus):
            raise SysError(errno.ENODEV, "the device was unplugged")
        p = process.state.get(KfdProcess)
        if p is None:
            p = KfdProcess(process, self.gpus, Events(self))
            process.state[KfdProcess] = p
            for gpu in self.gpus:
                gpu.processes.append(p)
        return KfdFile(p)


def _open_drm(gpu: SimGpu, process: SimProcess) -> SimFile:
    gpu.check_plugged()
    return DrmFile(gpu)
