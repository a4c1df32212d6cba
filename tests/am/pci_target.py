"""Simulated cards on the PCI bus as a target of the conformance suite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from am.kernels import LAYOUTS, WRITTEN, PythonKernels, code_object
from gpu.core.firmware import Wanted
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.pci.port import PciPort, QueueOptions, open_pci
from gpu.hcq.device import HCQDevice
from gpu.hcq.program import HCQProgram
from gpu.sim.amd.chip.dispatch import KernelExecutor
from gpu.sim.amd.pci.world import AmPciWorld
from gpu.transport.pci.bus import HostPci
from gpu.transport.world import World

NEAR_WRAP = (1 << 32) - 10
SMALL_VRAM = 4 << 20


class PciTarget:
    """Devices of one world with two cards; each `open` takes the next."""

    def __init__(
        self,
        seed: int = 0,
        chip: str = "gfx1100",
        coherence: Literal["check", "oldest"] = "check",
        executor: KernelExecutor | None = None,
    ):
        self.kernels = PythonKernels()
        self.repeats = 400
        """How often checks that look for leaks allocate; they open a fortieth as often."""
        self.sim = AmPciWorld(
            seed=seed,
            chip=(chip, chip),
            executor=executor or self.kernels,
            coherence=coherence,
        )
        self.kernels.pause = lambda: self.sim.clock.advance(100_000)
        self.world = World(self.sim.os, self.sim.waiter, HostPci(self.sim.os))
        self._next = 0

    def load(self, wanted: Wanted) -> bytes:
        """Made-up firmware."""
        return self.sim.firmware[wanted.name]

    def open(self, *, near_wrap: bool = False, small: bool = False) -> HCQDevice:
        return self.open_gpu(None, near_wrap=near_wrap, small=small)

    def open_gpu(
        self, index: int | None, *, near_wrap: bool = False, small: bool = False
    ) -> AmDevice:
        """As `open`, of a certain GPU."""
        if index is None:
            index, self._next = self._next, 1 - self._next
        options = QueueOptions(
            compute_ring=1 << (14 if small else 16), copy_ring=1 << (12 if small else 16)
        )
        device = open_pci(
            self.world,
            index,
            options=options,
            load=self.load,
            timeline_start=NEAR_WRAP if near_wrap else 0,
            command_memory=1 << (13 if small else 16),
            staging=1 << (13 if small else 18),
        )
        if small:  # so that memory runs out soon, but not for queues
            device.channel("compute", 1)
            port = device.port
            assert isinstance(port, PciPort)
            pool = port.chip.vram.pool
            pool.alloc(pool.largest_hole - SMALL_VRAM)
        return device

    def program(self, device: HCQDevice, name: str) -> HCQProgram:
        assert isinstance(device, AmDevice)
        code = code_object(name, device.target.version)
        return device.load(code, name, LAYOUTS[name], written=WRITTEN)

    def resources(self) -> tuple[int, ...]:
        maps = Path("/proc/self/maps").read_text().count("\n")
        return len(os.listdir("/proc/self/fd")), maps

    def complaints(self) -> list[str]:
        """What the model found wrong."""
        return [str(each) for each in self.sim.debug.violations]

    def close(self) -> None:
        """End the world."""
        self.sim.close()
