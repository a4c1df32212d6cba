"""A simulated phone as a target of the conformance suite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpu.drivers.kgsl.device import KgslDevice
from gpu.drivers.kgsl.memory import Use
from gpu.hcq.device import HCQDevice
from gpu.hcq.program import HCQProgram
from gpu.transport.world import World
from kgsl.kernels import LAYOUTS, kernel

NEAR_WRAP = (1 << 32) - 10
SMALL_MEMORY = 4 << 20


class KgslTarget:
    """Devices of one world: contexts of one process on one GPU."""

    def __init__(self, sim: Any):
        """``sim`` is a `KgslWorld`."""
        self.sim = sim
        self.world = World(sim.os, sim.waiter)
        self.repeats = 300
        self.open().close()

    def open(self, *, near_wrap: bool = False, small: bool = False) -> HCQDevice:
        return self.open_gpu(near_wrap=near_wrap, small=small)

    def open_gpu(self, *, near_wrap: bool = False, small: bool = False) -> KgslDevice:
        """As `open`."""
        device = KgslDevice.open(
            self.world,
            ring=1 << (16 if small else 18),
            timeline_start=NEAR_WRAP if near_wrap else 0,
            command_memory=1 << (13 if small else 16),
            staging=1 << (13 if small else 18),
        )
        if small:
            self._limit(device)
        return device

    def _limit(self, device: KgslDevice) -> None:
        """Leaves little memory, as KGSL gives whatever the system has."""
        memory = device.port.memory
        hold, most = memory.hold, memory.in_use + SMALL_MEMORY

        def held(size: int, use: Use) -> Any:
            if memory.in_use + size > most:
                memory._kgsl.allocate(1 << 40, 0)  # raises OutOfMemory
            return hold(size, use)

        memory.hold = held  # type: ignore[method-assign]

    def program(self, device: HCQDevice, name: str) -> HCQProgram:
        assert isinstance(device, KgslDevice)
        return device.load(kernel(name, device.port.chip.name), LAYOUTS[name], written=(0,))

    def resources(self) -> tuple[int, ...]:
        maps = Path("/proc/self/maps").read_text().count("\n")
        return len(os.listdir("/proc/self/fd")), maps

    def complaints(self) -> list[str]:
        """What the model found wrong, and what is left."""
        return [*map(str, self.sim.debug.violations), *map(str, self.sim.process.exit())]

    def close(self) -> None:
        """End the world."""
        self.sim.close()
