"""A machine with a simulated Adreno GPU behind KGSL: what a driver is given instead of a phone.

    world = KgslWorld(seed=1, chip="a630")
    driver = open_it(World(world.os, world.waiter))     # gpu.transport.world.World
    assert not world.debug.violations

`gpu.sim.machine.Machine` says when its rings work; calls that wait let them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gpu.core.errors import ConfigError
from gpu.sim.faults import Given
from gpu.sim.kgsl.chip.gpu import AdrenoGpu, Ring
from gpu.sim.kgsl.chip.launch import KernelExecutor, NoExecutor
from gpu.sim.kgsl.chips import find_chip
from gpu.sim.kgsl.driver.device import Device
from gpu.sim.kgsl.driver.file import CALL_NAMES, KgslFile
from gpu.sim.kgsl.driver.objects import Memory
from gpu.sim.kgsl.driver.sysfs import add_files
from gpu.sim.kgsl.releases import find_release
from gpu.sim.linecaches import Mode
from gpu.sim.machine import Machine
from gpu.sim.physical import Pool
from gpu.sim.process import SimFile, SimProcess

NODE: Final = "/dev/kgsl-3d0"
_MEMORY: Final = 16 << 30


@dataclass(frozen=True, slots=True)
class Usage:
    """What is held on a machine; equal before and after what gives everything back.

    Attributes:
        files: open descriptors of processes that live.
        objects, contexts, timelines: of all processes.
        pages: bytes of memory.
        mappings: of objects, by the CPU.
    """

    files: int
    objects: int
    contexts: int
    timelines: int
    pages: int
    mappings: int


class KgslWorld(Machine):
    """A machine with one Adreno GPU.

    Args:
        seed: of all that is left to chance.
        chip: the name of the GPU; see `gpu.sim.kgsl.chips`.
        kernel: "4.9", "4.19" or "2025"; see `gpu.sim.kgsl.releases`.
        faults: what goes wrong on purpose; see `gpu.sim.faults`. More may come by `faults.add`.
        coherence: what caches do; see `gpu.sim.kgsl.chip.caches`.
        executor: runs kernels; without one a dispatch is an error.
        page_faults: whether a page fault stops the GPU. It does not unless root has said so in
            sysfs (`ft_pagefault_policy`).

    Attributes: those of `Machine`, and
        gpus, device: for tests.

    Raises ConfigError for a chip or a kernel that is not known, or more chips than one.
    """

    vendor = "Qualcomm"
    calls = CALL_NAMES.values()
    lacks = ("ecc", "lost-doorbell", "late-doorbell")  # memory without checks, and no doorbells
    gpus: list[AdrenoGpu]
    call_ns = 1000

    def __init__(
        self,
        seed: int = 0,
        chip: str | Sequence[str] = "a630",
        *,
        kernel: str = "2025",
        faults: Given = (),
        coherence: Mode = "check",
        executor: KernelExecutor | None = None,
        page_faults: Literal["continue", "halt"] = "continue",
    ):
        names = [chip] if isinstance(chip, str) else list(chip)
        if len(names) != 1:
            raise ConfigError(f"{', '.join(names)}: KGSL has one GPU, {NODE}; name one")
        found, release = find_chip(names[0]), find_release(kernel)
        super().__init__(seed, faults, _MEMORY)
        self.gpus = [AdrenoGpu(found, self, coherence, executor or NoExecutor())]
        memory = Memory(self._host, Pool("CPU caches", _MEMORY), Pool("synced memory", _MEMORY))
        self.device = Device(self, self.gpus[0], release, memory)
        self.device.dispatcher.page_faults_halt = page_faults == "halt"
        self.devices[NODE] = self._open
        self.tree.add(NODE, b"")
        add_files(self, self.device)

    def _engines(self) -> list[Ring]:
        return self.gpus[0].rings

    def _run_one(self) -> bool:
        self.device.dispatcher.pump()
        runnable = self.gpus[0].runnable()
        if runnable:
            runnable[0].run(self._steps())
        return bool(runnable)

    def _time_passed(self) -> None:
        self.device.dispatcher.tick()

    def unmapped(self, process: SimProcess, address: int, size: int) -> None:
        """An object that was freed may go with its last mapping."""
        with self.lock, self.undisturbed:
            self.device.unmapped(process, address)

    def end_process(self, process: SimProcess) -> list[str]:
        """Its files have freed all, and say what it had not given back itself."""
        return super().end_process(process) + self.device.left_by(process)

    def close(self) -> None:
        """Ends all processes and gives the memory back."""
        super().close()
        self.device.close()

    def usage(self) -> Usage:
        """What is held now."""
        device = self.device
        owners = device.processes.values()
        return Usage(
            files=sum(process.open_files for process in self._processes),
            objects=sum(len(owner.objects) for owner in owners),
            contexts=len(device.contexts),
            timelines=len(device.timelines),
            pages=self._host.size - self._host.free_bytes,
            mappings=sum(len(owner.mapped) for owner in owners),
        )

    def _open(self, process: SimProcess) -> SimFile:
        return KgslFile(self.device, process)
