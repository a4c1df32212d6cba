"""A machine with simulated GPUs: what a driver is given instead of the real one.

    world = KfdWorld(seed=1, chip="gfx1100")
    driver = open_it(World(world.os, world.waiter))     # gpu.transport.world.World
    assert not world.debug.violations

`gpu.sim.machine.Machine` says when its engines work; WAIT_EVENTS lets them too. A wait for
something that cannot come fails at once.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial

from gpu.sim.amd.chip.asic import Asic
from gpu.sim.amd.chip.dispatch import KernelExecutor, NoExecutor
from gpu.sim.amd.chip.hwqueue import HwQueue
from gpu.sim.amd.chips import find_chip
from gpu.sim.amd.kfd.drm import DrmFile
from gpu.sim.amd.kfd.events import Events
from gpu.sim.amd.kfd.gpu import KfdGpu
from gpu.sim.amd.kfd.ioctls import CALL_NAMES, KfdFile
from gpu.sim.amd.kfd.memory import restore
from gpu.sim.amd.kfd.pci_files import add_pci_files
from gpu.sim.amd.kfd.process import KfdProcess
from gpu.sim.amd.kfd.teardown import free_process
from gpu.sim.amd.kfd.topology import HOST_MEMORY, Board, add_topology
from gpu.sim.faults import Given
from gpu.sim.kernel import SysError
from gpu.sim.linecaches import Mode
from gpu.sim.machine import Machine
from gpu.sim.process import SimFile, SimProcess


class KfdWorld(Machine):
    """A machine with AMD GPUs.

    Args:
        seed: of all that is left to chance.
        chip: name of one GPU, or of each of several; see `gpu.sim.amd.chips`.
        faults: what goes wrong on purpose; see `gpu.sim.faults`. More may come by `faults.add`.
        stuck_wait_resets: whether removing a queue that stands at an unmet wait hangs the
            scheduler, and the kernel resets the GPU (hcq.md, "Preemption": it may).
        coherence: what caches do; see `gpu.sim.amd.chip.caches`.
        executor: runs kernels; without one a dispatch is an error.
        interface: minor version of KFD's interface: 17 is Linux 6.12's, 19 has CREATE_PROCESS too.

    Attributes: those of `Machine`, and
        gpus: for tests.
    """

    vendor = "AMD"
    calls = CALL_NAMES.values()
    gpus: list[KfdGpu]

    def __init__(
        self,
        seed: int = 0,
        chip: str | Sequence[str] = "gfx1100",
        *,
        faults: Given = (),
        stuck_wait_resets: bool = True,
        coherence: Mode = "check",
        executor: KernelExecutor | None = None,
        interface: int = 19,
    ):
        super().__init__(seed, faults, HOST_MEMORY)
        self.interface = interface
        self._stuck_wait_resets = stuck_wait_resets
        self._contexts: list[KfdProcess] = []
        self.gpus = self._make_gpus(chip, coherence, executor or NoExecutor())
        self.devices["/dev/kfd"] = self._open_kfd
        self._add_files()

    def _engines(self) -> list[HwQueue | KfdProcess]:
        return [*(queue for gpu in self.gpus for queue in gpu.queues), *self._evicted()]

    def _evicted(self) -> list[KfdProcess]:
        return [context for context in self._contexts if context.due_ns is not None]

    def _run_one(self) -> bool:
        for context in self._evicted():
            if context.due_ns is not None and context.due_ns <= self.clock.now_ns:
                restore(context)
        runnable = [queue for gpu in self.gpus for queue in gpu.runnable()]
        if runnable:
            self.rng.choice(runnable).run(self._steps())
        return bool(runnable)

    def end_process(self, process: SimProcess) -> list[str]:
        """Frees all that a process has; returns what it should have freed itself."""
        super().end_process(process)
        p: KfdProcess | None = process.state.pop(KfdProcess, None)
        if p is None:
            return []
        return free_process(p)

    def _make_gpus(
        self, chip: str | Sequence[str], coherence: Mode, executor: KernelExecutor
    ) -> list[KfdGpu]:
        names = [chip] if isinstance(chip, str) else list(chip)
        gpus: list[KfdGpu] = []
        for node, name in enumerate(names, 1):
            board = Board(find_chip(name), node, tuple(gpu.gpu_id for gpu in gpus))
            asic = Asic(board.chip, self, coherence, executor)
            gpus.append(KfdGpu(board, asic, self._host, self._stuck_wait_resets))
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
            p = self.new_context(process, is_primary=True)
            process.state[KfdProcess] = p
        return KfdFile(p, self.new_context)

    def new_context(self, process: SimProcess, is_primary: bool = False) -> KfdProcess:
        """What KFD keeps of a process from now on, or of one more context of it."""
        events = Events(self, process, self.gpus[0])
        made = KfdProcess(process, self.gpus, events, self.interface, is_primary)
        self._contexts = [context for context in self._contexts if not context.ended] + [made]
        return made


def _open_drm(gpu: KfdGpu, process: SimProcess) -> SimFile:
    gpu.check_plugged()
    return DrmFile(gpu)
