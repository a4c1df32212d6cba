"""A simulated phone as a target of the conformance suite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpu.core.errors import OutOfMemory
from gpu.drivers.kgsl.device import KgslDevice
from gpu.drivers.kgsl.memory import GpuObject, Use
from gpu.hcq.device import HCQDevice
from gpu.hcq.program import HCQProgram
from gpu.transport.world import World
from kgsl.kernels import LAYOUTS, kernel

NEAR_WRAP = (1 << 32) - 10
SMALL_MEMORY = 4 << 20


class KgslTarget:
    """Devices of one world: contexts of one process on one GPU."""

    def __init__(self, **options: Any):
        """``options`` are those of the model; without one the test is skipped."""
        model = pytest.importorskip("gpu.sim.kgsl.world")
        lanes = pytest.importorskip("gpu.sim.kgsl.chip.lanes")
        self.sim = model.KgslWorld(executor=lanes.Ir3Executor(), **options)
        self.world = World(self.sim.os, self.sim.waiter)
        self.repeats = 300

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
            _limit(device)
        return device

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


def _limit(device: KgslDevice) -> None:
    """Leaves little memory: KGSL gives whatever the system has, and so does its model."""
    memory = device.port.memory
    hold, most = memory.hold, memory.in_use + SMALL_MEMORY

    def held(size: int, use: Use) -> GpuObject:
        if memory.in_use + size > most:
            raise OutOfMemory(f"{size} bytes: the test leaves no more")
        return hold(size, use)

    memory.hold = held  # type: ignore[method-assign]
