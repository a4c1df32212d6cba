"""A machine with simulated NVIDIA GPUs behind their kernel driver.

    world = NvSimWorld(seed=1, chip="gh100")
    driver = open_it(World(world.os, world.waiter))     # gpu.transport.world.World
    assert not world.debug.violations

As in `gpu.sim.world`, engines work when someone waits, and a little in every call; the seed decides
which and for how long. A wait for something that cannot come fails at once.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gpu.core.errors import HwTimeout
from gpu.sim.clock import VirtualClock
from gpu.sim.faults import FaultPlan
from gpu.sim.kernel import SysError, UserMemory
from gpu.sim.nv.caches import Mode
from gpu.sim.nv.chips import find_chip
from gpu.sim.nv.control import VERSION
from gpu.sim.nv.files import RmFile
from gpu.sim.nv.gpu import NvGpu
from gpu.sim.nv.launch import KernelExecutor, NoExecutor
from gpu.sim.nv.layout import Record
from gpu.sim.nv.layouts import UNIX_EVENT
from gpu.sim.nv.objects import Event
from gpu.sim.nv.rm import ResourceManager
from gpu.sim.nv.uvm import UvmSpace
from gpu.sim.nv.uvm_calls import UvmFile
from gpu.sim.os import SimOs
from gpu.sim.physical import Pool
from gpu.sim.process import SimFile, SimProcess
from gpu.sim.record import DebugChannel
from gpu.sim.tree import FileTree

_HOST_MEMORY: Final = 64 << 30
_MOST_STEPS: Final = 64  # that a channel makes before another may
_CALL_SHARE: Final = 0.25  # of calls during which an engine works
_CALL_NS: Final = 1000
_WITHOUT_DATA: Final = 1 << 28  # NV01_EVENT_WITHOUT_EVENT_DATA


class NvSimWaiter:
    """The clock of a world; idling lets its engines work. See `gpu.core.wait.Waiter`."""

    spin_ns: int = 0

    def __init__(self, world: NvSimWorld):
        self._world = world

    def now_ns(self) -> int:
        """Virtual time."""
        return self._world.clock.now_ns

    def idle(self, timeout_ns: int) -> None:
        """Lets engines work for a while. Raises HwTimeout at once when none can do anything."""
        with self._world.lock:
            if not self._world.work(self._world.clock.now_ns + timeout_ns):
                raise self._world.stuck("idle")


@dataclass(frozen=True, slots=True)
class Usage:
    """What is held on a machine; equal before and after what gives everything back.

    Attributes:
        files: open descriptors of processes that live.
        clients, objects, cpu_mappings: of RM.
        ranges, external: address ranges of UVM, and what is mapped into them.
        channels: on all GPUs.
        vram, host, bar1: bytes.
    """

    files: int
    clients: int
    objects: int
    cpu_mappings: int
    ranges: int
    external: int
    channels: int
    vram: int
    host: int
    bar1: int


class NvSimWorld:
    """A machine.

    Args:
        seed: of all that is left to chance.
        chip: name of one GPU, or of each of several; see `gpu.sim.nv.chips`.
        plan: faults to inject.
        coherence: what caches do; see `gpu.sim.nv.caches`.
        executor: runs kernels; without one a launch is an error.

    Attributes:
        os, waiter: what a driver of the first process is given.
        process: that process; `new_process` makes others, `SimProcess.fork` children.
        gpus, rm, debug, clock, rng: the parts, for tests.
    """

    def __init__(
        self,
        seed: int = 0,
        chip: str | Sequence[str] = "gh100",
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
        self._host = Pool("system memory", _HOST_MEMORY)
        parts = (self._host, self.clock, self.debug, self.rng, plan, coherence)
        names = [chip] if isinstance(chip, str) else list(chip)
        runner = executor or NoExecutor()
        self.gpus = [NvGpu(find_chip(n), i, *parts, runner) for i, n in enumerate(names)]
        self.rm = ResourceManager(self.gpus, self.user, self.debug)
        self.devices: dict[str, Callable[[SimProcess], SimFile]] = {}
        self._spaces: list[UvmSpace] = []
        self._add_files()
        self._processes: list[SimProcess] = []
        self._next_pid = 1000
        self._calls = 0
        self.process = self.new_process()
        self.waiter = NvSimWaiter(self)

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
        """Lets one channel work for a random while; False when none can do anything."""
        for gpu in self.gpus:
            gpu.sample()
        runnable = [channel for gpu in self.gpus for channel in gpu.runnable()]
        if runnable:
            self.rng.choice(runnable).run(self.rng.randint(1, _MOST_STEPS))
            self._show_clock()
            return True
        due = [c.due_ns for gpu in self.gpus for c in gpu.channels if c.due_ns is not None]
        if not due:
            return False
        target = min(due) if deadline_ns is None else min(*due, deadline_ns)
        self.clock.advance(max(target - self.clock.now_ns, 0))
        self._show_clock()
        return True

    def _show_clock(self) -> None:
        for gpu in self.gpus:
            gpu.show_clock()

    def run_until_idle(self, most: int = 1_000_000) -> None:
        """Lets engines work until none can; for tests."""
        for _ in range(most):
            if not self.work():
                return
        raise self.stuck(f"engines still work after {most} turns")

    def work_a_little(self) -> None:
        """What goes on while a process makes a call; also counts the calls."""
        self._calls += 1
        self.clock.advance(_CALL_NS)
        self._show_clock()
        if self.plan.unplug_after and self._calls > self.plan.unplug_after:
            self.unplug()
        if self.rng.random() < _CALL_SHARE and any(gpu.channels for gpu in self.gpus):
            self.work()

    def unplug(self) -> None:
        """Takes all GPUs away: escapes fail with EINVAL from now on, channels stand still."""
        for gpu in self.gpus:
            gpu.plugged = False

    def stuck(self, what: str) -> HwTimeout:
        """The error of a wait that cannot end; says what each channel waits for."""
        reasons = [c.why_idle() for gpu in self.gpus for c in gpu.channels]
        reasons = [reason for reason in reasons if reason] + self.debug.violations[-3:]
        said = "; ".join(reasons) if reasons else "no channel has anything to do"
        return HwTimeout(f"{what}: nothing is runnable on the model ({said})", None, "progress", 0)

    def usage(self) -> Usage:
        """What is held now."""
        objects = [o for client in self.rm.clients.values() for o in client.objects.values()]
        ranges = [r for space in self._spaces for r in space.ranges.values()]
        return Usage(
            files=sum(process.open_files for process in self._processes),
            clients=len(self.rm.clients),
            objects=len(objects),
            cpu_mappings=sum(len(o.cpu_mappings) for o in objects),
            ranges=len(ranges),
            external=sum(len(r.mapped) for r in ranges),
            channels=sum(len(gpu.channels) for gpu in self.gpus),
            vram=sum(gpu.vram_used for gpu in self.gpus),
            host=self._host.size - self._host.free_bytes,
            bar1=sum(gpu.bar1_used for gpu in self.gpus),
        )

    def end_process(self, process: SimProcess) -> list[str]:
        """A process ends; its files were closed before, and with them all it had."""
        self._processes.remove(process)
        return []

    def forget_space(self, space: UvmSpace) -> None:
        """A file of UVM was closed."""
        self._spaces.remove(space)

    def close(self) -> None:
        """Ends all processes and gives the memory back; nothing of it may be used any more."""
        for process in list(self._processes):
            process.exit()
        for gpu in self.gpus:
            gpu.close()
        self._host.close()
        self.user.close()

    def _add_files(self) -> None:
        text = (
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build\n"
            "GCC version:  gcc version 12.2.0\n"
        )
        self.tree.add("/proc/driver/nvidia/version", text)
        self.tree.add("/sys/module/nvidia/version", f"{VERSION}\n")
        devices = "Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n"
        self.tree.add("/proc/devices", devices)
        nodes: dict[str, Callable[[SimProcess], SimFile]] = {
            "/dev/nvidiactl": partial(self._open_rm, None),
            "/dev/nvidia-uvm": self._open_uvm,
        }
        for gpu in self.gpus:
            nodes[f"/dev/nvidia{gpu.index}"] = partial(self._open_rm, gpu)
            folder = f"/proc/driver/nvidia/gpus/0000:{gpu.bus:02x}:00.0"
            self.tree.add(f"{folder}/information", self._information(gpu))
            pci = f"/sys/bus/pci/devices/0000:{gpu.bus:02x}:00.0"
            self.tree.add(f"{pci}/vendor", "0x10de\n")
            self.tree.add(f"{pci}/device", f"0x{gpu.chip.device_id:04x}\n")
            gpu.deliver = self._deliver
        for path, opener in nodes.items():
            self.devices[path] = opener
            self.tree.add(path, b"")

    def _information(self, gpu: NvGpu) -> str:
        return (
            f"Model: \t\t {gpu.chip.board}\nBus Location: \t 0000:{gpu.bus:02x}:00.0\n"
            f"Device Minor: \t {gpu.index}\n"
        )

    def _open_rm(self, gpu: NvGpu | None, process: SimProcess) -> SimFile:
        if gpu is not None and not gpu.plugged:
            raise SysError(errno.EIO, "the GPU is lost")
        return RmFile(self, gpu)

    def _open_uvm(self, process: SimProcess) -> SimFile:
        space = UvmFile(self, process)
        self._spaces.append(space)
        return space

    def _deliver(self, event: Event, info32: int) -> None:
        """Queues an event for the file that ALLOC_OS_EVENT named."""
        file = self.rm.os_events.get((event.client.handle, event.fd))
        if file is None or event.flags & _WITHOUT_DATA:
            return
        entry = Record(UNIX_EVENT)
        entry["hObject"], entry["NotifyIndex"] = event.handle, event.index
        entry["info32"] = info32
        file.events.append(entry)
