"""A simulated machine with two GPUs as a target of the conformance suite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from am.kernels import LAYOUTS, WRITTEN, PythonKernels, code_object
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.kfd.memory import Use
from gpu.drivers.am.kfd.port import ComputeKind, QueueOptions, open_kfd
from gpu.hcq.device import HCQDevice
from gpu.hcq.program import HCQProgram
from gpu.sim.amd.chip.dispatch import KernelExecutor
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.transport.world import World

NEAR_WRAP = (1 << 32) - 10
SMALL_VRAM = 4 << 20


class KfdTarget:
    """Devices of one world; each `open` takes the next of its GPUs.

    So that a fault of one leaves the other be, as it does in one process on hardware.
    """

    def __init__(
        self,
        seed: int = 0,
        chip: str = "gfx1100",
        compute: ComputeKind = "pm4",
        coherence: Literal["check", "oldest", "none"] = "check",
        executor: KernelExecutor | None = None,
        interface: int = 19,
    ):
        self.kernels = PythonKernels()
        self.repeats = 1000
        """How often checks that look for leaks allocate; they open a fortieth as often."""
        self.sim = KfdWorld(
            seed=seed,
            chip=(chip, chip),
            executor=executor or self.kernels,
            coherence=coherence,
            interface=interface,
        )
        self.kernels.pause = lambda: self.sim.clock.advance(100_000)
        self.world = World(self.sim.os, self.sim.waiter)
        self._compute: ComputeKind = compute
        self._next = 0
        for _ in range(2):  # what the process and the model keep of each GPU, from here on
            self.open().close()

    def open(self, *, near_wrap: bool = False, small: bool = False) -> HCQDevice:
        return self.open_gpu(None, near_wrap=near_wrap, small=small)

    def open_gpu(
        self, index: int | None, *, near_wrap: bool = False, small: bool = False
    ) -> AmDevice:
        """As `open`, of a certain GPU."""
        if index is None:
            index, self._next = self._next, 1 - self._next
        options = QueueOptions(
            compute=self._compute,
            compute_ring=1 << (14 if small else 16),
            copy_ring=1 << (12 if small else 16),
        )
        device = open_kfd(
            self.world,
            index,
            options=options,
            timeline_start=NEAR_WRAP if near_wrap else 0,
            command_memory=1 << (13 if small else 16),
            staging=1 << (13 if small else 18),
        )
        if small:  # so that memory runs out soon, but not for queues
            device.channel("compute", 1)
            memory = device.port.memory
            left = memory.kfd.available_memory(memory.gpu.gpu_id)
            memory.hold(left - SMALL_VRAM, Use.DATA)
        return device

    def program(self, device: HCQDevice, name: str) -> HCQProgram:
        assert isinstance(device, AmDevice)
        code = code_object(name, device.target.version)
        return device.load(code, name, LAYOUTS[name], written=WRITTEN)

    def resources(self) -> tuple[int, ...]:
        maps = Path("/proc/self/maps").read_text().count("\n")
        return len(os.listdir("/proc/self/fd")), maps

    def complaints(self) -> list[str]:
        """What the model found wrong, and what is left beside what a process keeps."""
        left = [thing for thing in self.sim.process.exit() if not _is_kept(thing)]
        return [*map(str, self.sim.debug.violations), *left]

    def close(self) -> None:
        """End the world."""
        self.sim.close()


def open_device(target: KfdTarget, index: int | None = None, *, small: bool = False) -> AmDevice:
    """A device of a GPU, by default the next."""
    return target.open_gpu(index, small=small)


def _is_kept(thing: str) -> bool:
    """Whether it is of the session: files, the page of events, the events of exceptions."""
    return thing.startswith("fd ")
