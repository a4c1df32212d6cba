"""A simulated machine with two NVIDIA GPUs as a target of the conformance suite."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from gpu.core.errors import OutOfMemory
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.nvk.gpu import open_gpu
from gpu.drivers.nv.port import QueueOptions, port_of
from gpu.hcq.device import HCQDevice
from gpu.hcq.ports import MemoryKind
from gpu.hcq.program import HCQProgram
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.world import World
from nv.kernels import LAYOUTS, WRITTEN, PythonKernels, cubin

NEAR_WRAP = (1 << 32) - 10
SMALL_VRAM = 4 << 20
COPYING = {"copies on compute queues": "taken"}


class RmTarget:
    """Devices of one world; each `open` takes the next of its GPUs.

    So that a fault of one leaves the other be.
    """

    def __init__(
        self,
        seed: int = 0,
        chip: str = "gh100",
        coherence: Literal["check", "oldest", "none"] = "check",
    ):
        self.kernels = PythonKernels()
        self.sim = NvSimWorld(
            seed=seed, chip=(chip, chip), coherence=coherence, executor=self.kernels
        )
        self.world = World(self.sim.os, self.sim.waiter)
        self._next = 0

    def open(self, *, near_wrap: bool = False, small: bool = False) -> HCQDevice:
        index, self._next = self._next, 1 - self._next
        port = port_of(open_gpu(self.world, index), QueueOptions(ring=1 << (10 if small else 14)))
        device = RmDevice(
            port,
            timeline_start=NEAR_WRAP if near_wrap else 0,
            command_memory=1 << (15 if small else 17),
            staging=1 << (13 if small else 18),
        )
        if small:  # so that memory runs out soon
            _leave(device, SMALL_VRAM)
        return device

    def program(self, device: HCQDevice, name: str) -> HCQProgram:
        assert isinstance(device, RmDevice)
        return device.load(cubin(device.target.sm, name), name, LAYOUTS[name], written=WRITTEN)

    def resources(self) -> tuple[int, ...]:
        maps = Path("/proc/self/maps").read_text().count("\n")
        return len(os.listdir("/proc/self/fd")), maps

    def complaints(self) -> list[str]:
        """What the model found wrong, and what is left of what was opened."""
        left = [f"{name}: {count}" for name, count in asdict(self.sim.usage()).items() if count]
        return [*map(str, self.sim.debug.violations), *left]

    def close(self) -> None:
        """End the world."""
        self.sim.close()


def _leave(device: RmDevice, room: int) -> None:
    """Takes all device memory but some."""
    left = device.exclusively(device.allocate, room, MemoryKind.VRAM)
    size = 1 << 40
    while size >= room:
        try:
            device.exclusively(device.allocate, size, MemoryKind.VRAM)
        except OutOfMemory:
            size //= 2
    device.exclusively(device.release, left)
